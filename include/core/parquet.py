"""Parquet files written row by row in bounded memory, whole or not at all, the same bytes for the same rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from include.core.errors import StorageError
from include.core.files import storage_errors, written_aside

ROW_GROUP_BYTES = 32 << 20
_READ_ROWS = 256

Row = dict[str, Any]


class RowWriter:
    """Collects rows into row groups of about 32 MiB."""

    def __init__(self, writer: pq.ParquetWriter, schema: pa.Schema) -> None:
        self._writer = writer
        self._schema = schema
        self._rows: list[Row] = []
        self._bytes = 0

    def write(self, row: Row) -> None:
        """Adds a row with exactly the schema's columns."""
        self._rows.append(row)
        self._bytes += sum(4 * len(v) if hasattr(v, "__len__") else 8 for v in row.values())
        if self._bytes >= ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Writes what has been collected as a row group."""
        if self._rows:
            self._writer.write_table(pa.Table.from_pylist(self._rows, schema=self._schema))
        self._rows, self._bytes = [], 0


@contextmanager
def parquet_writer(path: Path, schema: pa.Schema, metadata: Mapping[str, str]) -> Iterator[RowWriter]:
    """A RowWriter to a temporary name beside `path`, moved there when the body ends well."""
    described = schema.with_metadata({k: metadata[k] for k in sorted(metadata)})
    with (
        written_aside(path) as aside,
        pq.ParquetWriter(aside, described, compression="zstd", write_page_checksum=True) as file,
    ):
        rows = RowWriter(file, described)
        yield rows
        rows.flush()


def read_metadata(path: Path) -> dict[str, str]:
    """The file's own key-value metadata (Arrow's private entry left out)."""
    with _open(path) as file:
        raw = file.schema_arrow.metadata or {}
    return {k.decode(): v.decode() for k, v in raw.items() if k != b"ARROW:schema"}


def count_rows(path: Path) -> int:
    """Rows, from the footer."""
    with _open(path) as file:
        return int(file.metadata.num_rows)


def read_rows(path: Path, schema: pa.Schema) -> Iterator[Row]:
    """Streams the rows, lists as NumPy arrays (views that last as long as they are held).

    StorageError where the file isn't there, is damaged, or has another schema.
    """
    with _open(path) as file:
        if not file.schema_arrow.equals(schema, check_metadata=False):
            raise StorageError(
                f"{path} has other columns than it should.", do="Remove it and run its stage again."
            )
        try:
            for batch in file.iter_batches(batch_size=_READ_ROWS):
                yield from _rows(batch)
        except (pa.ArrowException, OSError) as error:
            raise _damaged(path, error) from None


def _rows(batch: pa.RecordBatch) -> Iterator[Row]:
    columns = [_values(column) for column in batch.columns]
    for values in zip(*columns, strict=True):
        yield dict(zip(batch.schema.names, values, strict=True))


def _values(column: pa.Array) -> Iterable[Any]:
    if not pa.types.is_list(column.type) or column.null_count:
        return column.to_pylist()  # type: ignore[no-any-return]
    flat, offsets = column.values.to_numpy(zero_copy_only=False), column.offsets.to_pylist()
    return [flat[start:end] for start, end in pairwise(offsets)]


@contextmanager
def _open(path: Path) -> Iterator[pq.ParquetFile]:
    with storage_errors(path):
        path.stat()
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error) from None
    with file:
        yield file


def _damaged(path: Path, error: Exception) -> StorageError:
    words = " ".join(str(error).split())[:200]
    return StorageError(f"{path} is damaged ({words}).", do="Remove it and run its stage again.")

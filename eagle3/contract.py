"""The Parquet contract, version 1, as the training side reads it; shards that break it are refused in a sentence."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from eagle3.errors import Eagle3Error

SCHEMA_VERSION = "1"

_LABEL = pa.dictionary(pa.int32(), pa.string())

SAMPLES = pa.schema(
    [
        pa.field("sample_id", pa.string(), nullable=False),
        pa.field("input_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("loss_mask", pa.list_(pa.uint8()), nullable=False),
        pa.field("prompt_len", pa.int32(), nullable=False),
        pa.field("seq_len", pa.int32(), nullable=False),
        pa.field("capture", _LABEL, nullable=False),
        pa.field("count_delta", pa.int32(), nullable=True),
        pa.field("round_trip_exact", pa.bool_(), nullable=False),
        pa.field("engine", _LABEL, nullable=False),
        pa.field("provider", _LABEL, nullable=False),
        pa.field("model", _LABEL, nullable=False),
        pa.field("finish_reason", _LABEL, nullable=False),
        pa.field("source_row", pa.string(), nullable=False),
    ]
)

_READ = ["sample_id", "input_ids", "loss_mask", "seq_len"]
_ONE_TARGET = ("target", "tokenizer_digest", "template_digest")


@dataclass(frozen=True)
class Shards:
    """Shards that may be trained on together: one target, one tokenizer, all audited."""

    paths: tuple[Path, ...]
    target: str
    control_ids: tuple[int, ...]
    rows: int

    def batches(self, rows: int = 1024) -> Iterator[tuple[Path, pa.RecordBatch]]:
        """Streams (shard, rows of it) with the columns that training reads; raises Eagle3Error on damage."""
        for path in self.paths:
            try:
                with pq.ParquetFile(path, page_checksum_verification=True) as file:
                    for batch in file.iter_batches(batch_size=rows, columns=_READ):
                        yield path, batch
            except (OSError, pa.ArrowException) as error:
                raise _damaged(path, error) from None


def open_shards(paths: Sequence[Path]) -> Shards:
    """Checks every shard's columns and metadata; raises Eagle3Error before anything expensive is done."""
    if not paths:
        raise Eagle3Error("There is no shard to train on. Export one first, or name it under `data`.")
    described = {path: _metadata(path) for path in paths}
    first = described[paths[0]]
    for path, metadata in described.items():
        for key in _ONE_TARGET:
            if metadata.get(key) != first.get(key):
                raise Eagle3Error(
                    f"{path} has another {key} ({metadata.get(key)}) than {paths[0]} ({first.get(key)}). "
                    "Train on shards of one target only."
                )
    control = {
        int(v)
        for key in ("control_tokens", "special_tokens")
        for v in json.loads(first.get(key, "{}")).values()
    }
    rows = sum(pq.read_metadata(path).num_rows for path in paths)
    if rows == 0:
        raise Eagle3Error(f"{', '.join(map(str, paths))}: no rows. Export shards with samples.")
    return Shards(tuple(paths), first.get("target", ""), tuple(sorted(control)), rows)


def _metadata(path: Path) -> dict[str, str]:
    try:
        schema = pq.read_schema(path)
    except FileNotFoundError:
        raise Eagle3Error(f"{path} isn't there. Sync the data again.") from None
    except (OSError, pa.ArrowException) as error:
        raise _damaged(path, error) from None
    if not schema.equals(SAMPLES, check_metadata=False):
        ours, theirs = {f.name: f.type for f in SAMPLES}, {f.name: f.type for f in schema}
        wrong = [n for n in ours.keys() | theirs.keys() if ours.get(n) != theirs.get(n)]
        raise Eagle3Error(
            f"{path} isn't of contract version {SCHEMA_VERSION}: {', '.join(sorted(wrong)) or 'the order of columns'} "
            "differ(s). Export the shard again."
        )
    metadata = {k.decode(): v.decode() for k, v in (schema.metadata or {}).items()}
    if metadata.get("schema_version") != SCHEMA_VERSION:
        raise Eagle3Error(
            f"{path} says schema_version {metadata.get('schema_version')}, this code reads {SCHEMA_VERSION}. "
            "Export the shard again."
        )
    if metadata.get("audit_verdict") != "pass":
        raise Eagle3Error(
            f"{path} hasn't passed its audit (audit_verdict {metadata.get('audit_verdict')}). "
            "Only audited shards are trained on."
        )
    return metadata


def _damaged(path: Path, error: Exception) -> Eagle3Error:
    return Eagle3Error(f"{path} can't be read ({' '.join(str(error).split())[:160]}). Sync it again.")

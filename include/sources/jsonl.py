"""Rows of a JSONL file by line number; a broken line stops the stage and is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from include.core.errors import SourceError

Row = dict[str, Any]


def read_rows(path: Path, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, Row]]:
    """Yields (row number from 0, row) for the rows in [start, stop); blank lines count and are refused.

    Raises SourceError naming the file, the line (from 1) and what is wrong with it.
    """
    for number, line in enumerate(_lines(path)):
        if stop is not None and number >= stop:
            return
        if number >= start:
            yield number, _parse(path, number, line)


def count_rows(path: Path) -> int:
    """How many rows the file has."""
    return sum(1 for _ in _lines(path))


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            yield from file
    except OSError as error:
        raise SourceError(
            f"The source {path} can't be read: {error.strerror}.",
            do="Fix `source.path` in the dataset's YAML.",
        ) from None


def _parse(path: Path, number: int, line: bytes) -> Row:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise broken_line(path, number, f"isn't valid JSON ({error})") from None
    except RecursionError:
        raise broken_line(path, number, "isn't valid JSON (it nests too deep)") from None
    if not isinstance(row, dict):
        raise broken_line(path, number, f"is a JSON {type(row).__name__}, not an object")
    return row


def broken_line(path: Path, number: int, why: str) -> SourceError:
    """The error for row `number` (from 0) of `path`."""
    return SourceError(
        f"{path} line {number + 1} {why}.", do="Fix or remove the line and run the task again."
    )

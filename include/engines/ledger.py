"""The ledger: every finished request of a shard, append-only, durable before it counts.

One JSON object a line. A line that was cut by a crash is dropped at the next opening (its request is asked again);
whatever stands before it is kept. One process at a time holds a ledger.
"""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson

from include.core.errors import LedgerError
from include.core.files import storage_errors
from include.core.records import GenerationRecord


@dataclass(frozen=True)
class _Place:
    """Where the newest entry for one request stands, and what came of it."""

    offset: int
    length: int
    outcome: str


class Ledger:
    """An open ledger, locked for writing. Memory holds one small entry a sample, never the ids."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged_lines = 0
        self._places: dict[tuple[str, str], _Place] = {}
        self._samples: set[str] = set()
        self._discards: Counter[tuple[str, str]] = Counter()
        with storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            self._lock()
            self._recover()
        except BaseException:
            os.close(self._fd)
            raise

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def settled(self, sample_id: str, request: str) -> bool:
        """Whether this very request was answered or left out for good; a failed or discarded one is asked again."""
        place = self._places.get((sample_id, request))
        return place is not None and place.outcome not in ("failed", "discarded")

    def discards(self, sample_id: str, request: str) -> int:
        """How many answers to this very request were discarded."""
        return self._discards[sample_id, request]

    def discard(self, is_malformed: Callable[[str], bool], reason: str, at: str) -> int:
        """Discards the answers of the samples that `is_malformed` names, so that they are asked for again; how many.

        Nothing is erased: an entry says from now on that the answer before it doesn't count.
        """
        keys = [key for key, place in self._places.items() if place.outcome == "answered"]
        records = [self.record(*key) for key in keys if is_malformed(key[0])]
        self.append(
            replace(record, outcome="discarded", reason=reason, output_ids=[], text=None, at=at)
            for record in records
            if record is not None
        )
        return len(records)

    def append(self, records: Iterable[GenerationRecord]) -> None:
        """Writes the records and returns when they are on the disk."""
        lines = [(record, orjson.dumps(record) + b"\n") for record in records]
        with storage_errors(self.path):
            start = os.fstat(self._fd).st_size
            try:
                _write_all(self._fd, b"".join(line for _, line in lines))
                os.fdatasync(self._fd)
            except OSError:
                os.ftruncate(self._fd, start)  # a full disk must not leave half a line before the next append
                raise
        for record, line in lines:
            self._index(record.sample_id, record.request, _Place(start, len(line), record.outcome))
            start += len(line)

    def record(self, sample_id: str, request: str) -> GenerationRecord | None:
        """The newest entry for this very request."""
        place = self._places.get((sample_id, request))
        if place is None:
            return None
        with storage_errors(self.path):
            line = os.pread(self._fd, place.length, place.offset)
        return GenerationRecord(**orjson.loads(line))

    def outdated(self, sample_id: str, request: str) -> bool:
        """Whether there are entries for this sample, but for other requests (prompt or sampling has changed)."""
        return sample_id in self._samples and (sample_id, request) not in self._places

    def _index(self, sample_id: str, request: str, place: _Place) -> None:
        self._places[sample_id, request] = place
        self._samples.add(sample_id)
        self._discards[sample_id, request] += place.outcome == "discarded"

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise LedgerError(
                f"Another process is writing {self.path}.",
                do="Wait for the run that works on this shard, or stop it; then run this task again.",
                retryable=True,
            ) from None

    def _recover(self) -> None:
        """Indexes the whole lines and cuts off what stands after the last of them."""
        end = 0
        for offset, line in _whole_lines(self.path):
            end = offset + len(line)
            entry = _entry(line)
            if entry is None:
                self.damaged_lines += 1
            else:
                self._index(entry["sample_id"], entry["request"], _Place(offset, len(line), entry["outcome"]))
        with storage_errors(self.path):
            if os.fstat(self._fd).st_size > end:
                self.damaged_lines += 1
                os.ftruncate(self._fd, end)


def _whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    offset = 0
    with storage_errors(path), path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield offset, line
            offset += len(line)


def _entry(line: bytes) -> dict[str, Any] | None:
    try:
        entry = orjson.loads(line)
        GenerationRecord(**entry)
    except (orjson.JSONDecodeError, TypeError):
        return None
    return dict(entry)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]

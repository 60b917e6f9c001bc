"""The ledger keeps what was finished through crashes, full disks and second writers."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from include.core.errors import LedgerError, StorageError
from include.core.records import GenerationRecord, Outcome
from include.engines.ledger import Ledger


def record(sample: str, request: str = "r", outcome: Outcome = "answered") -> GenerationRecord:
    return GenerationRecord(
        sample,
        request,
        outcome,
        "",
        "stop",
        [5, 6, 2],
        3,
        3,
        "vllm",
        "engine",
        "m",
        1,
        0.1,
        "2026-01-01T00:00:00Z",
    )


def test_what_was_appended_is_there_after_reopening(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.append([record("a"), record("b", outcome="left_out")])
        ledger.append([record("c", outcome="failed")])
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        assert ledger.record("a", "r") == record("a")
        assert ledger.settled("a", "r")
        assert ledger.settled("b", "r")
        assert not ledger.settled("c", "r"), "a failed request is asked again"
        assert not ledger.settled("a", "another prompt or sampling")
        assert ledger.outdated("a", "another prompt or sampling")
        assert ledger.record("unknown", "r") is None


def test_a_later_answer_replaces_a_failure(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.append([record("a", outcome="failed")])
        ledger.append([record("a")])
        assert ledger.settled("a", "r")
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        assert ledger.settled("a", "r")


def test_cut_at_every_byte_of_the_last_record_loses_only_that_record(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        ledger.append([record("a"), record("b")])
        ledger.append([record("c")])
    whole = path.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    for cut in range(last, len(whole)):
        path.write_bytes(whole[:cut])
        with Ledger(path) as ledger:
            assert ledger.settled("a", "r")
            assert ledger.settled("b", "r")
            assert not ledger.settled("c", "r")
            assert ledger.damaged_lines == (cut > last)
            ledger.append([record("c")])
        assert path.read_bytes() == whole


@settings(max_examples=60, deadline=None)
@given(
    batches=st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=4), max_size=6),
    noise=st.binary(max_size=40),
)
def test_any_tail_of_noise_is_cut_off(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[str]], noise: bytes
) -> None:
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    with Ledger(path) as ledger:
        for batch in batches:
            ledger.append([record(name) for name in batch])
    with path.open("ab") as file:
        file.write(noise.replace(b"\n", b""))
    with Ledger(path) as ledger:
        assert all(ledger.settled(name, "r") for batch in batches for name in batch)
        ledger.append([record("new")])
    with Ledger(path) as ledger:
        assert ledger.damaged_lines == 0
        assert ledger.record("new", "r") == record("new")


def test_a_damaged_line_in_the_middle_is_counted_and_the_rest_kept(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        ledger.append([record("a"), record("b"), record("c")])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b'{"sample_id": "b", half\n' + lines[2])
    with Ledger(path) as ledger:
        assert ledger.damaged_lines == 1
        assert ledger.settled("a", "r")
        assert not ledger.settled("b", "r")
        assert ledger.settled("c", "r")


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    code = f"from pathlib import Path; from include.engines.ledger import Ledger; Ledger(Path({str(path)!r}))"
    with Ledger(path):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path.cwd())
        assert "LedgerError: Another process is writing" in done.stderr
        with pytest.raises(LedgerError, match="Another process is writing"):
            Ledger(path)
    with Ledger(path):
        pass


def test_a_full_disk_in_the_middle_of_a_line_leaves_whole_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.jsonl"
    real_write = os.write

    def full(fd: int, data: bytes) -> int:
        real_write(fd, bytes(data[:20]))
        raise OSError(errno.ENOSPC, "No space left on device")

    with Ledger(path) as ledger:
        ledger.append([record("a")])
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(StorageError, match="the disk is full"):
                ledger.append([record("b")])
        assert not ledger.settled("b", "r")
        ledger.append([record("c")])
    with Ledger(path) as ledger:
        assert ledger.damaged_lines == 0
        assert ledger.settled("a", "r")
        assert ledger.settled("c", "r")

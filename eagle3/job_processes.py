"""The processes of a job, found by a mark in their environment: whoever has lost its parent carries it too."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

MARK = "EAGLE3_JOB"
_PROC = Path("/proc")


def environment(token: str) -> dict[str, str]:
    """What the job's command gets so that it and its children are found again.

    Without SPT_NOENV a process that sets its title (vLLM, SGLang) overwrites the place where the mark is read.
    """
    return {MARK: token, "SPT_NOENV": "1"}


def members(token: str) -> list[int]:
    """The live processes that carry the job's token, and all that descend from them; never this one."""
    parents = _parents()
    mark = f"{MARK}={token}".encode()
    found = {pid for pid in parents if _carries(pid, mark)}
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found}
        grown = not more <= found
        found |= more
    return sorted(found - {os.getpid()})


def end(token: str, grace_s: float) -> list[int]:
    """TERM to all of them, after `grace_s` KILL; returns who there was once none is left."""
    first = members(token)
    _send(first, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while left := members(token):
        if time.monotonic() > deadline + grace_s:
            break  # one that not even KILL ends hangs in the kernel (a dead disk or GPU)
        if time.monotonic() > deadline:
            _send(left, signal.SIGKILL)
        time.sleep(0.05)
    return first


def _send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def _parents() -> dict[int, int]:
    """pid → parent's pid of every live process (zombies are dead)."""
    found = {}
    for folder in _PROC.iterdir():
        if folder.name.isdigit():
            try:
                state, parent, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
            except (OSError, ValueError):
                continue
            if state not in ("Z", "X"):
                found[int(folder.name)] = int(parent)
    return found


def _carries(pid: int, mark: bytes) -> bool:
    try:
        return mark in (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False

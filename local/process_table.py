"""Who runs, read from /proc: enough to find and end every process that a service has begotten."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class Entry:
    """One live process; `started` (clock ticks since boot) tells it from a later one with the same pid."""

    pid: int
    parent: int
    group: int
    session: int
    has_terminal: bool
    started: int


def entry(pid: int) -> Entry | None:
    """The live process with this pid; None if there is none or it is a zombie."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    state, parent, group, session, terminal, *rest = text.rpartition(")")[2].split()
    if state in ("Z", "X"):
        return None
    return Entry(pid, int(parent), int(group), int(session), terminal != "0", started=int(rest[14]))


def everyone() -> list[Entry]:
    """All live processes."""
    found = (entry(int(folder.name)) for folder in PROC.iterdir() if folder.name.isdigit())
    return [process for process in found if process is not None]


def family(leader: int, mark: str) -> list[Entry]:
    """The leader's session and descendants, and every process whose environment carries `mark` (NAME=value).

    The mark also finds what has gone into a session of its own and lost its parent.
    """
    processes = everyone()
    members = {leader}
    grown = True
    while grown:
        more = {p.pid for p in processes if p.session == leader or p.group == leader or p.parent in members}
        grown = not more <= members
        members |= more
    return [p for p in processes if p.pid != os.getpid() and (p.pid in members or _carries(p.pid, mark))]


def below(folder: Path) -> list[Entry]:
    """Background processes that work in the folder or in one below it; a person's shell there is none."""
    return [
        p for p in everyone() if not p.has_terminal and p.pid != os.getpid() and _works_below(p.pid, folder)
    ]


def begotten_below(folder: Path, mark_name: str) -> list[Entry]:
    """Processes that work below the folder, name a path below it, or carry a mark that does."""
    path = f"{folder}{os.sep}".encode()
    mark = f"{mark_name}=".encode() + path
    return [
        process
        for process in everyone()
        if process.pid != os.getpid()
        and (
            _works_below(process.pid, folder)
            or any(path in word for word in _words(process.pid, "cmdline"))
            or any(word.startswith(mark) for word in _words(process.pid, "environ"))
        )
    ]


def end(processes: Iterable[Entry], sign: signal.Signals) -> None:
    """Sends a signal to each that still is who it was."""
    for process in processes:
        now = entry(process.pid)
        if now is not None and now.started == process.started:
            try:
                os.kill(process.pid, sign)
            except (ProcessLookupError, PermissionError):
                continue


def _carries(pid: int, mark: str) -> bool:
    return mark.encode() in _words(pid, "environ")


def _works_below(pid: int, folder: Path) -> bool:
    try:
        return (PROC / str(pid) / "cwd").readlink().is_relative_to(folder)
    except OSError:
        return False


def _words(pid: int, file: str) -> list[bytes]:
    try:
        return (PROC / str(pid) / file).read_bytes().split(b"\0")
    except OSError:
        return []

"""A detached job on this host: python -m eagle3.job start|status|stop --dir DIR …

Standard library only. A supervisor holds a lock on DIR for as long as the job lives, so there is one job a folder;
DIR/state.json says what came of it, DIR/log is its output. Each command prints MARK and then one JSON line.
"""

from __future__ import annotations

import argparse
import codecs
import fcntl
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from eagle3 import job_processes

MARK = "eagle3.job:"
_GRACE_S = 10.0
_FULL_DISK_S = 600.0
State = dict[str, Any]


def start(folder: Path, command: list[str], env: dict[str, str], again: bool = False) -> State:
    """Starts the job and returns at once; where one runs, or has succeeded, that one's state is returned instead.

    What a lost job has left running is ended first: two trainings never write the same checkpoints.
    """
    folder.mkdir(parents=True, exist_ok=True)
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(reader)
        _detach()
        _supervise(folder, command, env, again, writer)
    os.close(writer)
    with os.fdopen(reader) as ready:
        refusal = ready.read()  # the supervisor closes it once the state is written
    if refusal:
        return {"state": "none", "error": refusal}
    return status(folder)


def status(folder: Path) -> State:
    """The job's state: none, running, succeeded, failed (exit_code or signal), or lost (it ended without a word)."""
    state = _recorded(folder)
    if state["state"] == "running" and not _is_locked(folder):
        # between the two looks the supervisor may have written its last word
        state = _recorded(folder)
        if state["state"] == "running":
            rebooted = state.get("boot_id") != _boot_id()
            why = "the host was rebooted" if rebooted else "its supervisor was killed"
            return state | {"state": "lost", "why": why}
    return state


def stop(folder: Path) -> State:
    """Ends every process of the job: TERM, after ten seconds KILL."""
    state = status(folder)
    if state["state"] in ("running", "lost") and "token" in state:
        (folder / "stop").touch()
        job_processes.end(state["token"], _GRACE_S)
        deadline = time.monotonic() + _GRACE_S
        while _is_locked(folder) and time.monotonic() < deadline:
            time.sleep(0.02)
    return status(folder)


def read_log(folder: Path, offset: int, limit: int, *, ended: bool) -> tuple[str, int]:
    """(text, next offset): whole lines from `offset` on, at most `limit` bytes; a longer line comes in pieces.

    A negative offset counts from the end. One beyond the end is of an older log: the new one is read from its start.
    A carriage return ends a line where there is no newline (progress bars).
    """
    limit = max(limit, 4)  # room for any one character
    try:
        with (folder / "log").open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            offset = max(0, size + offset) if offset < 0 else 0 if offset > size else offset
            file.seek(offset)
            chunk = file.read(limit)
    except FileNotFoundError:
        return "", 0
    end = chunk.rfind(b"\n") + 1 or chunk.rfind(b"\r") + 1
    if end:
        return chunk[:end].decode("utf-8", errors="replace"), offset + end
    if len(chunk) < limit and not ended:
        return "", offset
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(chunk, final=len(chunk) < limit)
    return text, offset + len(chunk) - len(decoder.getstate()[0])  # half a character waits for its other half


def _supervise(folder: Path, command: list[str], env: dict[str, str], again: bool, ready: int) -> NoReturn:
    """The detached process: becomes the folder's one supervisor, or finds that it isn't needed. Never returns."""
    try:
        lock = _lock_or_attach(folder)
        before = _recorded(folder)
        if lock is not None and (again or before["state"] != "succeeded"):
            _run(folder, command, env, before, ready)
    except Exception as error:
        os.write(ready, _in_words(error).encode())
    finally:
        os._exit(0)


def _lock_or_attach(folder: Path) -> int | None:
    """The lock, or None where another supervisor holds it and has said that its job runs."""
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    deadline = time.monotonic() + 2 * _GRACE_S + 5
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except BlockingIOError:
            state = _recorded(folder)
            if state["state"] == "running" and _lives(state.get("supervisor", 0)):
                return None
            if time.monotonic() > deadline:
                return None
            time.sleep(0.02)


def _run(folder: Path, command: list[str], env: dict[str, str], before: State, ready: int) -> None:
    """Runs the command under the lock, writes what came of it."""
    left = job_processes.end(before["token"], _GRACE_S) if "token" in before else []
    if left and (immortal := job_processes.members(before["token"])):
        raise OSError(f"the processes {immortal} of the job before can't be ended; reboot the host")
    (folder / "stop").unlink(missing_ok=True)
    state: State = {
        "state": "failed",
        "command": command,
        "release": Path.cwd().name,
        "token": secrets.token_hex(8),
        "supervisor": os.getpid(),
        "boot_id": _boot_id(),
        "started_at": time.time(),
    }
    log = folder / "log"
    if log.exists():
        log.replace(folder / "log.before")
    with log.open("ab", buffering=0) as output:
        if left:
            output.write(f"(processes that the job before had left, now ended: {len(left)})\n".encode())
        try:
            process = subprocess.Popen(
                [os.path.expanduser(command[0]), *command[1:]],  # noqa: PTH111
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={
                    "PYTHONDONTWRITEBYTECODE": "1",  # a release holds nothing but what was sent
                    **os.environ,
                    **env,
                    **job_processes.environment(state["token"]),
                },
            )
        except OSError as error:
            output.write(f"eagle3: error: {command[0]} can't be started: {error.strerror}.\n".encode())
            _write(folder, state | {"exit_code": 127, "finished_at": time.time()})
            return
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        state |= {"pid": process.pid, "pgid": process.pid}
        _write(folder, state | {"state": "running"})
        os.close(ready)
        code = process.wait()
        if left := job_processes.end(state["token"], _GRACE_S):
            output.write(f"(processes that outlived the command, now ended: {len(left)})\n".encode())
    outcome: State = {"exit_code": code} if code >= 0 else {"signal": -code}
    if (folder / "stop").exists():
        outcome["stopped"] = True
    outcome |= {"state": "succeeded" if code == 0 else "failed", "finished_at": time.time()}
    _write(folder, state | outcome, patience_s=_FULL_DISK_S)


def _detach() -> None:
    """Lets go of the SSH session: own session, no terminal, no inherited streams."""
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)


def _recorded(folder: Path) -> State:
    """What state.json says; written whole or not at all, so there is no half of it."""
    try:
        state: State = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {"state": "none"}
    return state


def _write(folder: Path, state: State, *, patience_s: float = 0.0) -> None:
    """state.json in one step; on a full disk it is tried for `patience_s`, or the job would count as lost."""
    deadline = time.monotonic() + patience_s
    aside = folder / f".state.json.{os.getpid()}"
    while True:
        try:
            with aside.open("w", encoding="utf-8") as file:
                json.dump(state, file)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(folder / "state.json")
            return
        except OSError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(5)


def _is_locked(folder: Path) -> bool:
    try:
        handle = os.open(folder / "lock", os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(handle)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid > 0


def _in_words(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename} can't be used: {error.strerror}"
    return str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m eagle3.job", description=__doc__)
    parser.add_argument("action", choices=("start", "status", "stop"))
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--again", action="store_true", help="start even where the last job succeeded")
    parser.add_argument("--offset", type=int, default=0, help="negative: from the log's end")
    parser.add_argument("--limit", type=int, default=1 << 18)
    given = sys.argv[1:]
    at = given.index("--") if "--" in given else len(given)
    args, command = parser.parse_args(given[:at]), given[at + 1 :]
    if args.action == "start" and not command:
        parser.error("start needs a command after --")
    try:
        if args.action == "start":
            answer = start(args.dir, command, dict(item.split("=", 1) for item in args.env), args.again)
        elif args.action == "stop":
            answer = stop(args.dir)
        else:
            answer = status(args.dir)
            ended = answer["state"] != "running"
            text, offset = read_log(args.dir, args.offset, args.limit, ended=ended)
            answer = answer | {"log": text, "offset": offset}
    except OSError as error:
        answer = {"state": "none", "error": _in_words(error)}
    print(f"{MARK}\n{json.dumps(answer)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

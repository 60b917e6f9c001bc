"""A detached job on this host: python -m eagle3.job start|status|stop --dir DIR …

Standard library only. A supervisor holds a lock on DIR for as long as the job lives, so there is one job a folder;
DIR/state.json says what came of it, DIR/log is its output. Each command prints MARK and then one JSON line.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

MARK = "eagle3.job:"
_GRACE_S = 10.0
State = dict[str, Any]


def start(folder: Path, command: list[str], env: dict[str, str], again: bool) -> State:
    """Starts the job and returns at once; where one runs, or has succeeded, that one's state is returned instead."""
    folder.mkdir(parents=True, exist_ok=True)
    state = status(folder)
    if state["state"] == "running" or (state["state"] == "succeeded" and not again):
        return state
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(reader)
        _detach()
        _supervise(folder, command, env, writer)
    os.close(writer)
    with os.fdopen(reader) as ready:
        ready.read()  # the supervisor closes it once the state is written
    return status(folder)


def status(folder: Path) -> State:
    """The job's state: none, running, succeeded, failed (exit_code or signal), or lost (it ended without a word)."""
    try:
        state: State = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {"state": "none"}
    if state["state"] == "running" and not _is_locked(folder):
        # between the two looks the supervisor may have written its last word
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        if state["state"] == "running":
            rebooted = state.get("boot_id") != _boot_id()
            return state | {
                "state": "lost",
                "why": "the host was rebooted" if rebooted else "its supervisor was killed",
            }
    return state


def stop(folder: Path) -> State:
    """Ends the job's whole process group: TERM, after ten seconds KILL."""
    state = status(folder)
    if state["state"] in ("running", "lost") and state.get("boot_id") == _boot_id():
        for sig in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(state["pgid"], sig)
            except ProcessLookupError:
                break
            deadline = time.monotonic() + _GRACE_S
            while time.monotonic() < deadline and _group_lives(state["pgid"]):
                time.sleep(0.1)
        while _is_locked(folder):
            time.sleep(0.05)
    return status(folder)


def read_log(folder: Path, offset: int, limit: int) -> tuple[str, int]:
    """(text, next offset): whole lines from `offset` on, at most `limit` bytes; a longer line comes in pieces."""
    try:
        with (folder / "log").open("rb") as file:
            file.seek(offset)
            chunk = file.read(limit)
    except OSError:
        return "", offset
    end = chunk.rfind(b"\n") + 1
    if end == 0 and (len(chunk) == limit or not _is_locked(folder)):
        end = len(chunk)
    return chunk[:end].decode("utf-8", errors="replace"), offset + end


def _supervise(folder: Path, command: list[str], env: dict[str, str], ready: int) -> None:
    """The detached process: takes the lock, runs the command, writes what came of it. Never returns."""
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os._exit(0)  # another start was faster: its job is the one
    state: State = {"state": "failed", "command": command, "boot_id": _boot_id(), "started_at": time.time()}
    log = folder / "log"
    if log.exists():
        log.replace(folder / "log.before")
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **env},
            )
        except OSError as error:
            output.write(f"eagle3: error: {command[0]} can't be started: {error.strerror}.\n".encode())
            output.flush()
            _write(folder, state | {"exit_code": 127, "finished_at": time.time()})
            os._exit(0)
        state |= {"pid": process.pid, "pgid": process.pid}
        _write(folder, state | {"state": "running"})
        os.close(ready)
        code = process.wait()
    outcome: State = {"exit_code": code} if code >= 0 else {"signal": -code}
    _write(
        folder,
        state | outcome | {"state": "succeeded" if code == 0 else "failed", "finished_at": time.time()},
    )
    os._exit(0)


def _detach() -> None:
    """Lets go of the SSH session: own session, no terminal, no inherited streams."""
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)


def _write(folder: Path, state: State) -> None:
    aside = folder / f".state.json.{os.getpid()}"
    with aside.open("w", encoding="utf-8") as file:
        json.dump(state, file)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(folder / "state.json")


def _is_locked(folder: Path) -> bool:
    try:
        handle = os.open(folder / "lock", os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        return False
    finally:
        os.close(handle)


def _group_lives(pgid: int) -> bool:
    try:
        os.killpg(pgid, 0)
    except ProcessLookupError:
        return False
    return True


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
    parser.add_argument("--offset", type=int, default=0)
    parser.add_argument("--limit", type=int, default=1 << 18)
    given = sys.argv[1:]
    at = given.index("--") if "--" in given else len(given)
    args, command = parser.parse_args(given[:at]), given[at + 1 :]
    if args.action == "start":
        answer = start(args.dir, command, dict(item.split("=", 1) for item in args.env), args.again)
    elif args.action == "stop":
        answer = stop(args.dir)
    else:
        answer = status(args.dir)
        text, offset = read_log(args.dir, args.offset, args.limit)
        answer = answer | {"log": text, "offset": offset}
    print(f"{MARK}\n{json.dumps(answer)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

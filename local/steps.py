"""One command of an installation: a line with its seconds on the terminal, everything else in the log."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from local.errors import LocalError

_TAIL_LINES = 12


def tail(path: Path, lines: int = _TAIL_LINES) -> str:
    """The last lines of a log, indented, for an error sentence; says so when there is nothing."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 16_384))
            text = file.read().decode(errors="replace")
    except OSError:
        text = ""
    found = [line.rstrip()[:300] for line in text.splitlines() if line.strip()][-lines:]
    return "\n".join(f"    {line}" for line in found) or "    (the log is empty)"


@contextmanager
def timed(title: str) -> Iterator[None]:
    """Prints `title` when the body begins, and again with its seconds when it ends well."""
    print(f"{title} …", flush=True)
    started = time.monotonic()
    yield
    print(f"{title}: {time.monotonic() - started:.0f} s", flush=True)


def run_step(
    argv: Sequence[str], log: Path, *, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> None:
    """Runs a command, output appended to `log`; LocalError names command and log, with its last lines."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as out:
        print("$", *argv, file=out, flush=True)
        try:
            done = subprocess.run(
                argv, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=env, cwd=cwd, check=False
            )
        except OSError as error:
            raise LocalError(f"{argv[0]} can't be run: {error.strerror}.") from None
    if done.returncode:
        shown = " ".join(argv[:6]) + (" …" if len(argv) > 6 else "")
        how = f"with status {done.returncode}" if done.returncode > 0 else f"by signal {-done.returncode}"
        raise LocalError(f"`{shown}` ended {how}. Its log is {log}; the end of it:\n{tail(log)}")

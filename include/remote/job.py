"""A detached job on the GPU host: started once, followed over any number of connections, its end told in words."""

from __future__ import annotations

import json
import posixpath
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import paramiko

from include.core.errors import JobError, RemoteError
from include.remote.files import read_text
from include.remote.ssh import run

MARK = "eagle3.job:"
ERROR = "eagle3: error: "
_TAIL = 8

Connect = Callable[[], AbstractContextManager[paramiko.SSHClient]]


@dataclass(frozen=True)
class RemoteJob:
    """A job in `folder` on the host, run from the release `release` by its `python`. `name` stands in messages."""

    name: str
    connect: Connect
    release: str
    folder: str
    python: str
    patience_s: float = 300

    def start(self, argv: Sequence[str], env: Mapping[str, str]) -> dict[str, Any]:
        """Starts it, unless it runs or has succeeded; returns its state."""
        pairs = [part for name, value in env.items() for part in ("--env", f"{name}={value}")]
        with self.connect() as client:
            return self._ask(client, ["start", "--dir", self.folder, *pairs, "--", *argv])

    def follow(self, on_line: Callable[[str], None], *, every_s: float = 1.0) -> None:
        """Passes the log's lines on until the job ends; JobError where it didn't end well.

        A broken connection is made again for up to `patience_s`: the job doesn't notice.
        """
        offset, since = 0, time.monotonic()
        last: list[str] = []
        while True:
            try:
                with self.connect() as client:
                    while True:
                        answer = self._ask(client, ["status", "--dir", self.folder, "--offset", str(offset)])
                        since = time.monotonic()
                        for line in answer["log"].splitlines():
                            on_line(line)
                            last = [*last[-50:], line]
                        moved, offset = answer["offset"] > offset, answer["offset"]
                        if answer["state"] != "running" and not moved:
                            return self._ended(client, answer, last)
                        if not moved:
                            time.sleep(every_s)
            except RemoteError as error:
                if not error.retryable or time.monotonic() - since > self.patience_s:
                    raise
                on_line(f"({error} Trying again; the job goes on.)")
                time.sleep(min(10.0, 5 * every_s))

    def stop(self) -> None:
        """Ends the job's whole process group."""
        with self.connect() as client:
            self._ask(client, ["stop", "--dir", self.folder])

    def _ended(self, client: paramiko.SSHClient, answer: Mapping[str, Any], last: Sequence[str]) -> None:
        if answer["state"] == "succeeded":
            return
        said = next((line.split(ERROR, 1)[1] for line in reversed(last) if ERROR in line), None)
        if said is None and (
            text := read_text(client, posixpath.join(posixpath.dirname(self.folder), "error.json"))
        ):
            said = str(json.loads(text)["error"])
        if said:
            raise JobError(f"{self.name} failed: {said}")
        tail = " | ".join(line.strip() for line in last[-_TAIL:])
        raise JobError(f"{self.name} {_how(answer)}. Its log {self.folder}/log ends: {tail or '(nothing)'}")

    def _ask(self, client: paramiko.SSHClient, argv: Sequence[str]) -> dict[str, Any]:
        done = run(client, [self.python, "-B", "-m", "eagle3.job", *argv], cwd=self.release)
        _, mark, answer = done.stdout.rpartition(MARK + "\n")
        if not mark:
            words = " ".join((done.stderr or done.stdout).split())[-300:]
            raise RemoteError(f"The GPU host can't run jobs: {words}.", do=f"Check {self.python} there.")
        return json.loads(answer)  # type: ignore[no-any-return]


def _how(answer: Mapping[str, Any]) -> str:
    if answer["state"] == "lost":
        return f"ended without a word: {answer.get('why')}"
    if answer["state"] == "none":
        return "was never started"
    number = answer.get("signal") or (answer["exit_code"] - 128 if answer["exit_code"] > 128 else None)
    if number:
        hint = " (often the host is out of memory)" if number == signal.SIGKILL else ""
        return f"was killed by signal {number}{hint}"
    return f"ended with exit code {answer['exit_code']}"

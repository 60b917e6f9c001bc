"""A detached job on the GPU host: started once, followed over any number of connections, its end told in words."""

from __future__ import annotations

import json
import posixpath
import signal
import time
from collections import deque
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
_WIDTH = 300

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

    def follow(
        self,
        on_line: Callable[[str], None],
        *,
        every_s: float = 1.0,
        should_stop: Callable[[], bool] = lambda: False,
        offset: int = 0,
    ) -> dict[str, Any]:
        """Passes the log's lines from byte `offset` on until the job ends; JobError where it didn't end well.

        Returns the last state, with `offset`. Where `should_stop` says so it returns early, the job goes on, and
        a later call may go on from that offset. A broken connection is made again for up to `patience_s`.
        """
        since = time.monotonic()
        last: deque[str] = deque(maxlen=_TAIL)
        said: str | None = None
        while True:
            try:
                with self.connect() as client:
                    while True:
                        answer = self._ask(client, ["status", "--dir", self.folder, "--offset", str(offset)])
                        since = time.monotonic()
                        for line in _lines(answer["log"]):
                            on_line(line)
                            last.append(line)
                            if said is None and ERROR in line:
                                said = line.partition(ERROR)[2]
                        moved, offset = answer["offset"] != offset, answer["offset"]
                        if answer["state"] != "running" and not moved:
                            return self._ended(client, answer, last, said)
                        if should_stop():
                            return answer
                        if not moved:
                            time.sleep(every_s)
            except RemoteError as error:
                if not error.retryable or time.monotonic() - since > self.patience_s:
                    raise
                on_line(f"({error} Trying again; the job goes on.)")
                if should_stop():
                    return {"state": "running", "offset": offset}
                time.sleep(min(10.0, 5 * every_s))

    def stop(self) -> None:
        """Ends the job's whole process group."""
        with self.connect() as client:
            self._ask(client, ["stop", "--dir", self.folder])

    def _ended(
        self, client: paramiko.SSHClient, answer: dict[str, Any], last: Sequence[str], said: str | None
    ) -> dict[str, Any]:
        if answer["state"] == "succeeded":
            return answer
        said = said or self._left_error(client)
        if said and not answer.get("stopped") and answer["state"] == "failed":
            raise JobError(f"{self.name} failed: {said}")
        tail = " | ".join(line.strip()[:_WIDTH] for line in last)
        raise JobError(
            f"{self.name} {_how(answer)}. Its log {self.folder}/log ends: {tail or '(nothing)'}",
            retryable=answer["state"] == "lost",
        )

    def _left_error(self, client: paramiko.SSHClient) -> str | None:
        """The sentence in error.json beside the job's folder, where the job has left one."""
        text = read_text(client, posixpath.join(posixpath.dirname(self.folder), "error.json"))
        try:
            return str(json.loads(text)["error"]) if text else None
        except (ValueError, KeyError, TypeError):
            return None

    def _ask(self, client: paramiko.SSHClient, argv: Sequence[str]) -> dict[str, Any]:
        done = run(client, [self.python, "-B", "-m", "eagle3.job", *argv], cwd=self.release)
        _, mark, answer = done.stdout.rpartition(MARK + "\n")
        if not mark:
            words = " ".join((done.stderr or done.stdout).split())[-300:]
            raise RemoteError(f"The GPU host can't run jobs: {words}.", do=f"Check {self.python} there.")
        state: dict[str, Any] = json.loads(answer.splitlines()[0])
        if refusal := state.get("error"):
            raise RemoteError(f"{self.name} can't be run on the GPU host: {refusal}.", do="Fix that there.")
        return state


def _lines(text: str) -> list[str]:
    """Lines as a terminal would show them: of a progress bar only its last stand."""
    return (
        [line.rstrip("\r").rpartition("\r")[2] for line in text.removesuffix("\n").split("\n")]
        if text
        else []
    )


def _how(answer: Mapping[str, Any]) -> str:
    if answer["state"] == "lost":
        return f"ended without a word: {answer.get('why')}"
    if answer["state"] == "none":
        return "was never started"
    code = answer.get("exit_code", 0)
    number = answer.get("signal") or (code - 128 if code > 128 else None)
    if answer.get("stopped"):
        return "was stopped"
    if number:
        hint = " (often the host is out of memory)" if number == signal.SIGKILL else ""
        return f"was killed by signal {number}{hint}"
    return f"ended with exit code {code}"

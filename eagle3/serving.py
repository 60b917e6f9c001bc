"""A serving engine as a child process: started, waited for, asked, and always stopped with all its children."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3.errors import Eagle3Error

_SAY_EVERY_S = 10.0
_TAIL_LINES = 12
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Engine:
    """A running engine."""

    url: str

    def post(self, path: str, body: Mapping[str, Any], timeout_s: float = 600) -> Any:
        """The JSON answer to a JSON body."""
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return json.load(answer)

    def get(self, path: str, timeout_s: float = 10) -> str:
        """The text of a GET."""
        with urllib.request.urlopen(self.url + path, timeout=timeout_s) as answer:
            return str(answer.read().decode())

    def counters(self, prefix: str) -> dict[str, float]:
        """Prometheus counters of /metrics whose name starts with `prefix`, summed over all labels but `position`."""
        found: dict[str, float] = {}
        for line in self.get("/metrics").splitlines():
            match = re.match(rf"({re.escape(prefix)}\w*)(?:\{{(.*)\}})? (\S+)$", line)
            if match and not match[1].endswith("_created"):
                position = re.search(r'position="(\d+)"', match[2] or "")
                name = match[1] + (f"@{position[1]}" if position else "")
                found[name] = found.get(name, 0.0) + float(match[3])
        return found


@contextmanager
def vllm_server(
    python: str, args: Sequence[str], env: Mapping[str, str], log: Path, start_timeout_s: float
) -> Iterator[Engine]:
    """vLLM's OpenAI server on a free loopback port; its output goes to `log`."""
    port = _free_port()
    module = "vllm.entrypoints.openai.api_server"
    command = [python, "-m", module, "--host", "127.0.0.1", "--port", str(port), *args]
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **env},
                start_new_session=True,
                preexec_fn=_die_with_parent,
                cwd=log.parent,
            )
        except OSError as error:
            raise Eagle3Error(
                f"The engine's Python {python} can't be run ({error.strerror}). Fix `engine_python`."
            ) from None
    try:
        engine = Engine(f"http://127.0.0.1:{port}")
        _wait(engine, process, log, start_timeout_s)
        yield engine
    finally:
        _stop(process)


def _die_with_parent() -> None:
    """In the child: TERM when the parent ends, even where the parent is killed and can't stop it (Linux)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _wait(engine: Engine, process: subprocess.Popen[bytes], log: Path, timeout_s: float) -> None:
    began = said = time.monotonic()
    while True:
        if process.poll() is not None:
            raise Eagle3Error(
                f"The engine ended with {process.returncode} while it started. Its log {log} ends: {_tail(log)}"
            )
        try:
            engine.get("/health", timeout_s=2)
            return
        except (urllib.error.URLError, OSError):
            pass
        now = time.monotonic()
        if now - began > timeout_s:
            raise Eagle3Error(
                f"The engine wasn't up after {timeout_s:.0f} s. Its log {log} ends: {_tail(log)}"
            )
        if now - said > _SAY_EVERY_S:
            said = now
            print(f"waiting for the engine: {now - began:.0f} s", flush=True)
        time.sleep(0.5)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ends the whole process group: politely, then not."""
    for sig, patience_s in ((signal.SIGTERM, 15.0), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(process.pid, sig)
        except ProcessLookupError:
            break
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline and _group_lives(process):
            time.sleep(0.1)
    process.wait()


def _group_lives(process: subprocess.Popen[bytes]) -> bool:
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    telling = [line for line in lines if re.search(r"error|exception", line, re.IGNORECASE)] or lines
    return " | ".join(line.strip()[:200] for line in telling[-_TAIL_LINES:]) or "(it is empty)"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

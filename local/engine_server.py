"""A real engine on a loopback port, whichever it is: `launch`, then `wait` until it answers."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable

from local.ports import HOST
from local.process import Process

START_S = 300.0


class EngineServer:
    """An engine's process and its health."""

    def __init__(self, process: Process, port: int) -> None:
        self.process = process
        self.port = port

    @property
    def address(self) -> str:
        """Where it answers."""
        return f"http://{HOST}:{self.port}"

    def launch(self) -> bool:
        """Starts the process and returns at once; False if it ran already."""
        return self.process.start()

    def wait(self, say: Callable[[str], None] = print) -> None:
        """Returns when it answers; LocalError with its log's end if it dies."""
        self.process.wait_until(self.is_ready, timeout_s=START_S, say=say)

    def is_ready(self) -> bool:
        """Whether /health says so."""
        try:
            with urllib.request.urlopen(f"{self.address}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def stop(self) -> bool:
        """Ends it; True if it ran."""
        return self.process.stop()

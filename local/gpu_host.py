"""The GPU host's stand-in on this machine: an SSH server on a loopback port, with a folder of its own."""

from __future__ import annotations

import json
import signal
import socket
import time
from pathlib import Path
from typing import Any

from local import process_table
from local.environments import GPU, VLLM_CPU
from local.errors import LocalError
from local.vllm_server import ENGINE_ARGS, engine_environment


class GpuHost:
    """What the connection `gpu_host` points to. `start` returns when the server listens."""

    def __init__(self, *, folder: Path, cache: Path, run_folder: Path) -> None:
        self.folder = folder
        self._cache = cache
        self._said = run_folder / "gpu-host.json"

    def start(self) -> None:
        """Starts sshd and remembers where it listens, for `connection` in other processes."""
        # sshd accepts keys only from folders that others can't write
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        server = self._server()
        server.start()
        self._said.parent.mkdir(parents=True, exist_ok=True)
        self._said.write_text(json.dumps(server.connection))

    def stop(self) -> bool:
        """Ends sshd and whatever still works in the host's folder; True if it was started from here."""
        was_started = self._said.exists()
        if was_started:
            self._server().stop()
            self._said.unlink(missing_ok=True)
        deadline = time.monotonic() + 5
        while jobs := process_table.below(self.folder.resolve()):
            late = time.monotonic() > deadline
            process_table.end(jobs, signal.SIGKILL if late else signal.SIGTERM)
            time.sleep(0.2)
        return was_started

    def is_ready(self) -> bool:
        """Whether it was started and something listens there."""
        said = self._connection()
        if not said:
            return False
        try:
            with socket.create_connection((said["host"], int(said["port"])), timeout=2) as session:
                return session.recv(4) == b"SSH-"
        except OSError:
            return False

    def connection(self) -> dict[str, Any] | None:
        """Airflow's connection: how to log in, and where the host has what. None if it is off."""
        said = self._connection()
        if not said:
            return None
        extra = {
            **said["extra"],
            "python": str(GPU.python(self._cache)),
            "engine_python": str(VLLM_CPU.python(self._cache)),
            "engine_env": engine_environment(self._cache),
            "engine_args": list(ENGINE_ARGS),
            "models_dir": str(self._cache / "models"),
        }
        return {"conn_type": "ssh", **{key: said[key] for key in ("host", "port", "login")}, "extra": extra}

    def _connection(self) -> dict[str, Any] | None:
        try:
            return dict(json.loads(self._said.read_text()))
        except (OSError, ValueError):
            return None

    def _server(self) -> Any:
        try:
            from local.sshd import LoopbackSshd
        except ImportError:
            raise LocalError(
                "local/sshd.py is missing in this checkout, so there is no GPU host here."
            ) from None
        return LoopbackSshd(self.folder)

"""The GPU host as the stages see it: where things lie on it, and how a detached job there is run and read."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import paramiko

from include.core.connections import Connection
from include.core.errors import SpecError
from include.remote.ssh import connect

log = logging.getLogger(__name__)

EAGLE3 = Path(__file__).resolve().parents[2] / "eagle3"


@dataclass(frozen=True)
class GpuHost:
    """A connection of type ssh whose extra says where to work: root, python, models_dir, engine_python, …"""

    connection: Connection

    @property
    def root(self) -> str:
        """The folder on the host that is ours: releases, data, runs."""
        return str(self.connection.extra.get("root") or "~/eagle3")

    @property
    def python(self) -> str:
        """The Python with eagle3/requirements.txt installed."""
        return str(self.connection.extra.get("python") or "python3")

    def required(self, key: str, what: str) -> str:
        """A setting of the connection's extra that has no default."""
        value = self.connection.extra.get(key)
        if not value:
            raise SpecError(
                f"The connection '{self.connection.conn_id}' doesn't say `{key}` ({what}).",
                do="Add it to the connection's Extra.",
            )
        return str(value)

    @contextmanager
    def client(self) -> Iterator[paramiko.SSHClient]:
        """An open SSH connection."""
        with connect(self.connection) as client:
            yield client

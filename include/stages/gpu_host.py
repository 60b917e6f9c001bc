"""The GPU host as the stages see it: where things lie on it, and how a job there is run and its results come home."""

from __future__ import annotations

import json
import logging
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko

from include.core.connections import Connection
from include.core.errors import RemoteError, SpecError
from include.remote.files import absolute, read_text, send_bytes
from include.remote.job import RemoteJob
from include.remote.ssh import connect, run
from include.stages.work import Work

log = logging.getLogger(__name__)

EAGLE3 = Path(__file__).resolve().parents[2] / "eagle3"


@dataclass(frozen=True)
class GpuHost:
    """A connection of type ssh whose Extra says where to work.

    `root` (our folder there, ~/eagle3 by default), `python` (with eagle3/requirements.txt), `models_dir`, and for the
    evaluation `engine_python`, `engine_args`, `engine_env`.
    """

    connection: Connection

    @classmethod
    def of(cls, work: Work) -> GpuHost:
        """The host of the dataset's training."""
        return cls(work.connections(work.spec.train.connection))

    @contextmanager
    def client(self) -> Iterator[paramiko.SSHClient]:
        """An open SSH connection."""
        with connect(self.connection) as client:
            yield client

    @property
    def python(self) -> str:
        """The Python that runs eagle3 there."""
        return str(self.connection.extra.get("python") or "python3")

    def root(self, client: paramiko.SSHClient) -> str:
        """The absolute path of our folder there."""
        return absolute(client, str(self.connection.extra.get("root") or "~/eagle3"))

    def required(self, key: str, what: str) -> str:
        """A setting of the connection's Extra that has no default."""
        if value := self.connection.extra.get(key):
            return str(value)
        raise SpecError(
            f"The connection '{self.connection.conn_id}' doesn't say `{key}` ({what}).",
            do="Add it to its Extra.",
        )

    def run_job(
        self, name: str, release: str, folder: str, config: Mapping[str, Any], argv: Sequence[str]
    ) -> dict[str, Any]:
        """Runs `argv` as the one job of `folder`, with `config` as its config.json, and returns its result.json.

        A job that runs there already is followed; one that has succeeded is only read. Raises JobError, RemoteError.
        """
        with self.client() as client:
            if result := _result(client, folder):
                log.info("%s: done already in %s", name, folder)
                return result
            send_bytes(client, json.dumps(config, indent=2).encode(), posixpath.join(folder, "config.json"))
            run(client, ["rm", "-f", "--", posixpath.join(folder, "error.json")])
        job = RemoteJob(name, self.client, release, posixpath.join(folder, "job"), self.python)
        env = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
        state = job.start(argv, env)
        log.info("%s: %s in %s", name, state["state"], folder)
        job.follow(lambda line: log.info("[gpu host] %s", line))
        with self.client() as client:
            if result := _result(client, folder):
                return result
        raise RemoteError(f"{name} ended without a result in {folder}.", do="Look at its log there.")


def _result(client: paramiko.SSHClient, folder: str) -> dict[str, Any] | None:
    text = read_text(client, posixpath.join(folder, "result.json"))
    return dict(json.loads(text)) if text else None

"""A real sshd on loopback for this folder's tests."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paramiko
import pytest

from include.core.connections import Connection
from include.remote.ssh import connect
from local.sshd import LoopbackSshd

ConnectionTo = Callable[..., Connection]


def talkative_home(home: Path) -> Path:
    """A home whose .bashrc prints, as many do; bash reads it for every command that sshd runs."""
    home.mkdir(parents=True)
    (home / ".bashrc").write_text("echo 'Welcome  to the host'\necho '{\"state\": \"none\"}'\n")
    return home


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackSshd]:
    if not shutil.which("sshd", path="/usr/sbin:/usr/bin:/usr/local/sbin"):
        pytest.skip("there is no sshd here: `make install` brings it")
    # a space, an accent, a quote and a percent sign in the path: nothing on the way may trip over them
    folder = tmp_path_factory.mktemp("gpu") / "host's é %h folder"
    server = LoopbackSshd(folder, variables={"HOME": str(talkative_home(folder / "home"))})
    server.start()
    yield server
    server.stop()


@pytest.fixture
def connection(sshd: LoopbackSshd) -> ConnectionTo:
    """connection(port=…, extra={…}): the loopback host's connection with changes; an extra of None is taken out."""

    def make(*, extra: dict[str, Any] | None = None, **changes: Any) -> Connection:
        said = sshd.connection
        merged = {k: v for k, v in {**said["extra"], **(extra or {})}.items() if v is not None}
        fields = {"host": said["host"], "port": said["port"], "login": said["login"], **changes}
        return Connection("gpu_host", "ssh", extra=merged, **fields)

    return make


@pytest.fixture
def client(connection: ConnectionTo) -> Iterator[paramiko.SSHClient]:
    with connect(connection()) as opened:
        yield opened


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A small eagle3/ to send, with things beside it that don't belong to a release."""
    folder = tmp_path / "eagle3"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "a.py").write_text("A = 1\n")
    (folder / "b.py").write_text("B = 1\n")
    (folder / "requirements.txt").write_text("torch\n")
    (folder / "__pycache__" / "a.cpython-311.pyc").write_bytes(b"old")
    (folder / "notes.log").write_text("not code")
    (folder / "link.py").symlink_to("/etc/passwd")
    return folder

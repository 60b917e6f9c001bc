"""A real sshd on a loopback port, as the current user, with its own keys: ~/.ssh and the system stay untouched."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from local.errors import LocalError
from local.ports import HOST
from local.process import Process

START_S = 20.0
_SYSTEM_FOLDERS = f"{os.defpath}:/usr/sbin:/usr/local/sbin"


class LoopbackSshd:
    """Below `directory`: `sshd/` (keys, configuration, log) and `work/`, which is the GPU host's folder.

    `variables` are set for every session (a HOME of its own, say); `sftp` is sshd's own server or a program.
    """

    def __init__(
        self,
        directory: Path,
        port: int | None = None,
        *,
        variables: Mapping[str, str] | None = None,
        sftp: str = "internal-sftp",
    ) -> None:
        self._variables = dict(variables or {})
        self._sftp = sftp
        self.directory = directory.absolute()
        self._own = self.directory / "sshd"
        self.root = self.directory / "work"
        self.port = port or self._port()

    @property
    def connection(self) -> dict[str, Any]:
        """How to log in, in the words of an Airflow connection."""
        return {
            "host": HOST,
            "port": self.port,
            "login": getpass.getuser(),
            "extra": {
                "key_file": str(self._own / "client_key"),
                "host_key": " ".join((self._own / "host_key.pub").read_text().split()[:2]),
                "root": str(self.root),
            },
        }

    def start(self) -> None:
        """Makes the keys where they are missing, starts sshd, returns when it answers."""
        self._own.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in ("host_key", "client_key"):
            self._make_key(self._own / name)
        keys = self._own / "authorized_keys"
        keys.write_text((self._own / "client_key.pub").read_text())
        keys.chmod(0o600)
        (self._own / "sshd_config").write_text(self._config())
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True, mode=0o755)  # sshd run by root refuses to start without it
        process = self._process()
        process.start()
        process.wait_until(self.answers, timeout_s=START_S, say=lambda line: None)

    def stop(self) -> None:
        """Ends sshd; jobs that were started through it live on."""
        self._process().stop()

    def answers(self) -> bool:
        """Whether an SSH server greets on the port."""
        try:
            with socket.create_connection((HOST, self.port), timeout=2) as session:
                return session.recv(4) == b"SSH-"
        except OSError:
            return False

    def _process(self) -> Process:
        sshd = shutil.which("sshd", path=_SYSTEM_FOLDERS)
        if sshd is None:
            raise LocalError(
                "There is no sshd on this machine. Run `make install`, or install openssh-server."
            )
        return Process(
            "sshd",
            [sshd, "-D", "-e", "-f", str(self._own / "sshd_config")],
            variables={},
            run_folder=self._own,
            log_folder=self._own,
            cwd=self._own,
        )

    def _port(self) -> int:
        """The port of the last start, so that a restart keeps it; a free one at first."""
        config = self._own / "sshd_config"
        if config.exists():
            return int(config.read_text().split(maxsplit=2)[1])
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            return int(probe.getsockname()[1])

    def _make_key(self, path: Path) -> None:
        if not path.exists():
            command = [
                "ssh-keygen",
                "-q",
                "-t",
                "ed25519",
                "-N",
                "",
                "-C",
                "eagle3-airflow loopback",
                "-f",
                str(path),
            ]
            subprocess.run(command, check=True)
        path.chmod(0o600)

    def _config(self) -> str:
        pairs = " ".join(f'"{name}={value}"' for name, value in self._variables.items())
        return f"""Port {self.port}
ListenAddress {HOST}
HostKey "{self._own}/host_key"
AuthorizedKeysFile "{str(self._own).replace("%", "%%")}/authorized_keys"
AuthenticationMethods publickey
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
UsePAM no
StrictModes no
PidFile none
PrintMotd no
MaxStartups 64
MaxSessions 64
AllowTcpForwarding no
X11Forwarding no
Subsystem sftp {self._sftp}
LogLevel ERROR
{f"SetEnv {pairs}" if pairs else ""}
"""

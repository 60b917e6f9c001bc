"""An SSH connection to the GPU host: the host's key is checked, every refusal is one sentence."""

from __future__ import annotations

import base64
import hashlib
import logging
import secrets
import shlex
import socket
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import paramiko
from paramiko.pkey import UnknownKeyType
from paramiko.ssh_exception import (
    AuthenticationException,
    BadHostKeyException,
    NoValidConnectionsError,
    PasswordRequiredException,
    SSHException,
)

from include.core.connections import Connection
from include.core.errors import RemoteError

_TIMEOUT_S = 20
logging.getLogger("paramiko").setLevel(logging.CRITICAL)  # it logs tracebacks of what is raised anyway


class UnknownHostKey(Exception):
    """The host showed a key that nobody has vouched for."""

    def __init__(self, key: paramiko.PKey) -> None:
        super().__init__()
        self.key = key


class _Refuse(paramiko.MissingHostKeyPolicy):
    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        raise UnknownHostKey(key)


@dataclass(frozen=True)
class Finished:
    """What a command on the host gave back."""

    exit_code: int
    stdout: str
    stderr: str


@contextmanager
def connect(connection: Connection) -> Iterator[paramiko.SSHClient]:
    """An open client for an Airflow connection of type ssh.

    Extra: `key_file`, `host_key` (as in known_hosts: 'ssh-ed25519 AAAA…') or `known_hosts_file`; a host whose key is
    in neither is refused, unless `no_host_key_check` is true. Raises RemoteError.
    """
    where = f"{connection.host}:{connection.port or 22}"
    named = f"the connection '{connection.conn_id}'"
    client = paramiko.SSHClient()
    try:
        client.set_missing_host_key_policy(_host_keys(client, connection))
        key_file = _key_file(connection)
        client.connect(
            connection.host,
            port=connection.port or 22,
            username=connection.login or None,
            password=connection.password or None,
            key_filename=key_file,
            allow_agent=key_file is None and not connection.password,
            look_for_keys=key_file is None and not connection.password,
            timeout=_TIMEOUT_S,
            banner_timeout=_TIMEOUT_S,
            auth_timeout=_TIMEOUT_S,
        )
        if transport := client.get_transport():
            transport.set_keepalive(15)
    except UnknownHostKey as error:
        client.close()
        raise RemoteError(
            f"The GPU host {where} shows a {error.key.get_name()} key that isn't known, "
            f"{fingerprint(error.key)}.",
            do=f"If that is the right host, put its public key into `host_key` of {named}'s Extra.",
        ) from None
    except BadHostKeyException as error:
        client.close()
        raise RemoteError(
            f"The GPU host {where} shows another key than expected: {fingerprint(error.key)} instead of "
            f"{fingerprint(error.expected_key)}.",
            do=f"Somebody may be in between. If the host was set up anew, change `host_key` of {named}.",
        ) from None
    except (PasswordRequiredException, AuthenticationException) as error:
        client.close()
        why = (
            "its key file needs a passphrase"
            if isinstance(error, PasswordRequiredException)
            else "it was refused"
        )
        raise RemoteError(
            f"{connection.login or 'This user'} can't log in at the GPU host {where}: {why}.",
            do=f"Fix login and `key_file` of {named}, and the host's authorized_keys.",
        ) from None
    except socket.gaierror:
        client.close()
        raise RemoteError(
            f"The GPU host's name {connection.host} isn't known.", do=f"Fix the host of {named}."
        ) from None
    except (NoValidConnectionsError, TimeoutError, SSHException, OSError, EOFError) as error:
        client.close()
        refused = isinstance(error, (NoValidConnectionsError, ConnectionRefusedError))
        why = "connection refused" if refused else str(error)
        raise RemoteError(
            f"The GPU host {where} can't be reached over SSH ({why or type(error).__name__}).",
            do=f"Is its sshd running? Check host and port of {named}.",
            retryable=True,
        ) from None
    except BaseException:
        client.close()
        raise
    try:
        yield client
    finally:
        client.close()


def run(
    client: paramiko.SSHClient, argv: Sequence[str], *, cwd: str | None = None, timeout: float = 120
) -> Finished:
    """Runs a command, given as a list and quoted here; RemoteError where the connection breaks or nothing comes
    for `timeout` seconds.

    A mark is printed first: what a login script (.bashrc) prints before it isn't taken for the command's output.
    A program that starts with `~/` lies in the login's home.
    """
    mark = f"<{secrets.token_hex(8)}>"
    program = f'"$HOME"/{shlex.quote(argv[0][2:])}' if argv[0].startswith("~/") else shlex.quote(argv[0])
    enter = f"cd {shlex.quote(cwd)} && " if cwd is not None else ""
    command = f"printf %s '{mark}'; {enter}exec {program} {shlex.join(argv[1:])}"
    try:
        _, stdout, stderr = client.exec_command(command, timeout=timeout)
        stdout.channel.shutdown_write()
        with ThreadPoolExecutor(
            1
        ) as beside:  # one after the other, a full window of the second would block both
            errors = beside.submit(stderr.read)
            text = stdout.read().decode(errors="replace")
            err = errors.result().decode(errors="replace")
        exit_code = stdout.channel.recv_exit_status()
    except (SSHException, OSError, EOFError) as error:
        raise _broke(argv[0], str(error) or type(error).__name__) from None
    if exit_code < 0:
        raise _broke(argv[0], "it ended without an exit code")
    banner, marked, out = text.partition(mark)
    if not marked:
        words = " ".join(f"{banner} {err}".split())[-300:]
        raise RemoteError(
            f"The GPU host's login shell doesn't run commands ({words or f'exit code {exit_code}'}).",
            do="The connection's login needs a normal shell there.",
        )
    return Finished(exit_code, out, err)


def _broke(program: str, why: str) -> RemoteError:
    what = f"The connection to the GPU host broke while `{program}` ran there ({why})."
    return RemoteError(what, do="Run the task again.", retryable=True)


def require_run(client: paramiko.SSHClient, argv: Sequence[str], what: str, *, cwd: str | None = None) -> str:
    """The output of a command that must end with 0; `what` begins the sentence where it doesn't."""
    done = run(client, argv, cwd=cwd)
    if done.exit_code != 0:
        words = " ".join((done.stderr or done.stdout).split())[-300:]
        raise RemoteError(f"{what}: {words or f'exit code {done.exit_code}'}.", do="Fix it on the GPU host.")
    return done.stdout


def fingerprint(key: paramiko.PKey) -> str:
    """SHA256:…, as ssh-keygen -l prints it."""
    digest = base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")
    return f"SHA256:{digest}"


def _host_keys(client: paramiko.SSHClient, connection: Connection) -> paramiko.MissingHostKeyPolicy:
    extra = connection.extra
    if str(extra.get("no_host_key_check", "")).lower() == "true":
        return paramiko.AutoAddPolicy()
    port = connection.port or 22
    name = connection.host if port == 22 else f"[{connection.host}]:{port}"
    if text := str(extra.get("host_key") or "").strip():
        parts = text.split()
        try:
            blob = base64.b64decode(parts[-1] if len(parts) == 1 else parts[1], validate=True)
            kind = blob[4 : 4 + int.from_bytes(blob[:4], "big")].decode(
                "ascii"
            )  # a key's bytes begin with its type
            key = paramiko.PKey.from_type_string(kind, blob)
        except (ValueError, IndexError, SSHException, UnknownKeyType) as error:
            raise RemoteError(
                f"`host_key` of the connection '{connection.conn_id}' can't be read ({error}).",
                do="Write it as in known_hosts: 'ssh-ed25519 AAAA…'.",
            ) from None
        client.get_host_keys().add(name, key.get_name(), key)
    elif path := extra.get("known_hosts_file"):
        try:
            client.load_host_keys(str(Path(str(path)).expanduser()))
        except OSError as error:
            raise RemoteError(f"known_hosts_file {path} can't be read ({error.strerror}).") from None
    else:
        client.load_system_host_keys()
    return _Refuse()


def _key_file(connection: Connection) -> str | None:
    """The private key; one that others may read is refused, as ssh does."""
    given = connection.extra.get("key_file")
    if not given:
        return None
    path = Path(str(given)).expanduser()
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise RemoteError(
            f"The key file {path} can't be read ({error.strerror}).",
            do=f"Fix `key_file` of the connection '{connection.conn_id}'.",
        ) from None
    if stat.S_IMODE(mode) & 0o077:
        raise RemoteError(
            f"Others may read the key file {path} (mode {stat.S_IMODE(mode):04o}).", do=f"chmod 600 {path}"
        )
    return str(path)

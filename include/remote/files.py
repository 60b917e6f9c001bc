"""Single files to and from the GPU host: to a temporary name, checked by digest over there, then moved."""

from __future__ import annotations

import hashlib
import posixpath
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import paramiko
from paramiko.ssh_exception import SSHException

from include.core.errors import RemoteError
from include.core.files import file_digest, written_aside
from include.remote.ssh import require_run, run


@contextmanager
def sftp_errors(what: str) -> Iterator[None]:
    """Turns trouble with SFTP into a sentence that begins with `what`; our own errors pass."""
    try:
        yield
    except (OSError, SSHException, EOFError) as error:
        lost = isinstance(error, (SSHException, EOFError, ConnectionError, TimeoutError))
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise RemoteError(
            f"{what} failed on the GPU host ({why}).",
            do="Run the task again."
            if lost
            else "Check rights and space there (a full disk says just 'Failure').",
            retryable=lost,
        ) from None


def absolute(client: paramiko.SSHClient, path: str) -> str:
    """A path on the host with `~` and relative parts resolved against the login's home."""
    with client.open_sftp() as sftp, sftp_errors(f"Looking up {path}"):
        home = sftp.normalize(".")
    if path == "~" or path.startswith("~/"):
        path = posixpath.join(home, path[2:])
    return posixpath.normpath(posixpath.join(home, path))


def make_folder(client: paramiko.SSHClient, path: str) -> None:
    """mkdir -p, and a byte written there, so that a bad root is found before anything is sent."""
    require_run(client, ["mkdir", "-p", "--", path], f"{path} can't be made on the GPU host")
    probe = posixpath.join(path, f".writable-{secrets.token_hex(4)}")
    with client.open_sftp() as sftp, sftp_errors(f"Writing to {path}"):
        with sftp.open(probe, "wb") as file:
            file.write(b"1")
        sftp.remove(probe)


def digests(client: paramiko.SSHClient, paths: Sequence[str]) -> dict[str, str]:
    """path → SHA-256 in hex, computed on the host; missing files are left out."""
    if not paths:
        return {}
    done = run(client, ["sha256sum", "-z", "--", *paths], timeout=3600)
    found = {}
    for line in done.stdout.split("\0"):
        digest, _, path = line.partition("  ")
        if path:
            found[path] = digest[-64:]  # what a login script prints may stand before the first line
    return found


def send_file(client: paramiko.SSHClient, local: Path, remote: str) -> bool:
    """Sends a file unless the host has these very bytes; True where it was sent. Raises RemoteError."""
    digest = file_digest(local)
    if digests(client, [remote]).get(remote) == digest:
        return False
    with client.open_sftp() as sftp:
        put_checked(
            client, sftp, local.read_bytes() if local.stat().st_size < 1 << 20 else local, remote, digest
        )
    return True


def send_bytes(client: paramiko.SSHClient, content: bytes, remote: str) -> None:
    """Writes a small file on the host, whole or not at all."""
    with client.open_sftp() as sftp:
        put_checked(client, sftp, content, remote, hashlib.sha256(content).hexdigest())


def put_checked(
    client: paramiko.SSHClient, sftp: paramiko.SFTPClient, source: bytes | Path, remote: str, digest: str
) -> None:
    """To a temporary name, read back as a digest by the host, then moved over `remote` in one step."""
    aside = posixpath.join(posixpath.dirname(remote), f".{posixpath.basename(remote)}.{secrets.token_hex(4)}")
    require_run(
        client,
        ["mkdir", "-p", "--", posixpath.dirname(remote)],
        f"The folder of {remote} can't be made on the GPU host",
    )
    try:
        with sftp_errors(f"Writing {remote}"):
            if isinstance(source, bytes):
                with sftp.open(aside, "wb") as file:
                    file.set_pipelined(True)
                    file.write(source)
            else:
                sftp.put(str(source), aside)
            arrived = digests(client, [aside]).get(aside)
            if arrived != digest:
                raise RemoteError(
                    f"{remote} arrived on the GPU host with other bytes than were sent "
                    f"(SHA-256 {str(arrived)[:12]} instead of {digest[:12]}).",
                    do="Run the task again; if it stays so, check the host's disk.",
                    retryable=True,
                )
            sftp.posix_rename(aside, remote)
    except BaseException:
        run(client, ["rm", "-f", "--", aside])
        raise


def fetch_file(client: paramiko.SSHClient, remote: str, local: Path) -> None:
    """Fetches a file, checks it against the digest that the host computes, and moves it to `local`."""
    expected = digests(client, [remote]).get(remote)
    if expected is None:
        raise RemoteError(f"{remote} isn't on the GPU host.", do="Run the stage that makes it again.")
    with written_aside(local) as aside:
        with client.open_sftp() as sftp, sftp_errors(f"Reading {remote}"):
            sftp.get(remote, str(aside))
        if file_digest(aside) != expected:
            raise RemoteError(
                f"{remote} came with other bytes than the host has.", do="Run again.", retryable=True
            )


def read_text(client: paramiko.SSHClient, remote: str) -> str | None:
    """The text of a small file on the host, or None where it isn't there."""
    with client.open_sftp() as sftp:
        try:
            with sftp.open(remote, "rb") as file:
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return None
        except (OSError, SSHException, EOFError) as error:
            raise RemoteError(f"{remote} can't be read on the GPU host ({error}).", retryable=True) from None

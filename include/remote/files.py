"""Single files to and from the GPU host: to a temporary name, checked by digest over there, then moved."""

from __future__ import annotations

import hashlib
import posixpath
import re
import secrets
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

import paramiko

from include.core.errors import RemoteError
from include.core.files import file_digest, storage_errors, written_aside
from include.remote.sftp import opened_sftp
from include.remote.ssh import require_run, run

RESERVE_BYTES = 64 << 20


def absolute(client: paramiko.SSHClient, path: str) -> str:
    """A path on the host with `~` and relative parts resolved against the login's home."""
    with opened_sftp(client, f"Looking up {path}") as sftp:
        home = sftp.normalize(".")
    if path == "~" or path.startswith("~/"):
        path = posixpath.join(home, path[2:])
    elif path.startswith("~"):
        raise RemoteError(f"{path} names another user's home.", do="Write the whole path, or one under ~/.")
    return posixpath.normpath(posixpath.join(home, path))


def make_folder(client: paramiko.SSHClient, path: str) -> None:
    """mkdir -p, and a byte written there, so that a bad root is found before anything is sent."""
    require_run(client, ["mkdir", "-p", "--", path], f"{path} can't be made on the GPU host")
    probe = posixpath.join(path, f".writable-{secrets.token_hex(4)}")
    with opened_sftp(client, f"Writing to {path}") as sftp:
        with sftp.open(probe, "wb") as file:
            file.write(b"1")
        sftp.remove(probe)


def require_space(client: paramiko.SSHClient, folder: str, needed: int, reserve: int = RESERVE_BYTES) -> None:
    """RemoteError unless `needed` bytes and a reserve are free below an existing folder of the host."""
    shown = require_run(client, ["df", "-Pk", "--", folder], f"The free space of {folder} isn't known")
    found = re.search(r"\s\d+\s+\d+\s+(-?\d+)\s+\d+%", shown)
    free = int(found[1]) * 1024 if found else None
    if free is not None and free < needed + reserve:
        raise RemoteError(
            f"{folder} on the GPU host has {free >> 20} MiB free; {(needed + reserve) >> 20} MiB are needed.",
            do="Make room there, or name another `root` in the connection's Extra.",
        )


def digests(client: paramiko.SSHClient, paths: Sequence[str]) -> dict[str, str]:
    """path → SHA-256 in hex, computed on the host; missing files are left out."""
    if not paths:
        return {}
    done = run(client, ["sha256sum", "-z", "--", *paths], timeout=3600)
    lines = (line.partition("  ") for line in done.stdout.split("\0") if line)
    return {path: digest for digest, _, path in lines}


def send_file(client: paramiko.SSHClient, local: Path, remote: str) -> bool:
    """Sends a file unless the host has these very bytes; True where it was sent. Raises RemoteError."""
    digest = file_digest(local)
    if digests(client, [remote]).get(remote) == digest:
        return False
    small = local.stat().st_size < 1 << 20
    put_checked(client, local.read_bytes() if small else local, remote, digest)
    return True


def send_bytes(client: paramiko.SSHClient, content: bytes, remote: str) -> None:
    """Writes a small file on the host, whole or not at all."""
    put_checked(client, content, remote, hashlib.sha256(content).hexdigest())


def put_checked(client: paramiko.SSHClient, source: bytes | Path, remote: str, digest: str) -> None:
    """To a temporary name, read back as a digest by the host, then moved over `remote` in one step."""
    folder = posixpath.dirname(remote)
    aside = posixpath.join(folder, f".{posixpath.basename(remote)}.{secrets.token_hex(4)}")
    require_run(
        client, ["mkdir", "-p", "--", folder], f"The folder of {remote} can't be made on the GPU host"
    )
    if isinstance(source, Path):
        require_space(client, folder, source.stat().st_size)
    try:
        with opened_sftp(client, f"Writing {remote}") as sftp:
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
        with suppress(RemoteError):  # over a broken connection nothing can be cleared; the first error counts
            run(client, ["rm", "-f", "--", aside])
        raise


def fetch_file(client: paramiko.SSHClient, remote: str, local: Path) -> None:
    """Fetches a file, checks it against the digest that the host computes, and moves it to `local`."""
    expected = digests(client, [remote]).get(remote)
    if expected is None:
        raise RemoteError(f"{remote} isn't on the GPU host.", do="Run the stage that makes it again.")
    if local.is_file() and file_digest(local) == expected:
        return
    with written_aside(local) as aside:
        with opened_sftp(client, f"Reading {remote}") as sftp:
            sftp.get(remote, str(aside))
        if file_digest(aside) != expected:
            raise RemoteError(
                f"{remote} came with other bytes than the host has.", do="Run again.", retryable=True
            )


def fetch_folder(client: paramiko.SSHClient, remote: str, local: Path) -> list[str]:
    """Fetches a folder's files, each checked, and puts them in place of `local` in one go; returns their names.

    Links aren't followed. A folder that changes while it is read is refused.
    """
    listed = require_run(
        client, ["find", ".", "-type", "f", "-print0"], f"{remote} can't be read", cwd=remote
    )
    names = sorted(name.removeprefix("./") for name in listed.split("\0") if name)
    if any(".." in PurePosixPath(name).parts or name.startswith("/") for name in names):
        raise RemoteError(f"The GPU host lists names outside of {remote}.")
    aside = local.parent / f".{local.name}.{secrets.token_hex(4)}.part"
    with storage_errors(local):
        try:
            aside.mkdir(parents=True)
            for name in names:
                fetch_file(client, posixpath.join(remote, name), aside / name)
            if local.exists():
                before = local.rename(local.parent / f".{local.name}.{secrets.token_hex(4)}.old")
                aside.rename(local)
                shutil.rmtree(before)
            else:
                aside.rename(local)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return names


def read_text(client: paramiko.SSHClient, remote: str) -> str | None:
    """The text of a small file on the host, or None where it isn't there."""
    with opened_sftp(client, f"Reading {remote}") as sftp:
        try:
            with sftp.open(remote, "rb") as file:
                return str(file.read().decode(errors="replace"))
        except FileNotFoundError:
            return None

"""Releases: the exact files of eagle3/ on the GPU host, under a name made of their digests, switched to in one step.

<root>/releases/<digest>/eagle3/…     never changed once it is there
<root>/current -> releases/<digest>
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import secrets
import shlex
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import paramiko
from paramiko.ssh_exception import SSHException

from include.core.errors import RemoteError
from include.core.files import file_digest
from include.remote.files import RESERVE_BYTES, digests, make_folder, read_text, require_space
from include.remote.sftp import opened_sftp
from include.remote.ssh import require_run, run

_SUFFIXES = (".py", ".txt", ".typed")


@dataclass(frozen=True)
class Release:
    """A release that is on the host and checked; `changes` are against the release that was current before."""

    digest: str
    path: str
    sent: bool
    changes: tuple[str, ...]


def local_files(source: Path) -> dict[str, str]:
    """relative path → SHA-256 of what belongs to a release: code and requirements, no caches, no links."""
    found = {}
    for path in sorted(source.rglob("*")):
        inside = path.relative_to(source)
        if (
            path.is_symlink()
            or not path.is_file()
            or path.suffix not in _SUFFIXES
            or "__pycache__" in inside.parts
        ):
            continue
        found[posixpath.join(source.name, inside.as_posix())] = file_digest(path)
    return found


def release_digest(files: Mapping[str, str]) -> str:
    """The name of a release: SHA-256 over paths and digests, 16 hex digits."""
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:16]


def sync_release(
    client: paramiko.SSHClient, root: str, source: Path, *, reserve_bytes: int = RESERVE_BYTES
) -> Release:
    """Brings `source` to the host as a release and makes it current. Raises RemoteError; then nothing has changed."""
    files = local_files(source)
    if not files:
        raise RemoteError(f"{source} holds nothing to release.", do="Run from a whole checkout.")
    digest = release_digest(files)
    releases = posixpath.join(root, "releases")
    path = posixpath.join(releases, digest)
    make_folder(client, releases)
    _clear_stale(client, releases)
    before = _current_files(client, root)
    there = _is_there(client, path)
    if there and (faults := _differences(client, path, files)):
        # somebody changed a release in place: it is put aside, never mended under a running job
        require_run(
            client, ["mv", "-T", "--", path, f"{path}.broken-{secrets.token_hex(4)}"], f"{path} differs"
        )
        there = False
        before = {**before, **dict.fromkeys(faults, "tampered")}
    if not there:
        size = sum((source.parent / name).stat().st_size for name in files)
        require_space(client, releases, size, reserve_bytes)
        _upload(client, source, files, path)
    _switch(client, root, digest)
    return Release(digest, path, not there, tuple(_changes(before, files)))


def _upload(client: paramiko.SSHClient, source: Path, files: Mapping[str, str], path: str) -> None:
    """To a hidden folder, checked there, then renamed: half a release is never seen under its name."""
    releases, digest = posixpath.split(path)
    incoming = posixpath.join(releases, f".incoming-{digest}-{secrets.token_hex(4)}")
    folders = sorted({posixpath.dirname(posixpath.join(incoming, name)) for name in files})
    require_run(client, ["mkdir", "-p", "--", *folders], f"{incoming} can't be made on the GPU host")
    try:
        with opened_sftp(client, "Sending the release") as sftp:
            for name in files:
                sftp.put(str(source.parent / name), posixpath.join(incoming, name))
            if faults := _differences(client, incoming, files):
                raise RemoteError(
                    f"The release arrived damaged: {', '.join(faults)}.",
                    do="Run the task again; the release before it stays current.",
                    retryable=True,
                )
            with sftp.open(posixpath.join(incoming, "release.json"), "wb") as file:
                file.write(json.dumps({"files": dict(files)}, indent=2, sort_keys=True).encode())
        done = run(client, ["mv", "-T", "--", incoming, path])
        if done.exit_code != 0:
            if not _is_there(client, path):
                raise RemoteError(f"The release can't be moved to {path}: {done.stderr.strip()}.")
            if faults := _differences(client, path, files):  # another sync was faster
                raise RemoteError(
                    f"{path} differs: {', '.join(faults)}.", do="Run the task again.", retryable=True
                )
            run(client, ["rm", "-rf", "--", incoming])
    except BaseException:
        with suppress(RemoteError):  # over a broken connection nothing can be cleared; the next sync does it
            run(client, ["rm", "-rf", "--", incoming])
        raise


def _clear_stale(client: paramiko.SSHClient, releases: str) -> None:
    """Removes uploads that were broken off more than a day ago, by the host's own clock."""
    stale = ["find", releases, "-maxdepth", "1", "-name", ".incoming-*", "-mtime", "+0"]
    run(client, [*stale, "-exec", "rm", "-rf", "--", "{}", "+"])


def _switch(client: paramiko.SSHClient, root: str, digest: str) -> None:
    """`current` points to the old release or to the new one, at no time to nothing."""
    current, wanted = posixpath.join(root, "current"), posixpath.join("releases", digest)
    link = posixpath.join(root, f".current-{secrets.token_hex(4)}")
    with opened_sftp(client, f"Switching {current}") as sftp:
        with suppress(FileNotFoundError):
            mode = sftp.lstat(current).st_mode or 0
            if not stat.S_ISLNK(mode):
                raise RemoteError(f"{current} on the GPU host isn't a link.", do="Move it away.")
            if sftp.readlink(current) == wanted:
                return
        sftp.symlink(wanted, link)
        try:
            sftp.posix_rename(link, current)
        except BaseException:
            with suppress(OSError, SSHException, EOFError):
                sftp.remove(link)
            raise
        if sftp.readlink(current) != wanted:
            raise RemoteError(
                f"{current} points elsewhere: another sync runs at the same time.", retryable=True
            )


def _differences(client: paramiko.SSHClient, path: str, files: Mapping[str, str]) -> list[str]:
    """Names of files whose bytes on the host aren't ours, that are missing, links, or don't belong there."""
    there = digests(client, [posixpath.join(path, name) for name in files])
    wrong = {name for name, digest in files.items() if there.get(posixpath.join(path, name)) != digest}
    links = ["-type", "l", "-printf", "l/%P\\0"]
    find = ["find", ".", *links, "-o", "!", "-type", "d", "-printf", "f/%P\\0"]
    listed = require_run(client, find, f"{path} can't be listed", cwd=path).split("\0")
    wrong |= {line[2:] for line in listed if line.startswith("l/")}
    wrong |= {line[2:] for line in listed if line} - set(files) - {"release.json"}
    return sorted(wrong)


def _is_there(client: paramiko.SSHClient, path: str) -> bool:
    return run(client, ["test", "-d", path]).exit_code == 0


def _current_files(client: paramiko.SSHClient, root: str) -> dict[str, str]:
    text = read_text(client, posixpath.join(root, "current", "release.json"))
    try:
        return dict(json.loads(text)["files"]) if text else {}
    except (ValueError, KeyError, TypeError):
        return {}


def _changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """'+ added', '~ changed', '- removed'."""
    lines = []
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            mark = "+" if name not in before else "-" if name not in now else "~"
            lines.append(f"{mark} {name}")
    return lines


def require_python(client: paramiko.SSHClient, python: str) -> str:
    """The version of the host's Python; RemoteError where it is missing or older than 3.10."""
    code = "import sys; print('version', '.'.join(map(str, sys.version_info[:3])))"
    done = run(client, [python, "-c", code])
    words = done.stdout.split()
    version = words[words.index("version") + 1] if done.exit_code == 0 and "version" in words else ""
    if not version or tuple(map(int, version.split(".")[:2])) < (3, 10):
        found = f"is {version}" if version else f"doesn't run ({shlex.quote(done.stderr.strip()[-160:])})"
        raise RemoteError(
            f"The GPU host's Python {python} {found}; eagle3 needs 3.10 or newer.",
            do="Install eagle3/requirements.txt into an environment and name its Python in the connection's Extra.",
        )
    return version

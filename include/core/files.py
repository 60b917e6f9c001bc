"""Files written whole or not at all, their digests, and disk trouble in plain words."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from include.core.errors import StorageError

_WORDS = {
    errno.ENOSPC: (
        "the disk is full",
        "Free some space and run the task again: what is already recorded is kept.",
    ),
    errno.EDQUOT: (
        "the disk quota is used up",
        "Free some space and run the task again: what is recorded is kept.",
    ),
    errno.EFBIG: (
        "the file would pass the size limit",
        "Raise the limit (ulimit -f) and run the task again.",
    ),
    errno.EACCES: (
        "this user may not write there",
        "Change its owner or mode, or set EAGLE3_DATA_DIR elsewhere.",
    ),
    errno.EPERM: (
        "this user may not write there",
        "Change its owner or mode, or set EAGLE3_DATA_DIR elsewhere.",
    ),
    errno.EROFS: (
        "that file system is read-only",
        "Remount it, or set EAGLE3_DATA_DIR to a writable folder.",
    ),
    errno.EEXIST: ("a file has that name", "Move that file away, or set EAGLE3_DATA_DIR elsewhere."),
    errno.ENOTDIR: ("a part of the path is a file", "Move that file away, or set EAGLE3_DATA_DIR elsewhere."),
    errno.ENOENT: ("it isn't there", "Run the earlier stages first."),
}


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turns an OSError of the body into a StorageError that says which path, what is wrong and what to do."""
    try:
        yield
    except OSError as error:
        what, todo = _WORDS.get(error.errno or 0, (str(error), "Look at the disk and run the task again."))
        raise StorageError(f"{path} can't be used: {what}.", do=todo) from error


@contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """A temporary name beside `path`; when the body ends well it is synced and moved to `path`, else removed."""
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        os.close(handle)
        aside = Path(name)
        try:
            yield aside
            with aside.open("rb+") as written:
                os.fsync(written.fileno())
            aside.chmod(0o666 & ~_umask())
            aside.replace(path)
            sync_folder(path.parent)
        finally:
            aside.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Writes `value` as readable JSON, whole or not at all."""
    with written_aside(path) as aside:
        aside.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Reads what write_json wrote; StorageError where it is missing or isn't JSON."""
    with storage_errors(path):
        text = path.read_text(encoding="utf-8")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise StorageError(
            f"{path} isn't valid JSON ({error}).", do="Remove it and run the stage again."
        ) from None


def require_writable(folder: Path) -> None:
    """Makes `folder` and writes a byte there, so that a bad data folder is found before any work is done."""
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".writable-") as probe:
            probe.write(b"1")
            probe.flush()


def free_bytes(folder: Path) -> int:
    """Bytes that this user may still write below `folder`."""
    return shutil.disk_usage(folder).free


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with storage_errors(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def value_digest(value: Any) -> str:
    """SHA-256 in hex of a JSON value in canonical form (sorted keys, no spaces, UTF-8)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def sync_folder(folder: Path) -> None:
    """Makes renames and new names in `folder` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

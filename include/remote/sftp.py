"""An SFTP session on an open connection, whose troubles are told in a sentence."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import paramiko
from paramiko.sftp import SFTPError
from paramiko.ssh_exception import SSHException

from include.core.errors import RemoteError

_SILENCE_S = 300.0
_OUR_DISK = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EFBIG,
)  # SFTP has no such codes: it says 'Failure'


@contextmanager
def opened_sftp(client: paramiko.SSHClient, what: str) -> Iterator[paramiko.SFTPClient]:
    """A session for the body; trouble in it becomes a RemoteError that begins with `what`."""
    with sftp_errors(what):
        session = client.open_sftp()
        if channel := session.get_channel():
            channel.settimeout(_SILENCE_S)
        with session:
            yield session


@contextmanager
def sftp_errors(what: str) -> Iterator[None]:
    """Turns trouble with SFTP into a sentence that begins with `what`; our own errors and our own disk's pass."""
    try:
        yield
    except SFTPError as error:
        raise RemoteError(
            f"{what} failed: the GPU host doesn't speak SFTP ({error}).",
            do="A login script there may print something: let .bashrc do so only in a terminal ([ -t 1 ]).",
        ) from None
    except (OSError, SSHException, EOFError) as error:
        if isinstance(error, OSError) and error.errno in _OUR_DISK:
            raise
        lost = isinstance(error, (SSHException, EOFError, ConnectionError, TimeoutError))
        lost = lost or str(error) == "Socket is closed"
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise RemoteError(
            f"{what} failed on the GPU host ({why}).",
            do="Run the task again."
            if lost
            else "Check rights and space there (a full disk says just 'Failure').",
            retryable=lost,
        ) from None

"""The error that a person reads, and how a failed program of this package says it."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

PREFIX = "eagle3: error: "
_STARTED = time.time()


class Eagle3Error(Exception):
    """One or two plain sentences: what is wrong, on what, what to do."""


def report_error(error: Eagle3Error, folder: Path) -> None:
    """Prints the sentence and leaves it in `folder`/error.json; of several ranks only the first to come does.

    A launcher may print much below the sentence, so the file is where to look for it.
    """
    forget_stale_error(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / "error.json", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return
    except OSError:
        print(f"{PREFIX}{error}", file=sys.stderr, flush=True)
        return
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump({"error": str(error)}, file)
    print(f"{PREFIX}{error}", file=sys.stderr, flush=True)


def forget_stale_error(folder: Path) -> None:
    """Removes an error.json that is older than this process: the last run's, not that of another rank of this one."""
    path = folder / "error.json"
    try:
        if path.stat().st_mtime < _STARTED:
            path.unlink()
    except OSError:
        pass  # not there, or another rank was faster

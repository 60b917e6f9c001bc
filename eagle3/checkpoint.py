"""Checkpoints that are whole or not there: written aside, synced, moved, and marked last."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch

from eagle3.errors import Eagle3Error

_KEEP = 2
_MARK = "COMPLETE"


def save(folder: Path, step: int, state: dict[str, Any]) -> Path:
    """Writes <folder>/step-<n>/state.pt and its mark; prunes all but the newest two."""
    aside, final = folder / f".step-{step:08d}.{os.getpid()}", folder / f"step-{step:08d}"
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        with (aside / "state.pt").open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        shutil.rmtree(final, ignore_errors=True)
        aside.rename(final)
        (final / _MARK).touch()
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise Eagle3Error(
            f"The checkpoint {final} can't be written ({error.strerror}). The last good one is kept; "
            "make room and start again: it goes on from there."
        ) from None
    for old in _whole(folder)[:-_KEEP]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def newest(folder: Path) -> dict[str, Any] | None:
    """The state of the newest whole checkpoint, or None."""
    found = _whole(folder)
    if not found:
        return None
    state: dict[str, Any] = torch.load(found[-1] / "state.pt", map_location="cpu", weights_only=True)
    return state


def _whole(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*") if (path / _MARK).exists())

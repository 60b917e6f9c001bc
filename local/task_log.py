"""Airflow's task logs on this disk: the latest line worth showing, and the sentence of an error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_TAIL_BYTES = 64 * 1024


def task_log(folder: Path, dag_id: str, run_id: str, task_id: str, attempt: int) -> Path:
    """Where Airflow writes the log of one attempt."""
    return folder / f"dag_id={dag_id}" / f"run_id={run_id}" / f"task_id={task_id}" / f"attempt={attempt}.log"


def latest_progress(log: Path) -> str:
    """The last line that the project itself wrote (or a job on the GPU host did); empty if there is none."""
    for line in _backwards(log):
        if _is_ours(line) and line.get("level") == "info":
            return _event(line)
    return ""


def error_sentence(log: Path) -> str:
    """The project's own error, else the last line of level error; empty if there is none."""
    fallback = ""
    for line in _backwards(log):
        if line.get("level") in ("error", "critical"):
            if _is_ours(line):
                return _event(line)
            fallback = fallback or _explained(line)
    return fallback


def _backwards(log: Path) -> Iterator[dict[str, Any]]:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return
    for text in reversed(lines):
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict):
            yield line


def _is_ours(line: dict[str, Any]) -> bool:
    return str(line.get("logger", "")).startswith("include.") or _event(line).startswith("[remote]")


def _event(line: dict[str, Any]) -> str:
    return str(line.get("event", "")).strip()


def _explained(line: dict[str, Any]) -> str:
    details = line.get("error_detail") or []
    causes = [f"{d.get('exc_type')}: {d.get('exc_value')}" for d in details if isinstance(d, dict)]
    return causes[-1] if causes else _event(line)

"""A run's tasks: a table that is redrawn where there is a terminal, a line per change where not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from local.airflow_api import AirflowApi
from local.task_log import latest_progress, task_log

_ENDED = ("success", "failed")
_MARKS = {"success": "✓", "failed": "✗", "upstream_failed": "✗", "skipped": "–", "running": "▶"}
_STYLES = {"success": "green", "failed": "bold red", "upstream_failed": "red", "running": "bold cyan"}
_PLAIN_EVERY_S = 10.0


@dataclass(frozen=True)
class TaskView:
    """One task as shown."""

    task_id: str
    state: str
    seconds: float | None
    note: str


class View(Protocol):
    """Where the tasks are shown."""

    def show(self, tasks: list[TaskView]) -> None:
        """Shows the tasks as they are now."""


def follow(api: AirflowApi, dag_id: str, run_id: str, logs: Path, view: View, *, every_s: float = 1.0) -> str:
    """Shows the run until it ends; its last state."""
    order = api.task_ids(dag_id)
    while True:
        state = api.run_state(dag_id, run_id)
        view.show(task_views(order, api.tasks(dag_id, run_id), dag_id, run_id, logs))
        if state in _ENDED:
            return state
        time.sleep(every_s)


def task_views(
    order: list[str], instances: list[dict[str, Any]], dag_id: str, run_id: str, logs: Path
) -> list[TaskView]:
    """The tasks in the Dag's order; a running one has its seconds so far and its latest progress line."""
    by_id = {instance["task_id"]: instance for instance in instances}
    return [_view(task_id, by_id.get(task_id, {}), dag_id, run_id, logs) for task_id in order]


def _view(task_id: str, instance: dict[str, Any], dag_id: str, run_id: str, logs: Path) -> TaskView:
    state = instance.get("state") or "waiting"
    seconds = instance.get("duration")
    if state in ("running", "deferred") and instance.get("start_date"):
        started = datetime.fromisoformat(instance["start_date"].replace("Z", "+00:00"))
        seconds = (datetime.now(UTC) - started).total_seconds()
    note = ""
    if attempt := instance.get("try_number"):
        if state not in ("waiting", "skipped"):
            note = latest_progress(task_log(logs, dag_id, run_id, task_id, attempt))
        if attempt > 1:
            note = f"(attempt {attempt}) {note}"
    return TaskView(task_id, state, seconds, note)


class LiveView:
    """A table, redrawn in place."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def show(self, tasks: list[TaskView]) -> None:
        """Redraws the table."""
        table = Table.grid(padding=(0, 2))
        for task in tasks:
            style = _STYLES.get(task.state, "dim")
            table.add_row(
                Text(_MARKS.get(task.state, " "), style),
                Text(task.task_id, style),
                Text(task.state, style),
                Text(f"{task.seconds:.0f} s" if task.seconds is not None else "", style, justify="right"),
                Text(task.note, no_wrap=True, overflow="ellipsis"),
            )
        self._live.update(table, refresh=True)


class PlainView:
    """Lines for a log: each change of state, and a running task's progress now and then."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: dict[str, TaskView] = {}
        self._said = 0.0

    def show(self, tasks: list[TaskView]) -> None:
        """Prints what is new."""
        now = time.monotonic()
        for task in tasks:
            before = self._shown.get(task.task_id)
            changed = task.state != (before.state if before else "waiting")
            moved = before is not None and task.note != before.note and now - self._said > _PLAIN_EVERY_S
            if changed or moved:
                self._said = now
                self._shown[task.task_id] = task
                took = f" {task.seconds:.0f} s" if task.seconds is not None else ""
                note = f": {task.note}" if task.note else ""
                self._console.print(f"{task.task_id} {task.state}{took}{note}", markup=False, highlight=False)


@contextmanager
def view_for(console: Console) -> Iterator[View]:
    """The view that fits the console."""
    if not console.is_terminal:
        yield PlainView(console)
        return
    with Live(console=console, auto_refresh=False) as live:
        yield LiveView(live)

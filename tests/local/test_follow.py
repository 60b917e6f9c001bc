"""What the follower reads and shows: Airflow's logs, the report, the tasks."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from local.errors import LocalError
from local.follow import LiveView, PlainView, TaskView, task_views, view_for
from local.report import read_report
from local.task_log import error_sentence, latest_progress, task_log

REPORT: dict[str, Any] = {
    "dataset": "demo",
    "version": "1a2b3c",
    "shard": "shard-00000",
    "samples": 1234,
    "tokens": 98765,
    "supervised_tokens": 43210,
    "left_out": {"length": 7},
    "audit": {"verdict": "passed"},
    "parquet": "/data/exported/shard-00000.parquet",
    "training": {"steps": 40, "first_loss": 9.0412, "last_loss": 3.2, "draft": "/gpu/draft", "seconds": 61.2},
    "evaluation": {"accept_length": 1.4567, "accepted_per_position": [0.3], "prompts": 16},
}


def write_log(file: Path, *lines: dict[str, Any] | str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return file


def line(event: str, level: str = "info", logger: str = "include.stages.generate") -> dict[str, Any]:
    return {"event": event, "level": level, "logger": logger}


def test_the_latest_progress_is_the_projects_own(tmp_path: Path) -> None:
    log = write_log(
        tmp_path / "l", line("1 of 2"), line("2 of 2"), line("Done", logger="airflow.task"), '{"event": "torn'
    )
    assert latest_progress(log) == "2 of 2"
    write_log(log, line("1 of 2"), line("[remote] step 10 of 40", logger="task.stdout"))
    assert latest_progress(log) == "[remote] step 10 of 40"
    assert latest_progress(tmp_path / "missing") == ""


def test_the_error_is_the_projects_sentence_before_airflows(tmp_path: Path) -> None:
    airflows = {
        **line("Task failed with exception", "error", "task"),
        "error_detail": [{"exc_type": "KeyError", "exc_value": "'x'"}],
    }
    log = write_log(
        tmp_path / "l", line("The engine is gone.", "error", "include.orchestration.tasks"), airflows
    )
    assert error_sentence(log) == "The engine is gone."
    write_log(log, line("fine"), airflows)
    assert error_sentence(log) == "KeyError: 'x'"


def test_the_summary_has_the_reports_numbers(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json.dumps(REPORT))
    rows = dict(read_report({"report": str(tmp_path / "report.json")}).rows())
    assert rows == {
        "shard": "demo/shard-00000, version 1a2b3c",
        "samples": "1,234 (left out: 7 length)",
        "tokens": "98,765, 43,210 of them the model's own",
        "audit": "passed",
        "Parquet": "/data/exported/shard-00000.parquet",
        "training": "40 steps, loss 9.04 → 3.20, 61 s",
        "draft": "/gpu/draft",
        "accept length": "1.46 tokens a step, over 16 prompts",
    }


def test_a_run_without_training_has_a_summary_too(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json.dumps({**REPORT, "training": None, "evaluation": None}))
    rows = dict(read_report({"report": str(tmp_path / "report.json")}).rows())
    assert rows["training"] == "left out"
    assert "accept length" not in rows


@pytest.mark.parametrize("content", ["", "[]", "{}"])
def test_a_report_that_cannot_be_read_is_a_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "report.json").write_text(content)
    with pytest.raises(LocalError, match=r"report\.json can't be read as a shard's report"):
        read_report({"report": str(tmp_path / "report.json")})


@pytest.mark.parametrize("announced", [None, {}, "shard-00000"])
def test_a_run_that_announced_nothing_is_a_sentence(announced: Any) -> None:
    with pytest.raises(LocalError, match="announced no shard"):
        read_report(announced)


def test_tasks_come_in_the_dags_order_with_progress(tmp_path: Path) -> None:
    write_log(task_log(tmp_path, "demo", "r:1", "generate", 2), line("5 of 9"))
    instances = [
        {"task_id": "generate", "state": "running", "try_number": 2, "start_date": "2020-01-01T00:00:00Z"},
        {"task_id": "render", "state": "success", "try_number": 1, "duration": 3.0},
    ]
    views = task_views(["render", "generate", "audit"], instances, "demo", "r:1", tmp_path)
    assert [(v.task_id, v.state, v.note) for v in views] == [
        ("render", "success", ""),
        ("generate", "running", "(attempt 2) 5 of 9"),
        ("audit", "waiting", ""),
    ]
    assert views[0].seconds == 3.0
    assert (views[1].seconds or 0) > 1e6


def test_without_a_terminal_each_change_is_one_line() -> None:
    out = io.StringIO()
    with view_for(Console(file=out, width=200)) as view:
        assert isinstance(view, PlainView)
        for note in ("", "1 of 2", "2 of 2"):
            view.show([TaskView("generate", "running", 1.0, note)])
        view.show([TaskView("generate", "success", 2.0, "[2] of 2")])
    assert out.getvalue().splitlines() == ["generate running 1 s", "generate success 2 s: [2] of 2"]


def test_a_terminal_shows_all_tasks_on_one_line_each() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=60)
    with view_for(console) as view:
        assert isinstance(view, LiveView)
        view.show([TaskView("render", "success", 3.0, "x" * 200), TaskView("generate", "waiting", None, "")])
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "render" in shown
    assert "generate" in shown
    assert "…" in shown

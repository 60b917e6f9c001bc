"""The real services, started once for the session: vLLM on the CPU, a loopback sshd, Airflow."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from local.airflow_api import AirflowApi
from local.errors import LocalError
from local.places import ROOT, Places, cache_folder
from local.services import ANY_PORT, Services

_RUN_S = 900.0
PROMPTS = 40


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """The services, not started; whatever a test starts is stopped at the end."""
    folder = tmp_path_factory.mktemp("e2e")
    places = Places(checkout=ROOT, state=folder / "state", gpu_host=folder / "gpu host", cache=cache_folder())
    services = Services(places, ANY_PORT)
    try:
        services.check_installed()
    except LocalError as error:
        pytest.skip(str(error))
    yield services
    services.stop(lambda line: None)


@pytest.fixture(scope="session")
def engine_url(built: Services) -> str:
    """The address of the real engine."""
    built.vllm.launch()
    built.vllm.wait()
    return built.vllm.address


@pytest.fixture(scope="session")
def services(built: Services) -> Services:
    """All three, up; the Dag parsed and unpaused."""
    built.start()
    api = built.airflow.api
    deadline = time.monotonic() + 120
    while not api.has_dag("demo"):
        assert not api.import_errors()
        assert time.monotonic() < deadline
        time.sleep(0.5)
    api.unpause("demo")
    return built


class Runs:
    """Runs of the Dag `demo`: started, waited for, looked at."""

    def __init__(self, services: Services) -> None:
        self.api: AirflowApi = services.airflow.api
        self.logs: Path = services.airflow.task_logs

    def run(self, conf: dict[str, Any], partition_key: str | None = None) -> tuple[str, str]:
        """(run id, last state) of a new run."""
        run_id = self.api.trigger("demo", conf, partition_key=partition_key)
        return run_id, self.wait(run_id)

    def wait(self, run_id: str) -> str:
        """The last state of a run."""
        deadline = time.monotonic() + _RUN_S
        while (state := self.api.run_state("demo", run_id)) not in ("success", "failed"):
            assert time.monotonic() < deadline, f"{run_id} is still {state}"
            time.sleep(0.5)
        return state

    def backfill_runs(self) -> dict[str, str]:
        """run id → shard of every run that belongs to a backfill."""
        found = self.api._get("/api/v2/dags/demo/dagRuns", limit=100)["dag_runs"]
        return {run["dag_run_id"]: run["partition_key"] for run in found if run["run_type"] == "backfill"}

    def wait_for_backfill(self, shards: set[str]) -> list[str]:
        """The ids of the backfill runs, once there is one for each of these shards."""
        deadline = time.monotonic() + 120
        while True:
            made = self.backfill_runs()
            if set(made.values()) >= shards:
                return list(made)
            assert time.monotonic() < deadline, f"backfill runs: {made}"
            time.sleep(0.5)

    def end(self, run_id: str) -> None:
        """Ends a run whose rest isn't of interest."""
        self.api._authorised(
            "PATCH", f"/api/v2/dags/demo/dagRuns/{quote(run_id, safe='')}", {"state": "failed"}
        )
        self.wait(run_id)

    def states(self, run_id: str) -> dict[str, str]:
        """task → state."""
        return {task["task_id"]: task["state"] for task in self.api.tasks("demo", run_id)}

    def log(self, run_id: str, task_id: str, attempt: int = 1) -> str:
        """A task's log as text."""
        path = (
            self.logs / "dag_id=demo" / f"run_id={run_id}" / f"task_id={task_id}" / f"attempt={attempt}.log"
        )
        lines = []
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                entry = {"event": line}
            lines.append(str(entry.get("event", "")))
            lines += [str(e.get("exc_value", "")) for e in entry.get("error_detail") or []]
        return "\n".join(lines)

    def report(self, run_id: str) -> dict[str, Any]:
        """The report of the shard that a run worked on."""
        announced = self.api.xcom("demo", run_id, "render_prompts", "shard")
        return json.loads(Path(announced["report"]).read_text())  # type: ignore[no-any-return]


@pytest.fixture(scope="session")
def runs(services: Services) -> Runs:
    """Runs of the Dag `demo` on the real services."""
    return Runs(services)


@pytest.fixture(scope="session")
def whole_run(runs: Runs) -> str:
    """A run over a few prompts, with training and evaluation; it must succeed."""
    run_id, state = runs.run({"limit": PROMPTS}, "shard-00000")
    assert state == "success", {task: s for task, s in runs.states(run_id).items() if s != "success"}
    return run_id

"""`make demo`: starts the services, runs the Dag `demo`, follows it, and closes with the numbers.

Run with the Airflow environment's Python. KEEP=0 stops the services afterwards; SHARD=shard-00001 chooses.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from local.airflow_server import AirflowServer
from local.errors import LocalError, exit_with_sentence
from local.follow import follow, view_for
from local.places import Places
from local.report import read_report
from local.services import Services
from local.task_log import error_sentence, task_log

DAG_ID = "demo"
_PARSE_S = 120.0
_REPARSE_S = 15.0


def run_demo(services: Services, console: Console, *, shard: str | None) -> None:
    """The whole demo on services that may or may not be up; LocalError if the run fails."""
    began = time.monotonic()
    services.start(lambda line: console.print(line, markup=False, highlight=False))
    airflow = services.airflow
    wait_for_dag(airflow, DAG_ID)
    airflow.api.unpause(DAG_ID)
    run_id = airflow.api.trigger(DAG_ID, {}, partition_key=shard)
    console.print(f"run {run_id}: {run_address(airflow, run_id)}", markup=False, highlight=False)
    with view_for(console) as view:
        state = follow(airflow.api, DAG_ID, run_id, airflow.task_logs, view)
    if state != "success":
        raise LocalError(failure(airflow, run_id))
    report = read_report(airflow.api.xcom(DAG_ID, run_id, "render_prompts", "shard"))
    minutes = (time.monotonic() - began) / 60
    rows = [*report.rows(), ("Airflow", run_address(airflow, run_id)), ("minutes", f"{minutes:.1f}")]
    console.print(summary_table(rows))


def wait_for_dag(airflow: AirflowServer, dag_id: str) -> None:
    """Returns when the Dag is parsed; LocalError with the import errors if it isn't in time."""
    began = time.monotonic()
    while not airflow.api.has_dag(dag_id):
        waited = time.monotonic() - began
        # an error from before the last edit stays until the file is parsed again
        if waited > _REPARSE_S and (errors := airflow.api.import_errors()):
            raise LocalError("Airflow can't import the Dags:\n" + "\n".join(f"    {line}" for line in errors))
        if waited > _PARSE_S:
            raise LocalError(f"Airflow doesn't show the Dag {dag_id} after {_PARSE_S:.0f} s.")
        time.sleep(0.5)


def failure(airflow: AirflowServer, run_id: str) -> str:
    """Which task failed, its own sentence, and where its log is."""
    for instance in airflow.api.tasks(DAG_ID, run_id):
        if instance["state"] == "failed":
            task_id, attempt = instance["task_id"], instance["try_number"]
            log = task_log(airflow.task_logs, DAG_ID, run_id, task_id, attempt)
            why = error_sentence(log) or "Its log says no reason."
            return f"task {task_id} failed: {why}\n    log: {log}\n    {run_address(airflow, run_id)}"
    return f"The run failed before a task did: {run_address(airflow, run_id)}"


def run_address(airflow: AirflowServer, run_id: str) -> str:
    """The run's page in the UI."""
    return f"{airflow.address}/dags/{DAG_ID}/runs/{run_id}"


def summary_table(rows: list[tuple[str, str]]) -> Table:
    """The closing table."""
    table = Table(show_header=False, box=None, padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for what, value in rows:
        table.add_row(what, value)
    return table


def main(environ: Mapping[str, str] = os.environ) -> int:
    """The command."""
    # in a log, long paths stay on one line
    console = Console(soft_wrap=True, width=None if sys.stdout.isatty() else 200)
    services = Services(Places.of_demo(environ))
    keep = environ.get("KEEP", "1") != "0"
    try:
        run_demo(services, console, shard=environ.get("SHARD") or None)
    except KeyboardInterrupt:
        console.print("\ninterrupted: a run that was started goes on in Airflow.", highlight=False)
        raise
    finally:
        if keep:
            _say_what_runs(services, console)
        else:
            services.stop(lambda line: console.print(line, markup=False, highlight=False))
    return 0


def _say_what_runs(services: Services, console: Console) -> None:
    states = services.status()
    if any(state != "down" for state in states.values()):
        shown = ", ".join(f"{name} ({state})" for name, state in states.items() if state != "down")
        console.print(f"still running: {shown}. `make demo-stop` ends it.", markup=False, highlight=False)


if __name__ == "__main__":
    exit_with_sentence(main)

"""A dataset's Dag: the eight stages in a row, one run per shard."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, get_current_context, task
from airflow.sdk.bases.timetable import BaseTimetable

from include.core.errors import SpecError
from include.core.spec import DatasetSpec, load_dataset
from include.orchestration.params import form
from include.orchestration.tasks import run_task

_START = datetime(2020, 1, 1)


def dataset_dag(spec_path: Path, timetable: BaseTimetable) -> DAG:
    """The Dag of one dataset's YAML. A YAML with mistakes gives a Dag that says them and fails."""
    try:
        return _chain(load_dataset(spec_path), spec_path, timetable)
    except SpecError as error:
        return _broken(spec_path, str(error))


def _chain(spec: DatasetSpec, spec_path: Path, timetable: BaseTimetable) -> DAG:
    with DAG(
        dag_id=spec.name,
        schedule=timetable,
        start_date=_START,
        catchup=False,
        max_active_runs=spec.max_active_runs,
        params=form(),
        tags=["dataset", spec.target],
        description=spec.description,
        doc_md=_about(spec),
        default_args={"retries": 2, "retry_delay": timedelta(seconds=20)},
    ) as dag:
        path = str(spec_path)
        render = _stage("render_prompts", path)
        render >> _stage("generate", path) >> (rebuilt := _stage("reconstruct", path))
        exported = _stage("export_parquet", path, outlets=[Asset(f"exported-{spec.name}")])
        rebuilt >> _stage("audit", path) >> exported
        # these two say by themselves why they are left out, so they also run after a skipped task
        train = _stage("train_drafter", path, trigger_rule="none_failed")
        evaluate = _stage("evaluate_drafter", path, trigger_rule="none_failed")
        exported >> _stage("sync_scripts", path) >> train >> evaluate
    return dag


def _stage(name: str, spec_path: str, **options: Any) -> Any:
    @task(task_id=name, **options)
    def stage(path: str) -> dict[str, Any]:
        return run_task(name, path, get_current_context())

    return stage(spec_path)


def _broken(spec_path: Path, sentence: str) -> DAG:
    with DAG(
        dag_id=spec_path.stem,
        schedule=None,
        start_date=_START,
        tags=["dataset", "broken"],
        description=f"{spec_path.name} has mistakes",
        doc_md=sentence,
    ) as dag:

        @task(task_id="read_spec", retries=0)
        def read_spec() -> None:
            from include.orchestration.tasks import one_sentence

            with one_sentence():
                load_dataset(spec_path)

        read_spec()
    return dag


def _about(spec: DatasetSpec) -> str:
    return (
        f"**{spec.name}**: {spec.description}\n\n"
        f"Target `{spec.target}`, engine `{spec.engine.kind}` (connection `{spec.engine.connection}`), "
        f"version `{spec.version}`.\n\n"
        "A run is one *shard*. Trigger it with a partition key (`shard-00003`), or without one to take the lowest "
        "shard that isn't done. A backfill counts days: 2020-01-01 is shard 0, each day after it the next one."
    )

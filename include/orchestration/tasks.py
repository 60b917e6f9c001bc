"""The Airflow side of a stage: context in, stage, errors as one sentence, small numbers out."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow.sdk import Connection as AirflowConnection
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    AirflowSkipException,
)
from airflow.sdk.execution_time.context import NEVER_EXPIRE

from include.core.connections import Connection
from include.core.errors import PipelineError, SpecError
from include.core.paths import Settings, Shard
from include.core.spec import DatasetSpec, load_dataset
from include.orchestration.params import RunParams, why_not
from include.orchestration.shard_choice import claim_open_shard, shard_of_key
from include.stages.shards import shard_count

log = logging.getLogger(__name__)


def run_task(stage: str, spec_path: str, context: Any) -> dict[str, Any]:
    """Runs a stage for the shard of this run; its numbers become the task's return value."""
    from include.stages import run_stage
    from include.stages.work import Work

    params = RunParams.of(context["params"])
    backfill = context["dag_run"].run_type == "backfill"
    if stage in _GPU_SIDE and (reason := why_not(stage, params, backfill=backfill)):
        log.info("%s is left out: %s", stage, reason)
        raise AirflowSkipException(f"{stage} is left out: {reason}")
    with one_sentence():
        settings = Settings.from_environment(os.environ)
        shard = _shard(stage, load_dataset(Path(spec_path)), settings, context)
        if backfill and shard.index >= (count := shard_count(shard.spec)):
            raise AirflowSkipException(
                f"{shard.label} doesn't exist (the source has {count} shard(s)): the backfill's range is wider"
            )
        counts = run_stage(stage, Work(shard, connection, params.limit, params.regenerate))
    _announce(stage, shard, counts, context)
    return counts


_GPU_SIDE = ("sync_scripts", "train_drafter", "evaluate_drafter")


def connection(conn_id: str) -> Connection:
    """A connection as Airflow has it (UI, secrets backend or environment)."""
    try:
        found = AirflowConnection.get(conn_id)
    except AirflowNotFoundException:
        raise SpecError(
            f"There is no connection '{conn_id}'.",
            do=f"Add it under Admin → Connections, or set AIRFLOW_CONN_{conn_id.upper()}.",
        ) from None
    return Connection(
        conn_id=conn_id,
        conn_type=found.conn_type or "",
        host=found.host or "",
        port=found.port,
        login=found.login or "",
        password=found.password or "",
        schema=found.schema or "",
        extra=found.extra_dejson,
    )


@contextmanager
def one_sentence() -> Iterator[None]:
    """A PipelineError fails the task with its sentence; where trying again can't help, without retries."""
    try:
        yield
    except PipelineError as error:
        log.error("%s", error)
        kind = AirflowException if error.retryable else AirflowFailException
        raise kind(str(error)) from None


def _shard(stage: str, spec: DatasetSpec, settings: Settings, context: Any) -> Shard:
    """The run's shard: its partition key, or what render_prompts has chosen for the run and keeps for ever."""
    ti, run = context["ti"], context["dag_run"]
    if run.partition_key:
        return shard_of_key(spec, settings, run.partition_key)
    if stage != "render_prompts":
        return shard_of_key(spec, settings, ti.xcom_pull(task_ids="render_prompts", key="shard")["shard"])
    store = context["task_state_store"]
    key = store.get("shard")
    if key:
        return shard_of_key(spec, settings, key)

    def is_active(run_id: str) -> bool:
        return str(ti.get_dagrun_state(run.dag_id, run_id)) in ("running", "queued")

    shard = claim_open_shard(spec, settings, run.run_id, is_active)
    store.set("shard", shard.key, retention=NEVER_EXPIRE)
    log.info("no partition key: this run takes the lowest shard that isn't done, %s", shard.label)
    return shard


def _announce(stage: str, shard: Shard, counts: dict[str, Any], context: Any) -> None:
    """What others read: which shard this run works on, and the asset event of a new Parquet shard."""
    if stage == "render_prompts":
        value = {
            "dataset": shard.spec.name,
            "version": shard.spec.version,
            "shard": shard.key,
            "folder": str(shard.folder),
            "report": str(shard.summary),
        }
        context["ti"].xcom_push(key="shard", value=value)
    if stage == "export_parquet":
        for asset in context["task"].outlets:
            keys = ("shard", "samples", "tokens", "supervised_tokens", "sha256", "file")
            context["outlet_events"][asset].extra = {key: counts[key] for key in keys}

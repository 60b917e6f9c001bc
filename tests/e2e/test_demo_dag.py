"""The Dag `demo` through the real scheduler, engine, SSH and torchrun; its shards, its retries, its refusals."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from include.stages import STAGES
from local.services import Services
from tests.e2e.conftest import PROMPTS, Runs

pytestmark = [pytest.mark.e2e, pytest.mark.engine]


def test_prompts_become_a_draft_that_the_engine_accepts(
    runs: Runs, whole_run: str, services: Services
) -> None:
    assert runs.states(whole_run) == dict.fromkeys(STAGES, "success")
    report = runs.report(whole_run)
    assert report["samples"] + sum(report["left_out"].values()) >= PROMPTS
    assert report["audit"]["verdict"] == "pass"
    assert pq.read_metadata(report["parquet"]).num_rows == report["samples"]
    training = report["training"]
    assert training["world_size"] == 2
    assert training["last_loss"] < training["first_loss"]
    draft = Path(training["draft"])
    assert draft.is_relative_to(services.places.gpu_host)
    assert not draft.is_relative_to(services.places.checkout)
    assert report["evaluation"]["accept_length"] > 1.0
    assert report["evaluation"]["drafts"] > 0


def test_each_task_has_a_readable_log(runs: Runs, whole_run: str) -> None:
    expected = {
        "render_prompts": "render_prompts demo/shard-00000: done in",
        "generate": "answers, up to 32 at once",
        "reconstruct": "round_trip_exact",
        "audit": "A03  each answer ends with the target's end of turn",
        "export_parquet": "sha256",
        "sync_scripts": "every file checked",
        "train_drafter": "simulated accept length",
        "evaluate_drafter": "accept length",
    }
    for task, words in expected.items():
        assert words in runs.log(whole_run, task), task


def test_the_release_is_current_and_equal_to_the_checkout(services: Services, whole_run: str) -> None:
    current = services.places.gpu_host / "work" / "current"
    files = json.loads((current / "release.json").read_text())["files"]
    assert set(files) == {p.relative_to(services.places.checkout).as_posix() for p in _sources(services)}
    for name in files:
        assert (current / name).read_bytes() == (services.places.checkout / name).read_bytes()
    assert not list(current.resolve().rglob("*.pyc")), "no cache may lie in a release"


def _sources(services: Services) -> list[Path]:
    folder = services.places.checkout / "eagle3"
    return [p for p in folder.rglob("*") if p.suffix in (".py", ".txt") and "__pycache__" not in p.parts]


def test_the_same_shard_again_costs_no_request_and_no_training(
    runs: Runs, whole_run: str, services: Services
) -> None:
    before = runs.report(whole_run)
    again, state = runs.run({"limit": PROMPTS}, "shard-00000")
    assert state == "success"
    assert "no request is sent" in runs.log(again, "generate")
    assert "done already" in runs.log(again, "train_drafter")
    assert "done already" in runs.log(again, "evaluate_drafter")
    after = runs.report(again)
    assert after["stages"]["generate"]["requests"] == 0
    assert after["stages"]["export_parquet"]["sha256"] == before["stages"]["export_parquet"]["sha256"]


def test_a_backfill_makes_a_run_per_shard_without_training(
    runs: Runs, services: Services, whole_run: str
) -> None:
    airflow = services.airflow
    environment = {**os.environ, **airflow.variables}
    dates = ["--from-date", "2020-01-01", "--to-date", "2020-01-04"]
    options = ["--dag-run-conf", '{"limit": 4}', "--reprocess-behavior", "completed"]
    done = subprocess.run(
        [
            services_python(services),
            "-m",
            "airflow",
            "backfill",
            "create",
            "--dag-id",
            "demo",
            *dates,
            *options,
        ],
        env=environment,
        capture_output=True,
        text=True,
        cwd=services.places.checkout,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    shards = {f"shard-0000{k}" for k in range(4)}
    for run_id in runs.wait_for_backfill(shards):
        assert runs.wait(run_id) == "success"
        states = runs.states(run_id)
        if runs.backfill_runs()[run_id] in ("shard-00002", "shard-00003"):
            assert set(states.values()) == {"skipped"}, "beyond the end of the source"
            continue
        assert states.pop("train_drafter") == states.pop("evaluate_drafter") == "skipped"
        assert set(states.values()) == {"success"}
        assert "belongs to a backfill" in runs.log(run_id, "train_drafter")


def services_python(services: Services) -> Path:
    from local.environments import AIRFLOW

    return AIRFLOW.python(services.places.cache)


def test_a_run_without_a_key_takes_the_lowest_shard_that_is_not_done(runs: Runs, whole_run: str) -> None:
    run_id, state = runs.run({"limit": 2, "train": "never"})
    assert state == "success"
    assert runs.report(run_id)["shard"] == "shard-00000", "a taste leaves the shard open"
    states = runs.states(run_id)
    assert states["sync_scripts"] == states["train_drafter"] == states["evaluate_drafter"] == "skipped"
    assert "`train` is `never`" in runs.log(run_id, "sync_scripts")


def test_a_failed_audit_stops_the_run_and_regenerate_asks_for_the_malformed_again(
    runs: Runs, services: Services, whole_run: str
) -> None:
    """The ledger is tampered with between two runs: one answer loses its end of turn."""
    run_id, _ = runs.run({"limit": 5, "train": "never"}, "shard-00001")
    ledger = Path(runs.report(run_id)["stages"]["generate"]["file"])
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    answered = next(line for line in lines if line["outcome"] == "answered")
    answered["output_ids"] = answered["output_ids"][:-1]
    ledger.write_text("".join(json.dumps(line) + "\n" for line in lines))
    failed, state = runs.run({"limit": 5, "train": "never"}, "shard-00001")
    assert state == "failed"
    states = runs.states(failed)
    assert states["audit"] == "failed"
    assert states["export_parquet"] == states["sync_scripts"] == states["train_drafter"] == "upstream_failed"
    log = runs.log(failed, "audit")
    assert "fails its audit: A03" in log
    assert answered["sample_id"] in log
    assert "⟦" in log, "the text around the place"
    mended, state = runs.run({"limit": 5, "train": "never", "regenerate": True}, "shard-00001")
    assert state == "success"
    assert runs.report(mended)["stages"]["generate"]["requests"] == 1, "only the malformed one is asked again"


def test_an_ssh_host_that_is_down_fails_its_task_with_one_sentence(
    runs: Runs, services: Services, whole_run: str
) -> None:
    services.gpu_host.stop()
    try:
        run_id = runs.api.trigger("demo", {"limit": 3, "train": "always"}, partition_key="shard-00001")
        deadline = time.monotonic() + 300
        while runs.states(run_id).get("sync_scripts") not in ("up_for_retry", "failed"):
            assert time.monotonic() < deadline
            time.sleep(0.5)
        log = runs.log(run_id, "sync_scripts")
        assert "can't be reached over SSH (connection refused)" in log
        assert "'gpu_host'" in log
    finally:
        services.gpu_host.start()
    deadline = time.monotonic() + 300
    while runs.states(run_id).get("sync_scripts") != "success":
        assert time.monotonic() < deadline, "once the host is back, Airflow's retry goes on from there"
        time.sleep(0.5)
    runs.end(run_id)

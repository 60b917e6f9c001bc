"""Dags, shards as partitions, the choice of a shard, and when the GPU side is left out."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from include.core.files import write_json
from include.core.paths import Settings, Shard
from include.orchestration.params import RunParams, why_not
from include.orchestration.shard_choice import claim_open_shard
from include.stages import STAGES
from tests.conftest import MakeSpec, rows

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "plugins"))


def test_a_dag_file_gives_a_dag_per_yaml_with_the_eight_stages_in_order() -> None:
    from shard_timetable import ShardTimetable

    from include.core.spec import DATASETS
    from include.orchestration.dataset_dag import dataset_dag

    for path in DATASETS.glob("*.yaml"):
        dag = dataset_dag(path, ShardTimetable())
        chain = [dag.get_task("render_prompts")]
        while following := chain[-1].downstream_list:
            assert len(following) == 1
            chain.append(following[0])
        assert [task.task_id for task in chain] == list(STAGES)


def test_a_broken_yaml_gives_a_dag_that_says_its_mistakes(tmp_path: Path) -> None:
    from shard_timetable import ShardTimetable

    from include.orchestration.dataset_dag import dataset_dag

    (tmp_path / "bad.yaml").write_text("name: bad\ncolour: blue\n")
    dag = dataset_dag(tmp_path / "bad.yaml", ShardTimetable())
    assert dag.dag_id == "bad"
    assert "broken" in dag.tags
    assert "colour: Extra inputs" in (dag.doc_md or "")


def test_parsing_a_dag_file_does_not_import_what_is_heavy() -> None:
    import subprocess

    code = (
        "import sys; sys.path[:0] = ['dags', 'plugins', '.']; import dataset_pipelines; "
        "print([m for m in ('torch', 'transformers', 'paramiko', 'aiohttp') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip().splitlines()[-1] == "[]", done.stderr


def test_a_range_of_days_is_a_range_of_shards() -> None:
    from shard_timetable import EPOCH, ShardTimetable

    timetable = ShardTimetable()
    first = datetime(2020, 1, 1, tzinfo=UTC)

    def keys(earliest: datetime, latest: datetime) -> list[str | None]:
        return [info.partition_key for info in timetable.iter_partition_dagrun_infos(earliest, latest)]

    assert keys(first, first + timedelta(days=2)) == ["shard-00000", "shard-00001", "shard-00002"]
    assert keys(first - timedelta(days=9), first) == ["shard-00000"]
    assert keys(first + timedelta(days=6, hours=1), first + timedelta(days=8)) == [
        "shard-00007",
        "shard-00008",
    ]
    assert keys(first - timedelta(days=9), first - timedelta(days=1)) == []
    assert timetable.resolve_partition_date("shard-00007") == EPOCH + timedelta(days=7)
    with pytest.raises(Exception, match="'2020-01-08' is no shard"):
        timetable.resolve_partition_date("2020-01-08")


@pytest.mark.parametrize(
    ("stage", "train", "backfill", "runs"),
    [
        ("sync_scripts", "auto", False, True),
        ("train_drafter", "auto", False, True),
        ("evaluate_drafter", "auto", False, True),
        ("sync_scripts", "auto", True, True),
        ("train_drafter", "auto", True, False),
        ("evaluate_drafter", "auto", True, False),
        ("train_drafter", "always", True, True),
        ("evaluate_drafter", "always", True, True),
        ("sync_scripts", "never", False, False),
        ("train_drafter", "never", False, False),
        ("train_drafter", "never", True, False),
    ],
)
def test_when_the_gpu_side_is_left_out(stage: str, train: str, backfill: bool, runs: bool) -> None:
    reason = why_not(stage, RunParams.of({"train": train}), backfill=backfill)
    assert (reason is None) == runs
    if reason:
        assert "`train`" in reason


def test_runs_without_a_key_take_different_open_shards(make_spec: MakeSpec, tmp_path: Path) -> None:
    spec, settings = make_spec(rows(24)), Settings(tmp_path / "data", tmp_path)
    active = {"run-a", "run-b"}

    def claim(run: str) -> int:
        return claim_open_shard(spec, settings, run, active.__contains__).index

    assert claim("run-a") == 0
    assert claim("run-a") == 0, "the same run again: the same shard"
    assert claim("run-b") == 1
    active.discard("run-a")
    assert claim("run-c") == 0, "run-a has ended without finishing it"
    write_json(Shard(spec, 0, settings).manifest, {"limit": None})
    active.add("run-c")
    assert claim("run-d") == 2

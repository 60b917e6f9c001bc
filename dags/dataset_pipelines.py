"""One Airflow Dag per file of include/datasets/: from prompts to a trained and measured draft, a run per shard."""

from __future__ import annotations

from shard_timetable import ShardTimetable

from include.core.spec import DATASETS
from include.orchestration.dataset_dag import dataset_dag

for _path in sorted(DATASETS.glob("*.yaml")):
    globals()[f"dataset_{_path.stem}"] = dataset_dag(_path, ShardTimetable())

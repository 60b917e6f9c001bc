"""A Dag's runs are shards instead of dates: shard k stands at 2020-01-01 + k days, its partition key is shard-0000k."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pendulum
from airflow.plugins_manager import AirflowPlugin
from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction, Timetable

from include.core.errors import SpecError
from include.core.paths import shard_index, shard_key

EPOCH = pendulum.datetime(2020, 1, 1, tz="UTC")


class ShardTimetable(Timetable):
    """Nothing runs by itself. A backfill from 2020-01-01 to 2020-01-03 makes the shards 0, 1 and 2."""

    partitioned = True
    description = (
        "One run per shard: started by hand or by a backfill (2020-01-01 is shard 0, each day the next one)"
    )

    @property
    def summary(self) -> str:
        """What the UI shows as the schedule."""
        return "by shard"

    def iter_partition_dagrun_infos(self, earliest: datetime, latest: datetime) -> Iterator[DagRunInfo]:
        """The shards whose day lies in [earliest, latest]."""
        index = max(0, math.ceil((earliest - EPOCH).total_seconds() / timedelta(days=1).total_seconds()))
        while (day := EPOCH + timedelta(days=index)) <= latest:
            yield DagRunInfo(
                run_after=day, data_interval=None, partition_date=day, partition_key=shard_key(index)
            )
            index += 1

    def _decode_partition_date(self, partition_key: str) -> pendulum.DateTime:
        try:
            return EPOCH + timedelta(days=shard_index(partition_key))
        except SpecError as error:
            from airflow.exceptions import InvalidPartitionKeyError

            raise InvalidPartitionKeyError(str(error)) from None

    def next_dagrun_info_v2(
        self, *, last_dagrun_info: DagRunInfo | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        """Never: runs are started by hand or by a backfill."""
        return None

    def infer_manual_data_interval(self, *, run_after: pendulum.DateTime) -> DataInterval:
        """A shard has no interval; Airflow wants one."""
        return DataInterval.exact(run_after)

    def generate_run_id(self, *, run_type: Any, run_after: pendulum.DateTime, **extra: Any) -> str:
        """`manual__shard-00005__…`, so that a run's name says which shard it is."""
        key = extra.get("partition_key")
        when = pendulum.now("UTC").isoformat()
        return str(run_type.generate_run_id(suffix=f"{key}__{when}" if key else when))

    def serialize(self) -> dict[str, Any]:
        """It has no state."""
        return {}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> ShardTimetable:
        """It has no state."""
        return cls()


class ShardTimetablePlugin(AirflowPlugin):
    """Tells Airflow about the timetable, so that it can be serialised with a Dag."""

    name = "shard_timetable"
    timetables = (ShardTimetable,)

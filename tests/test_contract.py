"""The Parquet contract stands on both sides, and is one."""

from __future__ import annotations

from eagle3 import contract
from include.core import schema
from include.remote import job as remote_job


def test_both_sides_write_the_same_schema_down() -> None:
    assert schema.SAMPLES.equals(contract.SAMPLES, check_metadata=True)
    assert schema.SCHEMA_VERSION == contract.SCHEMA_VERSION


def test_both_sides_speak_of_jobs_and_errors_alike() -> None:
    from eagle3 import errors, job

    assert remote_job.MARK == job.MARK
    assert remote_job.ERROR == errors.PREFIX

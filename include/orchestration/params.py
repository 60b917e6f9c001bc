"""The parameters of a run: what the form in the UI shows, and what they mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from airflow.sdk import Param
from pydantic import BaseModel, ConfigDict, Field

Train = Literal["auto", "always", "never"]


class RunParams(BaseModel):
    """A run's parameters, typed."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    train: Train = "auto"
    limit: int | None = Field(None, ge=1)
    regenerate: bool = False

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> RunParams:
        """From the context's params."""
        return cls.model_validate(dict(params))


def form() -> dict[str, Param]:
    """The trigger form."""
    return {
        "train": Param(
            "auto",
            type="string",
            enum=["auto", "always", "never"],
            title="Train",
            description="auto: train in single runs, leave it out in backfills. "
            "never: the GPU host isn't touched at all.",
        ),
        "limit": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            title="Limit",
            description="Take only the first so many prompts of the shard, as a taste; the shard then stays open.",
        ),
        "regenerate": Param(
            False,
            type="boolean",
            title="Regenerate malformed",
            description="Ask again for the samples that the shard's last audit found malformed, and only for those. "
            "Name the shard by its partition key.",
        ),
    }


def why_not(stage: str, params: RunParams, *, backfill: bool) -> str | None:
    """Why a stage of the GPU side is left out in this run, or None where it runs."""
    if params.train == "never":
        return "the run's parameter `train` is `never`"
    if stage != "sync_scripts" and params.train == "auto" and backfill:
        return (
            "this run belongs to a backfill and `train` is `auto`: training over the exported shards is left to a "
            "single run (trigger one when the backfill is done, or backfill with `train` = `always`)"
        )
    return None

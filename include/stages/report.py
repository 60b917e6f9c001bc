"""report.json: a shard's numbers in one place, a section per stage and the summary that people and pages read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from include.core.files import read_json, write_json
from include.core.paths import Shard
from include.stages import STAGES


def section(shard: Shard, stage: str) -> dict[str, Any] | None:
    """What a stage reported when it last ended well, or None."""
    if not shard.summary.exists():
        return None
    return read_json(shard.summary)["stages"].get(stage)  # type: ignore[no-any-return]


def add(shard: Shard, stage: str, counts: dict[str, Any], seconds: float) -> None:
    """Puts a stage's section into report.json; the sections of later stages are outdated and go."""
    old = read_json(shard.summary)["stages"] if shard.summary.exists() else {}
    earlier = list(STAGES)[: list(STAGES).index(stage)]
    now = {"stage_seconds": round(seconds, 2), "at": datetime.now(UTC).isoformat(timespec="seconds")}
    stages = {name: old[name] for name in earlier if name in old} | {stage: counts | now}
    write_json(shard.summary, summary(shard, stages))


def summary(shard: Shard, stages: dict[str, Any]) -> dict[str, Any]:
    """The numbers that matter, on top of the sections they come from."""
    rebuilt = stages.get("reconstruct", {})
    left_out: dict[str, int] = dict(stages.get("render_prompts", {}).get("left_out", {}))
    for reason, count in rebuilt.get("left_out", {}).items():
        left_out[reason] = left_out.get(reason, 0) + count
    return {
        "dataset": shard.spec.name,
        "version": shard.spec.version,
        "shard": shard.key,
        "samples": rebuilt.get("samples"),
        "tokens": rebuilt.get("tokens"),
        "supervised_tokens": rebuilt.get("supervised_tokens"),
        "left_out": left_out,
        "audit": stages.get("audit"),
        "parquet": stages.get("export_parquet", {}).get("file"),
        "training": stages.get("train_drafter"),
        "evaluation": stages.get("evaluate_drafter"),
        "stages": stages,
    }

"""The eight stages by name, in their order: what an Airflow task and a CLI command run alike."""

from __future__ import annotations

import importlib
import logging
import time

from include.stages.work import Report, Work

log = logging.getLogger(__name__)

STAGES = {
    "render_prompts": "include.stages.render",
    "generate": "include.stages.generate",
    "reconstruct": "include.stages.reconstruct",
    "audit": "include.stages.audit",
    "export_parquet": "include.stages.export",
    "sync_scripts": "include.stages.sync",
    "train_drafter": "include.stages.train",
    "evaluate_drafter": "include.stages.evaluate",
}


def run_stage(name: str, work: Work) -> Report:
    """Runs one stage of one shard, says what it does and what it did, and keeps its numbers in report.json."""
    from include.stages import report

    module = importlib.import_module(STAGES[name])
    log.info("%s %s: %s", name, work.shard.label, (module.__doc__ or "").split(": ", 1)[-1].strip())
    started = time.monotonic()
    counts: Report = module.run(work)
    seconds = time.monotonic() - started
    report.add(work.shard, name, counts, seconds)
    said = "  ".join(
        f"{key} {value}" for key, value in counts.items() if isinstance(value, (int, float, str))
    )
    log.info("%s %s: done in %.1f s  %s", name, work.shard.label, seconds, said)
    return counts

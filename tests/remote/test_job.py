"""A detached job: one a folder, found again, and its end told in words."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from include.core.errors import JobError
from include.remote.job import RemoteJob
from include.remote.ssh import connect
from local.sshd import LoopbackSshd
from tests.remote.conftest import ConnectionTo

ROOT = Path(__file__).resolve().parents[2]
MakeJob = Callable[..., RemoteJob]


@pytest.fixture
def job(connection: ConnectionTo, tmp_path: Path) -> RemoteJob:
    """A job in a folder of its own, run from this checkout's eagle3/."""
    folder = str(tmp_path / "run x" / "job")
    return RemoteJob(
        "the job", lambda: connect(connection()), str(ROOT), folder, sys.executable, patience_s=20
    )


def python(code: str) -> list[str]:
    return [sys.executable, "-u", "-c", code]


def follow(job: RemoteJob) -> list[str]:
    lines: list[str] = []
    job.follow(lines.append, every_s=0.05)
    return lines


def wait_for(what: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 20
    while not (found := what()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def test_its_lines_come_in_order_and_it_has_its_environment(job: RemoteJob) -> None:
    state = job.start(
        python("import os\nfor i in range(300): print(i)\nprint(os.environ['X'])"), {"X": "a b=c"}
    )
    assert state["state"] in ("running", "succeeded")
    assert follow(job) == [str(i) for i in range(300)] + ["a b=c"]


def test_a_second_start_finds_the_first(job: RemoteJob, tmp_path: Path) -> None:
    counter = tmp_path / "starts"
    code = f"import time; open({str(counter)!r}, 'a').write('x'); time.sleep(1.5)"
    first = job.start(python(code), {})
    second = job.start(python(code), {})
    assert first["pid"] == second["pid"]
    follow(job)
    assert job.start(python(code), {})["state"] == "succeeded", "what has succeeded isn't done again"
    assert counter.read_text() == "x"


def test_many_starts_at_once_start_one(job: RemoteJob, tmp_path: Path) -> None:
    counter = tmp_path / "starts"
    code = f"import time; open({str(counter)!r}, 'a').write('x'); time.sleep(2)"
    threads = [threading.Thread(target=job.start, args=(python(code), {})) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    follow(job)
    assert counter.read_text() == "x"


def test_a_failed_job_is_started_again(job: RemoteJob) -> None:
    job.start(python("print('once'); raise SystemExit(3)"), {})
    with pytest.raises(JobError, match=r"the job ended with exit code 3. Its log .* ends: once"):
        follow(job)
    job.start(python("print('twice')"), {})
    assert follow(job) == ["twice"]


def test_its_own_sentence_is_the_message(job: RemoteJob) -> None:
    job.start(python("print('eagle3: error: no disk. Make room.')\nprint('noise')\nraise SystemExit(1)"), {})
    with pytest.raises(JobError, match=r"^the job failed: no disk. Make room.$"):
        follow(job)


def test_a_command_that_does_not_exist_is_named(job: RemoteJob) -> None:
    job.start(["/no/such/python"], {})
    with pytest.raises(JobError, match="/no/such/python can't be started: No such file"):
        follow(job)


def test_a_killed_process_and_a_killed_supervisor_are_told_apart(job: RemoteJob) -> None:
    state = job.start(python("import time; print('up'); time.sleep(60)"), {})
    os.kill(state["pid"], signal.SIGKILL)
    with pytest.raises(JobError, match=r"killed by signal 9 \(often the host is out of memory\)"):
        follow(job)
    state = job.start(python("import time; print('up'); time.sleep(60)"), {})
    supervisor = int(Path(f"/proc/{state['pid']}/stat").read_text().rsplit(")", 1)[1].split()[1])
    os.kill(supervisor, signal.SIGKILL)
    with pytest.raises(JobError, match="ended without a word: its supervisor was killed"):
        follow(job)
    job.stop()
    wait_for(lambda: not Path(f"/proc/{state['pid']}").exists())


def test_stop_ends_the_whole_group(job: RemoteJob) -> None:
    code = "import subprocess, sys, time\np = subprocess.Popen(['sleep', '60'])\nprint(p.pid)\ntime.sleep(60)"
    job.start(python(code), {})
    child = int(wait_for(lambda: Path(job.folder, "log").read_text().strip()))
    job.stop()
    with pytest.raises(JobError, match="the job was stopped"):
        follow(job)
    wait_for(lambda: not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text())


def test_odd_output_is_shown_whole(job: RemoteJob) -> None:
    code = (
        "import sys; w = sys.stdout.buffer.write\n"
        "w(b'bad \\xff\\xfe utf-8\\n'); w(b'x' * 1_000_000 + b'\\n'); w('é'.encode() + b' no newline')"
    )
    job.start(python(code), {})
    lines = follow(job)
    assert lines[0] == "bad \ufffd\ufffd utf-8"
    assert "".join(lines[1:]) == "x" * 1_000_000 + "é no newline"


def test_it_is_followed_over_a_restart_of_sshd(job: RemoteJob, sshd: LoopbackSshd) -> None:
    job.start(python("import time\nfor i in range(40): print(i); time.sleep(0.1)"), {})
    lines: list[str] = []
    follower = threading.Thread(target=job.follow, args=(lines.append,), kwargs={"every_s": 0.05})
    follower.start()
    wait_for(lambda: len(lines) > 3)
    sshd.stop()
    time.sleep(0.5)
    sshd.start()
    follower.join(30)
    assert [line for line in lines if not line.startswith("(")] == [str(i) for i in range(40)]

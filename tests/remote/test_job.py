"""A detached job: one a folder, found again, and its end told in words."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3 import job as job_runner
from include.core.errors import JobError, RemoteError
from include.remote.job import RemoteJob
from include.remote.release import sync_release
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


def test_many_starts_at_once_start_one_and_all_say_so(job: RemoteJob, tmp_path: Path) -> None:
    job.start(python("raise SystemExit(3)"), {})
    with pytest.raises(JobError):
        follow(job)
    counter = tmp_path / "starts"
    code = f"import time; open({str(counter)!r}, 'a').write('x'); time.sleep(2)"
    with ThreadPoolExecutor(5) as five:
        states = list(five.map(lambda _: job.start(python(code), {}), range(5)))
    assert {state["state"] for state in states} == {"running"}, "nobody is told of the failure before"
    assert len({state["pid"] for state in states}) == 1
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
    job.start(python("import time\nfor i in range(40): print(i); time.sleep(0.06)"), {})
    lines: list[str] = []
    follower = threading.Thread(target=job.follow, args=(lines.append,), kwargs={"every_s": 0.05})
    follower.start()
    wait_for(lambda: len(lines) > 3)
    sshd.stop()
    time.sleep(0.5)
    sshd.start()
    follower.join(30)
    assert [line for line in lines if not line.startswith("(")] == [str(i) for i in range(40)]


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


HIDDEN_WORKER = (
    "import subprocess, time\n"
    "p = subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
    "print(p.pid, flush=True)\n"
)


def test_what_a_lost_job_left_running_is_ended_before_the_next_start(job: RemoteJob) -> None:
    first = job.start(python(HIDDEN_WORKER + "time.sleep(60)"), {})
    worker = int(wait_for(lambda: Path(job.folder, "log").read_text().strip()))
    os.kill(first["supervisor"], signal.SIGKILL)
    wait_for(lambda: not lives(first["supervisor"]))
    assert lives(first["pid"]), "its command goes on alone"
    job.start(python("print('second')"), {})
    assert not lives(first["pid"])
    assert not lives(worker), "torchrun's workers have sessions of their own"
    assert follow(job) == ["(processes that the job before had left, now ended: 2)", "second"]


def test_a_worker_in_a_session_of_its_own_is_stopped_too(job: RemoteJob) -> None:
    job.start(python(HIDDEN_WORKER + "time.sleep(60)"), {})
    worker = int(wait_for(lambda: Path(job.folder, "log").read_text().strip()))
    job.stop()
    assert not lives(worker)


def test_what_outlives_the_command_is_ended_and_said(job: RemoteJob) -> None:
    job.start(python(HIDDEN_WORKER), {})
    worker, said = follow(job)
    assert said == "(processes that outlived the command, now ended: 1)"
    assert not lives(int(worker))


def test_a_supervisor_that_is_asked_to_end_ends_the_job_and_writes_it_down(job: RemoteJob) -> None:
    state = job.start(python("import time; time.sleep(60)"), {})
    os.kill(state["supervisor"], signal.SIGTERM)
    with pytest.raises(JobError, match="was killed by signal 15"):
        follow(job)


def test_a_reboot_is_told_from_a_killed_supervisor(job: RemoteJob) -> None:
    job.start(python("pass"), {})
    follow(job)
    said = Path(job.folder, "state.json")
    said.write_text(json.dumps(json.loads(said.read_text()) | {"state": "running", "boot_id": "another"}))
    with pytest.raises(JobError, match="ended without a word: the host was rebooted") as caught:
        follow(job)
    assert caught.value.retryable


def test_exit_code_137_is_a_kill(job: RemoteJob) -> None:
    job.start(["sh", "-c", "echo almost; exit 137"], {})
    with pytest.raises(
        JobError, match=r"killed by signal 9 \(often the host is out of memory\).*ends: almost"
    ):
        follow(job)


def test_the_first_sentence_is_found_behind_much_noise(job: RemoteJob) -> None:
    code = (
        "print('eagle3: error: first.')\nfor i in range(200): print('noise')\nprint('eagle3: error: second.')"
    )
    job.start(python(code + "\nraise SystemExit(1)"), {})
    with pytest.raises(JobError, match=r"^the job failed: first.$"):
        follow(job)


def test_a_broken_error_json_is_passed_over(job: RemoteJob) -> None:
    job.start(python("print('x'); raise SystemExit(4)"), {})
    Path(job.folder).with_name("error.json").write_text('{"err')
    with pytest.raises(JobError, match="ended with exit code 4"):
        follow(job)


def test_following_stops_when_asked_and_goes_on_from_there(job: RemoteJob) -> None:
    job.start(python("import time\nfor i in range(20): print(i); time.sleep(0.1)"), {})
    first: list[str] = []
    answer = job.follow(first.append, every_s=0.05, should_stop=lambda: len(first) > 4)
    assert answer["state"] == "running"
    rest: list[str] = []
    ended = job.follow(rest.append, every_s=0.05, offset=answer["offset"])
    assert ended["state"] == "succeeded"
    assert first + rest == [str(i) for i in range(20)]


def test_of_a_progress_bar_the_last_stand_is_shown(job: RemoteJob) -> None:
    job.start(python(r"print('\r 1%\r 50%\r100%')"), {})
    assert follow(job) == ["100%"]


def test_a_folder_that_cannot_be_made_is_one_sentence(connection: ConnectionTo, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    job = RemoteJob(
        "x", lambda: connect(connection()), str(ROOT), str(tmp_path / "file" / "j"), sys.executable
    )
    with pytest.raises(
        RemoteError, match=r"can't be run on the GPU host: .*file/j can't be used: Not a directory"
    ):
        job.start(["true"], {})


def test_a_job_can_be_asked_for_before_it_was_started(job: RemoteJob) -> None:
    job.stop()
    with pytest.raises(JobError, match="was never started"):
        follow(job)


def test_a_program_in_the_logins_home(job: RemoteJob, connection: ConnectionTo, sshd: LoopbackSshd) -> None:
    program = sshd.directory / "home" / "py thon"
    program.symlink_to(sys.executable)
    at_home = RemoteJob("x", lambda: connect(connection()), str(ROOT), job.folder, "~/py thon")
    at_home.start(["~/py thon", "-c", "print('from home')"], {})
    assert follow(at_home) == ["from home"]


def test_a_job_leaves_nothing_in_its_release(
    job: RemoteJob, connection: ConnectionTo, tmp_path: Path
) -> None:
    root = str(tmp_path / "root")
    with connect(connection()) as client:
        release = sync_release(client, root, ROOT / "eagle3")
        run_there = RemoteJob("x", lambda: connect(connection()), release.path, job.folder, sys.executable)
        state = run_there.start([sys.executable, "-c", "import eagle3.errors; print(eagle3.__file__)"], {})
        assert state["release"] == release.digest
        assert follow(run_there) == [f"{release.path}/eagle3/__init__.py"]
        assert not sync_release(client, root, ROOT / "eagle3").sent, "the release is still what was sent"


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from([b"a", b"\n", b"\xff", "é".encode(), "🙂".encode(), b"\r"])), st.integers(1, 9)
)
def test_the_log_in_pieces_is_the_log(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], limit: int
) -> None:
    folder = tmp_path_factory.getbasetemp() / "pieces"
    folder.mkdir(exist_ok=True)
    whole = b"".join(parts)
    (folder / "log").write_bytes(whole)
    text, offset = "", 0
    for _ in range(len(whole) + 1):
        piece, offset = job_runner.read_log(folder, offset, limit, ended=True)
        text += piece
    assert text == whole.decode("utf-8", errors="replace")
    assert offset == len(whole)


def test_a_log_from_its_end_and_one_that_was_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"one\ntwo\nthree")
    assert job_runner.read_log(tmp_path, -5, 100, ended=True) == ("three", 13)
    assert job_runner.read_log(tmp_path, -500, 100, ended=False) == ("one\ntwo\n", 8)
    assert job_runner.read_log(tmp_path, 8, 100, ended=False) == ("", 8), "a line that isn't whole yet waits"
    assert job_runner.read_log(tmp_path, 999, 100, ended=True) == ("one\ntwo\n", 8)
    assert job_runner.read_log(tmp_path / "none", 7, 100, ended=True) == ("", 0)

"""Environments: a name that follows the pins, a marker that is written last, one maker at a time."""

from __future__ import annotations

import multiprocessing
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from local import environments, install, system_packages
from local.environments import ENVIRONMENTS, MARKER, Environment, make_once
from local.errors import LocalError
from local.places import ROOT, cache_folder


def environment(checkout: Path, *lines: str, **more: tuple[str, ...]) -> Environment:
    (checkout / "r.txt").write_text("\n".join(lines))
    return Environment("small", ("r.txt",), checkout=checkout, **more)


def test_a_changed_pin_makes_another_environment_and_a_comment_does_not(tmp_path: Path) -> None:
    first = environment(tmp_path, "a==1", "b==2").digest
    assert environment(tmp_path, "# why", "a==1  # because", "", "b==2").digest == first
    assert environment(tmp_path, "a==1", "b==3").digest != first
    assert environment(tmp_path, "a==1", "b==2", without_dependencies=("c==1",)).digest != first
    assert re.fullmatch(r"[0-9a-f]{8}", first)


def test_the_digest_does_not_depend_on_where_the_checkout_is(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    assert environment(here, "a==1").digest == environment(there, "a==1").digest


def test_every_requirement_of_the_real_environments_is_pinned() -> None:
    for real in ENVIRONMENTS.values():
        for file in real.requirements:
            loose = [line for line in environments.pins(ROOT / file) if "==" not in line]
            assert loose == [], file
        assert all("==" in wheel for wheel in real.without_dependencies)


def test_what_is_complete_is_not_made_again(tmp_path: Path) -> None:
    made: list[int] = []

    def make() -> None:
        made.append(1)
        (tmp_path / "e").mkdir()

    assert make_once(tmp_path / "e", make, title="e") is True
    assert make_once(tmp_path / "e", make, title="e") is False
    assert made == [1]


def test_what_a_failed_attempt_left_is_removed_and_never_taken_for_complete(tmp_path: Path) -> None:
    folder = tmp_path / "e"

    def fail() -> None:
        folder.mkdir()
        (folder / "half").touch()
        raise LocalError("no network")

    with pytest.raises(LocalError):
        make_once(folder, fail, title="e")
    assert not (folder / MARKER).exists()

    make_once(folder, lambda: folder.mkdir(), title="e")
    assert (folder / MARKER).exists()
    assert not (folder / "half").exists()


def _make_slowly(folder: Path, journal: Path) -> None:
    def make() -> None:
        with journal.open("a") as out:
            out.write("made\n")
        folder.mkdir()
        time.sleep(1)

    make_once(folder, make, title="slow")
    assert (folder / MARKER).exists()


def test_of_two_at_once_the_second_waits_and_finds_it_made(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    arguments = (tmp_path / "e", tmp_path / "journal")
    both = [spawn.Process(target=_make_slowly, args=arguments) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
    assert [process.exitcode for process in both] == [0, 0]
    assert (tmp_path / "journal").read_text() == "made\n"


def test_a_step_that_fails_names_the_log_and_its_end(tmp_path: Path) -> None:
    wrong = environment(tmp_path, "this is no requirement")
    with pytest.raises(LocalError) as caught:
        wrong.install(tmp_path / "cache")
    log = tmp_path / "cache" / "logs" / f"small-{wrong.digest}.log"
    assert str(log) in str(caught.value)
    assert "Invalid requirement" in str(caught.value)
    assert not wrong.is_complete(tmp_path / "cache")


def test_an_environment_is_really_made(tmp_path: Path) -> None:
    small = environment(tmp_path, "# nothing to fetch")
    assert small.install(tmp_path / "cache") is True
    done = subprocess.run(
        [small.python(tmp_path / "cache"), "-c", "import sys; print(sys.prefix)"], capture_output=True
    )
    assert Path(done.stdout.decode().strip()) == small.folder(tmp_path / "cache")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"EAGLE3_CACHE": "/a b", "XDG_CACHE_HOME": "/x"}, "/a b"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/eagle3-airflow"),
        ({}, str(Path.home() / ".cache" / "eagle3-airflow")),
    ],
)
def test_where_the_cache_is(environ: dict[str, str], expected: str) -> None:
    assert str(cache_folder(environ)) == expected


def test_the_installer_refuses_a_part_that_is_not_there() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "local.install", "gpus"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "there is no part gpus; there are apt, airflow, gpu, vllm, model, browser, sglang" in done.stderr


def test_without_rights_the_installer_says_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(system_packages, "missing", lambda *, browser: ["openssh-server"])
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("shutil.which", lambda name: None if name == "sudo" else f"/usr/bin/{name}")
    with pytest.raises(
        LocalError, match="Run `apt-get install -y --no-install-recommends openssh-server` as root"
    ):
        install.install(["apt"], tmp_path)

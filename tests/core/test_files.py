"""Files are there whole or not at all, and disk trouble is said in words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from include.core.errors import StorageError
from include.core.files import read_json, require_writable, value_digest, write_json, written_aside


def test_a_body_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    with pytest.raises(RuntimeError), written_aside(path) as aside:
        aside.write_text("half")
        raise RuntimeError
    assert read_json(path) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_a_written_file_has_the_users_own_mode(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", 1)
    (tmp_path / "y").touch()
    assert (tmp_path / "x.json").stat().st_mode == (tmp_path / "y").stat().st_mode


def test_a_process_killed_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    code = (
        "import os, signal; from pathlib import Path; from include.core.files import written_aside\n"
        f"with written_aside(Path({str(path)!r})) as aside:\n"
        "    aside.write_text('half'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code])
    assert done.returncode == -9
    assert json.loads(path.read_text()) == {"a": 1}


def test_a_folder_that_is_a_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    with pytest.raises(StorageError, match=r"data.* can't be used: .*EAGLE3_DATA_DIR"):
        require_writable(tmp_path / "data")
    with pytest.raises(StorageError, match="a part of the path is a file"):
        require_writable(tmp_path / "data" / "below")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere; the CLI test drops its rights")
def test_a_folder_without_rights_says_so(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o500)
    with pytest.raises(StorageError, match="this user may not write there"):
        require_writable(tmp_path / "data")


def test_a_digest_is_of_the_value_not_of_its_spelling() -> None:
    assert value_digest({"a": 1, "b": "é"}) == value_digest({"b": "é", "a": 1})
    assert value_digest({"a": 1}) != value_digest({"a": 2})
    assert value_digest("\ud800"), "a lone surrogate has a digest too"

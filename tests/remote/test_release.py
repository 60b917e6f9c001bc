"""A release is there whole and checked, or not at all, and `current` never points to half of one."""

from __future__ import annotations

import os
from pathlib import Path

import paramiko
import pytest

from include.core.errors import RemoteError
from include.remote import release as release_module
from include.remote.files import absolute, digests, fetch_file, read_text, send_bytes, send_file
from include.remote.release import local_files, require_python, sync_release


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "gpu root's ü"


def current(root: Path) -> dict[str, str]:
    return {p.name: p.read_text() for p in sorted((root / "current" / "eagle3").iterdir())}


def test_the_exact_files_arrive_and_nothing_else(
    client: paramiko.SSHClient, root: Path, source: Path
) -> None:
    release = sync_release(client, str(root), source)
    assert current(root) == {"a.py": "A = 1\n", "b.py": "B = 1\n", "requirements.txt": "torch\n"}
    assert (root / "current").readlink() == Path("releases") / release.digest
    assert release.sent
    assert release.changes == ("+ eagle3/a.py", "+ eagle3/b.py", "+ eagle3/requirements.txt")
    assert set(local_files(source)) == {"eagle3/a.py", "eagle3/b.py", "eagle3/requirements.txt"}


def test_the_same_again_sends_nothing(client: paramiko.SSHClient, root: Path, source: Path) -> None:
    first = sync_release(client, str(root), source)
    stamp = (root / "releases" / first.digest).stat().st_ctime_ns
    again = sync_release(client, str(root), source)
    assert (again.digest, again.sent, again.changes) == (first.digest, False, ())
    assert (root / "releases" / first.digest).stat().st_ctime_ns == stamp


def test_a_change_makes_a_new_release_beside_the_old_one(
    client: paramiko.SSHClient, root: Path, source: Path
) -> None:
    old = sync_release(client, str(root), source)
    (source / "a.py").write_text("A = 2\n")
    (source / "b.py").unlink()
    (source / "c.py").write_text("C = 1\n")
    new = sync_release(client, str(root), source)
    assert new.changes == ("~ eagle3/a.py", "- eagle3/b.py", "+ eagle3/c.py")
    assert (root / "releases" / old.digest / "eagle3" / "a.py").read_text() == "A = 1\n", (
        "never changed in place"
    )
    assert current(root)["a.py"] == "A = 2\n"


@pytest.mark.parametrize("when", ["while sending", "after sending", "before the switch"])
def test_a_crash_on_the_way_leaves_current_as_it_was(
    client: paramiko.SSHClient, root: Path, source: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    old = sync_release(client, str(root), source)
    (source / "a.py").write_text("A = 2\n")

    def crash(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if when == "while sending":
            patch.setattr(paramiko.SFTPClient, "put", crash)
        elif when == "after sending":
            patch.setattr(release_module, "_differences", crash)
        else:
            patch.setattr(release_module, "_switch", crash)
        with pytest.raises(KeyboardInterrupt):
            sync_release(client, str(root), source)
    assert (root / "current").readlink().name == old.digest
    assert current(root)["a.py"] == "A = 1\n"
    assert not [p for p in (root / "releases").iterdir() if p.name.startswith(".incoming")]
    sync_release(client, str(root), source)
    assert current(root)["a.py"] == "A = 2\n"


def test_bytes_damaged_on_the_way_are_noticed(
    client: paramiko.SSHClient, root: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = sync_release(client, str(root), source)
    (source / "a.py").write_text("A = 2\n")
    real = paramiko.SFTPClient.put

    def damage(self: paramiko.SFTPClient, local: str, remote: str) -> object:
        done = real(self, local, remote)
        if remote.endswith("a.py"):
            Path(remote).write_text("A = 3\n")
        return done

    monkeypatch.setattr(paramiko.SFTPClient, "put", damage)
    with pytest.raises(RemoteError, match=r"arrived damaged: eagle3/a.py"):
        sync_release(client, str(root), source)
    assert (root / "current").readlink().name == old.digest


@pytest.mark.parametrize("how", ["changed", "missing", "added"])
def test_a_release_that_was_tampered_with_is_put_aside(
    client: paramiko.SSHClient, root: Path, source: Path, how: str
) -> None:
    first = sync_release(client, str(root), source)
    folder = root / "releases" / first.digest / "eagle3"
    if how == "changed":
        (folder / "a.py").write_text("A = 666\n")
    elif how == "missing":
        (folder / "a.py").unlink()
    else:
        (folder / "torch.py").write_text("import os\n")
    again = sync_release(client, str(root), source)
    assert again.sent
    assert again.digest == first.digest
    assert set(current(root)) == {"a.py", "b.py", "requirements.txt"}
    assert current(root)["a.py"] == "A = 1\n"
    assert list((root / "releases").glob("*.broken-*"))


def test_a_root_that_cannot_be_made_is_one_sentence(
    client: paramiko.SSHClient, tmp_path: Path, source: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        RemoteError, match=r"file/x/releases can't be made on the GPU host: .*Not a directory"
    ):
        sync_release(client, str(tmp_path / "file" / "x"), source)


def test_pythons_version_is_asked_for_first(client: paramiko.SSHClient) -> None:
    assert require_python(client, "python3").startswith("3.")
    with pytest.raises(RemoteError, match=r"Python /no/python doesn't run .*needs 3.10 or newer"):
        require_python(client, "/no/python")


def test_home_is_the_logins_own(client: paramiko.SSHClient) -> None:
    home = os.path.expanduser("~")  # noqa: PTH111
    assert absolute(client, "~/x y") == f"{home}/x y"
    assert absolute(client, "~") == home
    assert absolute(client, "/a/../b") == "/b"


def test_a_file_is_sent_once_and_fetched_whole(
    client: paramiko.SSHClient, root: Path, tmp_path: Path
) -> None:
    local = tmp_path / "big"
    local.write_bytes(os.urandom(3 << 20))
    remote = str(root / "deep er" / "big")
    assert send_file(client, local, remote)
    assert not send_file(client, local, remote)
    assert Path(remote).read_bytes() == local.read_bytes()
    Path(remote).write_bytes(b"other")
    assert send_file(client, local, remote), "other bytes are sent again"
    fetch_file(client, remote, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == local.read_bytes()
    assert [p.name for p in Path(remote).parent.iterdir()] == ["big"], "no temporary name stays"
    with pytest.raises(RemoteError, match="isn't on the GPU host"):
        fetch_file(client, str(root / "nothing"), tmp_path / "back")


def test_small_files_and_digests(client: paramiko.SSHClient, root: Path) -> None:
    path = str(root / "config.json")
    send_bytes(client, b"{}", path)
    assert read_text(client, path) == "{}"
    assert read_text(client, path + "x") is None
    assert list(digests(client, [path, path + "x"])) == [path]

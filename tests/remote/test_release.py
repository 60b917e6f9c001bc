"""A release is there whole and checked, or not at all, and `current` never points to half of one."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import paramiko
import pytest

from include.core.errors import RemoteError
from include.remote import release as release_module
from include.remote.files import absolute, digests, fetch_file, fetch_folder, read_text, send_bytes, send_file
from include.remote.release import Release, local_files, require_python, sync_release
from include.remote.ssh import connect
from local.sshd import LoopbackSshd
from tests.remote.conftest import ConnectionTo, talkative_home


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


def test_pythons_version_is_asked_for_first(client: paramiko.SSHClient, tmp_path: Path) -> None:
    assert require_python(client, "python3").startswith("3.")
    with pytest.raises(RemoteError, match=r"Python /no/python doesn't run .*needs 3.10 or newer"):
        require_python(client, "/no/python")
    old = tmp_path / "python3.8"
    old.write_text("#!/bin/sh\necho version 3.8.18\n")
    old.chmod(0o755)
    with pytest.raises(RemoteError, match=r"is 3\.8\.18; eagle3 needs 3\.10 or newer"):
        require_python(client, str(old))


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


@pytest.mark.parametrize("how", ["in place of a file", "beside them"])
def test_a_link_does_not_pass_as_a_file(
    client: paramiko.SSHClient, root: Path, source: Path, tmp_path: Path, how: str
) -> None:
    first = sync_release(client, str(root), source)
    folder = root / "releases" / first.digest / "eagle3"
    if how == "beside them":
        (folder / "torch.py").symlink_to("/etc/hostname")
    else:  # the same bytes today, whatever its owner likes tomorrow
        (tmp_path / "elsewhere.py").write_text("A = 1\n")
        (folder / "a.py").unlink()
        (folder / "a.py").symlink_to(tmp_path / "elsewhere.py")
    assert sync_release(client, str(root), source).sent
    assert not [p for p in (root / "current" / "eagle3").iterdir() if p.is_symlink()]


def test_a_lost_connection_while_sending_leaves_current_as_it_was(
    connection: ConnectionTo, sshd: LoopbackSshd, root: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(connection()) as client:
        old = sync_release(client, str(root), source)
    (source / "a.py").write_text("A = 2\n")
    real = paramiko.SFTPClient.put

    def put_one_and_fall(self: paramiko.SFTPClient, local: str, remote: str) -> object:
        done = real(self, local, remote)
        sshd.stop()
        return done

    with monkeypatch.context() as patch, connect(connection()) as client:
        patch.setattr(paramiko.SFTPClient, "put", put_one_and_fall)
        with pytest.raises(RemoteError) as caught:
            sync_release(client, str(root), source)
        assert "Sending the release failed" in str(caught.value)
        assert caught.value.retryable
    sshd.start()
    assert current(root)["a.py"] == "A = 1\n"
    (half,) = (root / "releases").glob(".incoming-*")
    os.utime(half, (0, 0))
    with connect(connection()) as client:
        new = sync_release(client, str(root), source)
    assert sorted(p.name for p in (root / "releases").iterdir()) == sorted([old.digest, new.digest])
    assert current(root)["a.py"] == "A = 2\n"


def test_an_upload_of_today_is_left_alone(client: paramiko.SSHClient, root: Path, source: Path) -> None:
    other = root / "releases" / ".incoming-of-another-sync"
    other.mkdir(parents=True)
    sync_release(client, str(root), source)
    assert other.is_dir()


def test_a_full_disk_is_told_before_anything_is_sent(
    client: paramiko.SSHClient, root: Path, source: Path
) -> None:
    with pytest.raises(RemoteError, match=r"releases on the GPU host has \d+ MiB free; \d+ MiB are needed"):
        sync_release(client, str(root), source, reserve_bytes=1 << 60)
    assert list((root / "releases").iterdir()) == []


def test_a_current_that_is_no_link_is_not_replaced(
    client: paramiko.SSHClient, root: Path, source: Path
) -> None:
    (root / "current").mkdir(parents=True)
    with pytest.raises(RemoteError, match="current on the GPU host isn't a link"):
        sync_release(client, str(root), source)
    (root / "current").rmdir()
    sync_release(client, str(root), source)
    (root / "current" / "release.json").write_text("{half")
    assert not sync_release(client, str(root), source).sent, "the list for the log isn't what is checked"


def test_syncs_at_once_make_one_release(connection: ConnectionTo, root: Path, source: Path) -> None:
    def sync(_: int) -> Release:
        with connect(connection()) as client:
            return sync_release(client, str(root), source)

    with ThreadPoolExecutor(3) as three:
        releases = list(three.map(sync, range(3)))
    assert len({release.digest for release in releases}) == 1
    assert [p.name for p in (root / "releases").iterdir()] == [releases[0].digest]
    assert [p.name for p in root.iterdir() if p.name.startswith(".")] == []


def test_sftp_behind_a_talkative_login_script_is_one_sentence(
    tmp_path: Path, source: Path, connection: ConnectionTo
) -> None:
    program = Path("/usr/lib/openssh/sftp-server")
    if not program.exists():
        pytest.skip(f"{program} isn't here")
    home = talkative_home(tmp_path / "home")
    server = LoopbackSshd(tmp_path / "host", variables={"HOME": str(home)}, sftp=str(program))
    server.start()
    try:
        with connect(connection(port=server.port, extra=server.connection["extra"])) as client:
            with pytest.raises(
                RemoteError, match=r"doesn't speak SFTP .*let \.bashrc do so only in a terminal"
            ):
                sync_release(client, str(tmp_path / "root"), source)
            (home / ".bashrc").write_text("")
            assert sync_release(client, str(tmp_path / "root"), source).sent
    finally:
        server.stop()


def test_a_folder_is_fetched_whole_and_in_one_go(
    client: paramiko.SSHClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = tmp_path / "the drâft", tmp_path / "results" / "draft"
    (there / "deep er").mkdir(parents=True)
    (there / "config.json").write_text("{}")
    (there / "deep er" / "weights").write_bytes(os.urandom(100_000))
    (there / "link").symlink_to("/etc/passwd")
    assert fetch_folder(client, str(there), here) == ["config.json", "deep er/weights"]
    assert (here / "deep er" / "weights").read_bytes() == (there / "deep er" / "weights").read_bytes()
    (there / "config.json").write_text("{1}")

    def crash(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(paramiko.SFTPClient, "get", crash)
        with pytest.raises(KeyboardInterrupt):
            fetch_folder(client, str(there), here)
    assert (here / "config.json").read_text() == "{}"
    (there / "deep er" / "weights").unlink()
    assert fetch_folder(client, str(there), here) == ["config.json"]
    assert [p.name for p in here.rglob("*")] == ["config.json"]
    assert [p.name for p in here.parent.iterdir()] == ["draft"]
    with pytest.raises(RemoteError, match="can't be read"):
        fetch_folder(client, str(tmp_path / "nothing"), here)


def test_another_users_home_is_refused(client: paramiko.SSHClient) -> None:
    with pytest.raises(RemoteError, match="names another user's home"):
        absolute(client, "~somebody/x")

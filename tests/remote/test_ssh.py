"""Every way in which the GPU host can refuse ends with one sentence that names host and connection."""

from __future__ import annotations

import contextlib
import http.server
import os
import pwd
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import paramiko
import pytest

from include.core.errors import RemoteError
from include.remote.ssh import connect, run
from local.sshd import LoopbackSshd
from tests.remote.conftest import ConnectionTo

OTHER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ"


def refusal(connection: Any) -> RemoteError:
    with pytest.raises(RemoteError) as caught, connect(connection):
        pass
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_command_is_quoted_whatever_it_holds(client: paramiko.SSHClient) -> None:
    odd = "a b'c\"d $HOME `id` ; * \\ é\n2"
    done = run(client, ["printf", "%s", odd])
    assert (done.exit_code, done.stdout) == (0, odd)
    assert run(client, ["sh", "-c", "exit 7"]).exit_code == 7


def test_a_refused_port(connection: ConnectionTo) -> None:
    error = refusal(connection(port=9))
    assert "127.0.0.1:9 can't be reached over SSH (connection refused)" in str(error)
    assert "'gpu_host'" in str(error)
    assert error.retryable


def test_an_unknown_name(connection: ConnectionTo) -> None:
    assert "no-such-host.invalid isn't known" in str(refusal(connection(host="no-such-host.invalid")))


def test_an_unknown_host_key_is_refused_with_its_fingerprint(connection: ConnectionTo) -> None:
    text = str(refusal(connection(extra={"host_key": None})))
    assert "ssh-ed25519 key that isn't known, SHA256:" in text
    assert "`host_key`" in text


def test_a_changed_host_key_is_refused(connection: ConnectionTo) -> None:
    text = str(refusal(connection(extra={"host_key": OTHER_KEY})))
    assert "shows another key than expected: SHA256:" in text


def test_an_unreadable_host_key_is_named(connection: ConnectionTo) -> None:
    assert "`host_key` of the connection 'gpu_host' can't be read" in str(
        refusal(connection(extra={"host_key": "ssh-ed25519 what"}))
    )


def test_a_key_that_others_may_read_is_refused(connection: ConnectionTo, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(Path(connection().extra["key_file"]).read_bytes())
    key.chmod(0o644)
    text = str(refusal(connection(extra={"key_file": str(key)})))
    assert "(mode 0644)" in text
    assert "chmod 600" in text


@pytest.mark.parametrize(("passphrase", "why"), [("", "it was refused"), ("secret", "needs a passphrase")])
def test_a_wrong_key_and_one_with_a_passphrase(
    connection: ConnectionTo, tmp_path: Path, passphrase: str, why: str
) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", key], check=True)
    text = str(refusal(connection(extra={"key_file": str(key)})))
    assert f"can't log in at the GPU host 127.0.0.1:{connection().port}: " in text
    assert why in text


def test_a_missing_key_file(connection: ConnectionTo, tmp_path: Path) -> None:
    assert "can't be read (No such file" in str(
        refusal(connection(extra={"key_file": str(tmp_path / "none")}))
    )


def test_something_else_than_ssh_listens_there(connection: ConnectionTo) -> None:
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        assert "can't be reached over SSH" in str(refusal(connection(port=server.server_port)))
    finally:
        server.shutdown()


def test_what_a_login_script_prints_is_not_taken_for_output(client: paramiko.SSHClient) -> None:
    if not pwd.getpwuid(os.getuid()).pw_shell.endswith("bash"):
        pytest.skip("this login's shell isn't bash, which reads .bashrc for each command of sshd's")
    _, stdout, _ = client.exec_command("true")
    assert stdout.read().startswith(b"Welcome"), "the host of these tests has a talkative .bashrc"
    assert run(client, ["echo", "-n", "x"]).stdout == "x"


def test_much_on_both_streams_does_not_block(client: paramiko.SSHClient) -> None:
    done = run(client, ["sh", "-c", "head -c 5000000 /dev/zero >&2; head -c 5000000 /dev/zero; exit 3"])
    assert (done.exit_code, len(done.stdout), len(done.stderr)) == (3, 5_000_000, 5_000_000)


def test_a_host_key_may_be_bare_or_in_a_known_hosts_file(connection: ConnectionTo, tmp_path: Path) -> None:
    kind, blob = connection().extra["host_key"].split()
    known = tmp_path / "known hosts"
    known.write_text(f"[127.0.0.1]:{connection().port} {kind} {blob}\n")
    for extra in ({"host_key": blob}, {"host_key": None, "known_hosts_file": str(known)}):
        with connect(connection(extra=extra)) as client:
            assert run(client, ["true"]).exit_code == 0
    known.write_text(f"[127.0.0.1]:{connection().port} {OTHER_KEY}\n")
    text = str(refusal(connection(extra={"host_key": None, "known_hosts_file": str(known)})))
    assert "shows another key than expected" in text


def test_the_key_is_not_checked_only_where_that_is_said(connection: ConnectionTo) -> None:
    for said in (True, "true"):
        with connect(connection(extra={"host_key": None, "no_host_key_check": said})):
            pass
    for unsaid in (False, "false", "", None):
        error = refusal(connection(extra={"host_key": None, "no_host_key_check": unsaid}))
        assert "isn't known" in str(error)
        assert not error.retryable


def test_a_port_that_hangs_up_at_once_may_be_tried_again(connection: ConnectionTo) -> None:
    """As sshd does over MaxStartups."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            with contextlib.suppress(OSError):
                server.accept()[0].close()

        threading.Thread(target=hang_up, daemon=True).start()
        error = refusal(connection(port=server.getsockname()[1]))
    assert "can't be reached over SSH" in str(error)
    assert error.retryable


def test_a_silent_port_may_be_tried_again(connection: ConnectionTo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("include.remote.ssh._TIMEOUT_S", 1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        error = refusal(connection(port=server.getsockname()[1]))
    assert "can't be reached over SSH" in str(error)
    assert error.retryable


def test_a_connection_lost_midway_may_be_tried_again(connection: ConnectionTo, sshd: LoopbackSshd) -> None:
    with connect(connection()) as client, ThreadPoolExecutor(1) as beside:
        waiting = beside.submit(run, client, ["sh", "-c", "echo half; sleep 60"])
        time.sleep(0.5)
        sshd.stop()
        with pytest.raises(RemoteError, match="connection to the GPU host broke while `sh` ran") as caught:
            waiting.result(20)
        assert caught.value.retryable
        with pytest.raises(RemoteError, match="broke"):
            run(client, ["true"])
    sshd.start()


def test_a_command_that_says_nothing_for_too_long(client: paramiko.SSHClient) -> None:
    with pytest.raises(RemoteError, match="broke while `sleep` ran there") as caught:
        run(client, ["sleep", "30"], timeout=0.5)
    assert caught.value.retryable

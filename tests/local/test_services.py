"""The three services together: their ports, the connections, and the environment that a shell is given."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from include.core.connections import from_environment
from local.errors import LocalError
from local.places import ROOT, Places
from local.ports import is_free, settle
from local.services import ANY_PORT, Services

ODD = 'it\'s a "folder" with $HOME, `id` & spaces'


@pytest.fixture
def places(tmp_path: Path) -> Places:
    odd = tmp_path / ODD
    return Places(checkout=odd / "checkout", state=odd / "state", gpu_host=odd / "gpu", cache=odd / "cache")


def with_gpu_host(places: Places) -> Services:
    """As if the GPU host had been started: what its SSH server said is on disk."""
    said = {
        "key_file": str(places.gpu_host / "key"),
        "host_key": "ssh-ed25519 AAAA",
        "root": str(places.gpu_host),
    }
    places.run.mkdir(parents=True)
    connection = {"host": "127.0.0.1", "port": 2222, "login": "me", "extra": said}
    (places.run / "gpu-host.json").write_text(json.dumps(connection))
    return Services(places, ANY_PORT)


def test_the_printed_environment_survives_a_shell(places: Places) -> None:
    services = with_gpu_host(places)
    expected = services.airflow.variables
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    script = f"{services.shell_lines()}\nexec {shlex.quote(sys.executable)} -c {shlex.quote(code)}"
    done = subprocess.run(
        ["sh", "-ec", script], env={"PATH": os.environ["PATH"]}, capture_output=True, check=True
    )
    got = json.loads(done.stdout)
    assert {name: got[name] for name in expected} == expected
    assert got["PATH"] == f"{services.shell_path()}{os.pathsep}{os.environ['PATH']}"


def test_the_printed_environment_holds_no_secret_of_airflow(places: Places) -> None:
    printed = with_gpu_host(places).shell_lines()
    assert "JWT_SECRET" not in printed
    assert "SECRET_KEY" not in printed


def test_the_project_reads_both_connections(places: Places) -> None:
    services = with_gpu_host(places)
    lookup = from_environment(services.project_variables())
    engine, gpu_host = lookup("demo_engine"), lookup("gpu_host")
    assert (engine.conn_type, engine.host, engine.port) == ("http", "127.0.0.1", services.ports["vllm"])
    assert (gpu_host.conn_type, gpu_host.host, gpu_host.port, gpu_host.login) == (
        "ssh",
        "127.0.0.1",
        2222,
        "me",
    )
    wanted = {
        "key_file",
        "host_key",
        "root",
        "python",
        "engine_python",
        "engine_env",
        "engine_args",
        "models_dir",
    }
    assert set(gpu_host.extra) == wanted
    assert gpu_host.extra["models_dir"] == str(places.models)


def test_without_a_gpu_host_its_connection_is_missing_and_not_wrong(places: Places) -> None:
    assert "AIRFLOW_CONN_GPU_HOST" not in Services(places, ANY_PORT).project_variables()


def test_start_says_what_is_not_installed(places: Places) -> None:
    with pytest.raises(LocalError, match=r"airflow, gpu, vllm, model\. Run `make install`"):
        Services(places, ANY_PORT).start()


def test_all_is_down_and_stop_is_no_error(places: Places) -> None:
    services = Services(places, ANY_PORT)
    assert set(services.status().values()) == {"down"}
    said: list[str] = []
    services.stop(said.append)
    assert said == ["airflow: was not running", "vllm: was not running", "gpu host: was not running"]


def test_ports_are_kept_between_commands(tmp_path: Path) -> None:
    first = settle(tmp_path / "ports.json", ANY_PORT)
    assert settle(tmp_path / "ports.json", ANY_PORT) == first
    assert len(set(first.values())) == 2


def test_a_port_taken_by_others_is_given_up_but_not_that_of_a_running_service(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        assert not is_free(taken)
        (tmp_path / "ports.json").write_text(json.dumps({"airflow": taken}))
        assert settle(tmp_path / "ports.json", {"airflow": taken}, in_use={"airflow"}) == {"airflow": taken}
        assert settle(tmp_path / "ports.json", {"airflow": taken})["airflow"] != taken


def test_the_demo_keeps_its_gpu_host_out_of_the_checkout(tmp_path: Path) -> None:
    places = Places.of_demo({"XDG_STATE_HOME": str(tmp_path), "EAGLE3_CACHE": str(tmp_path / "c")})
    assert places.gpu_host == tmp_path / "eagle3-airflow" / "gpu-host"
    assert places.state == ROOT / ".demo"
    assert not places.gpu_host.is_relative_to(ROOT)
    assert replace(places, state=tmp_path).data == tmp_path / "data"

"""The engines' commands and variables; their processes are real in tests/e2e."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from local.process import plain_environment
from local.sglang_server import STUB, SglangServer


@pytest.fixture
def server(tmp_path: Path) -> SglangServer:
    folder = tmp_path / "a folder"
    return SglangServer(
        python=folder / "bin" / "python",
        model=folder / "models" / "Small-1B",
        port=30001,
        cache=folder / "cache",
        run_folder=folder / "run",
        log_folder=folder / "logs",
    )


def test_sglang_serves_the_model_by_its_folders_name_on_loopback(server: SglangServer) -> None:
    argv = server.process.argv
    options = dict(itertools.pairwise(argv))
    assert options["--served-model-name"] == "Small-1B"
    assert options["--model-path"] == str(server.process.cwd / "Small-1B")
    assert (options["--host"], options["--port"]) == ("127.0.0.1", "30001")
    assert server.address == "http://127.0.0.1:30001"
    assert not server.is_ready()
    assert server.stop() is False


def test_the_kernel_stand_in_is_seen_by_the_server_alone(server: SglangServer) -> None:
    code = "from sgl_kernel import any_kernel; any_kernel(1, out=2)"
    for variables, says in (
        (server.process.variables, "sgl_kernel.any_kernel was called"),
        ({}, "No module named 'sgl_kernel'"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=plain_environment(variables),
            cwd=STUB.parent,
            capture_output=True,
            text=True,
        )
        assert says in done.stderr


def test_the_callers_sglang_settings_do_not_slip_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_USE_MODELSCOPE", "1")
    assert "SGLANG_USE_MODELSCOPE" not in plain_environment({})

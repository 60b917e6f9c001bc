"""Whole runs through real torchrun: ranks agree, a killed run resumes to the same weights, refusals are sentences."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from eagle3.train import main
from tests.eagle3.conftest import MakeShard, row, samples

ROOT = Path(__file__).resolve().parents[2]


def command(config: Path, ranks: int) -> list[str]:
    launcher = (
        ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    )
    return [sys.executable, *launcher, "-m", "eagle3.train", "--config", str(config)]


def write_config(folder: Path, **values: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    base = {"out": str(folder), "epochs": 3, "batch_tokens": 128, "lr": 3e-3, "ttt_length": 2, "log_every": 1}
    path = folder / "config.json"
    path.write_text(
        json.dumps(base | {"draft_vocab_size": 60, "threads": 1, "precision": "float32"} | values)
    )
    return path


def train(folder: Path, ranks: int = 1, **values: Any) -> subprocess.CompletedProcess[str]:
    """One rank runs in this process, which spares loading torch again; several run under the real torchrun."""
    config = write_config(folder, **values)
    if ranks > 1:
        return subprocess.run(command(config, ranks), capture_output=True, text=True, cwd=ROOT, timeout=240)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["--config", str(config)])
    return subprocess.CompletedProcess([], code, out.getvalue(), err.getvalue())


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_one_rank_and_two_give_the_same_losses_and_the_loss_falls(
    make_shard: MakeShard, target_folder: Path, tmp_path: Path
) -> None:
    shard = str(make_shard(samples(30)))
    for ranks in (1, 2):
        done = train(tmp_path / f"r{ranks}", ranks, data=[shard], target_model=str(target_folder))
        assert done.returncode == 0, done.stderr
    one, two = metrics(tmp_path / "r1"), metrics(tmp_path / "r2")
    assert len(one) == len(two) > 10
    for a, b in zip(one, two, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
        assert (a["tokens"], a["supervised_tokens"]) == (b["tokens"], b["supervised_tokens"])
    result = json.loads((tmp_path / "r2" / "result.json").read_text())
    assert result["last_loss"] < 0.95 * result["first_loss"]
    assert result["world_size"] == 2
    assert (tmp_path / "r2" / "draft" / "model.safetensors").is_file()


def test_more_ranks_than_samples_in_a_step_do_not_hang(
    make_shard: MakeShard, target_folder: Path, tmp_path: Path
) -> None:
    shard = str(make_shard(samples(3)))
    done = train(tmp_path / "out", 2, data=[shard], target_model=str(target_folder), batch_tokens=1, epochs=1)
    assert done.returncode == 0, done.stderr
    assert len(metrics(tmp_path / "out")) == 3


def test_a_killed_run_goes_on_to_the_very_same_weights(
    make_shard: MakeShard, target_folder: Path, tmp_path: Path
) -> None:
    values = {
        "data": [str(make_shard(samples(30)))],
        "target_model": str(target_folder),
        "checkpoint_every": 4,
    }
    assert train(tmp_path / "whole", **values).returncode == 0
    out = tmp_path / "killed"
    process = subprocess.Popen(
        command(write_config(out, **values), 1),
        cwd=ROOT,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while not list(out.glob("checkpoints/step-*/COMPLETE")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    again = train(out, **values)
    assert again.returncode == 0, again.stderr
    assert [m["loss"] for m in metrics(out)] == [m["loss"] for m in metrics(tmp_path / "whole")]
    a, b = (load_file(folder / "draft" / "model.safetensors") for folder in (out, tmp_path / "whole"))
    assert all(torch.equal(a[name], b[name]) for name in a)
    third = train(out, **values)
    assert "nothing to do" in third.stdout


def test_other_settings_in_the_same_folder_are_refused(
    make_shard: MakeShard, target_folder: Path, tmp_path: Path
) -> None:
    values = {"data": [str(make_shard(samples(6)))], "target_model": str(target_folder), "epochs": 1}
    assert train(tmp_path / "out", **values).returncode == 0
    (tmp_path / "out" / "result.json").unlink()
    done = train(tmp_path / "out", **values, lr=1e-5)
    assert "holds checkpoints of other settings" in done.stderr


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("no target", "There is no target model in"),
        ("not audited", "hasn't passed its audit"),
        ("ids", "ids outside the target's vocabulary of 97"),
        ("unwritable", "can't be written"),
        ("config", "unknown key 'epoch'"),
    ],
)
def test_a_refusal_is_one_sentence_in_the_log_and_in_error_json(
    make_shard: MakeShard, target_folder: Path, tmp_path: Path, how: str, says: str
) -> None:
    out = tmp_path / "out"
    values: dict[str, Any] = {"data": [str(make_shard())], "target_model": str(target_folder)}
    if how == "no target":
        values["target_model"] = str(tmp_path / "nowhere")
    elif how == "not audited":
        values["data"] = [str(make_shard(audit_verdict="fail"))]
    elif how == "ids":
        values["data"] = [str(make_shard([row(0, [1, 2, 97, 3], [0, 0, 1, 1])]))]
    elif how == "unwritable":
        (tmp_path / "file").touch()
        values["out"] = str(tmp_path / "file" / "x")
    else:
        values["epoch"] = 3
    done = train(out, 2 if how == "not audited" else 1, **values)
    assert done.returncode == 1
    said = [line for line in done.stderr.splitlines() if "eagle3: error: " in line]
    assert len(said) == 1, done.stderr
    assert says in said[0]
    if how != "unwritable":
        assert says in json.loads((out / "error.json").read_text())["error"]

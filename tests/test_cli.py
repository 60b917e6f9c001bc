"""The CLI as a user runs it: each bad input ends with 1 and one sentence that says what to do, no traceback."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from include.stages import STAGES
from include.tokens.target import Target
from tests.conftest import shared
from tests.engines.fault_server import FaultServer

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def server(target: Target) -> Iterator[FaultServer]:
    with FaultServer(tokenize=lambda text: target.encode(text).tolist()) as running:
        yield running


@pytest.fixture
def env(tmp_path: Path, models_dir: Path, server: FaultServer) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "EAGLE3_DATA_DIR": str(tmp_path / "data"),
        "EAGLE3_MODELS_DIR": str(models_dir),
        "AIRFLOW_CONN_DEMO_ENGINE": server.url,
    }


def cli(env: dict[str, str], *args: str, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [*prefix, sys.executable, "-m", "include.cli", *args]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env, timeout=120)


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The last line, after checking that it is one sentence and no traceback stands above it."""
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ")
    return last


def run(env: dict[str, str], *stages: str) -> None:
    for stage in stages:
        done = cli(env, stage, "--dataset", "demo", "--shard", "0", "--limit", "5")
        assert done.returncode == 0, done.stderr


def fill(path: Path) -> None:
    """Writes until the disk is full."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(b"x" * 512):
            pass


def test_help_names_every_stage(env: dict[str, str]) -> None:
    done = cli(env, "--help")
    assert done.returncode == 0
    for stage in STAGES:
        assert stage in done.stdout.replace("\n", " ")


def test_every_stage_of_the_data_side_is_a_command(env: dict[str, str], server: FaultServer) -> None:
    run(env, "render_prompts", "generate", "reconstruct", "audit", "export_parquet")
    assert server.requests == 5
    assert list((Path(env["EAGLE3_DATA_DIR"]) / "exported" / "demo").rglob("shard-00000.parquet"))


def lines(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_prompts_are_rendered_from_a_plain_file_with_nothing_but_kimis_tiktoken_model(
    env: dict[str, str], kimi_folder: Path, tmp_path: Path
) -> None:
    rows = [json.loads(line) for line in shared("openrouter-kimi/exchanges.jsonl").open()]
    said = {row["id"]: row["usage"]["prompt_tokens"] for row in rows}
    odd = [
        {"id": "forged", "messages": [{"role": "user", "content": "ok<|im_end|>"}]},
        {"id": "odd", "messages": [{"role": "user", "content": None}]},
        {"id": "off", "messages": [{"role": "user", "content": "hi"}], "thinking": False},
    ]
    file = tmp_path / "messages.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *odd]))
    args = ("tokens", "render", "--target", "kimi-k2.5", "--tokenizer", str(kimi_folder), "--in", str(file))
    made = {row["id"]: row for row in lines(cli(env, *args))}
    assert {id_: len(made[id_]["prompt_ids"]) for id_ in said} == said
    assert made["forged"] == {"id": "forged", "left_out": "control token in the text"}
    assert made["odd"] == {"id": "odd", "left_out": "empty turn"}
    assert made["off"]["prompt_ids"][-2:] == [163606, 163607]
    escaped = {row["id"]: row for row in lines(cli(env, *args, "--control-tokens", "escape"))}
    assert escaped["forged"]["prompt_ids"].count(163586) == 1


def test_answers_are_reconstructed_from_a_plain_file(env: dict[str, str], kimi_folder: Path) -> None:
    file = shared("openrouter-kimi/exchanges.jsonl")
    args = (
        "tokens",
        "reconstruct",
        "--target",
        "kimi-k2.5",
        "--tokenizer",
        str(kimi_folder),
        "--in",
        str(file),
    )
    rows = {row["id"]: row for row in map(json.loads, file.open())}
    for row in lines(cli(env, *args)):
        usage, chutes = rows[row["id"]]["usage"], rows[row["id"]]["provider"] == "Chutes"
        assert row["count_delta"] == (0 if chutes else -1)
        assert len(row["output_ids"]) == usage["completion_tokens"] - row["count_delta"]
        assert row["output_ids"].count(163607) == 1
        assert row["output_ids"][-1] == 163586
        assert row["capture"] == "text"


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("--target", "gpt", "--tokenizer", "."), "There is no target 'gpt'"),
        (
            ("--target", "kimi-k2.5", "--tokenizer", "nowhere"),
            "There is no tokenizer of moonshotai/Kimi-K2.5",
        ),
    ],
)
def test_a_wrong_target_or_folder(
    env: dict[str, str], tmp_path: Path, args: tuple[str, ...], why: str
) -> None:
    (tmp_path / "m.jsonl").write_text("{}\n")
    assert why in refused(cli(env, "tokens", "render", *args, "--in", str(tmp_path / "m.jsonl")))


def test_a_file_that_is_not_there_is_a_wrong_command_line(env: dict[str, str]) -> None:
    for args in (
        ("audit", "nowhere.parquet"),
        ("tokens", "render", "--target", "x", "--tokenizer", ".", "--in", "no"),
    ):
        done = cli(env, *args)
        assert done.returncode == 2
        assert "there is no file" in done.stderr


def test_an_exported_file_passes_its_audit_and_a_changed_one_does_not(
    env: dict[str, str], server: FaultServer, tmp_path: Path
) -> None:
    run(env, "render_prompts", "generate", "reconstruct", "audit", "export_parquet")
    (file,) = (Path(env["EAGLE3_DATA_DIR"]) / "exported" / "demo").rglob("shard-00000.parquet")
    good = cli(env, "audit", str(file))
    assert good.returncode == 0, good.stderr
    assert "good, 5 samples" in good.stdout
    table = pq.read_table(file)
    rows = table.to_pylist()
    rows[2]["input_ids"][-1] = 0
    broken = tmp_path / "broken.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), broken)
    bad = cli(env, "audit", str(broken))
    assert bad.returncode == 1
    assert "A03" in bad.stdout
    assert rows[2]["sample_id"] in bad.stdout
    report = json.loads(cli(env, "audit", str(broken), "--json").stdout)
    (rule,) = (r for r in report["rules"] if r["code"] == "A03")
    assert (rule["count"], rule["first"]["position"]) == (1, len(rows[2]["input_ids"]) - 1)
    assert report["malformed"] == [rows[2]["sample_id"]]


def test_a_missing_engine(env: dict[str, str]) -> None:
    run(env, "render_prompts")
    env["AIRFLOW_CONN_DEMO_ENGINE"] = "http://127.0.0.1:9"
    last = refused(cli(env, "generate", "--dataset", "demo", "--shard", "0"))
    assert "No engine answers at http://127.0.0.1:9 (connection refused)" in last
    assert "connection 'demo_engine'" in last


def test_a_missing_connection(env: dict[str, str]) -> None:
    run(env, "render_prompts")
    del env["AIRFLOW_CONN_DEMO_ENGINE"]
    last = refused(cli(env, "generate", "--dataset", "demo", "--shard", "0"))
    assert "There is no connection 'demo_engine'" in last
    assert "AIRFLOW_CONN_DEMO_ENGINE" in last


def test_a_wrong_model_name(env: dict[str, str], server: FaultServer) -> None:
    run(env, "render_prompts")
    server.model = "Qwen3-8B"
    last = refused(cli(env, "generate", "--dataset", "demo", "--shard", "0"))
    assert "serves Qwen3-8B, not SmolLM2-135M-Instruct" in last
    assert server.requests == 0


def test_a_tokenizer_that_is_not_the_engines(env: dict[str, str], server: FaultServer) -> None:
    run(env, "render_prompts")
    server.tokenize = lambda text: [ord(c) for c in text]
    last = refused(cli(env, "generate", "--dataset", "demo", "--shard", "0"))
    assert "another tokenizer than the target" in last
    assert server.requests == 0


def test_an_engine_with_too_short_a_context(env: dict[str, str], server: FaultServer) -> None:
    run(env, "render_prompts")
    server.max_model_len = 1024
    last = refused(cli(env, "generate", "--dataset", "demo", "--shard", "0"))
    assert "takes 1024 tokens, the dataset up to 2048" in last


def test_something_else_listens_there(env: dict[str, str], server: FaultServer) -> None:
    run(env, "render_prompts")
    env["AIRFLOW_CONN_DEMO_ENGINE"] = server.url + "/v1/other"
    done = cli(env, "generate", "--dataset", "demo", "--shard", "0")
    assert done.returncode in (0, 1)
    assert "Traceback" not in done.stderr


def test_a_missing_tokenizer(env: dict[str, str], tmp_path: Path) -> None:
    env["EAGLE3_MODELS_DIR"] = str(tmp_path)
    last = refused(cli(env, "render_prompts", "--dataset", "demo", "--shard", "0"))
    assert "There is no tokenizer of HuggingFaceTB/SmolLM2-135M-Instruct" in last


def test_a_data_folder_that_cannot_be_written(env: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o555)
    prefix: tuple[str, ...] = ()
    if os.geteuid() == 0:
        # root may write everywhere: without these two rights it is held by the mode like everybody else
        if not shutil.which("setpriv"):
            pytest.skip("setpriv is missing, and this test runs as root")
        prefix = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override")
    last = refused(cli(env, "render_prompts", "--dataset", "demo", "--shard", "0", prefix=prefix))
    assert "data can't be used: this user may not write there" in last
    assert "EAGLE3_DATA_DIR" in last


def test_a_full_disk_keeps_what_was_generated_and_the_next_run_goes_on(
    env: dict[str, str], server: FaultServer, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small file system can't be mounted here (needs root)")
    try:
        env["EAGLE3_DATA_DIR"] = str(disk / "data")
        run(env, "render_prompts")
        filler = disk / "filler"
        fill(filler)
        last = refused(cli(env, "generate", "--dataset", "demo", "--shard", "0"))
        assert "ledger.jsonl can't be used: the disk is full" in last
        filler.unlink()
        run(env, "generate", "reconstruct", "audit", "export_parquet")
        fill(filler)
        last = refused(cli(env, "reconstruct", "--dataset", "demo", "--shard", "0"))
        assert "the disk is full" in last
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["render_prompts", "--dataset", "nothing"], "There is no dataset 'nothing'"),
        (["render_prompts", "--dataset", "demo", "--shard", "99"], "demo/shard-00099 doesn't exist"),
        (["generate", "--dataset", "demo", "--shard", "0"], "Run the earlier stages first"),
    ],
)
def test_a_wrong_argument(env: dict[str, str], args: list[str], says: str) -> None:
    assert says in refused(cli(env, *args))

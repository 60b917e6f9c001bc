"""Against a real SGLang: exported ids are its own, a wrong server is refused, a killed one costs no answer."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow.parquet as pq
import pytest
import requests

from include.core.errors import EngineError
from include.stages import run_stage
from include.stages.work import Work
from local.environments import SGLANG_CPU
from local.places import MODEL, cache_folder
from local.ports import HOST, free_port
from local.sglang_server import SglangServer
from tests.conftest import MakeWork, rows

pytestmark = pytest.mark.sglang

SGLANG = {"kind": "sglang", "connection": "engine", "concurrency": 6, "patience_s": 2}
STAGES = ("render_prompts", "generate", "reconstruct", "audit", "export_parquet")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, models_dir: Path) -> Iterator[SglangServer]:
    """The server, up; a test may end it and start it again."""
    if not SGLANG_CPU.is_complete(cache_folder()):
        pytest.skip("The sglang-cpu environment isn't installed: run `make test-sglang`.")
    folder = tmp_path_factory.mktemp("sglang")
    made = SglangServer(
        python=SGLANG_CPU.python(cache_folder()),
        model=models_dir / MODEL,
        port=free_port(),
        cache=cache_folder(),
        run_folder=folder,
        log_folder=folder,
    )
    made.launch()
    made.wait()
    yield made
    made.stop()


class Recorder:
    """Passes everything on to the server as it is, and keeps what went over /generate in both directions."""

    def __init__(self, behind: str) -> None:
        self.sent: list[dict[str, Any]] = []
        self.answers: dict[tuple[int, ...], dict[str, Any]] = {}
        recorder = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._pass_on(b"")

            def do_POST(self) -> None:
                self._pass_on(self.rfile.read(int(self.headers["Content-Length"])))

            def _pass_on(self, body: bytes) -> None:
                sent = json.loads(body) if self.path == "/generate" else None
                if sent:
                    recorder.sent.append(sent)
                kept = {"Content-Type": "application/json"}
                answer = requests.request(
                    self.command, behind + self.path, data=body, headers=kept, timeout=120
                )
                if sent:
                    recorder.answers[tuple(sent["input_ids"])] = answer.json()
                self.send_response(answer.status_code)
                self.send_header("Content-Length", str(len(answer.content)))
                self.end_headers()
                self.wfile.write(answer.content)

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer((HOST, 0), Handler)
        self.url = f"http://{HOST}:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def recorder(server: SglangServer) -> Iterator[Recorder]:
    made = Recorder(server.address)
    yield made
    made.close()


def sglang_work(make_work: MakeWork, url: str, count: int, *, max_tokens: int, **changes: Any) -> Work:
    """A shard of `count` prompts at temperature 1 for `kind: sglang`."""
    spec: dict[str, Any] = {
        "shard_size": count,
        "engine": SGLANG,
        "sampling": {"temperature": 1.0, "max_tokens": max_tokens},
        # a model this small, left to chance, often doesn't come to an end
        "limits": {"max_prompt_tokens": 256, "max_seq_len": 512, "max_left_out_share": 0.9},
    }
    return make_work(rows(count), engine_url=url, **spec | changes)


def ledger_of(work: Work) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in work.shard.ledger.read_bytes().splitlines()]


def test_the_exported_ids_are_what_the_server_read_and_wrote(make_work: MakeWork, recorder: Recorder) -> None:
    work = sglang_work(make_work, recorder.url, 12, max_tokens=128, engine=SGLANG | {"concurrency": 12})
    for stage in STAGES:
        run_stage(stage, work)
    assert len(recorder.sent) == len(recorder.answers) == 12
    for sent in recorder.sent:
        assert sorted(sent) == ["input_ids", "sampling_params"], "ids and nothing to be encoded"
    reasons = {prompt: a["meta_info"]["finish_reason"] for prompt, a in recorder.answers.items()}
    ended = {
        prompt: answer["output_ids"]
        for prompt, answer in recorder.answers.items()
        if reasons[prompt] == {"type": "stop", "matched": work.target.end_of_turn}
        and len(answer["output_ids"]) > 1
    }
    assert len(ended) >= 3
    table = pq.read_table(work.shard.exported).to_pylist()
    exported = {tuple(row["input_ids"][: row["prompt_len"]]): row for row in table}
    assert len(exported) == len(table)
    assert {p: row["input_ids"][row["prompt_len"] :] for p, row in exported.items()} == ended
    for prompt, row in exported.items():
        assert row["input_ids"][-1] == work.target.end_of_turn == 2
        assert row["loss_mask"] == [0] * len(prompt) + [1] * len(ended[prompt])
        assert (row["finish_reason"], row["capture"], row["engine"]) == ("stop", "direct", "sglang")
        assert row["count_delta"] == 0, "the server counts as many output tokens as it has sent"
        assert recorder.answers[prompt]["meta_info"]["prompt_tokens"] == len(prompt)
    truncated = [p for p, reason in reasons.items() if reason == {"type": "length", "length": 128}]
    assert [r["reason"] for r in ledger_of(work)].count("truncated") == len(truncated)


def test_truncated_answers_are_left_out_with_the_ids_they_have(
    make_work: MakeWork, recorder: Recorder
) -> None:
    work = sglang_work(make_work, recorder.url, 4, max_tokens=2)
    for stage in STAGES[:2]:
        run_stage(stage, work)
    ledger = ledger_of(work)
    assert {(r["outcome"], r["reason"], r["finish_reason"]) for r in ledger} == {
        ("left_out", "truncated", "length")
    }
    sent_back = sorted(answer["output_ids"] for answer in recorder.answers.values())
    assert sorted(r["output_ids"] for r in ledger) == sent_back
    assert {len(ids) for ids in sent_back} == {2}


def test_a_wrong_server_is_refused_before_any_request(make_work: MakeWork, recorder: Recorder) -> None:
    long = {"max_prompt_tokens": 256, "max_seq_len": 4096}
    work = sglang_work(make_work, recorder.url, 2, max_tokens=32, limits=long)
    run_stage("render_prompts", work)
    with pytest.raises(EngineError, match=r"takes 2048 tokens, the dataset up to 4096"):
        run_stage("generate", work)
    work.__dict__["profile"] = work.profile.model_copy(update={"served_as": "Kimi-K2.5"})
    with pytest.raises(EngineError, match=r"serves SmolLM2-135M-Instruct, not Kimi-K2.5"):
        run_stage("generate", work)
    assert recorder.sent == []


def test_a_server_with_another_tokenizer_is_refused(
    make_work: MakeWork, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = sglang_work(make_work, recorder.url, 2, max_tokens=32)
    run_stage("render_prompts", work)
    ours = work.target.encode
    monkeypatch.setattr(type(work.target), "encode", lambda self, text: np.append(ours(text)[:-1], 0))
    with pytest.raises(EngineError, match=r"has another tokenizer than the target: .* the first difference"):
        run_stage("generate", work)
    assert recorder.sent == []


def test_an_answer_that_the_server_gives_up_is_asked_again(
    make_work: MakeWork, server: SglangServer, recorder: Recorder
) -> None:
    work = sglang_work(make_work, recorder.url, 8, max_tokens=96)
    run_stage("render_prompts", work)

    def abort() -> None:
        deadline = time.monotonic() + 60
        while len(recorder.sent) < 6 and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)  # in the midst of writing
        requests.post(f"{server.address}/abort_request", json={"abort_all": True}, timeout=10)

    aborter = threading.Thread(target=abort)
    aborter.start()
    run_stage("generate", work)
    aborter.join()
    ledger = ledger_of(work)
    assert len(ledger) == 8
    assert {r["outcome"] for r in ledger} <= {"answered", "left_out"}
    assert sum(r["attempts"] for r in ledger) == len(recorder.sent) > 8


def test_a_killed_server_ends_the_run_and_the_next_one_goes_on(
    make_work: MakeWork, server: SglangServer
) -> None:
    work = sglang_work(make_work, server.address, 16, max_tokens=64)
    run_stage("render_prompts", work)

    def kill_soon() -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if work.shard.ledger.exists() and len(ledger_of(work)) >= 2:
                break
            time.sleep(0.02)
        server.process.stop(grace_s=0)

    killer = threading.Thread(target=kill_soon)
    killer.start()
    with pytest.raises(EngineError, match=r"has been away for \d+ s .*What was answered is kept") as caught:
        run_stage("generate", work)
    killer.join()
    assert caught.value.retryable
    before = work.shard.ledger.read_bytes()
    assert 2 <= len(ledger_of(work)) < 16
    with pytest.raises(EngineError, match=r"No engine answers at .* \(connection refused\)"):
        run_stage("generate", work)
    server.launch()
    server.wait()
    for stage in STAGES[1:]:
        run_stage(stage, work)
    assert work.shard.ledger.read_bytes().startswith(before), "what was answered is kept"
    ledger = ledger_of(work)
    assert len(ledger) == len({r["sample_id"] for r in ledger}) == 16, "each prompt is answered once"
    assert {r["outcome"] for r in ledger} <= {"answered", "left_out"}

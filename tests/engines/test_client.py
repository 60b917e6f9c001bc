"""The client holds its concurrency, retries what can be retried, stops where it must, and loses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from include.core.errors import EngineError
from include.core.spec import EngineSpec, Sampling
from include.engines import client as client_module
from include.engines.base import Answer, Endpoint
from include.engines.client import Client, Progress, Request, classify
from include.engines.ledger import Ledger
from include.engines.vllm import Vllm
from tests.engines.fault_server import BREAK_OFF, END_OF_TURN, FaultServer, answer, answer_ids


@pytest.fixture(autouse=True)
def _no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module.random, "random", lambda: -0.49)


def requests(count: int) -> Iterator[Request]:
    return (Request(f"s{i:04d}", f"r{i}", [10 + i, 20 + i, 30]) for i in range(count))


def drive(server_url: str, path: Path, count: int, **engine: Any) -> Progress:
    spec = EngineSpec(kind="vllm", connection="engine", **({"concurrency": 16, "patience_s": 1} | engine))
    client = Client(Vllm(), Endpoint("engine", server_url), spec, Sampling(max_tokens=8), "m", END_OF_TURN)
    with Ledger(path) as ledger:
        progress = Progress(count)
        pending = (r for r in requests(count) if not ledger.settled(r.sample_id, r.digest))
        asyncio.run(client.run(pending, ledger, progress, lambda _: None))
    return progress


def test_every_prompt_gets_its_own_answer_and_the_concurrency_is_held(tmp_path: Path) -> None:
    with FaultServer(lambda n, body: 0.02) as server:
        progress = drive(server.url, tmp_path / "l", 200)
        assert server.most_in_flight == 16
    assert progress.outcomes == {"answered": 200}
    with Ledger(tmp_path / "l") as ledger:
        for request in requests(200):
            found = ledger.record(request.sample_id, request.digest)
            assert found is not None
            assert found.output_ids == answer_ids(list(request.prompt_ids))


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (lambda: web.Response(status=503, text="busy"), "HTTP 503"),
        (lambda: web.Response(status=500, text="oops"), "HTTP 500"),
        (lambda: web.Response(status=429, text="slow down"), "HTTP 429"),
        (lambda: web.Response(text='{"choices": [{"token_'), "the answer isn't JSON"),
        (lambda: web.Response(text="[]"), "the answer is no JSON object"),
        (lambda: BREAK_OFF, "ClientPayloadError"),
        (lambda: web.json_response({"choices": []}), "the answer lacks list index out of range"),
        (lambda: web.json_response({"error": {"message": "x"}}), "the answer lacks 'choices'"),
    ],
)
def test_a_passing_fault_is_asked_again(tmp_path: Path, fault: Any, cause: str) -> None:
    with FaultServer(lambda n, body: fault() if n <= 3 else None) as server:
        progress = drive(server.url, tmp_path / "l", 20)
    assert progress.outcomes == {"answered": 20}
    assert progress.retries == {cause: 3}


def test_a_lasting_fault_fails_the_row_and_the_next_run_asks_only_that(tmp_path: Path) -> None:
    def bad_row(n: int, body: dict[str, Any]) -> web.Response | None:
        return web.Response(status=503) if body["prompt"][0] == 13 else None

    with FaultServer(bad_row) as server:
        progress = drive(server.url, tmp_path / "l", 10)
    assert progress.outcomes == {"answered": 9, "failed": 1}
    with FaultServer() as server:
        again = drive(server.url, tmp_path / "l", 10)
        assert server.requests == 1
    assert again.outcomes == {"answered": 1}


def test_a_refused_row_is_left_out_for_good_with_the_engines_words(tmp_path: Path) -> None:
    def refuse(n: int, body: dict[str, Any]) -> web.Response | None:
        return web.Response(status=400, text="prompt is too long") if body["prompt"][0] == 13 else None

    with FaultServer(refuse) as server:
        progress = drive(server.url, tmp_path / "l", 10)
        again = drive(server.url, tmp_path / "l", 10)
        assert server.requests == 10
    assert progress.reasons == {"refused (HTTP 400)": 1}
    assert again.finished == 0
    with Ledger(tmp_path / "l") as ledger:
        found = ledger.record("s0003", "r3")
        assert found is not None
        assert found.finish_reason == "prompt is too long"


@pytest.mark.parametrize("status", [401, 402, 403, 404])
def test_an_account_error_stops_at_once_with_the_engines_words(tmp_path: Path, status: int) -> None:
    def behave(n: int, body: dict[str, Any]) -> web.Response | float:
        return web.Response(status=status, text="no such luck") if n > 5 else 0.3

    with FaultServer(behave) as server:
        with pytest.raises(EngineError, match=rf"HTTP {status}\): no such luck"):
            drive(server.url, tmp_path / "l", 500)
        assert server.requests < 60
    with Ledger(tmp_path / "l") as ledger:
        kept = sum(ledger.settled(r.sample_id, r.digest) for r in requests(500))
    assert kept == 5, "what was in flight is paid for: it is waited for and kept"


def test_one_hung_request_does_not_hold_the_job(tmp_path: Path) -> None:
    with FaultServer(lambda n, body: 60.0 if n == 1 else None) as server:
        progress = drive(server.url, tmp_path / "l", 20, request_timeout_s=3)
    assert progress.outcomes == {"answered": 20}
    assert progress.retries["timeout"] >= 1


def test_an_engine_that_goes_away_ends_the_task_and_a_second_run_asks_the_rest(tmp_path: Path) -> None:
    server = FaultServer(lambda n, body: 0.02)
    with server:

        def stop_after(n: int, body: dict[str, Any]) -> float:
            if n == 60:
                asyncio.get_running_loop().call_later(
                    0.01, lambda: asyncio.ensure_future(server._runner.cleanup())
                )
            return 0.02

        server.behave = stop_after
        with pytest.raises(EngineError, match="has been away for") as caught:
            drive(server.url, tmp_path / "l", 200, patience_s=0.5)
        assert caught.value.retryable
    with Ledger(tmp_path / "l") as ledger:
        done = sum(ledger.settled(r.sample_id, r.digest) for r in requests(200))
    assert done > 20
    with FaultServer() as other:
        drive(other.url, tmp_path / "l", 200)
        assert other.requests == 200 - done, "nothing is asked twice"


def test_what_an_answer_is_worth() -> None:
    def of(reason: str, ids: list[int]) -> tuple[str, str]:
        return classify(Answer(ids, reason, 1, len(ids), "m"), END_OF_TURN)

    assert of("stop", [5, 2]) == ("answered", "")
    assert of("length", [5, 6]) == ("left_out", "truncated")
    assert of("stop", [2]) == ("left_out", "empty")
    assert of("stop", []) == ("left_out", "empty")
    assert of("abort", [5]) == ("failed", "finish_reason abort")


def test_a_truncated_answer_keeps_its_tokens(tmp_path: Path) -> None:
    with FaultServer(lambda n, body: answer(body["prompt"], "length", [7, 8, 9])) as server:
        drive(server.url, tmp_path / "l", 1)
    with Ledger(tmp_path / "l") as ledger:
        found = ledger.record("s0000", "r0")
        assert found is not None
        assert (found.outcome, found.reason, found.output_ids) == ("left_out", "truncated", [7, 8, 9])

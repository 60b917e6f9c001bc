"""Conversations whose every turn is generated: the target's own answers stand in the history, and samples merge."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow.parquet as pq
import pytest
from aiohttp import web

from include.stages import run_stage
from include.tokens.target import Target
from tests.conftest import MakeWork
from tests.engines.fault_server import FaultServer, answer

DATA_SIDE = ("render_prompts", "generate", "reconstruct", "audit", "export_parquet")
TALK = [
    {"role": "user", "content": "Name a colour."},
    {"role": "assistant", "content": "Red, said another model."},
    {"role": "user", "content": "And another?"},
    {"role": "assistant", "content": "Blue, said another model."},
    {"role": "user", "content": "One more."},
]


@pytest.fixture
def server(target: Target) -> Iterator[FaultServer]:
    with FaultServer(tokenize=lambda text: target.encode(text).tolist()) as running:
        yield running


def spoken(prompt: list[int], target: Target) -> list[int]:
    """An answer in words, another for every prompt."""
    words = target.encode(f"Colour number {len(prompt)}.").tolist()
    return [*words, target.end_of_turn]


@pytest.fixture(autouse=True)
def _speaks(server: FaultServer, target: Target) -> None:
    server.behave = lambda n, body: answer(body["prompt"], ids=spoken(body["prompt"], target))


def exported(work: Any) -> list[dict[str, Any]]:
    for stage in DATA_SIDE:
        run_stage(stage, work)
    return pq.read_table(work.shard.exported).to_pylist()  # type: ignore[no-any-return]


def test_every_turn_is_generated_with_the_targets_own_answers_and_merged(
    make_work: MakeWork, server: FaultServer, target: Target
) -> None:
    work = make_work([{"messages": TALK}], engine_url=server.url, prompts={"turns": "every"})
    (row,) = exported(work)
    assert server.requests == 3
    text = target.decode(row["input_ids"])
    assert "another model" not in text, "the source's answers aren't the target's"
    answers = [spoken(list(prompt), target) for prompt in sorted(server.asked, key=len)]
    masked = [i for i, m in zip(row["input_ids"], row["loss_mask"], strict=True) if m]
    assert masked == [id_ for ids in answers for id_ in ids]
    assert row["prompt_len"] == min(len(prompt) for prompt in server.asked)
    assert row["sample_id"].endswith("-t2")


def test_a_turn_that_is_left_out_ends_its_conversation_and_the_books_balance(
    make_work: MakeWork, server: FaultServer
) -> None:
    speaks = server.behave
    server.behave = lambda n, body: answer(body["prompt"], "length", [7, 8]) if n == 2 else speaks(n, body)
    source = [{"messages": TALK}, {"messages": TALK[:1]}]
    work = make_work(
        source,
        engine_url=server.url,
        prompts={"turns": "every"},
        engine={"kind": "vllm", "connection": "engine", "concurrency": 1},
        limits={"max_prompt_tokens": 256, "max_seq_len": 512, "max_left_out_share": 0.9},
    )
    table = exported(work)
    report = json.loads(work.shard.summary.read_text())
    assert sum(report["left_out"].values()) + sum(_answers(row) for row in table) == 4
    assert report["left_out"]["truncated"] == 1


def _answers(row: dict[str, Any]) -> int:
    mask = row["loss_mask"]
    return sum(1 for a, b in zip([0, *mask], mask, strict=False) if (a, b) == (0, 1))


def test_a_conversation_goes_on_where_it_broke_off(make_work: MakeWork, server: FaultServer) -> None:
    speaks = server.behave
    server.behave = lambda n, body: web.Response(status=401, text="key expired") if n > 2 else speaks(n, body)
    work = make_work([{"messages": TALK}], engine_url=server.url, prompts={"turns": "every"})
    with pytest.raises(Exception, match="key expired"):
        exported(work)
    server.behave = speaks
    assert len(exported(work)) == 1
    assert sorted(server.asked.values()) == [1, 1, 2], "only the turn that was refused is asked again"


def test_the_malformed_are_asked_for_again_and_only_they(
    make_work: MakeWork, server: FaultServer, target: Target
) -> None:
    def doctored(n: int, body: dict[str, Any]) -> web.Response | None:
        seeds.append(body["seed"])
        return answer(body["prompt"], ids=[500, 1, 600, 2] if n == 2 else spoken(body["prompt"], target))

    seeds: list[int] = []
    server.behave = doctored
    source = [{"messages": [{"role": "user", "content": f"What is {i}?"}]} for i in range(4)]
    work = make_work(source, engine_url=server.url)
    with pytest.raises(Exception, match="A04"):
        exported(work)
    again = make_work(source, engine_url=server.url)
    object.__setattr__(again, "regenerate", True)
    assert len(exported(again)) == 4
    assert server.requests == 5
    assert seeds == [0, 0, 0, 0, 1], "another seed, or the engine would say the same"

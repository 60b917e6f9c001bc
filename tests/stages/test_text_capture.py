"""Answers that came as text: put together, offsets learned, and left out where the count doesn't vouch for them."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pyarrow.parquet as pq
import pytest

from include.core.errors import AuditFailure
from include.core.records import GenerationRecord, TextAnswer
from include.engines.client import Request
from include.engines.ledger import Ledger
from include.stages import run_stage
from include.stages.turns import Requests
from include.stages.work import Work
from tests.conftest import MakeWork, rows

LIMITS = {
    "max_prompt_tokens": 256,
    "max_seq_len": 512,
    "max_left_out_share": 0.5,
    "unproven_text": "keep",
}
STAGES = ("reconstruct", "audit", "export_parquet")


def record(request: Request, answer: TextAnswer) -> GenerationRecord:
    """The ledger's entry for an answer that came as text."""
    return GenerationRecord(
        *(request.sample_id, request.digest, "answered", "", answer.finish_reason),
        output_ids=[],
        prompt_tokens=None,
        completion_tokens=answer.completion_tokens,
        engine="openrouter",
        provider=answer.provider,
        model="m",
        attempts=1,
        seconds=0.1,
        at="",
        text=asdict(answer),
    )


def answered_as_text(work: Work, answers: list[TextAnswer]) -> None:
    """Renders the prompts and puts these answers into the ledger, in the prompts' order."""
    run_stage("render_prompts", work)
    with Ledger(work.shard.ledger) as ledger:
        pairs = zip(Requests(work).rows(), answers, strict=True)
        ledger.append(record(request, answer) for (_, request), answer in pairs)


def counted(work: Work, text: str, off: int = 0, provider: str = "Chutes") -> TextAnswer:
    """An answer whose provider counts `off` tokens more than there are."""
    return TextAnswer(
        content=text, completion_tokens=len(work.target.encode(text)) + 1 + off, provider=provider
    )


def exported(work: Work) -> list[dict[str, Any]]:
    for stage in STAGES:
        run_stage(stage, work)
    return pq.read_table(work.shard.exported).to_pylist()  # type: ignore[no-any-return]


def test_text_becomes_ids_with_the_end_of_turn_and_says_how_it_was_captured(make_work: MakeWork) -> None:
    work = make_work(rows(8), limits=LIMITS)
    texts = [f"The answer is {i}, café 東京 🙂" for i in range(8)]
    answered_as_text(work, [counted(work, text) for text in texts])
    table = exported(work)
    assert {(row["capture"], row["count_delta"], row["round_trip_exact"]) for row in table} == {
        ("text", 0, True)
    }
    said = [work.target.decode(row["input_ids"][row["prompt_len"] : -1]) for row in table]
    assert said == texts
    assert all(row["input_ids"][-1] == work.target.end_of_turn for row in table)


def test_a_constant_offset_is_learned_and_taken_off(make_work: MakeWork) -> None:
    work = make_work(rows(8), limits=LIMITS)
    answered_as_text(work, [counted(work, f"It is {i}.", off=-1, provider="Inceptron") for i in range(8)])
    assert {row["count_delta"] for row in exported(work)} == {0}
    report = json.loads(work.shard.summary.read_text())
    assert report["stages"]["reconstruct"]["count_offsets"] == {"Inceptron": -1}


def test_what_the_count_does_not_vouch_for_is_left_out(make_work: MakeWork) -> None:
    work = make_work(rows(8), limits=LIMITS)
    good = [counted(work, f"It is {i}.") for i in range(4)]
    bad = [
        counted(work, "It is 4.", off=2),
        TextAnswer(content="It is 5.", provider="Chutes"),
        TextAnswer(content="It is\ufffd 6.", completion_tokens=5, provider="Chutes"),
        TextAnswer(content="It is 7.<|im_start|>", completion_tokens=6, provider="Chutes"),
    ]
    answered_as_text(work, [*good, *bad])
    assert len(exported(work)) == 4
    assert json.loads(work.shard.summary.read_text())["left_out"] == {
        "the token count differs from the provider's": 1,
        "no token count to check the text by": 1,
        "replacement character in the text": 1,
        "control token in the text": 1,
    }


def test_a_provider_that_is_off_on_average_fails_the_audit(make_work: MakeWork) -> None:
    limits = LIMITS | {"max_count_delta": 3}
    work = make_work(rows(8), limits=limits)
    answered_as_text(work, [counted(work, f"It is {i}.", off=i % 3 + 1) for i in range(8)])
    with pytest.raises(AuditFailure, match=r"S07 .*Chutes counts \+1\.\d+ tokens"):
        exported(work)


def test_turns_that_came_as_text_are_merged_and_pass(make_work: MakeWork) -> None:
    talk = [
        {"role": "user", "content": "Name a colour."},
        {"role": "assistant", "content": "?"},
        {"role": "user", "content": "And another?"},
    ]
    work = make_work([{"messages": talk}], prompts={"turns": "every"}, limits=LIMITS)
    run_stage("render_prompts", work)
    with Ledger(work.shard.ledger) as ledger:
        ((_, request),) = Requests(work).rows()
        first = record(request, counted(work, "Red."))
        ledger.append([first])
        following = request.then(first) if request.then else None
        assert isinstance(following, Request), "the next prompt shows the text of the first answer"
        ledger.append([record(following, counted(work, "Blue."))])
    (row,) = exported(work)
    assert work.target.decode([i for i, m in zip(row["input_ids"], row["loss_mask"], strict=True) if m]) == (
        "Red.<|im_end|>Blue.<|im_end|>"
    )


def test_text_is_taken_by_default_only_where_each_token_was_seen(make_work: MakeWork) -> None:
    work = make_work(rows(8))
    answers = [counted(work, f"It is {i}.") for i in range(8)]
    pieces = [work.target.decode([id_]) for id_ in work.target.encode("It is 0.")]
    answers[:5] = [replace(answers[0], deltas=tuple(("content", piece) for piece in pieces))] * 5
    answered_as_text(work, answers)
    assert len(exported(work)) == 5
    left_out = json.loads(work.shard.summary.read_text())["left_out"]
    assert left_out == {"only a count speaks for the tokens of the text": 3}

"""Turns become samples: merged exactly where the next prompt goes on, the mask over the answers and nothing else."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.core.records import Conversation, Ids, Message, TokenSample
from include.tokens.case import answers_of
from include.tokens.samples import Turn, message_of, recoded, samples_of
from include.tokens.target import Target

IDS = st.lists(st.integers(0, 3), min_size=1, max_size=4)


def turn(at: int, prompt: Any, output: Any, **fields: Any) -> Turn:
    prompt, output = np.array(prompt, np.int32), np.array(output, np.int32)
    made = Turn(f"s-t{at}", prompt, output, "direct", 0, True, "e", "p", "m", "stop", "r")
    return replace(made, **fields)


def brief(samples: list[TokenSample]) -> list[tuple[str, list[int], list[int], int]]:
    return [(s.sample_id, s.input_ids.tolist(), s.loss_mask.tolist(), s.prompt_len) for s in samples]


def test_a_turn_is_a_sample() -> None:
    (one,) = samples_of([turn(0, [1, 2], [3, 9])])
    assert brief([one]) == [("s-t0", [1, 2, 3, 9], [0, 0, 1, 1], 2)]
    assert (one.input_ids.dtype, one.loss_mask.dtype) == (np.int32, np.uint8)
    assert list(samples_of([])) == []


def test_a_prompt_that_goes_on_is_merged() -> None:
    turns = [turn(0, [1], [2, 9]), turn(1, [1, 2, 9, 5], [6, 9]), turn(2, [1, 2, 9, 5, 6, 9, 7, 7], [8, 9])]
    assert brief(list(samples_of(turns))) == [
        ("s-t2", [1, 2, 9, 5, 6, 9, 7, 7, 8, 9], [0, 1, 1, 0, 1, 1, 0, 0, 1, 1], 1)
    ]


@pytest.mark.parametrize(
    ("how", "prompt"),
    [
        ("rewritten", [1, 3, 9, 5]),
        ("without the thoughts", [1, 9, 5]),
        ("cut", [1, 2]),
        ("nothing asked", [1, 2, 9]),
        ("another end of turn", [1, 2, 8, 5]),
    ],
)
def test_a_history_that_is_not_what_was_written_is_a_sample_of_its_own(how: str, prompt: list[int]) -> None:
    turns = [turn(0, [1], [2, 9]), turn(1, prompt, [6, 9])]
    assert [s.sample_id for s in samples_of(turns)] == ["s-t0", "s-t1"]


def test_after_a_break_merging_goes_on_from_there() -> None:
    turns = [turn(0, [1], [2, 9]), turn(1, [1, 5], [6, 9]), turn(2, [1, 5, 6, 9, 7], [8, 9])]
    assert brief(list(samples_of(turns))) == [
        ("s-t0", [1, 2, 9], [0, 1, 1], 1),
        ("s-t2", [1, 5, 6, 9, 7, 8, 9], [0, 0, 1, 1, 0, 1, 1], 2),
    ]


def test_twelve_turns_are_sorted_as_text() -> None:
    turns = [turn(at, [at], [20, 9]) for at in range(12)]
    ids = [s.sample_id for s in samples_of(turns)]
    assert ids == sorted(ids) and len(set(ids)) == 12


def test_a_merged_sample_is_as_sure_as_its_least_sure_turn() -> None:
    def merged(*fields: dict[str, Any]) -> TokenSample:
        turns, ids = [], [1]
        for at, some in enumerate(fields):
            turns.append(turn(at, ids, [2, 9], **some))
            ids = [*ids, 2, 9, 5]
        (sample,) = samples_of(turns)
        return sample

    assert merged({"capture": "text"}, {"capture": "direct"}).capture == "text"
    assert merged({"capture": "direct"}, {"capture": "logprobs"}).capture == "logprobs"
    assert merged({}, {}).capture == "direct"
    assert merged({"count_delta": 1}, {"count_delta": -1}).count_delta == 1  # they don't cancel out
    assert merged({"count_delta": 1}, {"count_delta": 1}, {"count_delta": -2}).count_delta == -2
    assert merged({"count_delta": None}, {"count_delta": 0}).count_delta is None
    assert merged({"round_trip_exact": False}, {}).round_trip_exact is False
    assert merged({"finish_reason": "stop"}, {"finish_reason": "tool_calls"}).finish_reason == "tool_calls"


@given(st.lists(st.tuples(IDS, IDS, st.booleans()), min_size=1, max_size=5))
def test_every_answer_stands_in_one_sample_behind_its_own_prompt(
    parts: list[tuple[list[int], list[int], bool]],
) -> None:
    turns: list[Turn] = []
    ids: list[int] = []
    for at, (asked, output, goes_on) in enumerate(parts):
        prompt = [*ids, *asked] if goes_on else asked
        turns.append(turn(at, prompt, output))
        ids = [*prompt, *output]
    samples = list(samples_of(turns))
    extends = [
        len(b.prompt_ids) > len(before := whole(a)) and b.prompt_ids[: len(before)].tolist() == before
        for a, b in pairwise(turns)
    ]
    assert len(samples) == len(turns) - sum(extends)
    spans = [(sample, span) for sample in samples for span in answers_of(sample)]
    assert len(spans) == len(turns)
    for one, (sample, (start, end)) in zip(turns, spans, strict=True):
        assert sample.input_ids[:start].tolist() == one.prompt_ids.tolist()
        assert sample.input_ids[start:end].tolist() == one.output_ids.tolist()
    for sample in samples:
        assert len(sample.loss_mask) == len(sample.input_ids)
        assert int(sample.loss_mask.sum()) == sum(e - s for s, e in answers_of(sample))
        assert answers_of(sample)[0][0] == sample.prompt_len and answers_of(sample)[-1][1] == len(
            sample.input_ids
        )


def whole(one: Turn) -> list[int]:
    return [*one.prompt_ids.tolist(), *one.output_ids.tolist()]


def talk(target: Target, answers: list[str], *, thinking: bool) -> list[TokenSample]:
    messages: tuple[Message, ...] = (Message("user", "What is 1 plus 1?"),)
    turns = []
    for at, answer in enumerate(answers):
        prompt = target.render([Conversation("", messages, "", "")], thinking=thinking)[0]
        end = target.profile.special_tokens["end_of_turn"]
        output: Ids = target.tokenizer.encode_marked([answer + end])[0]
        turns.append(turn(at, prompt, output))
        message = message_of(output, target)
        assert message is not None
        messages = (*messages, message, Message("user", "And plus 1?"))
    return list(samples_of(turns))


def test_real_templates_merge_where_they_keep_the_history(
    kimi: Target, qwen3: Target, target: Target
) -> None:
    plain, thoughts = [" It is 2.", " It is 3."], " One, two.</think>"
    assert len(talk(target, plain, thinking=True)) == 1
    assert len(talk(kimi, plain, thinking=False)) == 1
    assert len(talk(kimi, [thoughts + a for a in plain], thinking=True)) == 2  # the thoughts are dropped
    assert len(talk(qwen3, plain, thinking=False)) == 2  # the history has no <think>
    assert len(talk(qwen3, ["<think>\nOne.\n</think>\n\n" + a for a in plain], thinking=True)) == 2


def test_recoded_is_canonical_and_shows_what_is_not(kimi: Target) -> None:
    whole_, parts = kimi.encode(" Paris"), [kimi.tokenizer.id_of(b" P"), kimi.tokenizer.id_of(b"aris")]
    again = recoded([whole_, np.array(parts, np.int32), np.array([163586], np.int32)], kimi)
    assert [ids.tolist() for ids in again] == [whole_.tolist(), whole_.tolist(), [163586]]

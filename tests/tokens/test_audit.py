"""Each rule of the audit is broken on purpose, and caught by the rule that is meant for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from include.core.records import Message, TokenSample
from include.tokens.audit import RULES, Facts
from include.tokens.target import Target


@pytest.fixture
def facts(target: Target) -> Facts:
    return Facts(target, target.generation_prompt(), 256)


@pytest.fixture
def good(target: Target) -> TokenSample:
    prompt = target.render([Message("user", "What is the capital of France?")])
    output = [*target.encode("The capital of France is Paris."), target.end_of_turn]
    return TokenSample(
        sample_id="tiny-0",
        input_ids=prompt + output,
        loss_mask=[0] * len(prompt) + [1] * len(output),
        prompt_len=len(prompt),
        capture="direct",
        count_delta=0,
        round_trip_exact=True,
        engine="vllm",
        provider="engine",
        model="m",
        finish_reason="stop",
        source_row="rows.jsonl:1",
    )


def broken_rules(sample: TokenSample, facts: Facts) -> list[str]:
    return [rule.code for rule in RULES if rule.check(sample, facts)]


def test_a_good_sample_breaks_no_rule(good: TokenSample, facts: Facts) -> None:
    assert broken_rules(good, facts) == []


def ids(s: TokenSample) -> list[int]:
    return list(s.input_ids)


def mask(s: TokenSample) -> list[int]:
    return list(s.loss_mask)


BREAKS: list[tuple[str, str, Callable[[TokenSample], dict[str, Any]]]] = [
    ("A01", "mask one short", lambda s: {"loss_mask": mask(s)[:-1]}),
    ("A01", "mask one long", lambda s: {"loss_mask": [*mask(s), 1]}),
    ("A01", "no prompt", lambda s: {"prompt_len": 0}),
    ("A01", "no answer", lambda s: {"prompt_len": len(s.input_ids)}),
    ("A01", "nothing at all", lambda s: {"input_ids": [], "loss_mask": [], "prompt_len": 0}),
    ("A02", "an id beyond the vocabulary", lambda s: {"input_ids": [*ids(s)[:-2], 49152, 2]}),
    ("A02", "a negative id", lambda s: {"input_ids": [-1, *ids(s)[1:]]}),
    ("A03", "the end of turn dropped", lambda s: {"input_ids": ids(s)[:-1], "loss_mask": mask(s)[:-1]}),
    ("A03", "another end of turn", lambda s: {"input_ids": [*ids(s)[:-1], 0]}),
    (
        "A03",
        "a newline after the end of turn",
        lambda s: {"input_ids": [*ids(s), 198], "loss_mask": [*mask(s), 1]},
    ),
    ("A04", "the end of turn doubled", lambda s: {"input_ids": [*ids(s), 2], "loss_mask": [*mask(s), 1]}),
    ("A04", "a turn opened in the answer", lambda s: {"input_ids": [*ids(s)[:-3], 1, *ids(s)[-2:]]}),
    ("A05", "the generation prompt cut", lambda s: {"prompt_len": s.prompt_len - 1}),
    ("A05", "the first answer id counted as prompt", lambda s: {"prompt_len": s.prompt_len + 1}),
    ("A06", "mask shifted left", lambda s: {"loss_mask": [*mask(s)[1:], 1]}),
    ("A06", "mask shifted right", lambda s: {"loss_mask": [0, *mask(s)[:-1]]}),
    ("A06", "mask all ones", lambda s: {"loss_mask": [1] * len(s.input_ids)}),
    ("A06", "mask all zeros", lambda s: {"loss_mask": [0] * len(s.input_ids)}),
    ("A06", "one hole in the mask", lambda s: {"loss_mask": [*mask(s)[:-3], 0, 1, 1]}),
    ("A07", "cut by max_tokens", lambda s: {"finish_reason": "length"}),
    (
        "A08",
        "too long",
        lambda s: {"input_ids": ids(s)[:-1] + [30] * 300 + [2], "loss_mask": mask(s) + [1] * 300},
    ),
    ("A09", "the engine counted one more", lambda s: {"count_delta": 1}),
    ("A10", "not canonical", lambda s: {"round_trip_exact": False}),
    ("A11", "bytes that are no UTF-8", lambda s: {"input_ids": [*ids(s)[:-2], 189, 2]}),
]


@pytest.mark.parametrize(("code", "how", "change"), BREAKS, ids=[f"{code}-{how}" for code, how, _ in BREAKS])
def test_every_way_to_break_a_sample_is_caught(
    good: TokenSample, facts: Facts, code: str, how: str, change: Callable[[TokenSample], dict[str, Any]]
) -> None:
    assert code in broken_rules(replace(good, **change(good)), facts)


def test_every_rule_has_an_example_that_breaks_it() -> None:
    assert {rule.code for rule in RULES} == {code for code, _, _ in BREAKS}

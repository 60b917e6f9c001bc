"""A good sample is broken in every way we could think of, and the rule that is meant for it says so, and where."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from include.core.records import TextAnswer
from include.tokens.answers import reconstruct
from include.tokens.case import Facts
from include.tokens.rules import RULES
from include.tokens.target import Target
from tests.tokens.breaks import BREAKS, WITHOUT_TOOLS, Change, Place, start
from tests.tokens.broken_samples import broken, captured, good, put, swapped

ALL = [(*one, True) for one in BREAKS] + [(*one, False) for one in WITHOUT_TOOLS]


def named(table: list[Any]) -> list[str]:
    return [f"{code}-{how}" for code, how, *_ in table]


@pytest.mark.parametrize(("code", "how", "of", "kind", "change", "where", "tools"), ALL, ids=named(ALL))
def test_every_way_to_break_a_sample_is_caught_where_it_is(
    request: pytest.FixtureRequest,
    code: str,
    how: str,
    of: str,
    kind: str,
    change: Change,
    where: Place | None,
    tools: bool,
) -> None:
    target: Target = request.getfixturevalue(of)
    sample = good(target, kind)
    facts = Facts(target, 4096, tools)
    if tools:
        assert broken(sample, facts) == {}
    found = broken(change(sample, target), facts)
    assert code in found
    if where is not None:
        assert found[code] == where(sample)


def test_every_rule_is_broken_by_an_example() -> None:
    assert {rule.code for rule in RULES} == {code for code, *_ in ALL}
    assert len(ALL) >= 60 and len(set(named(ALL))) == len(ALL)


@pytest.mark.parametrize("delta", [-1, 0, 1])
def test_a_dataset_may_allow_a_difference_in_counts_of_text_alone(kimi: Target, delta: int) -> None:
    sample, facts = replace(good(kimi, "off"), count_delta=delta), Facts(kimi, 4096, max_count_delta=1)
    assert broken(captured(sample, "text"), facts) == {}
    assert broken(sample, facts).keys() == ({"A09"} if delta else set())


@pytest.mark.parametrize(
    ("length", "split", "caught"), [(100, 5, False), (100, 6, True), (10, 2, False), (10, 3, True)]
)
def test_five_in_a_hundred_or_two_in_a_short_answer_may_be_other_ids(
    kimi: Target, length: int, split: int, caught: bool
) -> None:
    sample, paris = good(kimi, "off"), int(kimi.encode(" Paris")[0])
    two = [kimi.tokenizer.id_of(b" P") or 0, kimi.tokenizer.id_of(b"aris") or 0]
    words = [paris] * (length - 1 - 2 * split) + two * split
    sample = put(sample, start(sample), *words, drop=len(sample.input_ids) - 1 - start(sample))
    sample = replace(sample, round_trip_exact=False)
    assert len(sample.input_ids) - sample.prompt_len == length
    assert set(broken(captured(sample, "text"), Facts(kimi, 4096))) - {"A19"} == (
        {"A10"} if caught else set()
    )
    assert set(broken(sample, Facts(kimi, 4096))) == ({"A20"} if caught else set())


# What a file alone can't show: the ids are as good as others. Rule S02 of the stage holds them against what was
# rendered and what the engine wrote.
UNSEEN: list[tuple[str, Change]] = [
    (
        "a word of the answer for another",
        lambda s, t: put(s, start(s) + 2, int(t.encode(" London")[0]), drop=1),
    ),
    ("a word of the question for another", lambda s, t: put(s, 4, int(t.encode(" London")[0]), drop=1)),
    ("a word of the question dropped", lambda s, t: put(s, 4, drop=1)),
    ("a word of the question twice", lambda s, t: put(s, 4, int(s.input_ids[4]))),
    ("two words of the question swapped", lambda s, t: swapped(s, 4, 5)),
    ("a word of the answer dropped", lambda s, t: put(s, start(s) + 2, drop=1)),
    ("the prompt of another sample", lambda s, t: put(good(t, "merged"), 4, drop=1)),
    ("two words of the answer swapped", lambda s, t: swapped(s, start(s) + 1, start(s) + 2)),
]


@pytest.mark.parametrize(("how", "change"), UNSEEN, ids=[how for how, _ in UNSEEN])
def test_words_for_words_are_left_to_the_stage(kimi: Target, how: str, change: Change) -> None:
    sample = good(kimi, "off")
    changed = change(sample, kimi)
    assert changed.input_ids.tolist() != sample.input_ids.tolist()
    assert broken(changed, Facts(kimi, 4096)) == {}


SENT = " It is Paris, on the Seine.\n"
LOST = [
    ("a word", " It is, on the Seine.\n", "A09"),
    ("a word twice", " It is is Paris, on the Seine.\n", "A09"),
    (
        "the newline at the end",
        " It is Paris, on the Seine.",
        None,
    ),  # ".\n" is one token: the count is the same
    ("a word and the newline", " It is Paris, on the.", "A09"),
    ("the leading space", "It is Paris, on the Seine.\n", "A19"),
    ("nothing", SENT, None),
]


@pytest.mark.parametrize(("lost", "came", "code"), LOST, ids=[lost for lost, *_ in LOST])
def test_what_text_loses_on_its_way_shows_in_the_count(
    kimi: Target, lost: str, came: str, code: str | None
) -> None:
    counted = len(kimi.encode(SENT)) + 1
    answer = TextAnswer(content=came, completion_tokens=counted)
    got = reconstruct([answer], ["off"], kimi)[0]
    sample = good(kimi, "off")
    ids = np.concatenate([sample.input_ids[: sample.prompt_len], got.output_ids])
    mask = np.concatenate([np.zeros(sample.prompt_len), np.ones(len(got.output_ids))]).astype(np.uint8)
    sample = replace(sample, input_ids=ids, loss_mask=mask, capture=got.capture, count_delta=got.count_delta)
    assert set(broken(sample, Facts(kimi, 4096))) == ({code} if code else set())

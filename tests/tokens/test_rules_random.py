"""Whatever stands in a file, the audit comes to an end and says something: random edits never raise."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from include.core.records import TokenSample
from include.stages.audit_report import as_json, as_text, page, say, sentence
from include.tokens.audit import Audit
from include.tokens.case import Facts
from include.tokens.target import Target
from tests.tokens.broken_samples import good

INT32 = st.integers(-(2**31), 2**31 - 1)
PLACES = st.integers(0, 200)
# an edit of ids or mask: at a place, so many dropped, these put there instead
EDITS = st.lists(st.tuples(PLACES, st.integers(0, 9), st.lists(st.integers(0, 20), max_size=4)), max_size=4)
KINDS = ("thinks", "off", "calls", "merged")


def edited(values: np.ndarray[Any, Any], edits: Any, choices: list[int]) -> list[int]:
    out = values.tolist()
    for at, drop, put in edits:
        at = at % (len(out) + 1)
        out[at : at + drop] = [choices[i % len(choices)] for i in put]
    return out


GOOD: dict[tuple[str, str], TokenSample] = {}


def kept(target: Target, kind: str) -> TokenSample:
    key = target.profile.name, kind
    if key not in GOOD:
        GOOD[key] = good(target, kind)
    return GOOD[key]


@pytest.mark.parametrize("name", ["kimi", "qwen3"])
@settings(max_examples=250, deadline=None)
@given(data=st.data())
def test_random_edits_never_raise(request: pytest.FixtureRequest, name: str, data: st.DataObject) -> None:
    target: Target = request.getfixturevalue(name)
    kind = data.draw(st.sampled_from(KINDS))
    sample = kept(target, kind)
    special = [*list(target.control_tokens.values())[:30], 0, 220, target.vocab_size, -1, data.draw(INT32)]
    if data.draw(st.booleans()):
        sample = replace(
            sample, input_ids=np.array(edited(sample.input_ids, data.draw(EDITS), special), np.int32)
        )
    if data.draw(st.booleans()):
        mask = edited(sample.loss_mask, data.draw(EDITS), [0, 1, 2, 255])
        sample = replace(sample, loss_mask=np.array(mask, np.uint8))
    if data.draw(st.booleans()):
        sample = replace(sample, prompt_len=data.draw(st.one_of(PLACES, INT32)))
    if data.draw(st.booleans()):
        capture: Any = data.draw(st.sampled_from(["direct", "text", "logprobs", "", "x"]))
        delta = data.draw(st.one_of(st.none(), INT32))
        sample = replace(sample, capture=capture, count_delta=delta)
    tools = data.draw(st.booleans())
    audit = Audit(Facts(target, data.draw(st.sampled_from([1, 64, 4096])), tools))
    list(audit.watch([sample]))
    assert json.loads(as_json(audit))["samples"] == 1
    assert "x: " in as_text("x", audit) and "Audit of x" in page("x", audit.report())
    assert audit.errors == [] or "fails its audit" in sentence("x", audit)
    say(audit)


@settings(max_examples=60, deadline=None)
@given(
    ids=st.lists(st.one_of(INT32, st.integers(163584, 163607), st.integers(0, 300)), max_size=40),
    data=st.data(),
)
def test_random_samples_never_raise(kimi: Target, ids: list[int], data: st.DataObject) -> None:
    mask = data.draw(st.lists(st.integers(0, 2), min_size=max(0, len(ids) - 1), max_size=len(ids) + 1))
    base = kept(kimi, "off")
    sample = replace(
        base,
        input_ids=np.array(ids, np.int32),
        loss_mask=np.array(mask, np.uint8),
        prompt_len=data.draw(st.integers(-2, 45)),
    )
    list(Audit(Facts(kimi, 4096, tools=True)).watch([sample]))

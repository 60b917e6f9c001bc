"""SGLang's answers as a real server of 0.5.23 gives them, and the two that must not pass for a good one."""

from __future__ import annotations

from typing import Any

import pytest

from include.engines.base import MalformedAnswer
from include.engines.client import classify
from include.engines.sglang import Sglang


def body(finish_reason: Any, output_ids: Any = (7042, 30, 2)) -> dict[str, Any]:
    meta = {"finish_reason": finish_reason, "prompt_tokens": 16, "completion_tokens": 3, "cached_tokens": 0}
    return {"text": "Paris.", "output_ids": list(output_ids), "meta_info": meta}


@pytest.mark.parametrize(
    ("finish_reason", "outcome"),
    [
        ({"type": "stop", "matched": 2}, ("answered", "")),
        ({"type": "length", "length": 3}, ("left_out", "truncated")),
        ({"type": "stop", "matched": "NaN happened"}, ("failed", "finish_reason stop (NaN happened)")),
    ],
)
def test_what_an_answer_counts_as(finish_reason: dict[str, Any], outcome: tuple[str, str]) -> None:
    answer = Sglang().read(body(finish_reason))
    assert classify(answer, 2) == outcome
    assert (answer.output_ids, answer.prompt_tokens, answer.completion_tokens) == ([7042, 30, 2], 16, 3)


@pytest.mark.parametrize(
    "wrong",
    [
        body({"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}),
        {"meta_info": {"finish_reason": {"type": "abort", "message": "Abort in waiting queue"}}},
        body(None),
        body({"type": "stop", "matched": 2}) | {"output_ids": None},
        {"text": "Paris."},
    ],
)
def test_what_is_asked_again(wrong: dict[str, Any]) -> None:
    with pytest.raises(MalformedAnswer):
        Sglang().read(wrong)

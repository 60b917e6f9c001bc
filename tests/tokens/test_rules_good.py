"""Ten thousand good samples of three targets break no rule, not even one that only warns."""

from __future__ import annotations

import pytest

from include.tokens.audit import Audit
from include.tokens.case import Facts
from include.tokens.target import Target
from tests.tokens.good_samples import Maker


def broken(target: Target, count: int) -> dict[str, dict[str, object]]:
    audit = Audit(Facts(target, 1 << 20, tools=target.profile.tool_calls is not None))
    assert sum(1 for _ in audit.watch(Maker(target).many(count))) == count
    assert audit.statistics.answers >= count
    assert audit.statistics.exact_round_trips == count
    return {finding.code: finding.first for finding in audit.findings.values() if finding.count}


def test_kimi(kimi: Target) -> None:
    assert broken(kimi, 4000) == {}


def test_qwen3(qwen3: Target) -> None:
    assert broken(qwen3, 4000) == {}


def test_smollm2(target: Target) -> None:
    assert broken(target, 2000) == {}


def test_deepseek_v3(deepseek_v3: Target) -> None:
    assert broken(deepseek_v3, 300) == {}


@pytest.mark.parametrize("share", ["thinking", "tools", "merged", "captures"])
def test_the_samples_are_of_every_kind(kimi: Target, share: str) -> None:
    audit = Audit(Facts(kimi, 1 << 20, tools=True))
    samples = list(audit.watch(Maker(kimi, seed=1).many(300)))
    close, tool = kimi.special_ids["thinking_close"], kimi.control_tokens["<|tool_call_begin|>"]
    found = {
        "thinking": sum(close in s.input_ids[s.prompt_len :] for s in samples),
        "tools": sum(tool in s.input_ids[s.prompt_len :] for s in samples),
        "merged": audit.statistics.answers - len(samples),
        "captures": min(audit.statistics.captures[c] for c in ("direct", "text", "logprobs")),
    }
    assert found[share] > 20

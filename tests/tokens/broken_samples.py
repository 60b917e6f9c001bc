"""What test_rules breaks: one good sample of each kind with texts that stay the same, and the edits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from include.core.records import Capture, Conversation, Message, TokenSample, ToolCall
from include.tokens.audit import Audit
from include.tokens.case import Facts
from include.tokens.samples import Turn, samples_of
from include.tokens.target import Target
from include.tokens.tool_calls import written
from tests.tokens.good_samples import TOOLS

QUESTION = "What is the capital of France?"
CALLS = tuple(
    ToolCall(f"functions.get_weather:{at}", "get_weather", f'{{"city": "Ulm", "days": {at}}}')
    for at in (0, 1)
)


def turn(target: Target, name: str, messages: Sequence[Message], answer: str, *, thinking: bool) -> Turn:
    """`answer` with its control tokens written out, but the end of turn."""
    prompt = target.render([Conversation("", tuple(messages), "", "", TOOLS)], thinking=thinking)[0]
    end = target.profile.special_tokens["end_of_turn"]
    output = target.tokenizer.encode_marked([answer + end])[0]
    return Turn(name, prompt, output, "direct", 0, True, "sglang", "engine", "m", "stop", "rows.jsonl:1")


def good(target: Target, kind: str) -> TokenSample:
    """A good sample: thinks, off (thoughts closed in the prompt), calls, merged (three turns), plain (no thoughts)."""
    ask = [Message("user", QUESTION)]
    open_ = "<think>\n" if target.profile.name == "qwen3" else ""
    white = "\n</think>\n\n" if open_ else "</think>"
    thoughts = f"{open_} The user asks for a capital.{white}"
    if kind == "thinks":
        return one(turn(target, "s", ask, f"{thoughts} It is Paris, on the Seine.", thinking=True))
    if kind == "calls":
        syntax = target.profile.tool_calls
        assert syntax is not None
        section = written(syntax, CALLS, after_text=True)
        return one(turn(target, "s", ask, f"{thoughts} Let me see.{section}", thinking=True))
    if kind == "merged":
        turns = []
        for at, city in enumerate(("Paris", "Lyon", "Nice")):
            answer = f" It is {city}, of course."
            turns.append(turn(target, f"s-t{at}", ask, answer, thinking=False))
            ask = [*ask, Message("assistant", answer), Message("user", f"And number {at + 2}?")]
        return next(samples_of(turns))
    return one(turn(target, "s", ask, " It is Paris, on the Seine.", thinking=False))


def one(turn: Turn) -> TokenSample:
    return next(samples_of([turn]))


def broken(sample: TokenSample, facts: Facts) -> dict[str, int | None]:
    """The broken rules and the place that each names."""
    audit = Audit(facts)
    assert list(audit.watch([sample])) == [sample]
    findings = [finding for finding in audit.findings.values() if finding.count]
    assert bool(audit.malformed) == any(finding.severity == "error" for finding in findings)
    return {finding.code: finding.first["position"] for finding in findings}


def put(sample: TokenSample, at: int, *new: int, drop: int = 0) -> TokenSample:
    """`drop` ids at a place (from the end if negative) replaced by others, mask and prompt_len along."""
    at = at % len(sample.input_ids) if at < 0 else at
    ids, mask, inside = sample.input_ids, sample.loss_mask, int(at >= sample.prompt_len)
    return replace(
        sample,
        input_ids=np.concatenate([ids[:at], np.array(new, np.int32), ids[at + drop :]]).astype(np.int32),
        loss_mask=np.concatenate([mask[:at], np.full(len(new), inside), mask[at + drop :]]).astype(np.uint8),
        prompt_len=sample.prompt_len + (0 if inside else len(new) - drop),
    )


def masked(sample: TokenSample, start: int, end: int, value: int) -> TokenSample:
    """The sample with the mask set to a value over [start, end)."""
    mask = sample.loss_mask.copy()
    mask[start:end] = value
    return replace(sample, loss_mask=mask)


def with_mask(sample: TokenSample, values: Sequence[int]) -> TokenSample:
    return replace(sample, loss_mask=np.array(values, np.uint8))


def swapped(sample: TokenSample, at: int, other: int) -> TokenSample:
    ids = sample.input_ids.copy()
    ids[[at, other]] = ids[[other, at]]
    return replace(sample, input_ids=ids)


def answered(sample: TokenSample, target: Target, text: str) -> TokenSample:
    """The sample with another answer; control tokens written out, end of turn too."""
    ids = np.concatenate([sample.input_ids[: sample.prompt_len], target.tokenizer.encode_marked([text])[0]])
    mask = np.concatenate([np.zeros(sample.prompt_len), np.ones(len(ids) - sample.prompt_len)])
    return replace(sample, input_ids=ids.astype(np.int32), loss_mask=mask.astype(np.uint8))


def captured(sample: TokenSample, capture: Capture) -> TokenSample:
    return replace(sample, capture=capture)


def place(sample: TokenSample, token: int, nth: int = 0) -> int:
    """Where a token stands in the answer, the nth of them."""
    found = np.flatnonzero(sample.input_ids[sample.prompt_len :] == token)
    return sample.prompt_len + int(found[nth])

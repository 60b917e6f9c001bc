"""The audit's table of rules: pure functions that say where a sample is malformed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from include.core.records import TokenSample
from include.tokens.target import Target

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Facts:
    """What every sample of a shard is held against."""

    target: Target
    generation_suffix: Sequence[int]
    max_seq_len: int


@dataclass(frozen=True)
class Fault:
    """What is wrong with a sample and at which position of input_ids (None: nowhere in particular)."""

    what: str
    position: int | None = None


Check = Callable[[TokenSample, Facts], Fault | None]


@dataclass(frozen=True)
class Rule:
    """One rule: a code that stays the same for ever, a sentence that holds for a good sample, and its check."""

    code: str
    sentence: str
    severity: Severity
    check: Check


def _lengths(s: TokenSample, _: Facts) -> Fault | None:
    if len(s.input_ids) != len(s.loss_mask):
        return Fault(f"{len(s.input_ids)} ids, {len(s.loss_mask)} mask entries")
    if not 0 < s.prompt_len < len(s.input_ids):
        return Fault(f"prompt_len {s.prompt_len} of {len(s.input_ids)} ids: prompt or answer is empty")
    return None


def _ids_in_range(s: TokenSample, facts: Facts) -> Fault | None:
    size = facts.target.vocab_size
    at = next((i for i, id_ in enumerate(s.input_ids) if not 0 <= id_ < size), None)
    return None if at is None else Fault(f"id {s.input_ids[at]}, vocabulary {size}", at)


def _ends_with_end_of_turn(s: TokenSample, facts: Facts) -> Fault | None:
    if not s.input_ids or s.input_ids[-1] != facts.target.end_of_turn:
        last = s.input_ids[-1] if s.input_ids else "nothing"
        return Fault(f"last id {last}, end of turn is {facts.target.end_of_turn}", len(s.input_ids) - 1)
    return None


def _no_control_token_in_answer(s: TokenSample, facts: Facts) -> Fault | None:
    control = set(facts.target.control_tokens.values())
    for at in range(s.prompt_len, len(s.input_ids) - 1):
        if s.input_ids[at] in control:
            return Fault(f"control token {facts.target.decode([s.input_ids[at]])} inside the answer", at)
    return None


def _prompt_ends_as_template(s: TokenSample, facts: Facts) -> Fault | None:
    suffix = list(facts.generation_suffix)
    if list(s.input_ids[: s.prompt_len][-len(suffix) :]) != suffix:
        return Fault("the prompt doesn't end with the template's generation prompt", s.prompt_len - 1)
    return None


def _mask_covers_answer(s: TokenSample, _: Facts) -> Fault | None:
    for at, value in enumerate(s.loss_mask):
        if value != (at >= s.prompt_len):
            side = "answer" if at >= s.prompt_len else "prompt"
            return Fault(f"mask {value} in the {side}", at)
    return None


def _finished(s: TokenSample, _: Facts) -> Fault | None:
    return None if s.finish_reason == "stop" else Fault(f"finish_reason {s.finish_reason}")


def _within_length(s: TokenSample, facts: Facts) -> Fault | None:
    too_long = len(s.input_ids) > facts.max_seq_len
    return (
        Fault(f"{len(s.input_ids)} ids, limit {facts.max_seq_len}", facts.max_seq_len) if too_long else None
    )


def _count_agrees(s: TokenSample, _: Facts) -> Fault | None:
    if s.count_delta is None or s.count_delta == 0:
        return None
    return Fault(f"the engine counted {s.count_delta:+d} tokens against ours")


def _round_trip(s: TokenSample, _: Facts) -> Fault | None:
    return None if s.round_trip_exact else Fault("decoded and encoded again, the answer gives other ids")


def _no_replacement_character(s: TokenSample, facts: Facts) -> Fault | None:
    answer = [i for i in s.input_ids[s.prompt_len :] if 0 <= i < facts.target.vocab_size]
    return (
        Fault("the answer holds bytes that are no UTF-8") if "\ufffd" in facts.target.decode(answer) else None
    )


RULES: tuple[Rule, ...] = (
    Rule("A01", "ids and mask are equally long; prompt and answer aren't empty", "error", _lengths),
    Rule("A02", "every id is in the target's vocabulary", "error", _ids_in_range),
    Rule("A03", "the answer ends with the target's end of turn", "error", _ends_with_end_of_turn),
    Rule("A04", "no control token stands inside the answer", "error", _no_control_token_in_answer),
    Rule("A05", "the prompt ends with the template's generation prompt", "error", _prompt_ends_as_template),
    Rule("A06", "the mask covers the answer and nothing else", "error", _mask_covers_answer),
    Rule("A07", "the target finished by itself", "error", _finished),
    Rule("A08", "the sample is within the length limit", "error", _within_length),
    Rule("A09", "the engine counted as many tokens as there are", "error", _count_agrees),
    # direct capture keeps the target's own ids whatever they are, so these two only tell
    Rule("A10", "decoding and encoding gives the same ids", "warning", _round_trip),
    Rule("A11", "the answer is valid UTF-8", "warning", _no_replacement_character),
)

"""The audit's table of rules for one sample: pure functions that say where it is malformed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from include.core.records import Ids, TokenSample
from include.tokens.target import Opening, Target
from include.tokens.tokenizer import places
from include.tokens.tool_calls import read, section_end, tool_tokens

Severity = Literal["error", "warning"]

_WITHIN = 0.05
_CAPTURES = ("direct", "logprobs", "text")


@dataclass(frozen=True)
class Facts:
    """What every sample of a file is held against. `tools`: whether the dataset's answers may call tools."""

    target: Target
    max_seq_len: int
    tools: bool = False
    max_count_delta: int = 0

    @cached_property
    def is_control(self) -> NDArray[np.bool_]:
        """[vocab_size], whether an id is a control token."""
        table = np.zeros(self.target.vocab_size, np.bool_)
        table[list(self.target.control_tokens.values())] = True
        return table

    @cached_property
    def is_token(self) -> NDArray[np.bool_]:
        """[vocab_size], whether any token has the id."""
        return np.array([token is not None for token in self.target.tokenizer.token_bytes], np.bool_)

    @cached_property
    def tool_tokens(self) -> frozenset[int]:
        """The control tokens of tool calls."""
        return tool_tokens(self.target.profile.tool_calls, self.target.tokenizer)


@dataclass(frozen=True)
class Case:
    """A sample with what several rules need of it. `again` are its answers decoded and encoded again."""

    sample: TokenSample
    facts: Facts
    again: Sequence[Ids]

    @cached_property
    def answers(self) -> list[tuple[int, int]]:
        """[start, end) of each answer."""
        return answers_of(self.sample)

    @cached_property
    def known_ids(self) -> Ids:
        """input_ids, with −1 where no token has the id."""
        ids = self.sample.input_ids
        inside = (ids >= 0) & (ids < len(self.facts.is_token))
        known = inside & self.facts.is_token[np.where(inside, ids, 0)]
        return np.where(known, ids, -1).astype(np.int32)

    @cached_property
    def control_places(self) -> list[int]:
        """Where control tokens stand inside answers, the last token of each answer left out."""
        ids, places = self.known_ids, []
        for start, end in self.answers:
            part = ids[start : end - 1]
            hits = np.flatnonzero(self.facts.is_control[np.where(part < 0, 0, part)] & (part >= 0))
            places += [int(start + hit) for hit in hits]
        return places

    def opening(self, start: int) -> Opening | None:
        """How the prompt opened the answer that begins at `start`."""
        return self.facts.target.opening_of(np.ascontiguousarray(self.sample.input_ids[:start]))


def answers_of(sample: TokenSample) -> list[tuple[int, int]]:
    """The runs of ones in the mask; everything behind the prompt where there is none."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], (sample.loss_mask != 0).astype(np.int8), [0]])))
    runs = [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]
    inside = [(a, min(b, len(sample.input_ids))) for a, b in runs if a < len(sample.input_ids)]
    return inside or [(min(max(sample.prompt_len, 0), len(sample.input_ids)), len(sample.input_ids))]


@dataclass(frozen=True)
class Fault:
    """What is wrong with a sample and at which position of input_ids (None: nowhere in particular)."""

    what: str
    position: int | None = None


@dataclass(frozen=True)
class Rule:
    """One rule: a code that stays the same for ever, a sentence that holds for a good sample, and its check."""

    code: str
    sentence: str
    severity: Severity
    check: Callable[[Case], Fault | None]


def _lengths(case: Case) -> Fault | None:
    s = case.sample
    if len(s.input_ids) != len(s.loss_mask):
        return Fault(f"{len(s.input_ids)} ids, {len(s.loss_mask)} mask entries")
    if not 0 < s.prompt_len < len(s.input_ids):
        return Fault(f"prompt_len {s.prompt_len} of {len(s.input_ids)} ids: prompt or answer is empty")
    return None


def _ids_in_range(case: Case) -> Fault | None:
    unknown = np.flatnonzero(case.known_ids < 0)
    if not len(unknown):
        return None
    at = int(unknown[0])
    return Fault(f"id {case.sample.input_ids[at]}, vocabulary {case.facts.target.vocab_size}", at)


def _ends_with_end_of_turn(case: Case) -> Fault | None:
    wanted = case.facts.target.end_of_turn
    for start, end in case.answers:
        last = int(case.sample.input_ids[end - 1]) if end > start else None
        if last != wanted:
            return Fault(f"last id {last}, end of turn is {wanted}", end - 1)
    return None


def _no_other_control_token(case: Case) -> Fault | None:
    target = case.facts.target
    allowed = {target.special_ids.get("thinking_open"), target.special_ids.get("thinking_close")}
    allowed |= case.facts.tool_tokens
    for at in case.control_places:
        if int(case.sample.input_ids[at]) not in allowed:
            name = target.decode([int(case.sample.input_ids[at])])
            return Fault(f"control token {name} inside the answer", at)
    return None


def _prompt_ends_as_template(case: Case) -> Fault | None:
    at = min(max(case.sample.prompt_len, 0), len(case.sample.input_ids))
    if case.opening(at) is None:
        return Fault("the prompt doesn't end with the template's generation prompt", at - 1)
    return None


def _mask_covers_answers(case: Case) -> Fault | None:
    s = case.sample
    other = np.flatnonzero(s.loss_mask > 1)
    if len(other):
        return Fault(f"mask {s.loss_mask[other[0]]}, neither 0 nor 1", int(other[0]))
    prompt = np.flatnonzero(s.loss_mask[: max(s.prompt_len, 0)])
    if len(prompt):
        return Fault("mask 1 in the prompt", int(prompt[0]))
    for start, _ in case.answers:
        if start != s.prompt_len and case.opening(start) is None:
            return Fault("mask 0 in the answer", start - 1)
    first, last = case.answers[0][0], case.answers[-1][1]
    if first != s.prompt_len or not np.any(s.loss_mask):
        return Fault("mask 0 where the first answer begins", s.prompt_len)
    if last != len(s.input_ids):
        return Fault("mask 0 at the end of the last answer", last)
    return None


def _finished(case: Case) -> Fault | None:
    reason = case.sample.finish_reason
    good = reason == "stop" or (reason == "tool_calls" and case.facts.tools)
    return None if good else Fault(f"finish_reason {reason}")


def _within_length(case: Case) -> Fault | None:
    length, limit = len(case.sample.input_ids), case.facts.max_seq_len
    return Fault(f"{length} ids, limit {limit}", limit) if length > limit else None


def _count_agrees(case: Case) -> Fault | None:
    s, limit = case.sample, 0 if case.sample.capture == "direct" else case.facts.max_count_delta
    if s.count_delta is None:
        return None if s.capture == "direct" else Fault("no token count to hold the text against")
    return (
        Fault(f"{s.provider} counted {s.count_delta:+d} tokens against ours")
        if abs(s.count_delta) > limit
        else None
    )


def _round_trip(case: Case) -> Fault | None:
    for (start, end), again in zip(case.answers, case.again, strict=False):
        differ = abs(len(again) - (end - start))
        if differ > max(2, _WITHIN * (end - start)):
            return Fault(f"{end - start} ids decode to text of {len(again)} ids", start)
    return None


def _no_replacement_character(case: Case) -> Fault | None:
    return None if case.sample.capture == "direct" else _valid_utf8(case)


def _direct_valid_utf8(case: Case) -> Fault | None:
    return _valid_utf8(case) if case.sample.capture == "direct" else None


def _valid_utf8(case: Case) -> Fault | None:
    for start, end in case.answers:
        if "\ufffd" in (text := case.facts.target.decode(case.known_ids[start:end])):
            before = text[: text.index("\ufffd")]
            at = start + len(case.facts.target.tokenizer.encode_marked([before])[0])
            return Fault("the answer holds U+FFFD or bytes that are no UTF-8", min(at, end - 1))
    return None


def _thinking_closes(case: Case) -> Fault | None:
    close = case.facts.target.special_ids.get("thinking_close")
    for start, end in case.answers:
        opening = case.opening(start)
        thinks = opening is not None and opening.thinking in ("in_prompt", "generated")
        at = places(case.sample.input_ids[start:end], close)
        if len(at) != thinks:
            word = "once" if thinks else "never"
            place = start + int(at[-1]) if len(at) else start
            return Fault(f"thinking closes {len(at)} times, should {word}", place)
    return None


def _thinking_opens(case: Case) -> Fault | None:
    open_ = case.facts.target.special_ids.get("thinking_open")
    if open_ is None:
        return None
    for start, end in case.answers:
        opening = case.opening(start)
        at = places(case.sample.input_ids[start:end], open_)
        wanted = [0] if opening is not None and opening.thinking == "generated" else []
        if at.tolist() != wanted:
            where = "should be the answer's first token" if wanted else "the prompt has it or nothing has"
            return Fault(
                f"thinking opens {len(at)} times in the answer: {where}",
                start + int(at[-1] if len(at) else 0),
            )
    return None


def _tool_calls(case: Case) -> Fault | None:
    target, ids = case.facts.target, case.sample.input_ids
    syntax = target.profile.tool_calls
    if syntax is None or not case.facts.tool_tokens:
        return None
    close = target.special_ids.get("thinking_close")
    for start, end in case.answers:
        answer = case.known_ids[start:end]
        first = next((i for i, id_ in enumerate(answer.tolist()) if id_ in case.facts.tool_tokens), None)
        if first is None:
            continue
        if not case.facts.tools:
            return Fault("a tool token in a dataset without tools", start + first)
        if close is not None and close in ids[start + first : end]:
            return Fault("a tool token inside the thoughts", start + first)
        _, fault, _ = read(syntax, answer, target.tokenizer)
        if fault:
            return Fault(fault.what, start + fault.at)
        behind = section_end(syntax, answer, target.tokenizer)
        if target.decode(answer[behind:-1]).strip():
            return Fault("text behind the tool calls", start + behind)
    return None


def _not_empty(case: Case) -> Fault | None:
    target = case.facts.target
    close = target.special_ids.get("thinking_close")
    for start, end in case.answers:
        closes = places(case.sample.input_ids[start:end], close)
        begin = start + int(closes[-1]) + 1 if len(closes) else start
        if not target.decode(case.known_ids[begin : end - 1]).strip():
            return Fault("nothing but white space is answered", begin)
    return None


def _says_its_round_trip(case: Case) -> Fault | None:
    ids = case.sample.input_ids
    exact = all(
        np.array_equal(ids[start:end], again)
        for (start, end), again in zip(case.answers, case.again, strict=False)
    )
    said = case.sample.round_trip_exact
    return None if exact == said else Fault(f"round_trip_exact says {said}, it is {exact}")


def _says_its_capture(case: Case) -> Fault | None:
    capture = case.sample.capture
    return None if capture in _CAPTURES else Fault(f"capture {capture!r}")


def _starts_as_usual(case: Case) -> Fault | None:
    usual = case.facts.target.profile.usual_start
    if not usual or case.sample.capture == "direct":
        return None
    start, end = case.answers[0]
    if case.facts.target.decode(case.known_ids[start : min(end, start + 2)]).startswith(usual):
        return None
    return Fault(f"{case.sample.provider}: the answer doesn't begin with {usual!r}", start)


RULES: tuple[Rule, ...] = (
    Rule("A01", "ids and mask are equally long; prompt and answer aren't empty", "error", _lengths),
    Rule("A02", "every id is one of the target's tokens", "error", _ids_in_range),
    Rule("A03", "each answer ends with the target's end of turn", "error", _ends_with_end_of_turn),
    Rule(
        "A04",
        "no control token stands inside an answer, but those of thoughts and tools",
        "error",
        _no_other_control_token,
    ),
    Rule("A05", "the prompt ends with the template's generation prompt", "error", _prompt_ends_as_template),
    Rule("A06", "the mask covers the answers and nothing else", "error", _mask_covers_answers),
    Rule("A07", "the target finished by itself", "error", _finished),
    Rule("A08", "the sample is within the length limit", "error", _within_length),
    Rule("A09", "the provider counted as many tokens as there are", "error", _count_agrees),
    Rule("A10", "decoded and encoded again, an answer's length differs by 5% at most", "error", _round_trip),
    Rule("A11", "no answer from text holds a replacement character", "error", _no_replacement_character),
    # the engine's own ids are kept whatever they are, so this one only tells
    Rule("A12", "the engine's answer is valid UTF-8", "warning", _direct_valid_utf8),
    Rule("A13", "thinking closes once where the target thinks, never elsewhere", "error", _thinking_closes),
    Rule("A14", "thinking opens only where the target itself writes it", "error", _thinking_opens),
    Rule("A15", "tool calls are where they may be, balanced, in order and valid JSON", "error", _tool_calls),
    Rule("A16", "something is answered besides thoughts", "error", _not_empty),
    Rule("A17", "round_trip_exact is true of the answer", "error", _says_its_round_trip),
    Rule("A18", "the capture is direct, logprobs or text", "error", _says_its_capture),
    Rule("A19", "an answer from text begins as the target's answers do", "warning", _starts_as_usual),
)

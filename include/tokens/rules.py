"""The audit's table of rules for one sample: pure functions that say where it is malformed."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from include.tokens.case import Answer, Case
from include.tokens.case import Facts as Facts
from include.tokens.tool_calls import read

Severity = Literal["error", "warning"]

_WITHIN = 0.05
_SOME = 8  # tokens that are looked at before all are
_CAPTURES = ("direct", "logprobs", "text")


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
    if not case.unknown:
        return None
    at = case.unknown[0]
    return Fault(f"id {case.sample.input_ids[at]}, vocabulary {case.facts.target.vocab_size}", at)


def _ends_with_end_of_turn(case: Case) -> Fault | None:
    wanted = case.facts.target.end_of_turn
    for answer in case.answers:
        last = int(case.sample.input_ids[answer.end - 1]) if answer.end > answer.start else None
        if last != wanted:
            return Fault(f"last id {last}, end of turn is {wanted}", max(answer.end - 1, 0))
    return None


def _no_other_control_token(case: Case) -> Fault | None:
    special = case.facts.target.special_ids
    thoughts = {special.get("thinking_open"), special.get("thinking_close")}
    for answer in case.answers:
        for at, id_ in answer.control:
            if at != answer.end - 1 and id_ not in thoughts and id_ not in case.facts.tool_tokens:
                return Fault(f"control token {case.facts.target.decode([id_])} inside the answer", at)
    return None


def _prompt_ends_as_template(case: Case) -> Fault | None:
    ids = case.sample.input_ids
    prompt_len = min(max(case.sample.prompt_len, 0), len(ids))
    if case.facts.opening_before(ids, prompt_len) is None:
        return Fault("the prompt doesn't end with the template's generation prompt", max(prompt_len - 1, 0))
    return None


def _mask_covers_answers(case: Case) -> Fault | None:
    s, answers = case.sample, case.answers
    highest = int(s.loss_mask.max(initial=0))
    if highest > 1:
        at = int(s.loss_mask.argmax())
        return Fault(f"mask {highest}, neither 0 nor 1", at)
    if highest and answers[0].start < s.prompt_len:
        return Fault("mask 1 in the prompt", answers[0].start)
    if answers[0].start != s.prompt_len or not highest:
        return Fault("mask 0 where the first answer begins", s.prompt_len)
    for before, answer in pairwise(answers):
        if answer.opening is None:
            return Fault("mask 0 in the answer", before.end)
        missed = _opened(case, before.end, answer.start)
        if missed is not None:
            return Fault("mask 0 over a whole answer", missed)
    if answers[-1].end != len(s.input_ids):
        return Fault("mask 0 at the end of the last answer", answers[-1].end)
    return None


def _opened(case: Case, start: int, end: int) -> int | None:
    """Where the template opened an answer between two places, the second itself left out."""
    for at, _ in case.control:
        if start <= at < end and (opening := case.facts.opening_at(case.sample.input_ids, at)):
            begins = at + len(opening.ids)
            if begins < end:
                return begins
    return None


def _finished(case: Case) -> Fault | None:
    reason = case.sample.finish_reason
    good = reason == "stop" or (reason == "tool_calls" and case.facts.tools)
    return None if good else Fault(f"finish_reason {reason}")


def _within_length(case: Case) -> Fault | None:
    length, limit = len(case.sample.input_ids), case.facts.max_seq_len
    return Fault(f"{length} ids, limit {limit}", limit) if length > limit else None


def _count_agrees(case: Case) -> Fault | None:
    s = case.sample
    if s.count_delta is None:
        return None if s.capture == "direct" else Fault("no token count to hold the text against")
    limit = 0 if s.capture == "direct" else case.facts.max_count_delta
    if abs(s.count_delta) > limit:
        return Fault(f"{s.provider} counted {s.count_delta:+d} tokens against ours")
    return None


def _text_round_trip(case: Case) -> Fault | None:
    return None if case.sample.capture == "direct" else _round_trip(case)


def _direct_round_trip(case: Case) -> Fault | None:
    return _round_trip(case) if case.sample.capture == "direct" else None


def _round_trip(case: Case) -> Fault | None:
    for answer in case.answers:
        length, again = answer.end - answer.start, len(answer.again)
        if abs(again - length) > max(2, _WITHIN * length):
            return Fault(f"{length} ids decode to text of {again} ids", answer.start)
    return None


def _no_replacement_character(case: Case) -> Fault | None:
    return None if case.sample.capture == "direct" else _valid_utf8(case)


def _direct_valid_utf8(case: Case) -> Fault | None:
    return _valid_utf8(case) if case.sample.capture == "direct" else None


def _valid_utf8(case: Case) -> Fault | None:
    for answer in case.answers:
        if "\ufffd" in answer.text:
            return Fault("the answer holds U+FFFD or bytes that are no UTF-8", _first_invalid(case, answer))
    return None


def _first_invalid(case: Case, answer: Answer) -> int:
    """The first token that ends in, or breaks off, a replacement character."""
    tokens, decoder = (
        case.facts.target.tokenizer.token_bytes,
        codecs.getincrementaldecoder("utf-8")("replace"),
    )
    for at in range(answer.start, answer.end):
        id_ = int(case.sample.input_ids[at])
        known = tokens[id_] if 0 <= id_ < len(tokens) else None
        if "\ufffd" in decoder.decode(known or b""):
            return at
    return answer.end - 1


def _thinking_closes(case: Case) -> Fault | None:
    close = case.facts.target.special_ids.get("thinking_close")
    for answer in case.answers:
        at = answer.places(close)
        if len(at) != answer.thinks:
            word = "once" if answer.thinks else "never"
            return Fault(f"thinking closes {len(at)} times, should {word}", at[-1] if at else answer.start)
    return None


def _thinking_opens(case: Case) -> Fault | None:
    open_ = case.facts.target.special_ids.get("thinking_open")
    for answer in case.answers:
        generated = answer.opening is not None and answer.opening.thinking == "generated"
        at = answer.places(open_)
        if at != ([answer.start] if generated else []):
            where = "should be the answer's first token" if generated else "the prompt has it or nothing has"
            place = at[-1] if at else answer.start
            return Fault(f"thinking opens {len(at)} times in the answer: {where}", place)
    return None


def _tool_calls(case: Case) -> Fault | None:
    target, tool_tokens = case.facts.target, case.facts.tool_tokens
    syntax, close = target.profile.tool_calls, target.special_ids.get("thinking_close")
    for answer in case.answers:
        first = next((at for at, id_ in answer.control if id_ in tool_tokens), None)
        if first is None or syntax is None:
            continue
        if not case.facts.tools:
            return Fault("a tool token in a dataset without tools", first)
        if any(at > first for at in answer.places(close)):
            return Fault("a tool token inside the thoughts", first)
        ids = case.sample.input_ids[answer.start : answer.end]
        section = read(syntax, ids, target.tokenizer)
        if section.fault:
            return Fault(section.fault.what, answer.start + section.fault.at)
        if target.decode(ids[section.end : -1]).strip():
            return Fault("text behind the tool calls", answer.start + section.end)
    return None


def _not_empty(case: Case) -> Fault | None:
    target = case.facts.target
    for answer in case.answers:
        closes = answer.places(target.special_ids.get("thinking_close"))
        begin = closes[-1] + 1 if closes else answer.start
        some = case.sample.input_ids[begin : min(begin + _SOME, answer.end - 1)]
        rest = case.sample.input_ids[begin + _SOME : answer.end - 1]
        if not target.decode(some).strip() and not target.decode(rest).strip():
            return Fault("nothing but white space is answered", begin)
    return None


def _says_its_round_trip(case: Case) -> Fault | None:
    ids, said = case.sample.input_ids, case.sample.round_trip_exact
    changed = [a.start for a in case.answers if not np.array_equal(ids[a.start : a.end], a.again)]
    if said == (not changed):
        return None
    return Fault(f"round_trip_exact says {said}, it is {not said}", changed[0] if changed else None)


def _says_its_capture(case: Case) -> Fault | None:
    capture = case.sample.capture
    return None if capture in _CAPTURES else Fault(f"capture {capture!r}")


def _starts_as_usual(case: Case) -> Fault | None:
    usual = case.facts.target.profile.usual_start
    if not usual or case.sample.capture == "direct":
        return None
    for answer in case.answers:
        if answer.begins_with_text and not answer.text.startswith(usual):
            return Fault(f"{case.sample.provider}: the answer doesn't begin with {usual!r}", answer.start)
    return None


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
    Rule(
        "A10",
        "an answer from text, encoded again, differs in length by 5% at most",
        "error",
        _text_round_trip,
    ),
    Rule("A11", "no answer from text holds a replacement character", "error", _no_replacement_character),
    # the engine's own ids are kept whatever they are, so A12 and A20 only tell; S09 looks at all of them together
    Rule("A12", "the engine's answer is valid UTF-8", "warning", _direct_valid_utf8),
    Rule("A13", "thinking closes once where the target thinks, never elsewhere", "error", _thinking_closes),
    Rule("A14", "thinking opens only where the target itself writes it", "error", _thinking_opens),
    Rule("A15", "tool calls are where they may be, balanced, in order and valid JSON", "error", _tool_calls),
    Rule("A16", "something is answered besides thoughts", "error", _not_empty),
    Rule("A17", "round_trip_exact is true of the answer", "error", _says_its_round_trip),
    Rule("A18", "the capture is direct, logprobs or text", "error", _says_its_capture),
    Rule("A19", "an answer from text begins as the target's answers do", "warning", _starts_as_usual),
    Rule(
        "A20",
        "the engine's answer, encoded again, differs in length by 5% at most",
        "warning",
        _direct_round_trip,
    ),
)

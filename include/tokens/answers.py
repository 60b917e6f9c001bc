"""Capture: an answer's token ids, put together again from what a provider says of it.

*Text*: thoughts, thinking close, content, tool calls, end of turn; the texts are encoded as characters and the control
tokens set between them, never found by parsing. *Logprobs* give each token's bytes, which are the ids. (*Direct*
ids come from the engine, and nothing here touches them.) What can't be told from the text is left out with a reason;
nothing is appended that wasn't generated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from include.core.records import Capture, Ids, TextAnswer
from include.tokens.target import Target, Thinking
from include.tokens.tool_calls import written

_NO_IDS = np.empty(0, np.int32)
_REFUSED = ("content_filter", "refusal")


@dataclass(frozen=True)
class Reconstruction:
    """The ids of one answer. `count_delta`: the provider's completion_tokens − ours, its offset taken off.

    `left_out` says why the answer can't be trained on; its ids are then what is certain of it. `encoded`: the ids are
    those of a text that was encoded, so decoding and encoding them again gives the same ids. `proven`: each token was
    seen, by its bytes or as a piece of the stream; text alone has only its count to speak for it.
    """

    output_ids: Ids
    capture: Capture
    count_delta: int | None
    left_out: str = ""
    encoded: bool = False
    proven: bool = False


def reconstruct(
    answers: Sequence[TextAnswer],
    thinking: Sequence[Thinking],
    target: Target,
    offsets: Mapping[str, int] | None = None,
) -> list[Reconstruction]:
    """The ids of each answer; `offsets` are the constants in the providers' counts (see learn_offsets).

    All texts of a batch are encoded together; other white space around the thinking close is tried only where the
    count says that some is missing.
    """
    tidy = [
        _without_ends(_split_again(a, how, target), target) for a, how in zip(answers, thinking, strict=True)
    ]
    reasons = [_why_not(a, how, target) for a, how in zip(tidy, thinking, strict=True)]
    certain = [_harmless(a, target) if reason else a for a, reason in zip(tidy, reasons, strict=True)]
    verbatim = _encoded(certain, thinking, target)
    known = dict(offsets or {})
    unknown = _constants(tidy, reasons, verbatim, target, known)
    return [
        Reconstruction(ids, "text", _delta(a, ids, known.get(a.provider, 0)), reason)
        if reason
        else _chosen(a, how, target, ids, known.get(a.provider, 0), unknown.get(a.provider))
        for a, how, reason, ids in zip(tidy, thinking, reasons, verbatim, strict=True)
    ]


def _constants(
    answers: Sequence[TextAnswer],
    reasons: Sequence[str],
    verbatim: Sequence[Ids],
    target: Target,
    known: Mapping[str, int],
) -> Mapping[str, int]:
    """provider → what its counts differ by in most answers, where that is no stripped white space.

    Where a target usually writes white space, most answers differ because parsers took it; where it usually writes
    none, a constant is the provider's way to count, and white space made up for it would be wrong in every answer.
    """
    white = target.profile.thinking
    if white.after_open[0] or white.before_close[0] or white.after_close[0]:
        return {}
    return learn_offsets(
        [
            (a.provider, _delta(a, ids, 0))
            for a, ids, reason in zip(answers, verbatim, reasons, strict=True)
            if not reason and a.provider not in known
        ]
    )


def learn_offsets(
    pairs: Iterator[tuple[str, int | None]] | Sequence[tuple[str, int | None]],
) -> dict[str, int]:
    """provider → the constant in its counts, from (provider, count − ours) of many answers.

    Only what most answers of a provider show is an offset, and only −3 … 3: an end of turn that isn't counted, a
    prefilled token that is. Counts that aren't per token have none; their differences stay as they are.
    """
    by_provider: dict[str, dict[int, int]] = {}
    for provider, delta in pairs:
        if delta is not None:
            seen = by_provider.setdefault(provider, {})
            seen[delta] = seen.get(delta, 0) + 1
    learned = {}
    for provider, seen in by_provider.items():
        best = max(seen, key=lambda delta: (seen[delta], -abs(delta)))
        total = sum(seen.values())
        if total >= _ENOUGH and seen[best] >= _MOST * total and abs(best) <= _LARGEST:
            learned[provider] = best
    return learned


_ENOUGH, _MOST, _LARGEST = 5, 0.6, 3


def _chosen(
    answer: TextAnswer, how: Thinking, target: Target, verbatim: Ids, offset: int, constant: int | None
) -> Reconstruction:
    """The reading that the count agrees with: tokens reported one by one before text, text as it came before others."""
    reported = _from_token_bytes(answer, how, target)
    if reported is not None and _delta(answer, reported, offset) in (0, None):
        return Reconstruction(reported, "logprobs", _delta(answer, reported, offset), proven=True)
    streamed = _from_deltas(answer, how, target)
    if streamed is not None and _delta(answer, streamed, offset) == 0:
        return Reconstruction(streamed, "text", 0, proven=_all_seen(answer, how, target))
    delta = _delta(answer, verbatim, offset)
    if delta and delta != constant:
        for ids in _other_readings(answer, how, target):
            if _delta(answer, ids, offset) == 0:
                return Reconstruction(ids, "text", 0, encoded=True)
    return Reconstruction(verbatim, "text", delta, encoded=True)


def _delta(answer: TextAnswer, ids: Ids, offset: int) -> int | None:
    return None if answer.completion_tokens is None else answer.completion_tokens - offset - len(ids)


def _harmless(answer: TextAnswer, target: Target) -> TextAnswer:
    """An answer that is left out, without what can't be encoded or would forge a control token."""

    def text(value: str) -> str:
        whole = value.encode(errors="replace").decode()
        return target.tokenizer.escaped(whole, "\N{ZERO WIDTH SPACE}")

    return replace(answer, reasoning=text(answer.reasoning), content=text(answer.content), tool_calls=())


def _split_again(answer: TextAnswer, how: Thinking, target: Target) -> TextAnswer:
    """Thoughts and answer that a server left in one field (a parser that failed) are taken apart."""
    special = target.profile.special_tokens
    close, open_ = special.get("thinking_close"), special.get("thinking_open", "")
    if close is None or how in ("off", "none"):
        return answer
    whole = answer.content or answer.reasoning
    if whole.count(close) == 1 and not (answer.content and answer.reasoning):
        reasoning, _, content = whole.partition(close)
        answer = replace(answer, reasoning=reasoning, content=content, deltas=())
    if open_ and answer.reasoning.startswith(open_):
        answer = replace(answer, reasoning=answer.reasoning.removeprefix(open_), deltas=())
    return answer


def _without_ends(answer: TextAnswer, target: Target) -> TextAnswer:
    """End-of-turn text that a provider left at the end of the answer goes."""
    ends = (target.profile.special_tokens["end_of_turn"], *target.profile.stop_texts)
    content = answer.content
    while end := next((e for e in ends if content.endswith(e)), ""):
        content = content[: -len(end)]
    return answer if content == answer.content else replace(answer, content=content, deltas=())


def _why_not(answer: TextAnswer, how: Thinking, target: Target) -> str:
    """Why the answer can't be trained on, or ''."""
    if answer.finish_reason == "length":
        return "truncated"
    if answer.finish_reason in _REFUSED:
        return "refused"
    if answer.finish_reason not in ("stop", "tool_calls"):
        return f"finish_reason {answer.finish_reason}"
    texts = [answer.reasoning, answer.content]
    texts += [text for call in answer.tool_calls for text in (call.id, call.name, call.arguments)]
    if any("\ufffd" in text for text in texts):
        return "replacement character in the text"
    if any(_SURROGATE.search(text) for text in texts):
        return "lone surrogate in the text"
    if any(target.tokenizer.control_token_in(text) for text in texts):
        return "control token in the text"
    if answer.tool_calls and target.profile.tool_calls is None:
        return "tool calls from a target without them"
    if not answer.content.strip() and not answer.tool_calls:
        return "empty"
    if answer.reasoning.strip() and how in ("off", "none"):
        return "thoughts where none were asked for"
    if how in ("in_prompt", "generated") and not answer.reasoning and (answer.reasoning_tokens or 0) > 1:
        return "the provider keeps the thoughts to itself"
    return ""


_SURROGATE = re.compile("[\ud800-\udfff]")

White = tuple[str, str, str]  # what stands after thinking-open, before and after thinking-close
_VERBATIM: White = ("", "", "")


def _parts(answer: TextAnswer, how: Thinking, target: Target, white: White) -> list[tuple[str, str]]:
    """The answer in order as (field, text); control tokens as their text, under the field ''."""
    special, syntax = target.profile.special_tokens, target.profile.tool_calls
    after_open, before_close, after_close = white
    cut = answer.finish_reason == "length"
    parts: list[tuple[str, str]] = []
    if how in ("in_prompt", "generated"):
        parts.append(("", special["thinking_open"] if how == "generated" else ""))
        parts.append(("reasoning", after_open + answer.reasoning + before_close))
        closed = not cut or answer.content or answer.tool_calls
        parts.append(("", special["thinking_close"] if closed else ""))
    parts.append(("content", after_close + answer.content))
    if answer.tool_calls and syntax:
        parts.append(("", written(syntax, answer.tool_calls, after_text=bool(answer.content))))
    parts.append(("", "" if cut else special["end_of_turn"]))
    return [(field, text) for field, text in parts if text]


def _encoded(answers: Sequence[TextAnswer], thinking: Sequence[Thinking], target: Target) -> list[Ids]:
    """The ids of each answer just as it came, all characters encoded in one batch."""
    texts = [
        "".join(text for _, text in _parts(answer, how, target, _VERBATIM))
        for answer, how in zip(answers, thinking, strict=True)
    ]
    return target.tokenizer.encode_marked(texts)


def _other_readings(answer: TextAnswer, how: Thinking, target: Target) -> Iterator[Ids]:
    """What else may have been generated, likeliest first: other white space where parsers strip it."""
    if how not in ("in_prompt", "generated"):
        return
    white = target.profile.thinking
    # where white space came, none was stripped
    after_open = white.after_open if how == "generated" and not answer.reasoning[:1].isspace() else ("",)
    before_close = white.before_close if not answer.reasoning[-1:].isspace() else ("",)
    after_close = white.after_close if not answer.content[:1].isspace() else ("",)
    for choice in product(after_open, before_close, after_close):
        if choice != _VERBATIM:
            text = "".join(text for _, text in _parts(answer, how, target, choice))
            yield target.tokenizer.encode_marked([text])[0]
    if how == "generated" and not answer.reasoning:  # it answered without a thought
        text = "".join(text for _, text in _parts(answer, "none", target, _VERBATIM))
        yield target.tokenizer.encode_marked([text])[0]


def _from_deltas(answer: TextAnswer, how: Thinking, target: Target) -> Ids | None:
    """The ids where the stream came token by token: each piece's bytes are one token's."""
    streamed: dict[str, list[str]] = {"reasoning": [], "content": []}
    for field, text in answer.deltas:
        if field in streamed and text:
            streamed[field].append(text)
    arrays = []
    for field, text in _parts(answer, how, target, _VERBATIM):
        if not field:
            arrays.append(target.tokenizer.encode_marked([text])[0])
            continue
        ids = [target.tokenizer.id_of(piece.encode(errors="replace")) for piece in streamed[field]]
        if "".join(streamed[field]) != text or None in ids:
            return None
        arrays.append(np.array(ids, np.int32))
    return np.concatenate(arrays) if arrays else None


def _all_seen(answer: TextAnswer, how: Thinking, target: Target) -> bool:
    """Whether the stream's pieces are all of the answer: no tool call, which is text only, and no white space that a
    parser may have taken away where the target usually writes some.
    """
    usual, white = target.profile.usual_start, target.profile.thinking
    fields = [text for text in (answer.reasoning, answer.content) if text]
    if answer.tool_calls or not all(text.startswith(usual) for text in fields):
        return False
    if how not in ("in_prompt", "generated") or usual:
        return True
    stripped = any(white.before_close + white.after_close) and not answer.content[:1].isspace()
    return not stripped


def _from_token_bytes(answer: TextAnswer, how: Thinking, target: Target) -> Ids | None:
    """The ids of tokens whose bytes came with logprobs; the end of turn is set where the provider leaves it out.

    None where they aren't this answer's: a token that the target doesn't have, another text, thoughts left out.
    """
    ids = [target.tokenizer.id_of(token) for token in answer.token_bytes]
    if not ids or None in ids:
        return None
    said = target.tokenizer.decode([id_ for id_ in ids if id_ is not None])
    roles = {"in_prompt": ("thinking_close",), "generated": ("thinking_open", "thinking_close")}.get(how, ())
    if any(target.special_ids.get(role) not in ids for role in roles):
        return None
    if any(text.strip() not in said for text in (answer.reasoning, answer.content)):
        return None
    ends = (target.end_of_turn, *map(target.control_tokens.get, target.profile.stop_texts))
    if ids[-1] not in ends:
        ids.append(target.end_of_turn)
    return np.array(ids, np.int32)

"""`tokens render` and `tokens reconstruct`: JSON lines in, JSON lines out, without a dataset and without Airflow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import orjson

from include.core.batched import batched
from include.core.profile import target_named
from include.core.records import Conversation, Ids, TextAnswer, ToolCall
from include.sources.jsonl import Row, read_rows
from include.sources.messages import LeftOut, from_row
from include.tokens.answers import Reconstruction, learn_offsets
from include.tokens.answers import reconstruct as reconstruct_answers
from include.tokens.target import Target, Thinking, load_target
from include.tokens.template import NotRendered

_BATCH = 256


class Text(Protocol):
    """Where the lines go."""

    def write(self, text: str, /) -> object:
        """Adds text."""


def render(target: str, folder: Path, source: Path, out: Text, *, escape: bool) -> None:
    """Rows {"id", "messages", "tools"?, "thinking"?} → {"id", "prompt_ids"}, or {"id", "left_out"} with the reason."""
    loaded = load_target(target_named(target), folder)
    for batch in batched((row for _, row in read_rows(source)), _BATCH):
        for row, made in zip(batch, _rendered(loaded, batch, escape), strict=True):
            said = {"left_out": made} if isinstance(made, str) else {"prompt_ids": made.tolist()}
            _print(out, {"id": row.get("id")} | said)


def reconstruct(target: str, folder: Path, source: Path, out: Text) -> None:
    """Rows {"id", "reasoning", "content", "tool_calls", "finish_reason", "usage", "provider", "deltas"?, "logprobs"?,
    "thinking"?} → {"id", "output_ids", "capture", "count_delta", "left_out"?}.

    Each provider's constant difference in token counts is learned from all rows first, and taken off.
    """
    loaded = load_target(target_named(target), folder)
    rows = [row for _, row in read_rows(source)]
    read = [_answer(row) for row in rows]
    answers = [answer if isinstance(answer, TextAnswer) else TextAnswer() for answer in read]
    thinking = [_thinking(loaded, row) for row in rows]
    first = reconstruct_answers(answers, thinking, loaded)
    usable = (
        (a.provider, one.count_delta) for a, one in zip(answers, first, strict=True) if not one.left_out
    )
    offsets = learn_offsets(list(usable))
    made = reconstruct_answers(answers, thinking, loaded, offsets) if any(offsets.values()) else first
    for row, answer, one in zip(rows, read, made, strict=True):
        if isinstance(answer, str):
            one = Reconstruction(np.empty(0, np.int32), "text", None, answer)
        said = {"id": row.get("id"), "output_ids": one.output_ids.tolist(), "capture": one.capture}
        said |= {"count_delta": one.count_delta}
        _print(out, said | ({"left_out": one.left_out} if one.left_out else {}))


def _rendered(target: Target, batch: list[Row], escape: bool) -> Iterator[Ids | str]:
    conversations = [_conversation(target, row, escape) for row in batch]
    good = [c for c in conversations if isinstance(c, Conversation)]
    try:
        ids: Iterator[Ids | str] = iter(target.render(good, escape=escape))
    except NotRendered:
        ids = iter([_render_one(target, c, escape) for c in good])
    for made in conversations:
        yield next(ids) if isinstance(made, Conversation) else made


def _render_one(target: Target, conversation: Conversation, escape: bool) -> Ids | str:
    try:
        return target.render([conversation], escape=escape)[0]
    except NotRendered:
        return "the chat template refuses it"


def _conversation(target: Target, row: Row, escape: bool) -> Conversation | str:
    try:
        messages, tools, thinking = from_row(row)
    except LeftOut as why:
        return why.reason
    conversation = Conversation("", messages, "", "", tools, thinking)
    if messages[-1].role == "assistant":  # the answer that is to be generated
        conversation = replace(conversation, messages=messages[:-1])
    if not escape and target.forged_control_token(conversation):
        return "control token in the text"
    return conversation


def _answer(row: Mapping[str, Any]) -> TextAnswer | str:
    """The row as an answer, or what is wrong with it."""
    usage = row.get("usage") or {}
    details = usage.get("completion_tokens_details") or {}
    try:
        calls = tuple(
            ToolCall(c.get("id") or "", c["function"]["name"], c["function"]["arguments"])
            for c in row.get("tool_calls") or ()
        )
        return TextAnswer(
            reasoning=_text(row.get("reasoning")),
            content=_text(row.get("content")),
            tool_calls=calls,
            finish_reason=str(row.get("finish_reason") or "unknown"),
            completion_tokens=usage.get("completion_tokens"),
            reasoning_tokens=details.get("reasoning_tokens"),
            provider=str(row.get("provider") or ""),
            deltas=tuple((str(field), _text(text)) for field, text in row.get("deltas") or ()),
            token_bytes=_token_bytes(row.get("logprobs")),
        )
    except (TypeError, ValueError, KeyError, AttributeError):
        return "the row is malformed"


def _token_bytes(logprobs: Mapping[str, Any] | None) -> tuple[bytes, ...]:
    entries = (logprobs or {}).get("content") or ()
    return tuple(
        bytes(e["bytes"]) if e.get("bytes") is not None else str(e["token"]).encode(errors="replace")
        for e in entries
    )


def _text(value: object) -> str:
    if value is not None and not isinstance(value, str):
        raise TypeError(type(value).__name__)
    return value or ""


def _thinking(target: Target, row: Mapping[str, Any]) -> Thinking:
    """As the prompt would say it: rows may carry the `thinking` that was asked for."""
    return target.openings(thinking=row.get("thinking") is not False)[0].thinking


def _print(out: Text, value: Row) -> None:
    out.write(orjson.dumps(value).decode() + "\n")

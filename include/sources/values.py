"""Checks on single values of a row; each raises LeftOut, whose reason is one of a fixed list."""

from __future__ import annotations

import json
from typing import Any, Literal

Reason = Literal[
    "no messages",
    "message is not an object",
    "unknown role",
    "content is not text",
    "empty turn",
    "reasoning is not text",
    "reasoning outside an assistant turn",
    "tool call is malformed",
    "tool call outside an assistant turn",
    "name or id is not text",
    "two names in one turn",
    "lone surrogate",
    "system message in the middle",
    "assistant speaks first",
    "two assistant turns in a row",
    "tool result without a call",
    "no user turn",
    "tools are malformed",
    "thinking is not true or false",
]

_MAX_DEPTH = 100


class LeftOut(Exception):
    """The row gives no sample, for `reason`: a counter's key, the same for every row of its kind."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Reason = reason


def text(value: object, otherwise: Reason) -> str:
    """`value` itself, if it is text that a tokenizer can read."""
    if not isinstance(value, str):
        raise LeftOut(otherwise)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise LeftOut("lone surrogate") from None
    return value


def optional_text(value: object, otherwise: Reason) -> str:
    """As `text`; nothing is ''."""
    return "" if value is None else text(value, otherwise)


def json_text(value: object, otherwise: Reason, *, compact: bool = False) -> str:
    """`value` as JSON text with its characters unescaped; NaN and very deep nesting aren't JSON to us."""
    if _deeper_than(_MAX_DEPTH, value):
        raise LeftOut(otherwise)
    separators = (",", ":") if compact else None
    try:
        written = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=separators)
    except (TypeError, ValueError):
        raise LeftOut(otherwise) from None
    return text(written, otherwise)


def parsed(written: str, otherwise: Reason) -> Any:
    """What the JSON text says."""
    try:
        return json.loads(written)
    except (ValueError, RecursionError):
        raise LeftOut(otherwise) from None


def _deeper_than(depth: int, value: object) -> bool:
    level = [value]
    for _ in range(depth):
        level = [child for item in level for child in _children(item)]
        if not level:
            return False
    return True


def _children(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []

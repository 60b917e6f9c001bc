"""A raw row → its messages, tools and thinking, normalised or left out for a reason (docs/messages.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

from include.core.records import Message, Role
from include.sources.tools import Tools, tool_calls_of, tools_of
from include.sources.values import LeftOut, json_text, optional_text, parsed, text

__all__ = ["LeftOut", "from_row"]

_ROLES: dict[str, Role] = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "bot", "model", "ai"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation", "ipython"), "tool"),
}
_LISTS = ("messages", "conversations", "conversation")
_REASONING = ("reasoning_content", "reasoning", "thinking")
_BLANK_LINE = "\n\n"


def from_row(row: object) -> tuple[tuple[Message, ...], Tools, bool | None]:
    """(messages, tools, thinking) of a row: at most one system message, then a user's, then any."""
    if not isinstance(row, dict):
        raise LeftOut("no messages")
    messages = _in_order(_message(item) for item in _raw_messages(row))
    return messages, tools_of(row), _thinking(row)


def _raw_messages(row: Mapping[str, Any]) -> list[Any]:
    raw = next((row[key] for key in _LISTS if row.get(key) not in (None, [])), None)
    if isinstance(raw, str):
        raw = parsed(raw, "no messages")
    if not isinstance(raw, list) or not raw:
        raise LeftOut("no messages")
    return raw


def _thinking(row: Mapping[str, Any]) -> bool | None:
    thinking = row.get("thinking")
    if not isinstance(thinking, bool | None):
        raise LeftOut("thinking is not true or false")
    return thinking


def _message(item: object) -> Message:
    if not isinstance(item, dict):
        raise LeftOut("message is not an object")
    role = _role(_either(item, "role", "from"))
    content = _content(role, _either(item, "content", "value"))
    reasoning, calls = _reasoning(item), tool_calls_of(item)
    if role != "assistant" and reasoning:
        raise LeftOut("reasoning outside an assistant turn")
    if role != "assistant" and calls:
        raise LeftOut("tool call outside an assistant turn")
    if content is None and not calls:
        raise LeftOut("empty turn")
    if not (content or "").strip() and not calls and role != "tool":
        raise LeftOut("empty turn")
    call_id = item.get("tool_call_id") if role == "tool" else None
    return Message(
        role=role,
        content=content or "",
        reasoning=reasoning,
        tool_calls=calls,
        tool_call_id=optional_text(call_id, "name or id is not text"),
        name=optional_text(item.get("name"), "name or id is not text"),
    )


def _either(item: Mapping[str, Any], key: str, other: str) -> object:
    value = item.get(key)
    return item.get(other) if value is None else value


def _role(value: object) -> Role:
    role = _ROLES.get(value.strip().lower()) if isinstance(value, str) else None
    if role is None:
        raise LeftOut("unknown role")
    return role


def _content(role: Role, value: object) -> str | None:
    if value is None:
        return None
    if role == "tool" and _is_data(value):
        return json_text(value, "content is not text", compact=True)
    if isinstance(value, list):
        return "".join(_part(part) for part in value)
    return text(value, "content is not text")


def _is_data(value: object) -> bool:
    """Whether a tool's result is an object or a list of data, not a list of content parts."""
    if isinstance(value, list):
        return not any(isinstance(part, dict) and "type" in part for part in value)
    return isinstance(value, dict)


def _part(part: object) -> str:
    if isinstance(part, dict) and part.get("type") == "text":
        part = part.get("text")
    return text(part, "content is not text")


def _reasoning(item: Mapping[str, Any]) -> str:
    given = [optional_text(item.get(key), "reasoning is not text") for key in _REASONING]
    return next(filter(None, given), "")


def _in_order(messages: Iterable[Message]) -> tuple[Message, ...]:
    """The messages with neighbours of the system and of the user joined, if their order can be rendered."""
    joined: list[Message] = []
    for role, group in groupby(list(messages), key=lambda m: m.role):
        turns = list(group)
        joined += [_joined(turns)] if role in ("system", "user") else turns
    before: Message | None = None
    for message in joined:
        _check_order(before, message)
        before = message
    if not any(m.role == "user" for m in joined):
        raise LeftOut("no user turn")
    return tuple(joined)


def _joined(turns: list[Message]) -> Message:
    names = {m.name for m in turns}
    if len(names) > 1:
        raise LeftOut("two names in one turn")
    return Message(turns[0].role, _BLANK_LINE.join(m.content for m in turns), name=names.pop())


def _check_order(before: Message | None, message: Message) -> None:
    after = before.role if before else "nothing"
    if message.role == "system" and before:
        raise LeftOut("system message in the middle")
    if message.role == "assistant" and after in ("nothing", "system"):
        raise LeftOut("assistant speaks first")
    if message.role == "assistant" and after == "assistant":
        raise LeftOut("two assistant turns in a row")
    if message.role == "tool" and after != "tool" and not (before and before.tool_calls):
        raise LeftOut("tool result without a call")

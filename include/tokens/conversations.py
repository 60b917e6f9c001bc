"""Conversations before they are rendered: every text of them, a character to escape with, call ids of one form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from include.core.records import Conversation, Message
from include.tokens.template import NotRendered


def texts_of(message: Message) -> Iterator[str]:
    """Every text of a message."""
    yield from (message.content, message.reasoning, message.tool_call_id, message.name)
    for call in message.tool_calls:
        yield from (call.id, call.name, call.arguments)


def strings_in(value: Any) -> Iterator[str]:
    """Every string of a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from strings_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from strings_in(item)


def escape_mark(conversation: Conversation) -> str:
    """A character that Unicode reserves for such use and that stands in none of the texts."""
    texts = [text for message in conversation.messages for text in texts_of(message)]
    for code in range(0xFDD0, 0xFDF0):
        if not any(chr(code) in text for text in texts):
            return chr(code)
    raise NotRendered("A conversation holds all 32 noncharacters of Unicode.")


def with_own_call_ids(messages: Sequence[Message], form: str) -> tuple[Message, ...]:
    """Calls named in the target's form, numbered over the whole conversation, and the results along with them."""
    renamed: dict[str, str] = {}
    count = 0
    out = []
    for message in messages:
        calls = []
        for call in message.tool_calls:
            own = form.format(name=call.name, index=count)
            renamed[call.id] = own
            calls.append(replace(call, id=own))
            count += 1
        result = renamed.get(message.tool_call_id, message.tool_call_id)
        out.append(replace(message, tool_calls=tuple(calls), tool_call_id=result))
    return tuple(out)

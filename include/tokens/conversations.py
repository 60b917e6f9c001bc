"""Conversations before they are rendered: every text of them, an escape for their control text, call ids."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from include.core.records import Conversation, Message
from include.tokens.template import NotRendered


def texts_of(conversation: Conversation) -> Iterator[str]:
    """Every text that a template may print: of the messages and the tools, and of what JSON in them stands for."""
    for message in conversation.messages:
        yield from (message.content, message.reasoning, message.tool_call_id, message.name)
        for call in message.tool_calls:
            yield from (call.id, call.name, call.arguments)
            if "\\" in call.arguments:  # templates parse the arguments: \u003c is < in the prompt
                yield from strings_in(_parsed(call.arguments))
    yield from strings_in(list(conversation.tools))


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


def escaped(conversation: Conversation, escape: Callable[[str], str]) -> Conversation:
    """The conversation with `escape` applied to every text of it."""
    messages = tuple(
        replace(
            message,
            content=escape(message.content),
            reasoning=escape(message.reasoning),
            tool_call_id=escape(message.tool_call_id),
            name=escape(message.name),
            tool_calls=tuple(
                replace(
                    call,
                    id=escape(call.id),
                    name=escape(call.name),
                    arguments=_escaped_json(call.arguments, escape),
                )
                for call in message.tool_calls
            ),
        )
        for message in conversation.messages
    )
    return replace(
        conversation, messages=messages, tools=tuple(_in_strings(tool, escape) for tool in conversation.tools)
    )


def escape_mark(conversations: Sequence[Conversation]) -> str:
    """A character that Unicode reserves for such use and that stands in none of the texts."""
    used = {letter for c in conversations for text in texts_of(c) if not text.isascii() for letter in text}
    for code in range(0xFDD0, 0xFDF0):
        if chr(code) not in used:
            return chr(code)
    raise NotRendered("A conversation holds all 32 noncharacters of Unicode.")


def with_own_call_ids(messages: Sequence[Message], form: str) -> tuple[Message, ...]:
    """Calls named in the target's form, numbered over the whole conversation, and the results along with them.

    Results that don't name their call belong to the calls in order.
    """
    renamed: dict[str, str] = {}
    unnamed: list[str] = []
    count = 0
    out = []
    for message in messages:
        calls = []
        for call in message.tool_calls:
            own = form.format(name=call.name, index=count)
            renamed[call.id] = own
            calls.append(replace(call, id=own))
            count += 1
        if calls:
            unnamed = [call.id for call in calls]
        result = message.tool_call_id
        if message.role == "tool":
            result = renamed.get(result, result) if result else next(iter(unnamed), "")
            unnamed = [id_ for id_ in unnamed if id_ != result]
        out.append(replace(message, tool_calls=tuple(calls), tool_call_id=result))
    return tuple(out)


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def _escaped_json(arguments: str, escape: Callable[[str], str]) -> str:
    """Arguments as they came where nothing is to escape in them, else as JSON with what is escaped in its strings."""
    value = _parsed(arguments)
    inner = value if isinstance(value, str) else _in_strings(value, escape)
    if inner != value:
        return json.dumps(inner, ensure_ascii=False)
    return escape(arguments)


def _in_strings(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(str(key)): _in_strings(item, change) for key, item in value.items()}
    return [_in_strings(item, change) for item in value] if isinstance(value, (list, tuple)) else value

"""Row → conversation, one small pure function per dataset schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from include.core.files import value_digest
from include.core.records import Conversation, Message
from include.sources.jsonl import Row
from include.sources.messages import from_row
from include.sources.tools import Tools

ADAPTERS: dict[str, Callable[[Row], tuple[tuple[Message, ...], Tools, bool | None]]] = {"messages": from_row}


def to_conversation(dataset: str, adapter: str, row: Row, source_row: str) -> Conversation:
    """Applies the adapter, which may raise LeftOut; the sample's id comes from what decides the prompt, so moving
    a row doesn't change it.
    """
    messages, tools, thinking = ADAPTERS[adapter](row)
    digest = _digest(messages, tools, thinking)
    turn = sum(m.role == "assistant" for m in messages)
    sample_id = f"{dataset}-{digest[:20]}-t{turn}"
    return Conversation(sample_id, messages, source_row, digest, tools, thinking)


def _digest(messages: tuple[Message, ...], tools: Tools, thinking: bool | None) -> str:
    """A conversation of roles and contents alone has the digest of just these pairs.

    Tools count as text: a template may write their keys in the order that they have.
    """
    pairs = [_digested(message) for message in messages]
    if not tools and thinking is None:
        return value_digest(pairs)
    return value_digest({"messages": pairs, "tools": json.dumps(tools), "thinking": thinking})


def _digested(message: Message) -> list[Any]:
    more = {
        "reasoning": message.reasoning,
        "tool_calls": [[call.id, call.name, call.arguments] for call in message.tool_calls],
        "tool_call_id": message.tool_call_id,
        "name": message.name,
    }
    more = {key: value for key, value in more.items() if value}
    return [message.role, message.content, more] if more else [message.role, message.content]

"""Row → conversation, one small pure function per dataset schema."""

from __future__ import annotations

from collections.abc import Callable

from include.core.files import value_digest
from include.core.records import Conversation, Message
from include.sources.jsonl import Row


class RowError(ValueError):
    """What is wrong with a row, as the end of a sentence that begins with the file and the line."""


def from_messages(row: Row) -> tuple[Message, ...]:
    """`{"messages": [{"role", "content"}, …]}`: an optional system message, then user and assistant in turn,
    the last one by the user.
    """
    raw = row.get("messages")
    if not isinstance(raw, list) or not raw:
        raise RowError("has no list `messages`")
    messages = tuple(_message(item) for item in raw)
    roles = [m.role for m in messages if m.role != "system"]
    if any(m.role == "system" for m in messages[1:]):
        raise RowError("has a system message that isn't the first")
    if roles != [("user", "assistant")[i % 2] for i in range(len(roles))] or len(roles) % 2 == 0:
        raise RowError("doesn't alternate user and assistant, ending with the user")
    return messages


def _message(item: object) -> Message:
    if not isinstance(item, dict):
        raise RowError("has a message that is no object")
    role, content = item.get("role"), item.get("content")
    if role not in ("system", "user", "assistant"):
        raise RowError(f"has a message with the role {role!r}")
    if not isinstance(content, str) or not content.strip():
        raise RowError(f"has a {role} message without text")
    if any("\ud800" <= character <= "\udfff" for character in content):
        raise RowError(f"has a lone surrogate in a {role} message, which no tokenizer can read")
    return Message(role=role, content=content)


ADAPTERS: dict[str, Callable[[Row], tuple[Message, ...]]] = {"messages": from_messages}


def to_conversation(dataset: str, adapter: str, row: Row, source_row: str) -> Conversation:
    """Applies the adapter; the sample's id comes from the messages, so moving a row doesn't change it."""
    messages = ADAPTERS[adapter](row)
    digest = value_digest([[m.role, m.content] for m in messages])
    turn = sum(m.role == "assistant" for m in messages)
    return Conversation(f"{dataset}-{digest[:20]}-t{turn}", messages, source_row, digest)

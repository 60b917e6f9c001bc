"""A conversation's id comes from what decides its prompt, and from nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from include.core.errors import SourceError
from include.core.files import value_digest
from include.core.records import Conversation
from include.sources.adapters import to_conversation
from include.sources.jsonl import read_rows

CALL = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
USER = {"role": "user", "content": "q"}
TALK: list[dict[str, Any]] = [
    USER,
    {"role": "assistant", "content": "a", "tool_calls": [CALL]},
    {"role": "tool", "content": "r", "tool_call_id": "1"},
]


def conversation(source_row: str = "rows.jsonl:1", **row: Any) -> Conversation:
    return to_conversation("tiny", "messages", row, source_row)


def test_a_plain_conversation_has_the_digest_of_its_roles_and_contents() -> None:
    found = conversation(conversations=[{"from": "human", "value": "q"}, {"from": "gpt", "value": "é"}])
    digest = value_digest([["user", "q"], ["assistant", "é"]])
    assert found.row_digest == digest
    assert found.sample_id == f"tiny-{digest[:20]}-t1"
    assert digest.startswith("3b9ea6b5"), "the digest is the same in every version"


def changed(index: int, **fields: Any) -> list[dict[str, Any]]:
    return [m | fields if i == index else m for i, m in enumerate(TALK)]


def test_whatever_decides_the_prompt_decides_the_id() -> None:
    rows: list[dict[str, Any]] = [
        {"messages": TALK},
        {"messages": changed(0, content="p")},
        {"messages": changed(0, name="Ann")},
        {"messages": changed(1, reasoning="r")},
        {"messages": changed(1, tool_calls=[CALL | {"id": "2"}])},
        {"messages": changed(1, tool_calls=[CALL, CALL])},
        {"messages": changed(1, tool_calls=[{"id": "1", "function": {"name": "g"}}])},
        {"messages": changed(1, tool_calls=[{"id": "1", "function": {"name": "f", "arguments": "{ }"}}])},
        {"messages": changed(2, tool_call_id="2")},
        {"messages": changed(2, name="f")},
        {"messages": TALK, "tools": [{"name": "f"}]},
        {"messages": TALK, "tools": [{"name": "f", "description": "d"}]},
        {"messages": TALK, "tools": [{"description": "d", "name": "f"}]},
        {"messages": TALK, "thinking": True},
        {"messages": TALK, "thinking": False},
    ]
    assert len({conversation(**row).sample_id for row in rows}) == len(rows)


def test_what_does_not_decide_the_prompt_leaves_the_id() -> None:
    plain = conversation(messages=[USER])
    moved = conversation("other.jsonl:9", messages=[USER], id=3, tools=[], thinking=None)
    assert moved.sample_id == plain.sample_id
    assert moved.source_row == "other.jsonl:9"
    as_text = conversation(messages=[USER], tools=json.dumps([{"name": "f"}]))
    assert as_text.sample_id == conversation(messages=[USER], functions=[{"name": "f"}]).sample_id


def test_tools_and_thinking_are_handed_on() -> None:
    found = conversation(messages=TALK, tools=[{"name": "f"}], thinking=False)
    assert found.tools == ({"type": "function", "function": {"name": "f"}},)
    assert found.thinking is False


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"", "isn't valid JSON"),
        (b'{"messages": [', "isn't valid JSON"),
        (b'{"messages": "\xff"}', "isn't valid JSON"),
        (b"[1]", "is a JSON list, not an object"),
        (b'"q"', "is a JSON str, not an object"),
        (b'{"a": ' + b"9" * 5000 + b"}", "isn't valid JSON"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "isn't valid JSON"),
    ],
)
def test_a_line_that_is_no_row_is_named(tmp_path: Path, line: bytes, why: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"messages": []}\n' + line + b"\n")
    with pytest.raises(SourceError, match=f"line 2 {why}"):
        list(read_rows(path))

"""Every odd conversation is normalised or left out for a reason that docs/messages.md names."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from include.core.records import Message
from include.sources.messages import LeftOut, from_row
from include.sources.values import Reason
from tests.sources.odd_rows import CALL, DECLARED, KEPT, LEFT_OUT, USER, call, called, row, said


@pytest.mark.parametrize("name", KEPT)
def test_a_row_is_normalised(name: str) -> None:
    given_row, expected = KEPT[name]
    assert from_row(given_row) == (tuple(expected), (), None)


@pytest.mark.parametrize(
    ("reason", "odd"), LEFT_OUT, ids=lambda value: str(value)[:60].encode("ascii", "replace").decode()
)
def test_a_row_is_left_out(reason: str, odd: Any) -> None:
    with pytest.raises(LeftOut) as caught:
        from_row(odd)
    assert caught.value.reason == reason == str(caught.value)


def test_every_reason_has_an_example_and_a_line_in_the_docs() -> None:
    reasons = set(get_args(Reason))
    assert {reason for reason, _ in LEFT_OUT} == reasons
    docs = (Path(__file__).parents[2] / "docs" / "messages.md").read_text(encoding="utf-8")
    assert {reason for reason in reasons if f"`{reason}`" not in docs} == set()


@pytest.mark.parametrize(
    ("role", "names"),
    [
        ("system", ["system", "developer"]),
        ("user", ["user", "human", " Human\n", "USER"]),
        ("assistant", ["assistant", "gpt", "chatgpt", "bot", "model", "ai", "GPT"]),
        ("tool", ["tool", "function", "observation", "ipython", "Tool "]),
    ],
)
def test_roles_by_their_other_names(role: str, names: list[str]) -> None:
    before = {"system": [], "user": [], "assistant": [USER], "tool": [USER, called(CALL)]}[role]
    for name in names:
        after = [USER] if role == "system" else []
        messages, _, _ = from_row(row(*before, said(name), *after))
        assert messages[len(before)] == Message(role, "x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "content",
    [
        "a\r\nb\r",
        "\x00",
        "\ufeffa",
        "\u200b",
        "\u200f\u202eשלום\u202c",
        "e\u0301 é",
        "👩‍👩‍👧‍👦🏽",
        " a ",
        "<|im_end|>\n<|im_start|>assistant",
        pytest.param(" " * 100_000 + "a", id="100,000 spaces"),
        pytest.param("a" * 5_000_000, id="5 MB"),
    ],
)
def test_text_is_kept_exactly(content: str) -> None:
    messages, _, _ = from_row(row(said("user", content), said("assistant", content, reasoning=content)))
    assert messages == (Message("user", content), Message("assistant", content, content))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, []),
        ({"tools": None, "functions": []}, []),
        ({"tools": "[]"}, []),
        ({"tools": [DECLARED]}, [DECLARED]),
        ({"tools": json.dumps([DECLARED])}, [DECLARED]),
        ({"functions": [DECLARED["function"]]}, [DECLARED]),
        ({"tools": [], "functions": [DECLARED]}, [DECLARED]),
        ({"tools": [DECLARED], "functions": [{"name": "g"}]}, [DECLARED]),
        ({"tools": [{"type": "function", "name": "f"}]}, [{"type": "function", "function": {"name": "f"}}]),
        (
            {"tools": [{"type": None, **{"function": {"name": "f"}}}]},
            [{"type": "function", "function": {"name": "f"}}],
        ),
        ({"tools": [DECLARED | {"strict": True}]}, [DECLARED | {"strict": True}]),
    ],
)
def test_tools(fields: dict[str, Any], expected: list[Any]) -> None:
    assert from_row(row(USER, **fields))[1] == tuple(expected)


@pytest.mark.parametrize("thinking", [True, False, None])
def test_thinking(thinking: bool | None) -> None:
    assert from_row(row(USER, thinking=thinking))[2] is thinking


def test_many_turns_of_one_user_take_no_long_time() -> None:
    messages, _, _ = from_row(row(*[said("user", "x" * 100)] * 50_000))
    assert len(messages) == 1


TEXT = st.text(max_size=8) | st.sampled_from(
    ["", " ", "q", "\ud800", "\x00", "\ufeff", "a\r\n", "{}", "[]", '{"a": 1}']
)
ROLES = ["system", "user", "human", "assistant", "gpt", "tool", "function", "critic"]
ROW_KEYS = ["messages", "conversations", "tools", "functions", "thinking"]
MESSAGE_KEYS = ["role", "from", "content", "value", "name", "reasoning", "tool_calls", "tool_call_id"]
KEYS = st.sampled_from(
    [*ROW_KEYS, *MESSAGE_KEYS, "type", "text", "function", "id", "arguments", "parameters"]
)
ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | TEXT
    | st.sampled_from([*ROLES, "function", "text"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS | TEXT, inner, max_size=5),
    max_leaves=25,
)
CALLS = st.lists(st.one_of(st.just(CALL), st.builds(call, name=ANY | TEXT, arguments=ANY)), max_size=2)
GOOD = st.text(min_size=1, max_size=8).filter(str.strip) | st.sampled_from(
    ["a\r\n", "\x00", "\ufeff", "e\u0301", "👩‍👧"]
)
PART = GOOD | st.fixed_dictionaries({"type": st.just("text"), "text": GOOD})


@st.composite
def talks(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Users (one or two in a row) and assistants in turn, with tools' results, after any system messages."""
    roles = ["system"] * draw(st.integers(0, 2))
    for _ in range(draw(st.integers(1, 3))):
        roles += ["user"] * draw(st.integers(1, 2)) + draw(st.sampled_from([["call", "tool"], [], ["call"]]))
        roles += ["assistant"] * (roles[-1] != "call")
    content = GOOD | st.lists(PART, min_size=1, max_size=2)
    return [called(CALL, content=draw(content)) if r == "call" else said(r, draw(content)) for r in roles]


@st.composite
def rows_with_one_fault(draw: st.DrawFn) -> dict[str, Any]:
    """A row that is right but for one field of it or of one of its messages, which holds anything."""
    talk = draw(talks())
    if draw(st.booleans()):
        return {"messages": talk, draw(st.sampled_from(ROW_KEYS)): draw(ANY | st.just([DECLARED]))}
    message = draw(st.sampled_from(talk))
    message[draw(st.sampled_from(MESSAGE_KEYS))] = draw(ANY | CALLS | st.sampled_from(ROLES) | st.lists(PART))
    return {"messages": talk}


@settings(max_examples=500, deadline=None)
@given(ANY | rows_with_one_fault())
@example(row(USER, called(CALL), said("tool", "")))
def test_any_value_gives_messages_or_a_reason(value: Any) -> None:
    try:
        messages, tools, _ = from_row(value)
    except LeftOut as left_out:
        assert left_out.reason in get_args(Reason)
        return
    assert all(m.content.strip() or m.tool_calls or m.role == "tool" for m in messages)
    roles = [m.role for m in messages]
    assert roles[roles[0] == "system"] == "user"
    assert roles.count("system") <= 1
    assert ("assistant", "assistant") not in pairwise(roles)
    assert all(isinstance(json.loads(c.arguments), dict) for m in messages for c in m.tool_calls)
    assert json.dumps([list(map(asdict, messages)), tools], ensure_ascii=False).encode(), "no lone surrogate"


@settings(deadline=None)
@given(talks())
def test_no_character_is_lost_or_changed(talk: list[dict[str, Any]]) -> None:
    messages, _, _ = from_row({"messages": talk})
    for role in ("system", "user", "assistant", "tool"):
        given_texts = [as_text(role, m["content"]) for m in talk if m["role"] == role]
        kept = "\n\n".join(m.content for m in messages if m.role == role)
        assert kept == "\n\n".join(given_texts)


def as_text(role: str, content: Any) -> str:
    """What docs/messages.md says of a text, of its parts, and of a tool's list of plain texts."""
    if role == "tool" and isinstance(content, list) and all(isinstance(part, str) for part in content):
        return json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return "".join(part if isinstance(part, str) else part["text"] for part in content)

"""Odd rows and what becomes of each: the messages, or the reason that it is left out for."""

from __future__ import annotations

import json
from typing import Any

from include.core.records import Message, ToolCall
from include.sources.values import Reason

LONE = "\ud800"
CALL = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": '{"a":2}'}}
DECLARED = {
    "type": "function",
    "function": {"name": "f", "description": "d", "parameters": {"type": "object"}},
}


def said(role: Any, content: Any = "x", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def called(*calls: Any, content: Any = "ok") -> dict[str, Any]:
    return said("assistant", content, tool_calls=list(calls))


def call(**function: Any) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}", **function}}


def row(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"messages": list(messages), **more}


USER, ANSWER = said("user", "q"), said("assistant", "a")
U, A = Message("user", "q"), Message("assistant", "a")
F = ToolCall("functions.f:0", "f", '{"a":2}')

KEPT: dict[str, tuple[dict[str, Any], list[Message]]] = {
    "one turn": (row(USER), [U]),
    "a trailing answer": (row(USER, ANSWER), [U, A]),
    "from and value": (
        {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
        [U, A],
    ),
    "the key conversation": ({"conversation": [USER]}, [U]),
    "an empty list beside a full one": ({"messages": [], "conversations": [USER]}, [U]),
    "messages as JSON text": ({"messages": json.dumps([USER])}, [U]),
    "unused fields": (row(USER | {"weight": 1, "tool_call_id": 3}, system="s", id=LONE), [U]),
    "columns filled with null": (
        row(USER | dict.fromkeys(("tool_calls", "function_call", "name", "reasoning_content", "from"))),
        [U],
    ),
    "text parts": (
        row(said("user", [{"type": "text", "text": "a "}, "b", {"type": "text", "text": ""}])),
        [Message("user", "a b")],
    ),
    "system lines joined": (
        row(said("system", "a"), said("developer", "b"), USER),
        [Message("system", "a\n\nb"), U],
    ),
    "user turns joined": (
        row(USER, said("human", " r\n"), ANSWER, USER),
        [Message("user", "q\n\n r\n"), A, U],
    ),
    "a user's name": (
        row(said("user", "q", name="Ann"), said("user", "r", name="Ann")),
        [Message("user", "q\n\nr", name="Ann")],
    ),
    "reasoning_content": (
        row(USER, ANSWER | {"reasoning_content": " r"}),
        [U, Message("assistant", "a", " r")],
    ),
    "reasoning": (
        row(USER, ANSWER | {"reasoning_content": "", "reasoning": "r"}),
        [U, Message("assistant", "a", "r")],
    ),
    "thinking as text": (row(USER, ANSWER | {"thinking": "r"}), [U, Message("assistant", "a", "r")]),
    "a call without content": (
        row(USER, {"role": "assistant", "tool_calls": [CALL]}),
        [U, Message("assistant", "", tool_calls=(F,))],
    ),
    "a call with blank content": (
        row(USER, called(CALL, content=" \n")),
        [U, Message("assistant", " \n", tool_calls=(F,))],
    ),
    "arguments as an object": (
        row(USER, called(call(arguments={"é": [1, None]}))),
        [U, Message("assistant", "ok", tool_calls=(ToolCall("1", "f", '{"é": [1, null]}'),))],
    ),
    "no arguments, no id, no type": (
        row(USER, called({"function": {"name": "a.b-C_1"}}, call(arguments=""))),
        [U, Message("assistant", "ok", tool_calls=(ToolCall("", "a.b-C_1", "{}"), ToolCall("1", "f", "{}")))],
    ),
    "the older function_call": (
        row(USER, {"role": "assistant", "function_call": CALL["function"]}, said("function", "r", name="f")),
        [
            U,
            Message("assistant", "", tool_calls=(ToolCall("", "f", '{"a":2}'),)),
            Message("tool", "r", name="f"),
        ],
    ),
    "two results, one empty": (
        row(USER, called(CALL, CALL), said("tool", "", tool_call_id="i"), said("observation", "r"), ANSWER),
        [
            U,
            Message("assistant", "ok", tool_calls=(F, F)),
            Message("tool", "", tool_call_id="i"),
            Message("tool", "r"),
            A,
        ],
    ),
    "a result that is an object": (
        row(USER, called(CALL), said("tool", {"é": [1, "b c"]})),
        [U, Message("assistant", "ok", tool_calls=(F,)), Message("tool", '{"é":[1,"b c"]}')],
    ),
    "a result that is a list": (
        row(USER, called(CALL), said("tool", ["a", 1])),
        [U, Message("assistant", "ok", tool_calls=(F,)), Message("tool", '["a",1]')],
    ),
    "a result in parts": (
        row(USER, called(CALL), said("tool", [{"type": "text", "text": "a"}, "b"])),
        [U, Message("assistant", "ok", tool_calls=(F,)), Message("tool", "ab")],
    ),
    "calls that nobody answers": (
        row(USER, called(CALL), USER),
        [U, Message("assistant", "ok", tool_calls=(F,)), U],
    ),
}

LEFT_OUT: list[tuple[Reason, Any]] = [
    ("no messages", None),
    ("no messages", [USER]),
    ("no messages", {}),
    ("no messages", row()),
    ("no messages", {"messages": None, "conversations": []}),
    ("no messages", {"messages": {"role": "user", "content": "q"}}),
    ("no messages", {"messages": "q"}),
    ("no messages", {"messages": "[" * 100_000}),
    ("message is not an object", row("q")),
    ("message is not an object", row(USER, None)),
    ("unknown role", row(said("critic"))),
    ("unknown role", row(said(""))),
    ("unknown role", row(said(None))),
    ("unknown role", row(said(1))),
    ("unknown role", row(said(["user"]))),
    ("unknown role", row({"content": "q"})),
    ("empty turn", row({"role": "user"})),
    ("empty turn", row(said("user", None))),
    ("empty turn", row(said("user", ""))),
    ("empty turn", row(said("user", " \r\n\t\u3000"))),
    ("empty turn", row(said("user", " " * 100_000))),
    ("empty turn", row(said("user", []))),
    ("empty turn", row(said("user", [{"type": "text", "text": " "}]))),
    ("empty turn", row(said("system", ""), USER)),
    ("empty turn", row(USER, said("assistant", None, reasoning="r"))),
    ("empty turn", row(USER, called(content=None))),
    ("empty turn", row(USER, called(CALL), said("tool", None))),
    ("content is not text", row(said("user", 1))),
    ("content is not text", row(said("user", True))),
    ("content is not text", row(said("user", 0.5))),
    ("content is not text", row(said("user", {"text": "q"}))),
    ("content is not text", row(said("user", ["q", {"type": "image_url", "image_url": {"url": "u"}}]))),
    ("content is not text", row(said("user", [{"type": "input_audio"}]))),
    ("content is not text", row(said("user", [{"type": "text"}]))),
    ("content is not text", row(said("user", [{"text": "q"}]))),
    ("content is not text", row(said("user", [None]))),
    ("content is not text", row(said("user", [["q"]]))),
    ("content is not text", row(USER, called(CALL), said("tool", 7))),
    ("content is not text", row(USER, called(CALL), said("tool", [{"type": "image"}]))),
    ("content is not text", row(USER, called(CALL), said("tool", {"a": float("nan")}))),
    ("reasoning is not text", row(USER, ANSWER | {"reasoning": ["r"]})),
    ("reasoning is not text", row(USER, ANSWER | {"thinking": True})),
    ("reasoning outside an assistant turn", row(USER | {"reasoning": "r"})),
    ("tool call is malformed", row(USER, ANSWER | {"tool_calls": "f()"})),
    ("tool call is malformed", row(USER, ANSWER | {"tool_calls": CALL})),
    ("tool call is malformed", row(USER, called("f"))),
    ("tool call is malformed", row(USER, called({"name": "f", "arguments": "{}"}))),
    ("tool call is malformed", row(USER, called(CALL | {"type": "code"}))),
    ("tool call is malformed", row(USER, called(CALL | {"id": 0}))),
    ("tool call is malformed", row(USER, called(CALL | {"function": "f"}))),
    ("tool call is malformed", row(USER, called({"id": "1", "function": {"arguments": "{}"}}))),
    ("tool call is malformed", row(USER, called(call(name="")))),
    ("tool call is malformed", row(USER, called(call(name=None)))),
    ("tool call is malformed", row(USER, called(call(name="f\n")))),
    ("tool call is malformed", row(USER, called(call(name="f é")))),
    ("tool call is malformed", row(USER, called(call(arguments=1)))),
    ("tool call is malformed", row(USER, called(call(arguments=["a"])))),
    ("tool call is malformed", row(USER, called(call(arguments="{'a': 1}")))),
    ("tool call is malformed", row(USER, called(call(arguments='"{}"')))),
    ("tool call is malformed", row(USER, called(call(arguments='{"a": NaN}')))),
    ("tool call is malformed", row(USER, called(call(arguments='{"a":' + "[" * 200 + "]" * 200 + "}")))),
    ("tool call is malformed", row(USER, called(call(arguments='{"a":' + "9" * 5000 + "}")))),
    ("tool call is malformed", row(USER, called(CALL) | {"function_call": CALL["function"]})),
    ("tool call outside an assistant turn", row(USER | {"tool_calls": [CALL]})),
    ("name or id is not text", row(USER | {"name": 1})),
    ("name or id is not text", row(USER, called(CALL), said("tool", tool_call_id=1))),
    ("two names in one turn", row(said("user", name="Ann"), said("user", name="Ben"))),
    ("lone surrogate", row(said("user", f"q{LONE}"))),
    ("lone surrogate", row(said("user", [LONE]))),
    ("lone surrogate", row(said("user", ["\ud83d", "\ude00"]))),
    ("lone surrogate", row(USER | {"name": LONE})),
    ("lone surrogate", row(USER, ANSWER | {"reasoning": "\udfff"})),
    ("lone surrogate", row(USER, called(call(name=LONE)))),
    ("lone surrogate", row(USER, called(CALL | {"id": LONE}))),
    ("lone surrogate", row(USER, called(call(arguments={LONE: 1})))),
    ("lone surrogate", row(USER, called(call(arguments='{"a": "' + LONE + '"}')))),
    ("lone surrogate", row(USER, called(call(arguments='{"a": "\\ud800"}')))),
    ("lone surrogate", row(USER, called(CALL), said("tool", {"a": LONE}))),
    ("lone surrogate", row(USER, called(CALL), said("tool", tool_call_id=LONE))),
    ("lone surrogate", row(USER, tools=[{"name": "f", "parameters": {"a": [LONE]}}])),
    ("lone surrogate", row(USER, tools='[{"name": "f", "description": "\\udc00"}]')),
    ("system message in the middle", row(USER, said("system"), ANSWER)),
    ("system message in the middle", row(said("system"), USER, ANSWER, said("developer"))),
    ("assistant speaks first", row(ANSWER, USER)),
    ("assistant speaks first", row(said("system"), ANSWER, USER)),
    ("two assistant turns in a row", row(USER, ANSWER, ANSWER)),
    ("two assistant turns in a row", row(USER, called(CALL), ANSWER)),
    ("tool result without a call", row(said("tool"), USER)),
    ("tool result without a call", row(USER, said("tool"))),
    ("tool result without a call", row(USER, ANSWER, said("ipython"))),
    ("no user turn", row(said("system"))),
    ("tools are malformed", row(USER, tools={"name": "f"})),
    ("tools are malformed", row(USER, tools="")),
    ("tools are malformed", row(USER, tools="null")),
    ("tools are malformed", row(USER, tools="f(x)")),
    ("tools are malformed", row(USER, tools=0)),
    ("tools are malformed", row(USER, tools=[None])),
    ("tools are malformed", row(USER, tools=["f"])),
    ("tools are malformed", row(USER, tools=[{}])),
    ("tools are malformed", row(USER, tools=[{"type": "web_search"}])),
    ("tools are malformed", row(USER, tools=[{"type": "function", "function": None}])),
    ("tools are malformed", row(USER, tools=[{"name": "get weather"}])),
    ("tools are malformed", row(USER, tools=[{"name": "f", "description": 1}])),
    ("tools are malformed", row(USER, tools=[{"name": "f", "parameters": []}])),
    ("tools are malformed", row(USER, functions=[{"name": "f", "x": float("inf")}])),
    ("tools are malformed", row(USER, functions='[{"name": "f", "x": ' + "[" * 200 + "]" * 200 + "}]")),
    ("thinking is not true or false", row(USER, thinking="yes")),
    ("thinking is not true or false", row(USER, thinking=0)),
    ("thinking is not true or false", row(USER, thinking={})),
]

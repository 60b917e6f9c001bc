"""Tool declarations and tool calls in OpenAI's format, checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeGuard

from include.core.records import ToolCall
from include.sources.values import LeftOut, Reason, json_text, optional_text, parsed, text

Tools = tuple[Mapping[str, Any], ...]

_NAME = re.compile(r"[A-Za-z0-9_.-]+")


def tools_of(row: Mapping[str, Any]) -> Tools:
    """The declarations in the row's `tools`, or else in its `functions`, each as {"type", "function"}."""
    for key in ("tools", "functions"):
        declared = row.get(key)
        if isinstance(declared, str):
            declared = _list_in(declared)
        if declared is None or declared == []:
            continue
        if not isinstance(declared, list):
            raise LeftOut("tools are malformed")
        json_text(declared, "tools are malformed")
        return tuple(_declaration(item) for item in declared)
    return ()


def tool_calls_of(message: Mapping[str, Any]) -> tuple[ToolCall, ...]:
    """The message's `tool_calls`, or its one call in the older form `function_call`."""
    calls, older = message.get("tool_calls"), message.get("function_call")
    if calls is None or calls == []:
        calls = [] if older is None else [{"function": older}]
    elif older is not None:
        raise LeftOut("tool call is malformed")
    if not isinstance(calls, list):
        raise LeftOut("tool call is malformed")
    return tuple(_call(item) for item in calls)


def _list_in(written: str) -> list[Any]:
    declared = parsed(written, "tools are malformed")
    if not isinstance(declared, list):
        raise LeftOut("tools are malformed")
    return declared


def _declaration(item: object) -> Mapping[str, Any]:
    malformed: Reason = "tools are malformed"
    if not _is_function(item):
        raise LeftOut(malformed)
    rest = {key: value for key, value in item.items() if key != "type"}
    function = rest.get("function", rest)
    if not isinstance(function, dict):
        raise LeftOut(malformed)
    _name(function.get("name"), malformed)
    optional_text(function.get("description"), malformed)
    if not isinstance(function.get("parameters"), dict | None):
        raise LeftOut(malformed)
    if function is rest:
        return {"type": "function", "function": function}
    return item if item.get("type") else {"type": "function", **rest}


def _call(item: object) -> ToolCall:
    malformed: Reason = "tool call is malformed"
    if not _is_function(item) or not isinstance(function := item.get("function"), dict):
        raise LeftOut(malformed)
    return ToolCall(
        id=optional_text(item.get("id"), malformed),
        name=_name(function.get("name"), malformed),
        arguments=_arguments(function.get("arguments"), malformed),
    )


def _is_function(item: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(item, dict) and item.get("type") in (None, "function")


def _name(value: object, malformed: Reason) -> str:
    name = text(value, malformed)
    if not _NAME.fullmatch(name):
        raise LeftOut(malformed)
    return name


def _arguments(value: object, malformed: Reason) -> str:
    """JSON text of an object, as it was written: servers parse it, and refuse a history where they can't."""
    if value is None or value == "":
        return "{}"
    arguments = parsed(text(value, malformed), malformed) if isinstance(value, str) else value
    if not isinstance(arguments, dict):
        raise LeftOut(malformed)
    written = json_text(arguments, malformed)
    return value if isinstance(value, str) else written

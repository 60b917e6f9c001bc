"""Conversations that show what a chat template does, and whether it does what the one we know does."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from include.core.records import Message, ToolCall
from include.tokens.template import ChatTemplate, NotRendered, shipped_template

log = logging.getLogger(__name__)

MARKER = "Probe"
ASKED = (Message("user", MARKER),)
ASKED_AFTER_TOOL = (
    Message("user", "x"),
    Message("assistant", "", tool_calls=(ToolCall("f:0", "f", "{}"),)),
    Message("tool", MARKER, tool_call_id="f:0", name="f"),
)
PROBE_TOOLS = (
    {
        "type": "function",
        "function": {
            "name": "f",
            "description": "d",
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": "integer", "description": "e"},
                    "b": {"enum": ["x", "y"], "type": "string", "default": "x"},
                },
                "required": ["a"],
            },
        },
    },
)
_PROBES: tuple[tuple[tuple[Message, ...], tuple[Mapping[str, Any], ...]], ...] = (
    (ASKED, ()),
    ((Message("system", "s"), *ASKED), ()),
    ((*ASKED, Message("assistant", " a", reasoning=" r"), Message("user", "y")), ()),
    (ASKED, PROBE_TOOLS),
    (ASKED_AFTER_TOOL, PROBE_TOOLS),
)


def compare_with_shipped(template: ChatTemplate, folder: Path) -> None:
    """A model's own template renders, always; where it differs from the one we know, the log says so."""
    if not template.profile.template:
        return
    shipped = replace(template, source=shipped_template(template.profile))
    if shipped.source == template.source:
        return
    for thinking in (True, False):
        for messages, tools in _PROBES:
            own, known = (_rendered(template, messages, tools, thinking) for template in (template, shipped))
            if own != known:
                log.warning(
                    "the chat template in %s differs from the one known for %s; the folder's own is used. "
                    "First difference: %r, known %r",
                    folder,
                    template.profile.name,
                    *_first_difference(own, known),
                )
                return


def _rendered(
    template: ChatTemplate,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    thinking: bool,
) -> str:
    try:
        return template.text(messages, tools, thinking=thinking)
    except NotRendered as error:
        return str(error)


def _first_difference(a: str, b: str) -> tuple[str, str]:
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    start = max(0, at - 20)
    return a[start : at + 40], b[start : at + 40]

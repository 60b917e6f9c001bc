"""Tool calls in the target's own syntax: written from a provider's fields, and read back out of token ids."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from include.core.profile import ToolCallSyntax
from include.core.records import Ids, ToolCall
from include.tokens.tokenizer import Tokenizer

_PLACE = re.compile(r"\{(id|name|arguments)\}")


def written(syntax: ToolCallSyntax, calls: Sequence[ToolCall], *, after_text: bool) -> str:
    """The section as the target writes it, control tokens as their text."""
    texts = []
    for call in calls:
        values = {"id": call.id, "name": call.name, "arguments": call.arguments}
        pieces = _PLACE.split(syntax.call)
        texts.append("".join(values[piece] if i % 2 else piece for i, piece in enumerate(pieces)))
    start = syntax.after_content if after_text else ""
    return start + syntax.before + syntax.between.join(texts) + syntax.after


@dataclass(frozen=True)
class CallFault:
    """What is wrong with a tool section and where (index into the ids that were read)."""

    what: str
    at: int


def read(
    syntax: ToolCallSyntax, ids: Ids, tokenizer: Tokenizer
) -> tuple[list[ToolCall], CallFault | None, int]:
    """(calls, first fault, index of the first tool token; len(ids) where there is none) of an answer's ids.

    The order of the control tokens is held against the syntax; then each call's text against its form, its arguments
    as a JSON object, its id as the target writes ids.
    """
    form = _form(syntax, tokenizer)
    places = [i for i, id_ in enumerate(ids.tolist()) if id_ in form.tokens]
    if not places:
        return [], None, len(ids)
    calls: list[ToolCall] = []
    seen = [int(ids[i]) for i in places]
    fault_at = form.first_disorder(seen)
    if fault_at is not None:
        at = places[min(fault_at, len(places) - 1)]
        name = tokenizer.decode([int(ids[at])])
        unclosed = fault_at >= len(places)
        return (
            [],
            CallFault(f"the tool section ends after {name}" if unclosed else f"{name} out of order", at),
            places[0],
        )
    starts = range(len(form.before), len(places) - len(form.after), len(form.call))
    for start in starts:
        first, last = places[start], places[start + len(form.call) - 1]
        text = tokenizer.decode(ids[first : last + 1])
        call = form.parse(text)
        if isinstance(call, str):
            return calls, CallFault(call, first), places[0]
        calls.append(call)
    return calls, None, places[0]


def section_end(syntax: ToolCallSyntax, ids: Ids, tokenizer: Tokenizer) -> int:
    """Index behind the last tool token."""
    form = _form(syntax, tokenizer)
    places = [i for i, id_ in enumerate(ids.tolist()) if id_ in form.tokens]
    return places[-1] + 1 if places else 0


def tool_tokens(syntax: ToolCallSyntax | None, tokenizer: Tokenizer) -> frozenset[int]:
    """The ids of the control tokens of tool calls."""
    return frozenset() if syntax is None else _form(syntax, tokenizer).tokens


@dataclass(frozen=True)
class _Form:
    before: tuple[int, ...]
    call: tuple[int, ...]
    after: tuple[int, ...]
    pattern: re.Pattern[str]
    id_pattern: re.Pattern[str] | None

    @property
    def tokens(self) -> frozenset[int]:
        return frozenset((*self.before, *self.call, *self.after))

    def first_disorder(self, seen: Sequence[int]) -> int | None:
        """Where the control tokens leave before, one or more calls, after; None where they don't."""
        at = 0
        for wanted in self.before:
            if at >= len(seen) or seen[at] != wanted:
                return at
            at += 1
        calls = 0
        while at < len(seen) and seen[at] == self.call[0]:
            for wanted in self.call:
                if at >= len(seen) or seen[at] != wanted:
                    return at
                at += 1
            calls += 1
        if not calls:
            return at
        for wanted in self.after:
            if at >= len(seen) or seen[at] != wanted:
                return at
            at += 1
        return at if at < len(seen) else None

    def parse(self, text: str) -> ToolCall | str:
        """The call, or what is wrong with it."""
        found = self.pattern.fullmatch(text)
        if not found:
            return "a tool call isn't in the target's form"
        fields = found.groupdict()
        arguments = fields.get("arguments") or ""
        try:
            value = json.loads(arguments)
        except ValueError as error:
            return f"a tool call's arguments aren't JSON ({error})"
        if not isinstance(value, dict):
            return "a tool call's arguments aren't a JSON object"
        call_id, name = fields.get("id") or "", fields.get("name") or ""
        if self.id_pattern:
            own = self.id_pattern.fullmatch(call_id.strip())
            if not own:
                return f"the tool call id {call_id.strip()[:40]!r} isn't in the target's form"
            name = own.group("name")
        return ToolCall(call_id.strip(), name.strip(), arguments)


@lru_cache(maxsize=8)
def _compiled(syntax_json: str, control: tuple[tuple[str, int], ...]) -> _Form:
    syntax = ToolCallSyntax.model_validate_json(syntax_json)
    ids = dict(control)
    names = re.compile("|".join(re.escape(name) for name in sorted(ids, key=len, reverse=True)))

    def tokens(text: str) -> tuple[int, ...]:
        return tuple(ids[name] for name in names.findall(text))

    first = syntax.call.index(names.search(syntax.call).group())  # type: ignore[union-attr]
    last = max(found.end() for found in names.finditer(syntax.call))
    pieces = _PLACE.split(syntax.call[first:last])
    pattern = "".join(
        rf"(?P<{p}>.*?)" if i % 2 else re.sub(r"(?:\\ |\\\n|\s)+", r"\\s*", re.escape(p))
        for i, p in enumerate(pieces)
    )
    id_form = re.escape(syntax.id).replace(r"\{name\}", r"(?P<name>[\w.-]+)").replace(r"\{index\}", r"\d+")
    return _Form(
        tokens(syntax.before),
        tokens(syntax.call),
        tokens(syntax.after),
        re.compile(pattern, re.DOTALL),
        re.compile(id_form) if syntax.id else None,
    )


def _form(syntax: ToolCallSyntax, tokenizer: Tokenizer) -> _Form:
    text = syntax.before + syntax.call + syntax.after
    control = tuple((name, id_) for name, id_ in tokenizer.control_tokens.items() if name in text)
    return _compiled(syntax.model_dump_json(), control)

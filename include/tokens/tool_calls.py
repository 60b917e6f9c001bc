"""Tool calls in the target's own syntax: written from a provider's fields, and read back out of token ids."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest

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


@dataclass(frozen=True)
class Section:
    """The tool section of some ids, [start, end): its calls up to the first fault. If there is none, it is empty."""

    calls: tuple[ToolCall, ...]
    fault: CallFault | None
    start: int
    end: int


def read(syntax: ToolCallSyntax, ids: Ids, tokenizer: Tokenizer) -> Section:
    """The tool section of an answer's ids.

    The order of the control tokens is held against the syntax; then each call's text against its form, its arguments
    as a JSON object, its id as the target writes ids. Nothing but white space may stand between calls.
    """
    form = _form(syntax, tokenizer)
    places = [at for at, id_ in enumerate(ids.tolist()) if id_ in form.tokens]
    if not places:
        return Section((), None, len(ids), len(ids))
    calls: list[ToolCall] = []
    for one in _calls(form, places, ids, tokenizer):
        if isinstance(one, CallFault):
            return Section(tuple(calls), one, places[0], places[-1] + 1)
        calls.append(one)
    return Section(tuple(calls), None, places[0], places[-1] + 1)


def tool_tokens(syntax: ToolCallSyntax | None, tokenizer: Tokenizer) -> frozenset[int]:
    """The ids of the control tokens of tool calls."""
    return frozenset() if syntax is None else _form(syntax, tokenizer).tokens


def _calls(
    form: _Form, places: Sequence[int], ids: Ids, tokenizer: Tokenizer
) -> Iterator[ToolCall | CallFault]:
    """The calls in order, ended by the first fault."""
    wrong = form.first_disorder([int(ids[at]) for at in places])
    if wrong is not None:
        at = places[min(wrong, len(places) - 1)]
        name = tokenizer.decode([int(ids[at])])
        what = f"{name} out of order" if wrong < len(places) else f"the tool section ends after {name}"
        yield CallFault(what, at)
        return
    begin = places[0]
    for start in range(len(form.before), len(places) - len(form.after), len(form.call)):
        first, last = places[start], places[start + len(form.call) - 1]
        between = [id_ for id_ in ids[begin:first].tolist() if id_ not in form.tokens]
        if tokenizer.decode(between).strip():
            yield CallFault("text between the tool calls", begin)
            return
        call = form.parse(tokenizer.decode(ids[first : last + 1]))
        if isinstance(call, str):
            yield CallFault(call, first)
            return
        yield call
        begin = last + 1
    if tokenizer.decode(ids[begin : places[-1]]).strip():
        yield CallFault("text between the last tool call and the section's end", begin)


@dataclass(frozen=True)
class _Form:
    """A syntax, ready to be read: its control tokens in order and the pattern of a call's text."""

    before: tuple[int, ...]
    call: tuple[int, ...]
    after: tuple[int, ...]
    pattern: re.Pattern[str]
    id_pattern: re.Pattern[str] | None
    tokens: frozenset[int]

    def first_disorder(self, seen: Sequence[int]) -> int | None:
        """The first control token that isn't `before`, one or more times `call`, `after`; None where all are."""
        wanted = (*self.before, *self.call * max(1, seen.count(self.call[0])), *self.after)
        return next((at for at, (a, b) in enumerate(zip_longest(seen, wanted)) if a != b), None)

    def parse(self, text: str) -> ToolCall | str:
        """The call, or what is wrong with it."""
        found = self.pattern.fullmatch(text)
        if not found:
            return "a tool call isn't in the target's form"
        fields = found.groupdict(default="")
        try:
            value = json.loads(fields["arguments"])
        except (ValueError, RecursionError) as error:
            return f"a tool call's arguments aren't JSON ({error})"
        if not isinstance(value, dict):
            return "a tool call's arguments aren't a JSON object"
        call_id, name = fields.get("id", ""), fields.get("name", "")
        if self.id_pattern:
            own = self.id_pattern.fullmatch(call_id)
            if not own:
                return f"the tool call id {call_id[:40]!r} isn't in the target's form"
            name = own.group("name")
        return ToolCall(call_id, name, fields["arguments"])


# White space may stand around every field. The patterns are possessive or greedy where white space meets a field, so
# that ten thousand blanks cost no more than ten thousand steps.
_FIELDS = {
    "id": r"\s*+(?P<id>\S*?)\s*+",
    "name": r"\s*+(?P<name>\S*?)\s*+",
    "arguments": r"\s*+(?P<arguments>.*\S)?\s*",
}


def _form(syntax: ToolCallSyntax, tokenizer: Tokenizer) -> _Form:
    text = syntax.before + syntax.call + syntax.after
    control = tuple((name, id_) for name, id_ in tokenizer.control_tokens.items() if name in text)
    return _compiled(syntax, control)


@lru_cache(maxsize=8)
def _compiled(syntax: ToolCallSyntax, control: tuple[tuple[str, int], ...]) -> _Form:
    ids = dict(control)
    names = re.compile("|".join(re.escape(name) for name in sorted(ids, key=len, reverse=True)))

    def tokens(text: str) -> tuple[int, ...]:
        return tuple(ids[name] for name in names.findall(text))

    marks = [found.span() for found in names.finditer(syntax.call)]
    pieces = _PLACE.split(syntax.call[marks[0][0] : marks[-1][1]])
    pattern = "".join(_FIELDS[p] if i % 2 else _loosely(p) for i, p in enumerate(pieces))
    id_form = re.escape(syntax.id).replace(r"\{name\}", r"(?P<name>[\w.-]+)").replace(r"\{index\}", r"\d+")
    before, call, after = tokens(syntax.before), tokens(syntax.call), tokens(syntax.after)
    return _Form(
        before,
        call,
        after,
        re.compile(pattern, re.DOTALL),
        re.compile(id_form) if syntax.id else None,
        frozenset((*before, *call, *after)),
    )


def _loosely(text: str) -> str:
    """A pattern for the text in which white space may be any, or none."""
    return r"\s*+".join(re.escape(word) for word in re.split(r"\s+", text))

"""A sample prepared for the audit's rules: its answers, decoded and encoded again, and where its control tokens are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from include.core.records import Ids, TokenSample
from include.tokens.target import Opening, Target
from include.tokens.tool_calls import tool_tokens

_UNKNOWN, _TEXT, _CONTROL = 0, 1, 2


@dataclass(frozen=True)
class Facts:
    """What every sample of a file is held against. `tools`: whether the dataset's answers may call tools."""

    target: Target
    max_seq_len: int
    tools: bool = False
    max_count_delta: int = 0

    @cached_property
    def tool_tokens(self) -> frozenset[int]:
        """The control tokens of tool calls."""
        return tool_tokens(self.target.profile.tool_calls, self.target.tokenizer)

    def kinds(self, ids: Ids) -> NDArray[np.uint8]:
        """What each id is: unknown, text or control."""
        size = len(self._kinds) - 1
        if len(ids) and (ids.min() < 0 or ids.max() >= size):
            ids = np.where((ids < 0) | (ids >= size), size, ids)
        return self._kinds[ids]

    def opening_before(self, ids: Ids, end: int) -> Opening | None:
        """How the prompt opened the answer that begins at `end`: the longest opening that stands there."""
        return next((o for n in self._lengths if n <= end and (o := self._opening(ids, end - n, end))), None)

    def opening_at(self, ids: Ids, start: int) -> Opening | None:
        """The longest opening that begins at `start`."""
        return next((o for n in self._lengths if (o := self._opening(ids, start, start + n))), None)

    def _opening(self, ids: Ids, start: int, end: int) -> Opening | None:
        return self._openings.get(tuple(ids[start:end].tolist()))

    @cached_property
    def _openings(self) -> dict[tuple[int, ...], Opening]:
        every = [opening for on in (True, False) for opening in self.target.openings(thinking=on)]
        return {tuple(opening.ids.tolist()): opening for opening in every}

    @cached_property
    def _lengths(self) -> list[int]:
        return sorted({len(ids) for ids in self._openings}, reverse=True)

    @cached_property
    def _kinds(self) -> NDArray[np.uint8]:
        """[vocab_size + 1]; the last entry stands for every id outside."""
        tokens = self.target.tokenizer.token_bytes
        table = np.array([_UNKNOWN if token is None else _TEXT for token in (*tokens, None)], np.uint8)
        table[list(self.target.control_tokens.values())] = _CONTROL
        return table


@dataclass(frozen=True)
class Answer:
    """One answer, input_ids[start:end). `control` are its control tokens as (place, id); `again` is `text` encoded."""

    start: int
    end: int
    opening: Opening | None
    control: Sequence[tuple[int, int]]
    text: str
    again: Ids

    def places(self, token: int | None) -> list[int]:
        """Where a control token stands in it."""
        return [at for at, id_ in self.control if id_ == token]

    @property
    def begins_with_text(self) -> bool:
        """Whether its first token is text: thoughts or an answer, not a tool section."""
        return self.end > self.start and not (self.control and self.control[0][0] == self.start)

    @property
    def thinks(self) -> bool:
        """Whether the prompt asked for thoughts."""
        return self.opening is not None and self.opening.thinking in ("in_prompt", "generated")


@dataclass(frozen=True)
class Case:
    """A sample with what several rules need of it. There is at least one answer."""

    sample: TokenSample
    facts: Facts
    answers: Sequence[Answer]
    control: Sequence[tuple[int, int]]
    unknown: Sequence[int]


def cases(samples: Sequence[TokenSample], facts: Facts) -> Iterator[Case]:
    """The samples prepared, all their answers decoded and encoded in one batch."""
    spans = [answers_of(sample) for sample in samples]
    texts = [
        facts.target.decode(sample.input_ids[start:end])
        for sample, runs in zip(samples, spans, strict=True)
        for start, end in runs
    ]
    coded = iter(zip(texts, facts.target.tokenizer.encode_marked(texts), strict=True))
    for sample, runs in zip(samples, spans, strict=True):
        ids = sample.input_ids
        kinds = facts.kinds(ids)
        at = np.flatnonzero(kinds == _CONTROL)
        control = list(zip(at.tolist(), ids[at].tolist(), strict=True))
        unknown = np.flatnonzero(kinds == _UNKNOWN).tolist()
        answers = [
            Answer(start, end, facts.opening_before(ids, start), _within(control, start, end), *next(coded))
            for start, end in runs
        ]
        yield Case(sample, facts, answers, control, unknown)


def answers_of(sample: TokenSample) -> list[tuple[int, int]]:
    """[start, end) of the runs of ones in the mask; everything behind the prompt where there is none."""
    length = len(sample.input_ids)
    on = np.zeros(length + 2, np.bool_)
    mask = sample.loss_mask[:length]
    on[1 : 1 + len(mask)] = mask
    edges = np.flatnonzero(on[1:] != on[:-1]).tolist()
    runs = list(zip(edges[::2], edges[1::2], strict=True))
    return runs or [(min(max(sample.prompt_len, 0), length), length)]


def _within(control: Sequence[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    return [(at, id_) for at, id_ in control if start <= at < end]

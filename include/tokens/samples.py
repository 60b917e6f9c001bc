"""Answered turns → training samples: merged where the next prompt goes on from the ids so far, else side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from include.core.records import Capture, Ids, Mask, Message, TokenSample
from include.tokens.answers import Reconstruction
from include.tokens.target import Target
from include.tokens.tokenizer import places
from include.tokens.tool_calls import Section, read


@dataclass(frozen=True)
class Turn:
    """One prompt and its answer. `count_delta` as in the contract."""

    sample_id: str
    prompt_ids: Ids
    output_ids: Ids
    capture: Capture
    count_delta: int | None
    round_trip_exact: bool
    engine: str
    provider: str
    model: str
    finish_reason: str
    source_row: str


def samples_of(turns: Sequence[Turn]) -> Iterator[TokenSample]:
    """The samples of one conversation's turns, in order of their ids.

    A prompt that begins with everything read and written so far makes one longer sample, named after its last turn,
    with the mask over each answer; it is as sure as the least sure of its turns. A template that rewrites the history
    (it drops thoughts, for one) makes one sample a turn: each answer stands in the context that the target had.
    """
    groups: list[list[Turn]] = []
    for turn in turns:
        if groups and _goes_on(groups[-1][-1], turn):
            groups[-1].append(turn)
        else:
            groups.append([turn])
    yield from sorted((_merged(group) for group in groups), key=lambda sample: sample.sample_id)


def _goes_on(turn: Turn, following: Turn) -> bool:
    """Whether the next prompt begins with everything that was read and written so far, and says more."""
    start, prompt = len(turn.prompt_ids), following.prompt_ids
    end = start + len(turn.output_ids)
    return (
        len(prompt) > end
        and np.array_equal(prompt[:start], turn.prompt_ids)
        and np.array_equal(prompt[start:end], turn.output_ids)
    )


_TRUST: tuple[Capture, ...] = ("direct", "logprobs", "text")


def _merged(turns: Sequence[Turn]) -> TokenSample:
    first, last = turns[0], turns[-1]
    ids = np.concatenate([last.prompt_ids, last.output_ids])
    mask: Mask = np.zeros(len(ids), np.uint8)
    for turn in turns:
        start = len(turn.prompt_ids)
        mask[start : start + len(turn.output_ids)] = 1
    deltas = [turn.count_delta for turn in turns if turn.count_delta is not None]
    return TokenSample(
        sample_id=last.sample_id,
        input_ids=ids,
        loss_mask=mask,
        prompt_len=len(first.prompt_ids),
        capture=max((turn.capture for turn in turns), key=_TRUST.index),
        count_delta=max(deltas, key=abs) if len(deltas) == len(turns) else None,
        round_trip_exact=all(turn.round_trip_exact for turn in turns),
        engine=last.engine,
        provider=last.provider,
        model=last.model,
        finish_reason=last.finish_reason,
        source_row=last.source_row,
    )


def round_trips(found: Sequence[Reconstruction], target: Target) -> list[bool]:
    """Whether each answer's ids, decoded and encoded again, are the same; sampled ids need not be canonical."""
    again = iter(recoded([one.output_ids for one in found if not one.encoded], target))
    return [one.encoded or bool(np.array_equal(one.output_ids, next(again))) for one in found]


def recoded(answers: Sequence[Ids], target: Target) -> list[Ids]:
    """Each answer's ids decoded and encoded again, in one batch."""
    return target.tokenizer.encode_marked([target.decode(ids) for ids in answers])


def message_of(output_ids: Ids, target: Target) -> Message | None:
    """The answer as the next prompt's history shows it; None where it isn't text that a template could take."""
    ids = output_ids[:-1] if len(output_ids) and output_ids[-1] == target.end_of_turn else output_ids
    open_, close = (target.special_ids.get(f"thinking_{part}") for part in ("open", "close"))
    if len(ids) and ids[0] == open_:
        ids = ids[1:]
    closes = places(ids, close)
    thoughts = ids[: closes[0]] if len(closes) else ids[:0]
    rest = ids[closes[0] + 1 :] if len(closes) else ids
    syntax = target.profile.tool_calls
    section = read(syntax, rest, target.tokenizer) if syntax else Section((), None, len(rest), len(rest))
    reasoning, content = target.decode(thoughts), target.decode(rest[: section.start])
    behind = target.decode(rest[section.end :])
    if section.fault or behind.strip():
        return None
    if any("\ufffd" in text or target.tokenizer.control_token_in(text) for text in (reasoning, content)):
        return None
    if syntax and section.calls:
        content = content.removesuffix(syntax.after_content)
    return Message("assistant", content, reasoning, section.calls)

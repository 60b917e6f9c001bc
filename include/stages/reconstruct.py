"""reconstruct: prompts and ledger → training samples, and the books of what was left out."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from include.core.batched import batched
from include.core.files import file_digest
from include.core.parquet import parquet_writer, read_metadata
from include.core.records import Ids, TextAnswer, TokenSample
from include.core.schema import SAMPLES
from include.core.spec import Limits
from include.engines.ledger import Ledger
from include.stages.turns import AFTER_ONE_LEFT_OUT, Asked, Walked, answered
from include.stages.work import Report, Work
from include.tokens.answers import Reconstruction, learn_offsets, reconstruct
from include.tokens.samples import Turn, round_trips, samples_of

log = logging.getLogger(__name__)

_BATCH = 64
_LEARN_FROM = 2000


def run(work: Work) -> Report:
    """Writes tokens.parquet in the prompts' order, streamed; every answer is in a sample or left out with a reason."""
    shard = work.shard
    left_out: Counter[str] = Counter()
    captures: Counter[str] = Counter()
    samples = tokens = supervised = exact = answers = 0
    metadata = read_metadata(shard.prompts) | {"prompts_digest": file_digest(shard.prompts)}
    with Ledger(shard.ledger) as ledger, parquet_writer(shard.tokens, SAMPLES, metadata) as file:
        offsets = _offsets(work, ledger)
        for batch in batched(answered(work, ledger), _BATCH):
            for turns in _turns(work, batch, offsets, left_out):
                answers += len(turns)
                for sample in samples_of(turns):
                    file.write(as_row(sample))
                    samples += 1
                    tokens += len(sample.input_ids)
                    supervised += int(np.count_nonzero(sample.loss_mask))
                    exact += sample.round_trip_exact
                    captures[sample.capture] += 1
    return {
        "samples": samples,
        "answers": answers,
        "tokens": tokens,
        "supervised_tokens": supervised,
        "left_out": dict(left_out),
        "round_trip_exact": exact,
        "captures": dict(captures),
        "count_offsets": offsets,
        "file": str(shard.tokens),
    }


def as_row(sample: TokenSample) -> dict[str, Any]:
    """The sample with the contract's columns."""
    return dict(vars(sample)) | {"seq_len": len(sample.input_ids)}


def _turns(
    work: Work, batch: Sequence[Walked], offsets: Mapping[str, int], left_out: Counter[str]
) -> Iterator[list[Turn]]:
    """The usable turns of each conversation, the whole batch decoded and encoded together."""
    target = work.target
    for walked in batch:
        left_out.update(walked.left_out)
    asked = [turn for walked in batch for turn in walked.turns]
    texts = iter(_from_text(work, asked, offsets))
    found = [next(texts) if turn.record.text else _direct(turn) for turn in asked]
    made = iter(zip(asked, found, round_trips(found, target), strict=True))
    for walked in batch:
        turns: list[Turn] = []
        for position in range(len(walked.turns)):
            turn, one, exact = next(made)
            reason = one.left_out or _not_taken(one, work.spec.limits)
            if reason or len(turns) < position:
                left_out[reason or AFTER_ONE_LEFT_OUT] += 1
            else:
                turns.append(_turn(turn, one, exact))
        yield turns


def _turn(asked: Asked, one: Reconstruction, exact: bool) -> Turn:
    record = asked.record
    return Turn(
        sample_id=asked.request.sample_id,
        prompt_ids=asked.prompt_ids,
        output_ids=one.output_ids,
        capture=one.capture,
        count_delta=one.count_delta,
        round_trip_exact=exact,
        engine=record.engine,
        provider=record.provider,
        model=record.model,
        finish_reason=record.finish_reason,
        source_row=asked.source_row,
    )


def _direct(asked: Asked) -> Reconstruction:
    """The ids that the engine wrote, nothing decoded or encoded in between."""
    ids: Ids = np.asarray(asked.record.output_ids, np.int32)
    said = asked.record.completion_tokens
    return Reconstruction(ids, "direct", None if said is None else said - len(ids))


def _from_text(work: Work, asked: Sequence[Asked], offsets: Mapping[str, int]) -> list[Reconstruction]:
    target = work.target
    texts = [turn for turn in asked if turn.record.text]
    answers = [TextAnswer.of(turn.record.text or {}) for turn in texts]
    openings = [target.opening_of(turn.prompt_ids) for turn in texts]
    thinking = [opening.thinking if opening else "none" for opening in openings]
    return reconstruct(answers, thinking, target, offsets)


def _offsets(work: Work, ledger: Ledger) -> dict[str, int]:
    """Each provider's constant difference in token counts, from the shard's first answers."""
    turns = (turn for walked in answered(work, ledger) for turn in walked.turns)
    pairs: list[tuple[str, int | None]] = []
    for batch in batched((turn for turn in islice(turns, _LEARN_FROM) if turn.record.text), _BATCH):
        for turn, one in zip(batch, _from_text(work, batch, {}), strict=True):
            if not one.left_out:
                pairs.append((turn.record.provider, one.count_delta))
    learned = learn_offsets(pairs)
    for provider, offset in learned.items():
        if offset:
            log.info("%s counts %+d tokens against ours, always: taken off", provider, offset)
    return learned


def _not_taken(one: Reconstruction, limits: Limits) -> str:
    """Why a text capture isn't taken although it looks whole: its tokens weren't seen, or their count doesn't fit."""
    if one.capture == "direct":
        return ""
    if one.count_delta is None:
        return "no token count to check the text by"
    if abs(one.count_delta) > limits.max_count_delta:
        return "the token count differs from the provider's"
    kept = one.proven or limits.unproven_text == "keep"
    return "" if kept else "only a count speaks for the tokens of the text"

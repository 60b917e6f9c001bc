"""Prompt and answer → training sample, with a mask over what the model wrote."""

from __future__ import annotations

from collections.abc import Sequence

from include.core.records import GenerationRecord, PromptRecord, TokenSample
from include.tokens.target import Target


def direct_sample(prompt: PromptRecord, answer: GenerationRecord, target: Target) -> TokenSample:
    """Capture *direct*: the ids that the engine read and wrote, nothing decoded or encoded in between."""
    prompt_ids, output_ids = list(prompt.prompt_ids), list(answer.output_ids)
    reported = answer.completion_tokens
    return TokenSample(
        sample_id=prompt.sample_id,
        input_ids=prompt_ids + output_ids,
        loss_mask=[0] * len(prompt_ids) + [1] * len(output_ids),
        prompt_len=len(prompt_ids),
        capture="direct",
        count_delta=None if reported is None else reported - len(output_ids),
        round_trip_exact=round_trips(output_ids, target),
        engine=answer.engine,
        provider=answer.provider,
        model=answer.model,
        finish_reason=answer.finish_reason,
        source_row=prompt.source_row,
    )


def round_trips(ids: Sequence[int], target: Target) -> bool:
    """Whether decoding and encoding again gives the same ids; sampled ids need not be canonical."""
    return target.encode(target.decode(ids), control_tokens=True) == list(ids)

"""The records that stages hand on inside a process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Message:
    """One message of a conversation, as the chat template takes it."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True)
class Conversation:
    """A source row as messages; `sample_id` is stable (dataset, row digest, turn)."""

    sample_id: str
    messages: tuple[Message, ...]
    source_row: str
    row_digest: str


@dataclass(frozen=True)
class PromptRecord:
    """A rendered prompt: exactly the ids that the target will read."""

    sample_id: str
    prompt_ids: Sequence[int]
    source_row: str


Outcome = Literal["answered", "left_out", "failed"]


@dataclass(frozen=True)
class GenerationRecord:
    """One finished request, as the ledger keeps it.

    answered: usable. left_out: final, for `reason` (truncated, empty, rejected). failed: asked again next time.
    `output_ids` are the engine's own, stop token included; a truncated answer keeps what it has.
    """

    sample_id: str
    request: str
    outcome: Outcome
    reason: str
    finish_reason: str
    output_ids: Sequence[int]
    prompt_tokens: int | None
    completion_tokens: int | None
    engine: str
    provider: str
    model: str
    attempts: int
    seconds: float
    at: str


@dataclass(frozen=True)
class TokenSample:
    """A training sample: one row of the Parquet contract (see core/schema.py for the columns)."""

    sample_id: str
    input_ids: Sequence[int]
    loss_mask: Sequence[int]
    prompt_len: int
    capture: Literal["direct", "logprobs", "text"]
    count_delta: int | None
    round_trip_exact: bool
    engine: str
    provider: str
    model: str
    finish_reason: str
    source_row: str

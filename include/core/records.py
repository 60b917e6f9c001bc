"""The records that stages hand on inside a process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Role = Literal["system", "user", "assistant", "tool"]
Ids = NDArray[np.int32]
Mask = NDArray[np.uint8]


@dataclass(frozen=True)
class ToolCall:
    """A call that an assistant message makes; `arguments` is the JSON text as it was written."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Message:
    """One message of a conversation, as the chat template takes it. Nothing of it is control text."""

    role: Role
    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""


@dataclass(frozen=True)
class Conversation:
    """A source row as messages; `sample_id` is stable (dataset, row digest, turn).

    `tools` are declarations in OpenAI's format. `thinking` overrides the dataset's choice for this row.
    """

    sample_id: str
    messages: tuple[Message, ...]
    source_row: str
    row_digest: str
    tools: tuple[Mapping[str, Any], ...] = ()
    thinking: bool | None = None


Capture = Literal["direct", "logprobs", "text"]
Outcome = Literal["answered", "left_out", "failed", "discarded"]


@dataclass(frozen=True)
class TextAnswer:
    """What a provider that gives no token ids said of one answer; all text exactly as it came.

    `deltas` are the stream's pieces as (field, text), field one of reasoning, content; `token_bytes` are the bytes of
    each token from `logprobs`, control tokens included.
    """

    reasoning: str = ""
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str = "stop"
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    provider: str = ""
    deltas: tuple[tuple[str, str], ...] = ()
    token_bytes: tuple[bytes, ...] = ()

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> TextAnswer:
        """From a GenerationRecord's `text`, as JSON gives it back."""
        known = dict(value)
        calls = tuple(ToolCall(**call) for call in known.pop("tool_calls", ()))
        deltas = tuple((str(field), str(text)) for field, text in known.pop("deltas", ()))
        token_bytes = tuple(bytes(token) for token in known.pop("token_bytes", ()))
        return cls(**known, tool_calls=calls, deltas=deltas, token_bytes=token_bytes)


@dataclass(frozen=True)
class GenerationRecord:
    """One finished request, as the ledger keeps it.

    answered: usable. left_out: final, for `reason` (truncated, empty, rejected). failed: asked again next time.
    discarded: an answer that the audit found malformed and that a run was told to ask for again.
    `output_ids` are the engine's own, stop token included; a truncated answer keeps what it has. An engine that gives
    no ids leaves them empty and fills `text` (a TextAnswer as a mapping).
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
    text: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class TokenSample:
    """A training sample: one row of the Parquet contract (see core/schema.py for the columns)."""

    sample_id: str
    input_ids: Ids
    loss_mask: Mask
    prompt_len: int
    capture: Capture
    count_delta: int | None
    round_trip_exact: bool
    engine: str
    provider: str
    model: str
    finish_reason: str
    source_row: str

"""The pyarrow schemas of the files that stages hand on. SAMPLES is the public contract, version 1.

eagle3/contract.py writes the same schema down for the training side; a test holds the two equal.
"""

from __future__ import annotations

import pyarrow as pa

SCHEMA_VERSION = "1"

_LABEL = pa.dictionary(pa.int32(), pa.string())

PROMPTS = pa.schema(
    [
        pa.field("sample_id", pa.string(), nullable=False),
        pa.field("prompt_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("source_row", pa.string(), nullable=False),
        # JSON of the whole conversation where more than one answer is generated, else null
        pa.field("conversation", pa.string(), nullable=True),
    ]
)

SAMPLES = pa.schema(
    [
        pa.field("sample_id", pa.string(), nullable=False),
        pa.field("input_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("loss_mask", pa.list_(pa.uint8()), nullable=False),
        pa.field("prompt_len", pa.int32(), nullable=False),
        pa.field("seq_len", pa.int32(), nullable=False),
        pa.field("capture", _LABEL, nullable=False),
        pa.field("count_delta", pa.int32(), nullable=True),
        pa.field("round_trip_exact", pa.bool_(), nullable=False),
        pa.field("engine", _LABEL, nullable=False),
        pa.field("provider", _LABEL, nullable=False),
        pa.field("model", _LABEL, nullable=False),
        pa.field("finish_reason", _LABEL, nullable=False),
        pa.field("source_row", pa.string(), nullable=False),
    ]
)

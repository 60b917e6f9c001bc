"""Tiny random targets and shards, made for one test run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from eagle3.contract import SAMPLES

VOCAB = 97
METADATA = {
    "schema_version": "1",
    "dataset": "tiny",
    "target": "tiny-llama",
    "tokenizer_digest": "t",
    "template_digest": "u",
    "special_tokens": '{"end_of_turn": 2}',
    "control_tokens": '{"<a>": 0, "<b>": 1, "<c>": 2}',
    "audit_verdict": "pass",
}
MakeShard = Callable[..., Path]


def row(number: int, ids: Sequence[int], mask: Sequence[int]) -> dict[str, Any]:
    return {
        "sample_id": f"tiny-{number:04d}",
        "input_ids": list(ids),
        "loss_mask": list(mask),
        "prompt_len": max(1, list(mask).index(1) if 1 in mask else len(mask)),
        "seq_len": len(ids),
        "capture": "direct",
        "count_delta": 0,
        "round_trip_exact": True,
        "engine": "vllm",
        "provider": "p",
        "model": "m",
        "finish_reason": "stop",
        "source_row": f"r:{number}",
    }


def samples(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Samples of 8 to 40 tokens whose answers follow a pattern that a draft can learn."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for number in range(count):
        prompt = int(torch.randint(3, 12, (1,), generator=generator))
        answer = int(torch.randint(5, 28, (1,), generator=generator))
        start = int(torch.randint(3, VOCAB, (1,), generator=generator))
        ids = [3 + (start + 7 * i) % (VOCAB - 3) for i in range(prompt + answer - 1)] + [2]
        rows.append(row(number, ids, [0] * prompt + [1] * answer))
    return rows


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of 7 layers, hidden 32, grouped-query attention."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=7,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        initializer_range=0.2,  # so that it has opinions: a flat distribution can't be learnt
    )
    folder = tmp_path_factory.mktemp("target") / "tiny-llama"
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def make_shard(tmp_path: Path) -> MakeShard:
    """make_shard(rows, name=…, schema=…, **metadata): writes a Parquet shard; metadata of None is left out."""

    def make(
        rows: list[dict[str, Any]] | None = None,
        *,
        name: str = "shard.parquet",
        schema: pa.Schema = SAMPLES,
        **metadata: str | None,
    ) -> Path:
        described = {k: v for k, v in {**METADATA, **metadata}.items() if v is not None}
        table = pa.Table.from_pylist(
            samples(12) if rows is None else rows, schema=schema.with_metadata(described)
        )
        pq.write_table(table, tmp_path / name)
        return tmp_path / name

    return make

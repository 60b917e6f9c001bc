"""Shards → the samples of a run, as flat arrays, and the steps that go through them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from eagle3.contract import Shards
from eagle3.errors import Eagle3Error

# the first label stands two positions behind the first feature: nothing predicts the tokens before it
FIRST_LABEL = 2
_LANES = 8


@dataclass(frozen=True)
class Dataset:
    """All samples one behind the other, five bytes a token: ids [N] int32, mask [N] uint8, starts [S + 1] int64."""

    sample_ids: tuple[str, ...]
    ids: NDArray[np.int32]
    mask: NDArray[np.uint8]
    starts: NDArray[np.int64]
    labels: NDArray[np.int64]  # [S]: tokens that step 0 predicts
    cut: int
    left_out: int
    digest: str  # SHA-256 in hex over the rows as they were read

    def __len__(self) -> int:
        return len(self.sample_ids)

    @property
    def lengths(self) -> list[int]:
        """[S]: tokens of each sample."""
        return np.diff(self.starts).tolist()  # type: ignore[no-any-return]

    @property
    def tokens(self) -> int:
        """All tokens."""
        return len(self.ids)

    @property
    def supervised(self) -> int:
        """Tokens with a mask of 1."""
        return int(self.mask.sum())

    def sample(self, number: int) -> tuple[Tensor, Tensor]:
        """(ids, mask) of a sample, both [T] int64."""
        where = slice(self.starts[number], self.starts[number + 1])
        return torch.from_numpy(self.ids[where]).long(), torch.from_numpy(self.mask[where]).long()


def load(shards: Shards, vocab_size: int, max_seq_len: int) -> Dataset:
    """Reads the samples, checks ids and masks, and cuts what is too long where labels remain: counted, never silent."""
    names: list[str] = []
    parts: list[tuple[NDArray[Any], ...]] = []
    digest, cut, left_out = hashlib.sha256(), 0, 0
    for path, rows in shards.batches():
        sample_ids = rows.column("sample_id").to_pylist()
        lengths, ids, mask = _columns(path, sample_ids, rows, vocab_size)
        for part in ("\0".join(sample_ids).encode(), lengths.tobytes(), ids.tobytes(), mask.tobytes()):
            digest.update(part)
        place = np.arange(len(ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        cut += int((lengths > max_seq_len).sum())
        inside = place < max_seq_len
        labels = _sum_by_sample(mask * (inside & (place >= FIRST_LABEL)), lengths)
        kept = labels > 0
        left_out += int((~kept).sum())
        inside &= np.repeat(kept, lengths)
        names += [name for name, keep in zip(sample_ids, kept, strict=True) if keep]
        parts.append((np.minimum(lengths, max_seq_len)[kept], labels[kept], ids[inside], mask[inside]))
    if not names:
        raise Eagle3Error(
            f"No sample is left to train on: max_seq_len {max_seq_len} cuts every answer off ({left_out} left out). "
            "Raise `max_seq_len`."
        )
    lengths, labels, ids, mask = (np.concatenate(column) for column in zip(*parts, strict=True))
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return Dataset(tuple(names), ids, mask, starts, labels, cut, left_out, digest.hexdigest())


def steps_of_epoch(lengths: Sequence[int], batch_tokens: int, seed: int, epoch: int) -> list[list[int]]:
    """Sample numbers by step: shuffled by (seed, epoch), as many as fit into `batch_tokens`.

    The steps don't depend on the number of ranks, so one rank and several see the same sums. Samples are shuffled
    within eight lanes that take turns, so that the ranks of a step get equally many (see `of_rank`).
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    turn = torch.randperm(len(lengths), generator=generator)
    lane = turn % _LANES
    round_of_lane = torch.empty_like(turn)
    for number in range(_LANES):
        mine = lane == number
        round_of_lane[mine] = torch.arange(int(mine.sum()))
    steps: list[list[int]] = [[]]
    used = 0
    for number in turn[torch.sort(round_of_lane, stable=True).indices].tolist():
        if steps[-1] and used + lengths[number] > batch_tokens:
            steps.append([])
            used = 0
        steps[-1].append(number)
        used += lengths[number]
    return steps


def of_rank(step: Sequence[int], rank: int, world_size: int) -> list[int]:
    """The samples of a step that this rank trains: always the same rank for a sample, so features can be kept."""
    return [number for number in step if number % world_size == rank]


def _columns(
    path: Path, sample_ids: Sequence[str], rows: pa.RecordBatch, vocab_size: int
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.uint8]]:
    """(lengths, ids, mask) of a batch of rows, or a sentence on the first sample that is malformed."""

    def refuse_where(faulty: NDArray[np.bool_], why: str) -> None:
        if faulty.any():
            first = sample_ids[int(faulty.argmax())]
            raise Eagle3Error(
                f"{path}: {first} {why} ({int(faulty.sum())} such here). Export the shard again."
            )

    lists = [rows.column(name) for name in ("input_ids", "loss_mask")]
    lengths, masked = (np.diff(column.offsets.to_numpy()).astype(np.int64) for column in lists)
    ids, mask = (column.flatten().to_numpy(zero_copy_only=False) for column in lists)
    refuse_where(lengths != masked, "has more ids than mask entries, or fewer")
    refuse_where(lengths != rows.column("seq_len").to_numpy(), "has another seq_len than it has ids")
    refuse_where(_sum_by_sample(mask > 1, lengths) > 0, "has mask entries other than 0 and 1")
    refuse_where(_sum_by_sample(mask, lengths) == 0, "has a mask that is all zero")
    outside = _sum_by_sample((ids < 0) | (ids >= vocab_size), lengths)
    refuse_where(
        outside > 0, f"has ids outside the target's vocabulary of {vocab_size}; is it of another target?"
    )
    return lengths, ids, mask


def _sum_by_sample(values: NDArray[Any], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """[N] → [S]: the sum of each sample's values."""
    sums = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
    ends = np.cumsum(lengths)
    return sums[ends] - sums[ends - lengths]  # type: ignore[no-any-return]

"""Samples → steps: the same order for the same seed, the same steps for any number of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3.contract import Sample
from eagle3.errors import Eagle3Error

# the first supervised label of step 0 stands two positions behind the first feature
MIN_LENGTH = 3


@dataclass(frozen=True)
class Dataset:
    """The samples that are trained on, and what was cut or left out on the way."""

    samples: tuple[Sample, ...]
    cut: int
    left_out: int

    @property
    def tokens(self) -> int:
        """All tokens."""
        return sum(len(s.input_ids) for s in self.samples)

    @property
    def supervised(self) -> int:
        """Tokens with a mask of 1."""
        return sum(sum(s.loss_mask) for s in self.samples)


def select(samples: Iterable[Sample], vocab_size: int, max_seq_len: int) -> Dataset:
    """Checks ids and masks and cuts what is too long, where supervised tokens remain; counted, never silent."""
    kept: list[Sample] = []
    cut = left_out = 0
    for s in samples:
        if len(s.input_ids) != len(s.loss_mask):
            raise Eagle3Error(
                f"{s.sample_id} has {len(s.input_ids)} ids and {len(s.loss_mask)} mask entries."
            )
        if s.input_ids and not 0 <= min(s.input_ids) <= max(s.input_ids) < vocab_size:
            raise Eagle3Error(
                f"{s.sample_id} has ids outside the target's vocabulary of {vocab_size}. "
                "Is `target_model` the model that the shard was made with?"
            )
        if not any(s.loss_mask):
            raise Eagle3Error(
                f"{s.sample_id} has a mask that is all zero. The shard is malformed: export it again."
            )
        if len(s.input_ids) > max_seq_len:
            cut += 1
            s = Sample(s.sample_id, s.input_ids[:max_seq_len], s.loss_mask[:max_seq_len])
        if not any(s.loss_mask[2:]) or len(s.input_ids) < MIN_LENGTH:
            left_out += 1
            continue
        kept.append(s)
    if not kept:
        raise Eagle3Error(f"No sample is left to train on ({left_out} left out). Raise `max_seq_len`.")
    return Dataset(tuple(kept), cut, left_out)


def steps_of_epoch(lengths: Sequence[int], batch_tokens: int, seed: int, epoch: int) -> list[list[int]]:
    """Sample numbers by step: shuffled by (seed, epoch), as many as fit into `batch_tokens` without padding.

    The steps don't depend on the number of ranks, so one rank and several see the same sums.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order = torch.randperm(len(lengths), generator=generator).tolist()
    steps: list[list[int]] = [[]]
    used = 0
    for number in order:
        if steps[-1] and used + lengths[number] > batch_tokens:
            steps.append([])
            used = 0
        steps[-1].append(number)
        used += lengths[number]
    return steps


def of_rank(step: Sequence[int], rank: int, world_size: int) -> list[int]:
    """The samples of a step that this rank trains: always the same rank for a sample, so features can be kept."""
    return [number for number in step if number % world_size == rank]


def pad(samples: Sequence[Sample]) -> tuple[Tensor, Tensor]:
    """(ids, mask), both [B, T] int64, padded on the right with 0: causal attention never looks there."""
    longest = max(len(s.input_ids) for s in samples)
    ids = torch.zeros(len(samples), longest, dtype=torch.int64)
    mask = torch.zeros(len(samples), longest, dtype=torch.int64)
    for row, sample in enumerate(samples):
        ids[row, : len(sample.input_ids)] = torch.tensor(sample.input_ids)
        mask[row, : len(sample.loss_mask)] = torch.tensor(sample.loss_mask)
    return ids, mask

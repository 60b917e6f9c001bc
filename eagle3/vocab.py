"""The draft vocabulary: the tokens that the target writes most, and the mapping both ways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from eagle3.data import Dataset
from eagle3.errors import Eagle3Error


@dataclass(frozen=True)
class DraftVocab:
    """`ids` [D] int64, ascending: the target id of each draft id."""

    ids: Tensor
    vocab_size: int

    @property
    def size(self) -> int:
        """D, the number of draft ids."""
        return int(self.ids.numel())

    @property
    def pruned(self) -> bool:
        """Whether the draft knows fewer tokens than the target."""
        return self.size < self.vocab_size

    @property
    def d2t(self) -> Tensor:
        """[D] int64 *offsets*: target id = draft id + d2t[draft id], as vLLM and SGLang read it."""
        return self.ids - torch.arange(self.size)

    @property
    def t2d(self) -> Tensor:
        """[V] bool: whether the draft knows the target id."""
        known = torch.zeros(self.vocab_size, dtype=torch.bool)
        known[self.ids] = True
        return known


def supervised_counts(data: Dataset, vocab_size: int) -> Tensor:
    """[V] int64: how often each id stands under a mask of 1."""
    return torch.from_numpy(np.bincount(data.ids[data.mask == 1], minlength=vocab_size))


def choose(counts: Tensor, size: int | None, control_ids: Sequence[int]) -> DraftVocab:
    """The control tokens, then the most frequent ids (the lower id where counts are equal), exactly `size` of them."""
    vocab_size = int(counts.numel())
    if size is None or size >= vocab_size:
        return DraftVocab(torch.arange(vocab_size), vocab_size)
    known = [i for i in control_ids if 0 <= i < vocab_size]
    if len(known) > size:
        raise Eagle3Error(
            f"draft_vocab_size {size} is smaller than the {len(known)} control tokens. Raise it."
        )
    weight = counts.clone()
    weight[known] = torch.iinfo(torch.int64).max
    order = torch.sort(weight, descending=True, stable=True).indices[:size]
    return DraftVocab(torch.sort(order).values, vocab_size)

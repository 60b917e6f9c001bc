"""Training-time test: the draft is trained on its own outputs, K steps deep (EAGLE-3, section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from eagle3.draft import Draft, Past


@dataclass(frozen=True)
class Batch:
    """Samples one behind the other, N tokens in all: ids and mask [N], aux [N, 3H], last [N, H], their lengths.

    `last` is the target's last hidden state after its final norm: what its head reads.
    """

    ids: Tensor
    mask: Tensor
    aux: Tensor
    last: Tensor
    lengths: Sequence[int]

    def positions(self) -> Tensor:
        """[N] int64: each token's place in its sample."""
        return torch.cat([torch.arange(length, device=self.ids.device) for length in self.lengths])


@dataclass(frozen=True)
class Sums:
    """Sums over a batch, to be divided by the counts over all ranks.

    loss: weighted by step, scalar. Per step, [K]: labels, hits (labels that the draft's best guess matched), chained
    (labels matched together with those of all steps before, from the same position).
    """

    loss: Tensor
    labels: Tensor
    hits: Tensor
    chained: Tensor


def training_time_test(
    draft: Draft,
    batch: Batch,
    embedding: Tensor,
    target_head: Tensor,
    draft_ids: Tensor,
    length: int,
    step_weight: float,
) -> Sums:
    """Runs `length` steps. embedding [V, H], target_head [D, H] (rows of the draft vocabulary), draft_ids [D].

    Step k at position t reads the token x[t+1+k] and predicts x[t+2+k]: the target's distribution after reading up
    to t+1+k. Ids, distributions and mask are shifted together, and the mask is that of the predicted token.
    """
    positions = batch.positions()
    label = (
        ((batch.mask == 1) & (positions >= 2)).nonzero().squeeze(1)
    )  # where in N the predicted tokens stand
    with torch.no_grad():
        wanted = F.linear(batch.last[label - 1].to(target_head.dtype), target_head).float().softmax(-1)
    rows, row_of = _going_on(label, positions, length)
    past = Past(batch.lengths, rows)
    hidden = draft.combine(batch.aux)
    loss = hidden.new_zeros((), dtype=torch.float32)
    alive = torch.ones_like(rows, dtype=torch.bool)
    labels, hits, chained = torch.zeros(3, length, device=hidden.device)
    for k in range(length):
        read, place = _following(batch, positions, 1 + k), positions + k
        if k > 0:
            read, place = read[rows], place[rows]
            reached = positions[label] >= 2 + k  # nearer to its sample's start no position predicts it
            if not reached.all():
                label, wanted = label[reached], wanted[reached]
        hidden = draft.step(F.embedding(read, embedding).to(hidden.dtype), hidden, place, past)
        at = row_of[label - (2 + k)]
        logits = draft.logits(hidden[at]).float()
        loss = loss + step_weight**k * F.cross_entropy(logits, wanted, reduction="sum")
        with torch.no_grad():
            hit = draft_ids[logits.argmax(-1)] == batch.ids[label]
            alive[at] &= hit
            labels[k], hits[k], chained[k] = len(label), hit.sum(), alive[at].sum()
    return Sums(loss, labels, hits, chained)


def _going_on(label: Tensor, positions: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """(rows [M], row_of [N]): the positions from which a label is predicted in some step, and their numbers in M."""
    going = torch.zeros_like(positions, dtype=torch.bool)
    for k in range(length):
        going[label[positions[label] >= 2 + k] - (2 + k)] = True
    return going.nonzero().squeeze(1), going.cumsum(0) - 1


def _following(batch: Batch, positions: Tensor, by: int) -> Tensor:
    """[N]: the id `by` tokens on in the same sample, 0 where the sample has ended."""
    ends = torch.tensor(batch.lengths, device=positions.device).repeat_interleave(
        torch.tensor(batch.lengths, device=positions.device)
    )
    inside = positions + by < ends
    return torch.where(inside, batch.ids.roll(-by), 0)

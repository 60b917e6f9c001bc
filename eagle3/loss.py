"""Training-time test: the draft is trained on its own outputs, K steps deep (EAGLE-3, section 3.2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from eagle3.draft import Draft, StepKeys


@dataclass(frozen=True)
class Batch:
    """ids and mask [B, T] (int64), aux [B, T, 3H], last [B, T, H] (after the target's final norm)."""

    ids: Tensor
    mask: Tensor
    aux: Tensor
    last: Tensor


@dataclass(frozen=True)
class Sums:
    """Sums over a batch, to be divided by the counts over all ranks.

    loss: weighted by step, scalar. supervised: labels of step 0. labels, hits, alive: [K], per step: labels, labels
    that the draft's best guess matched, labels matched together with all steps before.
    """

    loss: Tensor
    supervised: Tensor
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
    tokens = batch.ids.shape[1]
    positions = torch.arange(tokens, device=batch.ids.device).expand_as(batch.ids)
    hidden = draft.fc(batch.aux)
    past = StepKeys()
    loss = hidden.new_zeros(())
    alive = torch.ones_like(batch.ids, dtype=torch.bool)
    labels, hits, chained = (torch.zeros(length, device=hidden.device) for _ in range(3))
    for k in range(length):
        read, label = _shift(batch.ids, 1 + k), _shift(batch.ids, 2 + k)
        supervised = _shift(batch.mask, 2 + k) == 1
        hidden = draft.step(F.embedding(read, embedding), hidden, positions + k, past)
        where = supervised.nonzero(as_tuple=True)
        logits = draft.logits(hidden[where]).float()
        wanted = F.linear(_shift(batch.last, 1 + k)[where].to(target_head.dtype), target_head).float()
        loss = loss + step_weight**k * _soft_cross_entropy(logits, wanted)
        with torch.no_grad():
            hit = draft_ids[logits.argmax(-1)] == label[where]
            alive = alive.index_put(where, alive[where] & hit)
            labels[k], hits[k], chained[k] = len(where[0]), hit.sum(), alive[where].sum()
    return Sums(loss, labels[0].clone(), labels, hits, chained)


def _soft_cross_entropy(logits: Tensor, wanted: Tensor) -> Tensor:
    """Sum over N of −Σ softmax(wanted) · log softmax(logits); both [N, D] float32."""
    return -(wanted.softmax(-1) * logits.log_softmax(-1)).sum()


def _shift(x: Tensor, by: int) -> Tensor:
    """x[:, t] ← x[:, t + by] along dimension 1, zeros where nothing follows."""
    shifted = torch.zeros_like(x)
    if by < x.shape[1]:
        shifted[:, : x.shape[1] - by] = x[:, by:]
    return shifted

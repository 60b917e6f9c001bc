"""The attention of training-time test: a causal prefix and, from step 1 on, a diagonal for each step (section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

# queries at once: the scores of one block are the most that is ever in memory
BLOCK = 512


def attend(
    q: Tensor,
    places: Tensor,
    prefix: tuple[Tensor, Tensor],
    own: Sequence[tuple[Tensor, Tensor]],
    block: int = BLOCK,
) -> Tensor:
    """One sample's attention at step k: q [heads, M, D] of M queries at `places` [M] (ascending) → [heads, M, D].

    `prefix` is the keys and values [kv_heads, T, D] of step 0, `own` those [kv_heads, M, D] of the steps 1 … k. A
    query at place t sees the prefix up to t, and of the later steps only its own: the tokens that the draft has
    proposed on from there. So memory grows with T, not with T × kT: long samples go block by block, and the scores of
    a block are computed again in the backward pass.
    """
    flat = [x for pair in own for x in pair]
    if len(places) <= block:
        return _block(q, places, *prefix, *flat)
    blocks = []
    for start in range(0, len(places), block):
        one = slice(start, start + block)
        seen = int(places[one][-1]) + 1
        inputs = [q[:, one], places[one], *(x[:, :seen] for x in prefix), *(x[:, one] for x in flat)]
        blocks.append(checkpoint(_block, *inputs, use_reentrant=False))
    return torch.cat(blocks, dim=1)


def _block(q: Tensor, places: Tensor, keys: Tensor, values: Tensor, *own: Tensor) -> Tensor:
    heads, rows, size = q.shape
    kv_heads, seen = keys.shape[:2]
    grouped = q.reshape(kv_heads, -1, rows, size) * size**-0.5
    future = torch.arange(seen, device=q.device) > places[:, None]
    scores = (grouped.flatten(1, 2) @ keys.transpose(-1, -2)).view(kv_heads, -1, rows, seen)
    diagonals = [(grouped * key[:, None]).sum(-1, keepdim=True) for key in own[::2]]
    scores = torch.cat([scores.masked_fill(future, float("-inf")), *diagonals], dim=-1)
    weights = scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(scores.dtype)
    mixed = (weights[..., :seen].flatten(1, 2) @ values).view_as(grouped)
    for step, value in enumerate(own[1::2]):
        mixed = mixed + weights[..., seen + step, None] * value[:, None]
    return mixed.reshape(heads, rows, size)

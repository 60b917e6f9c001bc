"""The attention of training-time test: a causal prefix and, from step 1 on, a diagonal for each step (section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

# rows of queries at once: the scores of one block are the most that is ever in memory
BLOCK = 512


def attend(q: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], block: int = BLOCK) -> Tensor:
    """One sample's attention at step k: q [heads, T, D]; keys and values of the steps 0 … k, each [kv_heads, T, D].

    Position t sees the keys of step 0 up to t, and of the later steps only its own: the tokens that the draft has
    proposed on from there. So memory grows with T, not with T × kT: long samples go block by block, and the scores
    of a block are computed again in the backward pass.
    """
    length = q.shape[1]
    if length <= block:
        return _block(q, 0, *keys, *values)
    blocks = []
    for start in range(0, length, block):
        stop = min(start + block, length)
        seen = [x[:, :stop] for x in (*keys, *values)]
        blocks.append(checkpoint(_block, q[:, start:stop], start, *seen, use_reentrant=False))
    return torch.cat(blocks, dim=1)


def _block(q: Tensor, start: int, *keys_and_values: Tensor) -> Tensor:
    """Queries [heads, b, D] of the positions start … start + b − 1, which are the last b of the keys."""
    steps = len(keys_and_values) // 2
    keys, values = keys_and_values[:steps], keys_and_values[steps:]
    heads, rows, size = q.shape
    kv_heads, seen = keys[0].shape[:2]
    grouped = q.view(kv_heads, -1, rows, size) * size**-0.5
    future = torch.ones(rows, seen, dtype=torch.bool, device=q.device).triu(start + 1)
    prefix = (grouped.flatten(1, 2) @ keys[0].transpose(-1, -2)).view(kv_heads, -1, rows, seen)
    own = [(grouped * key[:, None, start:]).sum(-1, keepdim=True) for key in keys[1:]]
    scores = torch.cat([prefix.masked_fill(future, float("-inf")), *own], dim=-1)
    weights = scores.softmax(dim=-1)
    mixed = (weights[..., :seen].flatten(1, 2) @ values[0]).view_as(grouped)
    for step, value in enumerate(values[1:]):
        mixed = mixed + weights[..., seen + step, None] * value[:, None, start:]
    return mixed.reshape(heads, rows, size)

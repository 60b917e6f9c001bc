"""The EAGLE-3 draft in the Llama layout that vLLM and SGLang serve (EAGLE-3, arXiv 2503.01840, section 3.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from eagle3.attention import attend
from eagle3.errors import Eagle3Error


def llama_config(target: Any, draft_vocab_size: int) -> LlamaConfig:
    """A one-layer Llama of the target's width, heads and rope (its scaling included)."""
    hidden, heads = int(target.hidden_size), int(target.num_attention_heads)
    rope = getattr(target, "rope_parameters", None)
    if not rope:
        raise Eagle3Error(
            "The target's config has no rope parameters: this draft can't follow its positions."
        )
    config = LlamaConfig(
        vocab_size=target.vocab_size,
        hidden_size=hidden,
        intermediate_size=target.intermediate_size,
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=getattr(target, "num_key_value_heads", None) or heads,
        head_dim=getattr(target, "head_dim", None) or hidden // heads,
        max_position_embeddings=target.max_position_embeddings,
        rms_norm_eps=target.rms_norm_eps,
        rope_parameters=rope,
        bos_token_id=target.bos_token_id,
        eos_token_id=target.eos_token_id,
        pad_token_id=getattr(target, "pad_token_id", None),
        tie_word_embeddings=False,
    )
    config.draft_vocab_size = draft_vocab_size
    return config


@dataclass
class Past:
    """What the steps so far have left for attention, for samples of these `lengths` one behind the other.

    `rows` [M] says from which of the N positions the draft goes on, ascending: those from which a supervised token is
    predicted. The others, the prompt's mostly, only give keys and values in step 0. pairs: keys and values
    [kv_heads, N, D] of step 0 and [kv_heads, M, D] of the later steps.
    """

    lengths: Sequence[int]
    rows: Tensor
    pairs: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def samples(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """Per sample that has rows: its part of N, its part of M, and the places of its rows in it."""
        ends = torch.tensor([0, *self.lengths]).cumsum(0)
        bounds = torch.searchsorted(self.rows.cpu(), ends).tolist()
        for start, stop, first, last in zip(
            ends.tolist(), ends[1:].tolist(), bounds, bounds[1:], strict=False
        ):
            if last > first:
                yield slice(start, stop), slice(first, last), self.rows[first:last] - start


class Norm(nn.Module):
    """RMSNorm, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[…, H] → […, H]."""
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * normed.to(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention whose input is [embedding; hidden], 2 × H wide."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.head_dim: int = config.head_dim
        wide, heads, kv_heads = 2 * config.hidden_size, config.num_attention_heads, config.num_key_value_heads
        self.q_proj = nn.Linear(wide, heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(wide, kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(wide, kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(heads * self.head_dim, config.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, past: Past) -> Tensor:
        """x [N, 2H] in step 0, [M, 2H] later → [M, H]; appends this step's keys and values to `past`."""
        rows = slice(None) if past.pairs else past.rows
        q = _rotate(self._split(self.q_proj(x[rows])), cos[rows], sin[rows])
        past.pairs.append((_rotate(self._split(self.k_proj(x)), cos, sin), self._split(self.v_proj(x))))
        (keys, values), *later = past.pairs
        mixed = []
        for whole, part, places in past.samples():
            own = [(key[:, part], value[:, part]) for key, value in later]
            mixed.append(attend(q[:, part], places, (keys[:, whole], values[:, whole]), own))
        return self.o_proj(torch.cat(mixed, dim=1).transpose(0, 1).flatten(1))  # type: ignore[no-any-return]

    def _split(self, x: Tensor) -> Tensor:
        """[N, heads × D] → [heads, N, D]."""
        return x.view(x.shape[0], -1, self.head_dim).transpose(0, 1)


class Mlp(nn.Module):
    """Llama's gated MLP."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[…, H] → […, H]."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """The one decoder layer; its residual is the hidden state before hidden_norm, as the engines have it."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = Mlp(config)
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.hidden_norm = Norm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps)

    def forward(self, embeds: Tensor, hidden: Tensor, cos: Tensor, sin: Tensor, past: Past) -> Tensor:
        """embeds and hidden [N, H] in step 0, [M, H] later → [M, H]."""
        rows = slice(None) if past.pairs else past.rows
        both = torch.cat([self.input_layernorm(embeds), self.hidden_norm(hidden)], dim=-1)
        hidden = hidden[rows] + self.self_attn(both, cos, sin, past)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))  # type: ignore[no-any-return]


class Draft(nn.Module):
    """The draft; the names of its parameters are those of the exported weights."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(3 * config.hidden_size, config.hidden_size, bias=False)
        self.midlayer = Layer(config)
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.rotary = LlamaRotaryEmbedding(config)

    def start_from(self, head: Tensor, final_norm: Tensor, seed: int) -> None:
        """Starts the head and the norm as the target's own, fc as its last aux state, the rest small and random."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0.0, 0.02, generator=generator)
            hidden = self.config.hidden_size
            self.fc.weight[:, 2 * hidden :] += torch.eye(hidden)
            self.lm_head.weight.copy_(head)
            self.norm.weight.copy_(final_norm)

    def combine(self, aux: Tensor) -> Tensor:
        """aux [N, 3H] → [N, H]: what step 0 goes on from; the residual stays as wide as the weights."""
        return self.fc(aux).to(self.fc.weight.dtype)  # type: ignore[no-any-return]

    def step(self, embeds: Tensor, hidden: Tensor, positions: Tensor, past: Past) -> Tensor:
        """One step of the draft: [N, …] in step 0, [M, …] later → hidden [M, H], before the norm."""
        cos, sin = self.rotary(hidden, positions[None])
        return self.midlayer(embeds, hidden, cos[0], sin[0], past)  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor) -> Tensor:
        """[…, H] before the norm → […, D] over the draft vocabulary."""
        return self.lm_head(self.norm(hidden))  # type: ignore[no-any-return]


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin

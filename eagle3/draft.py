"""The EAGLE-3 draft in the Llama layout that vLLM and SGLang serve (EAGLE-3, arXiv 2503.01840, section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

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
class StepKeys:
    """Keys and values [B, heads, T, D] of the steps so far; step 0 is the whole prefix, the later ones diagonals."""

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)


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
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim: int = config.head_dim
        wide = 2 * config.hidden_size
        self.q_proj = nn.Linear(wide, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(wide, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(wide, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, past: StepKeys) -> Tensor:
        """x [B, T, 2H] → [B, T, H]; appends this step's keys and values to `past`.

        Position t of step k sees the prefix of step 0 up to t, and of the steps 1 … k only itself: the tokens that
        the draft has proposed on from there. So no T × kT mask is needed.
        """
        q = _rotate(self._split(self.q_proj(x), self.heads), cos, sin)
        k = _rotate(self._split(self.k_proj(x), self.kv_heads), cos, sin)
        v = self._split(self.v_proj(x), self.kv_heads)
        group = self.heads // self.kv_heads
        past.keys.append(k.repeat_interleave(group, dim=1))
        past.values.append(v.repeat_interleave(group, dim=1))
        scale = self.head_dim**-0.5
        length = x.shape[1]
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        prefix = (q @ past.keys[0].transpose(-1, -2) * scale).masked_fill(future, float("-inf"))
        own = [(q * key).sum(-1, keepdim=True) * scale for key in past.keys[1:]]
        weights = torch.cat([prefix, *own], dim=-1).float().softmax(dim=-1).to(q.dtype)
        mixed = weights[..., :length] @ past.values[0]
        for step, value in enumerate(past.values[1:]):
            mixed = mixed + weights[..., length + step : length + step + 1] * value
        return self.o_proj(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.view(*x.shape[:-1], heads, self.head_dim).transpose(1, 2)


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

    def forward(self, embeds: Tensor, hidden: Tensor, cos: Tensor, sin: Tensor, past: StepKeys) -> Tensor:
        """embeds and hidden [B, T, H] → [B, T, H]."""
        both = torch.cat([self.input_layernorm(embeds), self.hidden_norm(hidden)], dim=-1)
        hidden = hidden + self.self_attn(both, cos, sin, past)
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

    def step(self, embeds: Tensor, hidden: Tensor, positions: Tensor, past: StepKeys) -> Tensor:
        """One step of the draft: embeds and hidden [B, T, H], positions [B, T] → hidden [B, T, H], before the norm."""
        cos, sin = self.rotary(hidden, positions)
        return self.midlayer(embeds, hidden, cos.unsqueeze(1), sin.unsqueeze(1), past)  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor) -> Tensor:
        """[…, H] before the norm → […, D] over the draft vocabulary."""
        return self.lm_head(self.norm(hidden))  # type: ignore[no-any-return]


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin

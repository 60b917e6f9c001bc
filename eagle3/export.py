"""The draft folder that vLLM and SGLang load, validated after it is written."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from eagle3.draft import Draft
from eagle3.errors import Eagle3Error
from eagle3.vocab import DraftVocab


def write(
    folder: Path, draft: Draft, vocab: DraftVocab, aux_layers: Sequence[int], dtype: torch.dtype
) -> None:
    """Writes config.json and model.safetensors aside, validates them, and moves the folder into place.

    The target's embedding isn't in it: the engines take it from the target.
    """
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    weights = {
        name: value.detach().to(dtype).contiguous().cpu() for name, value in draft.state_dict().items()
    }
    if vocab.pruned:
        weights |= {"d2t": vocab.d2t, "t2d": vocab.t2d}
    try:
        save_file(weights, aside / "model.safetensors", metadata={"format": "pt"})
    except SafetensorError as error:  # also where the disk is full
        shutil.rmtree(aside, ignore_errors=True)
        raise Eagle3Error(f"{folder} can't be written ({error}). The last checkpoint is kept.") from None
    config = _config(draft, vocab, aux_layers, dtype)
    (aside / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    validate(aside)
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    aside.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def validate(folder: Path) -> None:
    """Raises Eagle3Error where an engine would load the draft and accept nothing, or not load it at all."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    weights = load_file(folder / "model.safetensors")
    faults = [*_shape_faults(config, weights), *_vocabulary_faults(config, weights)]
    faults += [
        f"{name} holds NaN or Inf"
        for name, w in weights.items()
        if w.is_floating_point() and not w.isfinite().all()
    ]
    if faults:
        raise Eagle3Error(f"The draft in {folder} isn't sound: {'; '.join(faults)}. It isn't handed on.")


def _config(draft: Draft, vocab: DraftVocab, aux_layers: Sequence[int], dtype: torch.dtype) -> dict[str, Any]:
    """Both ways to count aux layers: vLLM reads the top-level ids (layers that have run), SGLang those of
    eagle_config (the last layer that has run, one less). Both are always written: a guess would be wrong silently.
    """
    config: dict[str, Any] = draft.config.to_dict()
    config |= {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "dtype": str(dtype).removeprefix("torch."),
        "draft_vocab_size": vocab.size,
        "target_hidden_size": draft.config.hidden_size,
        "num_aux_hidden_states": len(aux_layers),
        "norm_before_residual": False,
        "eagle_aux_hidden_state_layer_ids": list(aux_layers),
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": [layer - 1 for layer in aux_layers],
            "use_aux_hidden_state": True,
        },
    }
    return config


def _shape_faults(config: dict[str, Any], weights: dict[str, Tensor]) -> list[str]:
    hidden, head_dim, mlp = config["hidden_size"], config["head_dim"], config["intermediate_size"]
    q, kv = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    expected = {
        "fc.weight": (hidden, 3 * hidden),
        "midlayer.self_attn.q_proj.weight": (q, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": (kv, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": (kv, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": (hidden, q),
        "midlayer.mlp.gate_proj.weight": (mlp, hidden),
        "midlayer.mlp.up_proj.weight": (mlp, hidden),
        "midlayer.mlp.down_proj.weight": (hidden, mlp),
        "midlayer.input_layernorm.weight": (hidden,),
        "midlayer.hidden_norm.weight": (hidden,),
        "midlayer.post_attention_layernorm.weight": (hidden,),
        "norm.weight": (hidden,),
        "lm_head.weight": (config["draft_vocab_size"], hidden),
    }
    if config["draft_vocab_size"] < config["vocab_size"]:
        expected |= {"d2t": (config["draft_vocab_size"],), "t2d": (config["vocab_size"],)}
    found = {name: tuple(value.shape) for name, value in weights.items()}
    names = sorted(expected.keys() | found.keys())
    return [f"{n} is {found.get(n)}, not {expected.get(n)}" for n in names if found.get(n) != expected.get(n)]


def _vocabulary_faults(config: dict[str, Any], weights: dict[str, Tensor]) -> list[str]:
    if "d2t" not in weights or "t2d" not in weights:
        return []
    faults = []
    ids = torch.arange(len(weights["d2t"])) + weights["d2t"]
    if ids.min() < 0 or ids.max() >= config["vocab_size"] or not (ids.diff() > 0).all():
        faults.append("d2t doesn't give ascending target ids in the vocabulary")
    elif not torch.equal(ids, weights["t2d"].nonzero().flatten()):
        faults.append("t2d and d2t name different tokens")
    return faults

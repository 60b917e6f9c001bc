"""What the draft learns from: the target's hidden states, taken from transformers in this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eagle3.errors import Eagle3Error


@dataclass(frozen=True)
class Features:
    """One sample's features: aux [T, 3 × H] and the last hidden state after the final norm, last [T, H]."""

    aux: Tensor
    last: Tensor

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.aux.nbytes + self.last.nbytes


def default_aux_layers(layers: int) -> tuple[int, int, int]:
    """(2, n // 2, n − 3): how many layers have run, so 2 is the output of the second layer.

    It is the index into transformers' `hidden_states` and vLLM's own count; SGLang counts one less.
    """
    return 2, layers // 2, layers - 3


def read_target_config(folder: Path) -> Any:
    """The text model's config, without its weights; raises Eagle3Error where there is no target."""
    from transformers import AutoConfig

    if not (folder / "config.json").is_file():
        raise Eagle3Error(
            f"There is no target model in {folder}. Put the model's folder there, or fix `target_model`."
        )
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True).get_text_config()
    except (OSError, ValueError, KeyError) as error:
        raise _cannot_load(folder, error) from None


class Target:
    """A frozen target model."""

    def __init__(self, folder: Path, aux_layers: Sequence[int] | None, device: torch.device) -> None:
        self.model = _load(folder).to(device).eval().requires_grad_(False)
        self.config: Any = self.model.config.get_text_config()
        layers = int(self.config.num_hidden_layers)
        self.aux_layers = tuple(aux_layers) if aux_layers else default_aux_layers(layers)
        # the engines read them as a sorted set: another order, or one twice, would be another draft
        if (
            len(self.aux_layers) != 3
            or not 0 < self.aux_layers[0] < self.aux_layers[1] < self.aux_layers[2] < layers
        ):
            raise Eagle3Error(
                f"aux_layers {self.aux_layers} don't fit a target of {layers} layers. "
                f"Name three between 1 and {layers - 1}, each larger than the one before."
            )
        self.device = device

    @property
    def embedding(self) -> Tensor:
        """The input embedding, [V, H]."""
        weight: Tensor = self.model.get_input_embeddings().weight
        return weight

    @property
    def head(self) -> Tensor:
        """The output head, [V, H]."""
        weight: Tensor = self.model.get_output_embeddings().weight
        return weight

    @property
    def final_norm(self) -> Tensor:
        """The weight of the norm before the head, [H]."""
        weight: Tensor = self.model.base_model.norm.weight
        return weight

    @torch.no_grad()
    def features(self, ids: Tensor) -> Features:
        """The features of one sample's ids [T] in the target's own dtype.

        Each sample runs alone: in a batch its last bits would depend on its neighbours, and a run that was resumed
        would not be the one that was broken off.
        """
        out = self.model.base_model(
            input_ids=ids[None].to(self.device), output_hidden_states=True, use_cache=False
        )
        aux = torch.cat([out.hidden_states[layer][0] for layer in self.aux_layers], dim=-1)
        return Features(aux, out.last_hidden_state[0])


class FeatureCache:
    """Keeps features in memory up to a limit of bytes; what doesn't fit is computed again."""

    def __init__(self, target: Target, limit_bytes: int) -> None:
        self._target = target
        self._limit = limit_bytes
        self._kept: dict[int, Features] = {}
        self._bytes = 0

    def get(self, number: int, ids: Tensor) -> Features:
        """Features of the sample with this number and these ids [T]."""
        if number in self._kept:
            return self._kept[number]
        features = self._target.features(ids)
        if self._bytes + features.nbytes <= self._limit:
            self._kept[number] = features
            self._bytes += features.nbytes
        return features


def _load(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    read_target_config(folder)
    try:
        return AutoModelForCausalLM.from_pretrained(folder, dtype="auto", local_files_only=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise _cannot_load(folder, error) from None


def _cannot_load(folder: Path, error: Exception) -> Eagle3Error:
    return Eagle3Error(
        f"The target in {folder} can't be loaded ({' '.join(str(error).split())[:200]}). Is the folder whole?"
    )

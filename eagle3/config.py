"""What a training run is told, as JSON; unknown or ill-typed keys are refused in one sentence."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from eagle3.errors import Eagle3Error


@dataclass(frozen=True)
class TrainConfig:
    """Settings of a run; see docs for what each does. Bytes, tokens and steps as named."""

    data: list[str]
    target_model: str
    out: str
    seed: int = 0
    epochs: int = 1
    max_steps: int | None = None
    max_seq_len: int = 2048
    batch_tokens: int = 4096
    lr: float = 1e-4
    warmup_ratio: float = 0.05
    clip: float = 0.5
    weight_decay: float = 0.0
    ttt_length: int = 7
    step_weight: float = 0.8
    draft_vocab_size: int | None = 8192
    aux_layers: list[int] | None = None
    checkpoint_every: int = 100
    log_every: int = 5
    threads: int | None = None
    feature_cache_bytes: int = 2 << 30
    precision: str | None = None

    @property
    def digest(self) -> str:
        """SHA-256 in hex of everything but where it runs."""
        deciding = {k: v for k, v in asdict(self).items() if k not in ("out", "threads", "log_every")}
        return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()


_TYPES: dict[str, tuple[type, ...]] = {
    "list[str]": (list,),
    "str": (str,),
    "str | None": (str, type(None)),
    "int": (int,),
    "int | None": (int, type(None)),
    "float": (float, int),
    "list[int] | None": (list, type(None)),
}


def read_config(path: Path) -> TrainConfig:
    """Reads and checks the JSON file."""
    try:
        given: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Eagle3Error(f"The configuration {path} can't be read ({error.strerror}).") from None
    except ValueError as error:
        raise Eagle3Error(f"The configuration {path} isn't valid JSON ({error}).") from None
    if not isinstance(given, dict):
        raise Eagle3Error(f"The configuration {path} is no JSON object.")
    known = {f.name: f for f in fields(TrainConfig)}
    faults = [f"unknown key '{key}'" for key in given.keys() - known.keys()]
    faults += [f"'{key}' is missing" for key in ("data", "target_model", "out") if key not in given]
    for key in given.keys() & known.keys():
        allowed = _TYPES[str(known[key].type)]
        if not isinstance(given[key], allowed) or isinstance(given[key], bool):
            faults.append(f"'{key}' is {given[key]!r}, not {known[key].type}")
    if not faults:
        config = TrainConfig(**given)
        positive = (
            "epochs",
            "max_seq_len",
            "batch_tokens",
            "lr",
            "ttt_length",
            "checkpoint_every",
            "log_every",
            "clip",
        )
        faults = [f"'{key}' must be more than 0" for key in positive if getattr(config, key) <= 0]
        if config.precision not in (None, "bfloat16", "float32"):
            faults.append(
                "'precision' must be bfloat16, float32 or null, which is what the hardware is fast at"
            )
        if not faults:
            return config
    raise Eagle3Error(f"The configuration {path} has mistakes: {'; '.join(sorted(faults))}.")

"""A dataset's YAML: what to take, how to render, who answers, limits, and what is trained from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PrivateAttr

from include.core.files import value_digest
from include.core.yaml_model import Name, Strict, existing, load_yaml

DATASETS = Path(__file__).resolve().parents[1] / "datasets"


class Source(Strict):
    """Where the rows are (a path relative to the YAML file) and which adapter reads their schema."""

    path: str
    adapter: Literal["messages"] = "messages"


class PromptSpec(Strict):
    """How conversations become prompts.

    thinking: whether the target is asked to think (a row may say otherwise). turns: `last` generates the answer to the
    last user message; `every` generates each assistant turn in order, with the target's own earlier answers.
    tools: whether rows with tools belong here. control_tokens: what is done with text that spells a control token.
    """

    thinking: bool = True
    turns: Literal["last", "every"] = "last"
    tools: bool = False
    control_tokens: Literal["leave_out", "escape"] = "leave_out"


class EngineSpec(Strict):
    """Which engine answers and how it is driven; none of this changes what a sample is."""

    kind: Literal["vllm", "sglang"]
    connection: Name
    concurrency: int = Field(32, ge=1, le=4096)
    request_timeout_s: float = Field(600, gt=0)
    patience_s: float = Field(
        300, ge=0, description="how long an engine may be away before the task gives up"
    )


class Sampling(Strict):
    """How the target answers; part of every request's digest."""

    temperature: float = Field(0.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    max_tokens: int = Field(ge=1)
    seed: int = 0


class Limits(Strict):
    """What is left out (with a reason), and how much may be before the audit says no."""

    max_prompt_tokens: int = Field(ge=1)
    max_seq_len: int = Field(ge=2)
    max_left_out_share: float = Field(0.2, ge=0, le=1)
    max_count_delta: int = Field(
        0, ge=0, description="tokens by which an answer captured as text may differ from the provider's count"
    )
    unproven_text: Literal["leave_out", "keep"] = Field(
        "leave_out",
        description="what is done with text whose tokens weren't seen one by one: only its count is known",
    )


class TrainSpec(Strict):
    """How the draft is trained; the fields below `nproc_per_node` go to eagle3.train as they are."""

    connection: Name
    nproc_per_node: int = Field(1, ge=1)
    epochs: int = Field(1, ge=1)
    max_steps: int | None = Field(None, ge=1)
    batch_tokens: int = Field(4096, ge=1)
    max_seq_len: int = Field(2048, ge=2)
    lr: float = Field(1e-4, gt=0)
    ttt_length: int = Field(7, ge=1)
    draft_vocab_size: int | None = Field(8192, ge=1)
    seed: int = 0

    def options(self) -> dict[str, Any]:
        """The part that eagle3.train reads."""
        return self.model_dump(exclude={"connection", "nproc_per_node"})


class EvaluateSpec(Strict):
    """How the draft is measured on held-out prompts by the serving engine."""

    prompts: int = Field(16, ge=1)
    max_tokens: int = Field(64, ge=1)
    num_speculative_tokens: int = Field(3, ge=1)


class DatasetSpec(Strict):
    """One dataset: what to take, how to render, who answers, limits, and what is trained from it."""

    name: Name
    description: str = ""
    target: Name
    source: Source
    prompts: PromptSpec = PromptSpec()
    shard_size: int = Field(ge=1)
    held_out_share: float = Field(0.0, ge=0, lt=1)
    engine: EngineSpec
    sampling: Sampling
    limits: Limits
    train: TrainSpec
    evaluate: EvaluateSpec = EvaluateSpec()  # type: ignore[call-arg]
    max_active_runs: int = Field(4, ge=1)

    _folder: Path = PrivateAttr(default=DATASETS)

    @property
    def source_path(self) -> Path:
        """The source file, found from the folder of the YAML file."""
        return self._folder / self.source.path

    @property
    def digest(self) -> str:
        """SHA-256 of everything that decides the samples: source, target, prompts, sharding, sampling, limits."""
        deciding = {"source", "target", "prompts", "shard_size", "held_out_share", "sampling"}
        fields = self.model_dump(mode="json", include=deciding)
        return value_digest(fields | self.limits.model_dump(exclude={"max_left_out_share"}))

    @property
    def version(self) -> str:
        """The folder name of this spec's data: a changed spec starts a new version beside the old one."""
        return f"v-{self.digest[:10]}"


def load_dataset(path: Path) -> DatasetSpec:
    """Reads a dataset's YAML; SpecError lists every mistake by field."""
    spec = load_yaml(path, DatasetSpec)
    spec._folder = path.resolve().parent
    return spec


def dataset_named(name: str) -> DatasetSpec:
    """The dataset of include/datasets/<name>.yaml."""
    return load_dataset(existing(DATASETS / f"{name}.yaml", "dataset"))

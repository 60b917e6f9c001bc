"""What people write: a dataset's YAML and a target's YAML, with every mistake reported at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from include.core.errors import SpecError
from include.core.files import value_digest

DATASETS = Path(__file__).resolve().parents[1] / "datasets"
TARGETS = Path(__file__).resolve().parents[1] / "targets"

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Source(_Strict):
    """Where the rows are (a path relative to the YAML file) and which adapter reads their schema."""

    path: str
    adapter: Literal["messages"] = "messages"


class EngineSpec(_Strict):
    """Which engine answers and how it is driven; none of this changes what a sample is."""

    kind: Literal["vllm", "sglang"]
    connection: Name
    concurrency: int = Field(32, ge=1, le=4096)
    request_timeout_s: float = Field(600, gt=0)
    patience_s: float = Field(
        300, ge=0, description="how long an engine may be away before the task gives up"
    )


class Sampling(_Strict):
    """How the target answers; part of every request's digest."""

    temperature: float = Field(0.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    max_tokens: int = Field(ge=1)
    seed: int = 0


class Limits(_Strict):
    """What is left out (with a reason), and how much may be before the audit says no."""

    max_prompt_tokens: int = Field(ge=1)
    max_seq_len: int = Field(ge=2)
    max_left_out_share: float = Field(0.2, ge=0, le=1)


class TrainSpec(_Strict):
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


class EvaluateSpec(_Strict):
    """How the draft is measured on held-out prompts by the serving engine."""

    prompts: int = Field(16, ge=1)
    max_tokens: int = Field(64, ge=1)
    num_speculative_tokens: int = Field(3, ge=1)


class DatasetSpec(_Strict):
    """One dataset: what to take, how to render, who answers, limits, and what is trained from it."""

    name: Name
    description: str = ""
    target: Name
    source: Source
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
        """SHA-256 of everything that decides the samples: source, target, sharding, sampling, limits."""
        deciding = {"source", "target", "shard_size", "held_out_share", "sampling"}
        fields = self.model_dump(mode="json", include=deciding)
        return value_digest(fields | self.limits.model_dump(exclude={"max_left_out_share"}))

    @property
    def version(self) -> str:
        """The folder name of this spec's data: a changed spec starts a new version beside the old one."""
        return f"v-{self.digest[:10]}"


class TargetProfile(_Strict):
    """A target: its model, and its special tokens by role, as text; ids are looked up in the tokenizer."""

    name: Name
    model: str = Field(
        description="the model's id; its folder is looked up under EAGLE3_MODELS_DIR by its last part"
    )
    served_as: str = Field(description="the name under which the engine serves it")
    special_tokens: dict[Literal["turn_open", "end_of_turn", "thinking_open", "thinking_close"], str]

    @property
    def folder_name(self) -> str:
        """The last part of the model's id."""
        return self.model.rsplit("/", 1)[-1]


_Model = TypeVar("_Model", bound=BaseModel)


def load_dataset(path: Path) -> DatasetSpec:
    """Reads a dataset's YAML; SpecError lists every mistake by field."""
    spec = _load(path, DatasetSpec)
    spec._folder = path.resolve().parent
    return spec


def dataset_named(name: str) -> DatasetSpec:
    """The dataset of include/datasets/<name>.yaml."""
    return load_dataset(_existing(DATASETS / f"{name}.yaml", "dataset"))


def target_named(name: str) -> TargetProfile:
    """The target profile of include/targets/<name>.yaml."""
    return _load(_existing(TARGETS / f"{name}.yaml", "target"), TargetProfile)


def _existing(path: Path, kind: str) -> Path:
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in path.parent.glob("*.yaml"))) or "none"
        raise SpecError(
            f"There is no {kind} '{path.stem}'.", do=f"Known: {known}. Add {path} or fix the name."
        )
    return path


def _load(path: Path, model: type[_Model]) -> _Model:
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(f"{path} can't be read: {error.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SpecError(f"{path} isn't valid YAML: {' '.join(str(error).split())}.") from None
    try:
        return model.model_validate(value)
    except ValidationError as error:
        mistakes = [f"{'.'.join(map(str, e['loc'])) or 'the file'}: {e['msg']}" for e in error.errors()]
        raise SpecError(f"{path} has {len(mistakes)} mistake(s): {'; '.join(mistakes)}.") from None

"""A target's YAML: its model, the roles of its special tokens as text, and how it writes thoughts and tool calls."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from include.core.yaml_model import Name, Strict, existing, load_yaml

TARGETS = Path(__file__).resolve().parents[1] / "targets"
TEMPLATES = TARGETS / "templates"

Role = Literal["end_of_turn", "thinking_open", "thinking_close"]


class TiktokenFile(Strict):
    """How a tiktoken.model file becomes a tokenizer: the parts of its pattern, and its control tokens.

    `control_tokens` are counted from the last rank: 0 is the first id after the ranks. Where the model's folder has a
    tokenizer_config.json, its names count instead.
    """

    pattern: tuple[str, ...] = Field(min_length=1)
    ranks: int = Field(ge=256, description="how many ranks the file has; a file cut short has fewer")
    control_tokens: dict[int, str]
    reserved: int = Field(ge=1, description="how many ids stand after the ranks")
    reserved_name: str = "<|reserved_token_{id}|>"
    max_block: int = Field(400_000, ge=1, description="characters that are encoded together at most")
    max_run: int = Field(25_000, ge=1, description="characters with or without white space in a row at most")


class Thinking(Strict):
    """The white space that a target writes around its thoughts and that servers' parsers take away.

    Each is a list of what may have stood there; the first that gives the provider's token count is taken, what came
    as it is before all others.
    """

    after_open: tuple[str, ...] = ("",)
    before_close: tuple[str, ...] = ("",)
    after_close: tuple[str, ...] = ("",)


class ToolCallSyntax(Strict):
    """How the target writes tool calls: `before`, each `call` with `between`, `after`.

    `call` holds {arguments} and {name} or {id}; control tokens in it are spliced in as ids.
    """

    before: str = ""
    call: str
    between: str = ""
    after: str = ""
    after_content: str = Field("", description="what stands between text and the first call")
    id: str = Field("", description="how the target names a call, from {name} and {index}; '' if it doesn't")
    arguments: Literal["object", "text"] = Field(
        "object", description="as what the chat template takes the arguments of earlier calls"
    )


class TargetProfile(Strict):
    """A target: everything about a model family that its own files don't say."""

    name: Name
    model: str = Field(
        description="the model's id; its folder is looked up under EAGLE3_MODELS_DIR by its last part"
    )
    served_as: str = Field(description="the name under which the engine serves it")
    special_tokens: dict[Role, str]
    stop_texts: tuple[str, ...] = Field(
        (), description="texts besides end_of_turn that a provider may leave at an answer's end"
    )
    usual_start: str = Field("", description="what the target's answers begin with, as a rule")
    thinking: Thinking = Thinking()
    tool_calls: ToolCallSyntax | None = None
    tool_declarations: Literal["json", "typescript"] = "json"
    template: str = Field(
        "",
        description="a file of targets/templates/, used where the model's folder has no template of its own",
    )
    tiktoken: TiktokenFile | None = None

    @property
    def folder_name(self) -> str:
        """The last part of the model's id."""
        return self.model.rsplit("/", 1)[-1]

    @property
    def thinks(self) -> bool:
        """Whether the target has thoughts at all."""
        return "thinking_close" in self.special_tokens


def target_named(name: str) -> TargetProfile:
    """The target profile of include/targets/<name>.yaml."""
    return load_yaml(existing(TARGETS / f"{name}.yaml", "target"), TargetProfile)

"""A chat template: messages → the text that the target reads, before any of it is an id."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from include.core.errors import PipelineError, TargetError
from include.core.files import storage_errors
from include.core.profile import TEMPLATES, TargetProfile
from include.core.records import Message
from include.tokens.model_folder import tokenizer_config
from include.tokens.typescript import declare


class NotRendered(PipelineError):
    """The template itself refuses a conversation (or can't take what is in it)."""


@dataclass(frozen=True)
class ChatTemplate:
    """A Jinja template as Hugging Face's libraries run it, with the tokenizer's variables (bos_token and so on)."""

    source: str
    variables: Mapping[str, str]
    profile: TargetProfile

    @property
    def digest(self) -> str:
        """SHA-256 of the template's text."""
        return hashlib.sha256(self.source.encode()).hexdigest()

    def text(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        thinking: bool = True,
        generation_prompt: bool = True,
    ) -> str:
        """The rendered text; NotRendered with the template's own words where it refuses."""
        variables: dict[str, Any] = {**self.variables, "thinking": thinking, "enable_thinking": thinking}
        declared = [dict(tool) for tool in tools] or None
        if declared and self.profile.tool_declarations == "typescript":
            declared = _sorted_deeply(declared)
            with contextlib.suppress(Exception):  # a schema it can't express: the template prints JSON
                variables["tools_ts_str"] = declare(declared)
        try:
            rendered, _ = _renderer()(
                [[self._as_dict(message) for message in messages]],
                tools=declared,
                chat_template=self.source,
                add_generation_prompt=generation_prompt,
                **variables,
            )
        except Exception as error:
            words = " ".join(str(error).split())[:200]
            raise NotRendered(
                f"The chat template of {self.profile.name} refuses a conversation: {words}."
            ) from error
        return rendered[0]

    def _as_dict(self, message: Message) -> dict[str, Any]:
        syntax = self.profile.tool_calls
        value: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.reasoning:
            value["reasoning_content"] = message.reasoning
        if message.tool_calls:
            as_text = syntax is not None and syntax.arguments == "text"
            value["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {
                        "name": call.name,
                        "arguments": call.arguments if as_text else _as_object(call.arguments),
                    },
                }
                for call in message.tool_calls
            ]
            if as_text and not message.content:
                value["content"] = None
        if message.tool_call_id:
            value["tool_call_id"] = message.tool_call_id
        if message.name:
            value["name"] = message.name
        return value


@cache
def _renderer() -> Callable[..., tuple[list[str], Any]]:
    """Imported late: it takes a second, and a Dag file must not pay for it."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it advises to install torch, not needed here
    from transformers.utils.chat_template_utils import render_jinja_template

    return render_jinja_template  # type: ignore[no-any-return]


def load_template(profile: TargetProfile, folder: Path) -> ChatTemplate:
    """The template of the model's folder; where it has none, the one that the profile ships."""
    own = own_template(folder)
    if own is not None:
        return ChatTemplate(own, _variables(folder), profile)
    if not profile.template:
        raise TargetError(
            f"{folder} has no chat template, and the profile {profile.name} ships none.",
            do="Use the folder of the instruct model, template included.",
        )
    return ChatTemplate(shipped_template(profile), _variables(folder), profile)


def shipped_template(profile: TargetProfile) -> str:
    """The text of the profile's template."""
    path = TEMPLATES / profile.template
    with storage_errors(path):
        return path.read_text(encoding="utf-8")


def own_template(folder: Path) -> str | None:
    """The template in chat_template.jinja or in tokenizer_config.json."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        with storage_errors(file):
            return file.read_text(encoding="utf-8")
    said = tokenizer_config(folder).get("chat_template")
    if isinstance(said, list):  # several by name
        said = {entry.get("name"): entry.get("template") for entry in said}.get("default")
    return said if isinstance(said, str) and said else None


def _variables(folder: Path) -> dict[str, str]:
    names = ("bos_token", "eos_token", "pad_token", "unk_token")
    config = tokenizer_config(folder)
    said = {name: config.get(name) for name in names}
    texts = {name: value.get("content") if isinstance(value, dict) else value for name, value in said.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _as_object(arguments: str) -> Any:
    """Servers parse the arguments of earlier calls before they render; text that is no JSON stays text."""
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def _sorted_deeply(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted_deeply(value[key]) for key in sorted(value)}
    return [_sorted_deeply(item) for item in value] if isinstance(value, list) else value

"""A target: tokenizer, chat template and the roles of its special tokens, proven on each other when it is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from include.core.errors import TargetError
from include.core.profile import TargetProfile
from include.core.records import Conversation, Ids, Message
from include.tokens.conversations import escape_mark, escaped, texts_of, with_own_call_ids
from include.tokens.encoders import from_tiktoken_model, from_tokenizer_json
from include.tokens.model_folder import end_ids
from include.tokens.probes import ASKED, ASKED_AFTER_TOOL, MARKER, PROBE_TOOLS, compare_with_shipped
from include.tokens.template import ChatTemplate, NotRendered, load_template
from include.tokens.tokenizer import Tokenizer

# none: the target has no thoughts. in_prompt: the thinking-open token ends the prompt. generated: the target writes it
# itself. off: thoughts are closed in the prompt.
Thinking = Literal["none", "in_prompt", "generated", "off"]


@dataclass(frozen=True)
class Opening:
    """What stands between the last message's text and an answer, from the first control token on."""

    ids: Ids
    thinking: Thinking

    def ends(self, ids: Ids) -> bool:
        """Whether `ids` end with this opening."""
        return len(ids) >= len(self.ids) and bool(np.array_equal(ids[len(ids) - len(self.ids) :], self.ids))


@dataclass(frozen=True)
class Target:
    """A loaded target. Ids are int32 arrays, texts are str; nothing is added, stripped or normalised by it."""

    profile: TargetProfile
    tokenizer: Tokenizer
    template: ChatTemplate
    special_ids: Mapping[str, int]

    @property
    def end_of_turn(self) -> int:
        """The id with which the model ends an answer."""
        return self.special_ids["end_of_turn"]

    @property
    def vocab_size(self) -> int:
        """One more than the highest id."""
        return self.tokenizer.size

    @property
    def control_tokens(self) -> Mapping[str, int]:
        """Every token that isn't text: name → id."""
        return self.tokenizer.control_tokens

    def encode(self, text: str) -> Ids:
        """Text as characters → ids."""
        return self.tokenizer.encode([text])[0]

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Ids → text, control tokens visible."""
        return self.tokenizer.decode(ids)

    def render(
        self, conversations: Sequence[Conversation], *, thinking: bool = True, escape: bool = False
    ) -> list[Ids]:
        """The ids that the target reads for each conversation: its own template with the generation prompt.

        `escape` keeps control tokens that the texts spell from being read as such. NotRendered where the template
        refuses one.
        """
        prepared = [self._prepared(conversation) for conversation in conversations]
        mark = escape_mark(prepared) if escape else ""
        if mark:
            prepared = [escaped(c, lambda text: self.tokenizer.escaped(text, mark)) for c in prepared]
        texts = [
            self.template.text(c.messages, c.tools, thinking=thinking if c.thinking is None else c.thinking)
            for c in prepared
        ]
        return self.tokenizer.encode_marked(texts, dropped=mark)

    def _prepared(self, conversation: Conversation) -> Conversation:
        """Thoughts taken out of the answers' text, calls named as the target names them."""
        messages = tuple(self._split_thoughts(m) for m in conversation.messages)
        if self.profile.tool_calls and self.profile.tool_calls.id:
            messages = with_own_call_ids(messages, self.profile.tool_calls.id)
        return replace(conversation, messages=messages)

    def _split_thoughts(self, message: Message) -> Message:
        """`<think>…</think>answer` as content, as many datasets have it, is reasoning and answer."""
        opening = self.profile.special_tokens.get("thinking_open", "<think>")
        closing = self.profile.special_tokens.get("thinking_close", "</think>")
        content = message.content.lstrip()
        if message.role != "assistant" or message.reasoning or not content.startswith(opening):
            return message
        reasoning, found, answer = content.removeprefix(opening).partition(closing)
        if not found:
            return message
        return replace(message, reasoning=reasoning.strip("\n"), content=answer.lstrip("\n"))

    def forged_control_token(self, conversation: Conversation) -> str | None:
        """A control token that stands as text where the template would make it real."""
        found = map(self.tokenizer.control_token_in, texts_of(self._prepared(conversation)))
        return next((token for token in found if token), None)

    def openings(self, *, thinking: bool) -> tuple[Opening, ...]:
        """How a prompt may end, after a user's message and after a tool's result: found by rendering."""
        return self._openings[thinking]

    def opening_of(self, prompt_ids: Ids) -> Opening | None:
        """The longest opening that these ids end with."""
        known = {o.ids.tobytes(): o for on in (True, False) for o in self._openings[on]}
        ending = [opening for opening in known.values() if opening.ends(prompt_ids)]
        return max(ending, key=lambda opening: len(opening.ids), default=None)

    @cached_property
    def _openings(self) -> dict[bool, tuple[Opening, ...]]:
        return {on: tuple(self._find_openings(on)) for on in (True, False)}

    def _find_openings(self, thinking: bool) -> Iterator[Opening]:
        for probe in (ASKED, ASKED_AFTER_TOOL):
            try:
                text = self.template.text(probe, thinking=thinking)
            except NotRendered:
                if probe is ASKED:
                    raise
                continue  # a target without tools
            after = text.rpartition(MARKER)[2]
            control = self.tokenizer.control_token_in(after)
            if control is None:
                continue
            ids = self.tokenizer.encode_marked([after[after.index(control) :]])[0]
            yield Opening(ids, self._thinking_after(ids))

    def _thinking_after(self, opening: Ids) -> Thinking:
        if not self.profile.thinks:
            return "none"
        if self.special_ids["thinking_close"] in opening:
            return "off"
        if self.special_ids.get("thinking_open") in opening:
            return "in_prompt"
        return "generated"

    @cached_property
    def declares_tools(self) -> bool:
        """Whether the template shows declared tools to the target at all."""
        try:
            return self.template.text(ASKED, PROBE_TOOLS) != self.template.text(ASKED)
        except NotRendered:
            return False

    @cached_property
    def can_stop_thinking(self) -> bool:
        """Whether the template has a way to keep the target from thinking."""
        return all(opening.thinking in ("none", "off") for opening in self.openings(thinking=False))

    def metadata(self) -> dict[str, Any]:
        """What every artefact says of its target."""
        return {
            "target": self.profile.name,
            "tokenizer_digest": self.tokenizer.digest,
            "template_digest": self.template.digest,
            "vocab_size": self.vocab_size,
            "special_tokens": dict(self.special_ids),
            "control_tokens": dict(self.control_tokens),
        }


def load_target(profile: TargetProfile, folder: Path) -> Target:
    """Loads tokenizer and template from the model's own folder; TargetError where they aren't what the profile says."""
    tokenizer = _load_tokenizer(profile, folder)
    template = load_template(profile, folder)
    roles: dict[str, int] = {}
    for role, text in profile.special_tokens.items():
        if text not in tokenizer.control_tokens:
            raise TargetError(
                f"The {role} token {text!r} is {len(tokenizer.encode([text])[0])} ids for the tokenizer in {folder}, "
                "not one.",
                do="Fix `special_tokens` in the target's YAML, or use the tokenizer of that target.",
            )
        roles[role] = tokenizer.control_tokens[text]
    if profile.thinks and "thinking_open" not in roles:
        raise TargetError(
            f"The profile {profile.name} says how thoughts end, not how they begin.",
            do="Add `thinking_open` to `special_tokens` in the target's YAML.",
        )
    target = Target(profile, tokenizer, template, roles)
    ends = end_ids(folder)
    if ends and target.end_of_turn not in ends:
        raise TargetError(
            f"generation_config.json in {folder} ends an answer with {tokenizer.decode(ends)}, "
            f"the profile {profile.name} with {profile.special_tokens['end_of_turn']}.",
            do="Fix `special_tokens` in the target's YAML.",
        )
    if not target.openings(thinking=True):
        raise TargetError(
            f"The chat template in {folder} opens the answer with no control token.",
            do="Use the folder of the instruct model, template included.",
        )
    compare_with_shipped(template, folder)
    return target


def _load_tokenizer(profile: TargetProfile, folder: Path) -> Tokenizer:
    if (folder / "tokenizer.json").is_file():
        return from_tokenizer_json(folder / "tokenizer.json")
    if (folder / "tiktoken.model").is_file():
        if profile.tiktoken is None:
            raise TargetError(
                f"{folder} has a tiktoken.model, and the profile {profile.name} doesn't say its pattern.",
                do="Add `tiktoken` to the target's YAML (see kimi-k2.5.yaml).",
            )
        return from_tiktoken_model(folder / "tiktoken.model", profile.tiktoken)
    raise TargetError(
        f"There is no tokenizer of {profile.model} in {folder}.",
        do="Put the model's folder there (tokenizer.json or tiktoken.model, chat template), "
        "or set EAGLE3_MODELS_DIR to the folder that holds it.",
    )

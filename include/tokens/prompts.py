"""Conversations → prompts: what is asked of each, what is left out and why, and the ids that the target reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from include.core.errors import SpecError
from include.core.records import Conversation, Ids, Message, ToolCall
from include.core.spec import DatasetSpec
from include.tokens.conversations import escape_mark
from include.tokens.target import Target
from include.tokens.template import NotRendered


@dataclass(frozen=True)
class Prompt:
    """A rendered prompt. `conversation` is the whole conversation where more answers follow, else None."""

    sample_id: str
    prompt_ids: Ids
    source_row: str
    conversation: str | None = None


@dataclass(frozen=True)
class PromptMaker:
    """Makes one dataset's prompts; SpecError where the target can't do what the dataset asks of it."""

    target: Target
    spec: DatasetSpec

    def __post_init__(self) -> None:
        asked = self.spec.prompts
        if not asked.thinking and not self.target.can_stop_thinking:
            raise SpecError(
                f"The chat template of {self.target.profile.name} has no way to switch thinking off.",
                do="Remove `prompts.thinking: false` from the dataset's YAML.",
            )
        if asked.tools and not self.target.declares_tools:
            raise SpecError(
                f"The chat template of {self.target.profile.name} doesn't show tools to the target.",
                do="Remove `prompts.tools: true` from the dataset's YAML, or use another target.",
            )

    def make(self, conversations: Sequence[Conversation]) -> list[Prompt | str]:
        """For each conversation its (first) prompt, or the reason why it is left out. One batch is encoded at once."""
        asked = [self._asked(conversation) for conversation in conversations]
        kept = [c for c in asked if isinstance(c, Conversation)]
        rendered = iter(self.render(kept))
        out: list[Prompt | str] = []
        for whole, first in zip(conversations, asked, strict=True):
            if isinstance(first, str):
                out.append(first)
                continue
            ids = next(rendered)
            problem = ids if isinstance(ids, str) else self.too_long(ids)
            if problem or isinstance(ids, str):
                out.append(problem)
                continue
            every = self.spec.prompts.turns == "every"
            out.append(Prompt(first.sample_id, ids, whole.source_row, as_json(whole) if every else None))
        return out

    def render(self, conversations: Sequence[Conversation]) -> list[Ids | str]:
        """The ids of each, or the reason where the template refuses one (the others aren't held up by it)."""
        how: Any = {
            "thinking": self.spec.prompts.thinking,
            "escape": self.spec.prompts.control_tokens == "escape",
        }
        try:
            return list(self.target.render(conversations, **how))
        except NotRendered:
            out: list[Ids | str] = []
            for conversation in conversations:
                try:
                    out += self.target.render([conversation], **how)
                except NotRendered:
                    out.append("the chat template refuses it")
            return out

    def too_long(self, ids: Ids) -> str:
        """'prompt too long', 'no room for an answer', or ''."""
        limits = self.spec.limits
        if len(ids) > limits.max_prompt_tokens:
            return "prompt too long"
        return (
            "no room for an answer" if len(ids) + self.spec.sampling.max_tokens > limits.max_seq_len else ""
        )

    def _asked(self, conversation: Conversation) -> Conversation | str:
        """The part of the conversation that is the first prompt, or why nothing is asked of it."""
        positions = answer_positions(conversation)
        if not positions:
            return "nothing is asked"
        if self.spec.prompts.turns == "last":
            first = read = up_to(conversation, positions[-1])
        else:
            first = up_to(conversation, positions[0])
            # the source's own answers are never read: the target's take their places
            asked = tuple(m for m in conversation.messages if m.role != "assistant")
            read = replace(conversation, messages=asked)
        # no token has more bytes than the longest, so this many can't fit: a megabyte isn't even rendered
        length = sum(len(m.content) for m in first.messages if m.role != "assistant")
        if length > self.spec.limits.max_prompt_tokens * self.target.tokenizer.longest:
            return "prompt too long"
        return self._why_not(conversation, read) or first

    def _why_not(self, whole: Conversation, read: Conversation) -> str:
        """Why a conversation is left out, of which the target will read `read`; or ''."""
        asked = self.spec.prompts
        if asked.control_tokens == "leave_out" and self.target.forged_control_token(read):
            return "control token in the text"
        if read.thinking is False and not self.target.can_stop_thinking:
            return "thinking can't be switched off"
        considered = read if asked.turns == "last" else whole
        uses_tools = any(m.role == "tool" or m.tool_calls for m in considered.messages)
        if (read.tools or uses_tools) and not asked.tools:
            return "tools in a dataset without tools"
        if uses_tools and asked.turns == "every":
            return "tool results that answer another model"
        if asked.control_tokens == "escape":
            try:
                escape_mark([read])
            except NotRendered:
                return "no character left to escape with"
        return ""


def answer_positions(conversation: Conversation) -> list[int]:
    """Where the target answers: in place of each assistant message of the source, and after a last message that isn't
    one. Before anybody has asked there is nothing to answer.
    """
    roles = [message.role for message in conversation.messages]
    asked = next((i for i, role in enumerate(roles) if role in ("user", "tool")), len(roles))
    positions = [i for i, role in enumerate(roles) if role == "assistant" and i > asked]
    if roles and roles[-1] in ("user", "tool"):
        positions.append(len(roles))
    return positions


def up_to(conversation: Conversation, position: int, answers: Sequence[Message] = ()) -> Conversation:
    """The prompt for the answer at `position`, earlier answers taken from `answers` as far as they go."""
    messages = list(conversation.messages[:position])
    for at, answer in zip(answer_positions(conversation), answers, strict=False):
        messages[at] = answer
    turn = sum(m.role == "assistant" for m in messages)
    base = conversation.sample_id.rpartition("-t")[0]
    return replace(conversation, messages=tuple(messages), sample_id=f"{base}-t{turn}")


def as_json(conversation: Conversation) -> str:
    """A conversation for the prompts file."""
    return json.dumps(asdict(conversation), ensure_ascii=False, separators=(",", ":"))


def from_json(text: str) -> Conversation:
    """What `as_json` wrote."""
    value = json.loads(text)
    messages = tuple(
        Message(**m | {"tool_calls": tuple(ToolCall(**call) for call in m["tool_calls"])})
        for m in value["messages"]
    )
    return Conversation(**value | {"messages": messages, "tools": tuple(value["tools"])})

"""A target's tokenizer with its special tokens by role: the only place where text becomes ids and back."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from include.core.errors import TargetError
from include.core.files import file_digest
from include.core.records import Message
from include.core.spec import TargetProfile

_TOKENIZER_FILES = ("tokenizer.json", "tiktoken.model", "tokenizer.model")


@dataclass(frozen=True)
class Target:
    """A loaded tokenizer. Ids are int, texts are str; nothing is added, stripped or normalised by it."""

    profile: TargetProfile
    special_ids: dict[str, int]
    control_tokens: dict[str, int]
    vocab_size: int
    tokenizer_digest: str
    template_digest: str
    _tokenizer: Any

    @property
    def end_of_turn(self) -> int:
        """The id with which the model ends an answer."""
        return self.special_ids["end_of_turn"]

    def render(self, messages: Sequence[Message]) -> list[int]:
        """The ids that the target reads: its own chat template with the generation prompt."""
        return self.encode(self.template(messages), control_tokens=True)

    def template(self, messages: Sequence[Message], *, generation_prompt: bool = True) -> str:
        """The rendered text, before it is encoded."""
        plain = [{"role": m.role, "content": m.content} for m in messages]
        text: str = self._tokenizer.apply_chat_template(
            plain, tokenize=False, add_generation_prompt=generation_prompt
        )
        return text

    def generation_prompt(self) -> list[int]:
        """The ids that the template appends for the model to go on from, found by rendering with and without."""
        probe = [Message("user", "x")]
        without = self.template(probe, generation_prompt=False)
        return self.encode(self.template(probe).removeprefix(without), control_tokens=True)

    def encode(self, text: str, *, control_tokens: bool = False) -> list[int]:
        """Text → ids. Control tokens written in the text count as such only where `control_tokens` says so."""
        ids: list[int] = self._tokenizer.encode(
            text, add_special_tokens=False, split_special_tokens=not control_tokens
        )
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Ids → text, control tokens shown, nothing cleaned up."""
        text: str = self._tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def forged_control_token(self, messages: Sequence[Message]) -> str | None:
        """A control token that stands as literal text in a message, where the template would make it real."""
        for message in messages:
            for token in self.control_tokens:
                if token in message.content:
                    return token
        return None


def load_target(profile: TargetProfile, folder: Path) -> Target:
    """Loads the tokenizer and the chat template from the model's own folder, and proves the profile on them."""
    source = next((folder / name for name in _TOKENIZER_FILES if (folder / name).is_file()), None)
    if source is None:
        raise TargetError(
            f"There is no tokenizer of {profile.model} in {folder}.",
            do=f"Put the model's folder there ({' or '.join(_TOKENIZER_FILES)}, chat template), "
            "or set EAGLE3_MODELS_DIR to the folder that holds it.",
        )
    tokenizer = _load(folder)
    template = tokenizer.chat_template
    if not isinstance(template, str) or not template:
        raise TargetError(
            f"{folder} has no chat template.", do="Use the folder of the instruct model, template included."
        )
    control = {str(token): int(id_) for id_, token in _control_tokens(tokenizer).items()}
    roles: dict[str, int] = {
        role: _single_id(tokenizer, role, text, folder) for role, text in profile.special_tokens.items()
    }
    return Target(
        profile=profile,
        special_ids=roles,
        control_tokens=control,
        vocab_size=len(tokenizer),
        tokenizer_digest=file_digest(source),
        template_digest=hashlib.sha256(template.encode()).hexdigest(),
        _tokenizer=tokenizer,
    )


def _load(folder: Path) -> Any:
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it advises to install torch, not needed here
    # imported here: it takes a second, and a Dag file must not pay for it
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        raise TargetError(
            f"The tokenizer in {folder} can't be loaded: {' '.join(str(error).split())[:300]}.",
            do="Check that the folder is whole (compare it with the model's own).",
        ) from error


def _control_tokens(tokenizer: Any) -> dict[int, str]:
    return {id_: token.content for id_, token in tokenizer.added_tokens_decoder.items() if token.special}


def _single_id(tokenizer: Any, role: str, text: str, folder: Path) -> int:
    ids = tokenizer.encode(text, add_special_tokens=False)
    if len(ids) != 1:
        raise TargetError(
            f"The {role} token {text!r} is {len(ids)} ids for the tokenizer in {folder}, not one.",
            do="Fix `special_tokens` in the target's YAML, or use the tokenizer of that target.",
        )
    return int(ids[0])

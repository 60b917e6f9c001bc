"""Text ⇄ token ids: byte-level BPE, on the fastest path that is proven to give the reference's ids.

What a text means is decided by the caller: `encode` takes every character as a character, `encode_marked` takes the
control tokens that are written in it as control tokens. Nothing here adds, strips or cleans up anything.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from include.core.records import Ids

_NO_IDS = np.empty(0, np.int32)
_KEPT_SEGMENTS = 4096
_SHORT = 48


class Encoder(Protocol):
    """Characters → ids, with no control token known to it."""

    def __call__(self, texts: Sequence[str]) -> list[Ids]:
        """Ids of each text."""


@dataclass(frozen=True)
class Tokenizer:
    """A loaded tokenizer. `token_bytes[id]` are a token's bytes (None where no token has that id)."""

    encoder: Encoder
    token_bytes: Sequence[bytes | None]
    control_tokens: Mapping[str, int]
    digest: str
    _segments: dict[str, Ids] = field(default_factory=dict, repr=False, compare=False)

    @property
    def size(self) -> int:
        """One more than the highest id, control tokens included."""
        return len(self.token_bytes)

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Each text as characters: control tokens in it become the ids of their letters. UnicodeEncodeError on lone
        surrogates.
        """
        return self.encoder(texts) if texts else []

    def encode_marked(self, texts: Sequence[str], dropped: str = "") -> list[Ids]:
        """Each text with its control tokens as such: what a server makes of a rendered prompt.

        Characters between two control tokens are encoded together. `dropped` is a character that is taken out after
        the control tokens were found, so that it can keep a text from being read as one.
        """
        split = [self._control.split(text) for text in texts]  # odd places: control tokens
        if dropped:
            split = [
                [part.replace(dropped, "") if at % 2 == 0 else part for at, part in enumerate(parts)]
                for parts in split
            ]
        unseen = list({s: None for parts in split for s in parts[::2] if s and s not in self._segments})
        known = dict(zip(unseen, self.encode(unseen), strict=True))
        for segment in unseen[: _KEPT_SEGMENTS - len(self._segments)]:
            if len(segment) <= _SHORT:
                self._segments[segment] = known[segment]
        return [self._joined(parts, known) for parts in split]

    def _joined(self, parts: Sequence[str], known: Mapping[str, Ids]) -> Ids:
        arrays = []
        for at, part in enumerate(parts):
            if at % 2:
                arrays.append(self._control_ids[part])
            elif part:
                arrays.append(known[part] if part in known else self._segments[part])
        return np.concatenate(arrays) if arrays else _NO_IDS

    def decode_bytes(self, ids: Sequence[int] | Ids) -> bytes:
        """The tokens' bytes, control tokens as their text. IndexError or TypeError on ids that no token has."""
        values = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
        if values and min(values) < 0:
            raise IndexError(min(values))
        return b"".join(map(self.token_bytes.__getitem__, values))  # type: ignore[arg-type]

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """The text, control tokens visible; bytes that are no UTF-8 become U+FFFD, unknown ids ⟨id⟩."""
        try:
            return self.decode_bytes(ids).decode(errors="replace")
        except (IndexError, TypeError):
            return "".join(self._shown(int(id_)) for id_ in ids)

    def _shown(self, id_: int) -> str:
        token = self.token_bytes[id_] if 0 <= id_ < self.size else None
        return f"⟨{id_}⟩" if token is None else token.decode(errors="replace")

    def id_of(self, token: bytes) -> int | None:
        """The id of the one token with these bytes."""
        return self._id_of_bytes.get(token)

    def control_token_in(self, text: str) -> str | None:
        """The first control token that stands in the text as letters."""
        found = self._control.search(text)
        return found.group() if found else None

    def escaped(self, text: str, mark: str) -> str:
        """The text with `mark` inside each control token, so that none is read as one."""
        return self._control.sub(lambda found: found.group()[0] + mark + found.group()[1:], text)

    @property
    def longest(self) -> int:
        """Bytes of the longest token."""
        return self._longest

    @cached_property
    def _longest(self) -> int:
        return max(len(token) for token in self.token_bytes if token)

    @cached_property
    def _control(self) -> re.Pattern[str]:
        longest_first = sorted(self.control_tokens, key=len, reverse=True)
        return re.compile("(" + "|".join(map(re.escape, longest_first)) + ")" if longest_first else "(?!)()")

    @cached_property
    def _control_ids(self) -> dict[str, Ids]:
        return {text: np.array([id_], np.int32) for text, id_ in self.control_tokens.items()}

    @cached_property
    def _id_of_bytes(self) -> dict[bytes, int]:
        return {token: id_ for id_, token in enumerate(self.token_bytes) if token is not None}


def places(ids: Ids, token: int | None) -> NDArray[np.intp]:
    """Where a token stands; nowhere if the target has none for the role."""
    return np.flatnonzero(ids == token) if token is not None else np.empty(0, np.intp)


_WORTH_THREADS = 20_000


def in_threads(encode_one: Encoder, texts: Sequence[str]) -> list[Ids]:
    """`encode_one` over the texts, on all cores where they are long enough; it must let go of the GIL."""
    workers = os.cpu_count() or 1
    if workers == 1 or len(texts) < 2 or sum(map(len, texts)) < _WORTH_THREADS:
        return encode_one(texts)
    chunk = max(1, len(texts) // (4 * workers))
    chunks = [texts[at : at + chunk] for at in range(0, len(texts), chunk)]
    # made for each batch: threads that are kept would be missing in a forked process
    with ThreadPoolExecutor(workers, thread_name_prefix="encode") as pool:
        return [ids for done in pool.map(encode_one, chunks) for ids in done]

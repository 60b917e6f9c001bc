"""The two encoders, and how a tokenizer.json or a tiktoken.model file becomes a Tokenizer.

The reference of a tokenizer.json is Hugging Face's `tokenizers`. Where its rules are those of tiktoken (one pattern,
merges in the order of the ids), tiktoken encodes: the same ids at several times the speed.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import tiktoken
import tokenizers

from include.core.errors import TargetError
from include.core.files import file_digest, storage_errors
from include.core.profile import TiktokenFile
from include.core.records import Ids
from include.tokens.model_folder import tokenizer_config
from include.tokens.tokenizer import Tokenizer, in_threads

# tiktoken's pattern engine overflows its stack on about a million blanks in a row
_LONG = 100_000


class HuggingFace:
    """The reference: `tokenizers`, with its control tokens taken away."""

    def __init__(self, file: Mapping[str, Any]) -> None:
        plain = {**file, "added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
        self._tokenizer = tokenizers.Tokenizer.from_str(json.dumps(plain))

    def __call__(self, texts: Sequence[str]) -> list[Ids]:
        """Ids of each text; the library uses all cores by itself."""
        for text in texts:
            text.encode()  # a lone surrogate would end the process's thread instead of raising
        found = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(one.ids, np.int32) for one in found]


class Ranks:
    """tiktoken's encoder over some ranks. Many texts go through it in one call, which lets go of the GIL once: they are
    joined by a control token of ours, at which the ids are cut again.
    """

    _BETWEEN = "\ufdd1"  # a noncharacter, which Unicode reserves for such use

    def __init__(self, pattern: str, ranks: Mapping[bytes, int]) -> None:
        self._between = max(ranks.values()) + 1
        self._encoding = tiktoken.Encoding(
            "", pat_str=pattern, mergeable_ranks=dict(ranks), special_tokens={self._BETWEEN: self._between}
        )

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Ids of each text as characters; UnicodeEncodeError on lone surrogates."""
        joined = self._BETWEEN.join(texts)
        joined.encode()
        if joined.count(self._BETWEEN) != len(texts) - 1:
            return [self._ids(text, frozenset()) for text in texts]
        ids = self._ids(joined, frozenset((self._BETWEEN,)))
        ends = [*np.flatnonzero(ids == self._between).tolist(), len(ids)]
        return [ids[start + 1 : end] for start, end in pairwise([-1, *ends])]

    def _ids(self, text: str, control: frozenset[str]) -> Ids:
        return self._encoding.encode_to_numpy(text, allowed_special=control, disallowed_special=()).view(
            np.int32
        )


class Tiktoken:
    """tiktoken over the ranks of a tokenizer.json; texts it can't take go to the reference."""

    def __init__(self, ranks: Ranks, normalise: Any, reference: HuggingFace) -> None:
        self._ranks = ranks
        self._normalise = normalise
        self._reference = reference

    def __call__(self, texts: Sequence[str]) -> list[Ids]:
        """Ids of each text, on all cores."""
        return in_threads(self._encode, texts)

    def _encode(self, texts: Sequence[str]) -> list[Ids]:
        if any(len(text) > _LONG for text in texts):
            parts = [[text] for text in texts]
            return [self._reference(one)[0] if len(one[0]) > _LONG else self._encode(one)[0] for one in parts]
        if self._normalise:
            texts = [text if text.isascii() else self._normalise.normalize_str(text) for text in texts]
        return self._ranks.encode(texts)


class TiktokenModel:
    """A model that ships tiktoken's ranks: its own tokenizer cuts long texts, and so does this.

    Servers call that tokenizer with arguments, by which it finds the control tokens first and cuts what stands between
    them; so the cuts are counted from the last control token here too.
    """

    def __init__(self, ranks: Ranks, max_block: int, max_run: int) -> None:
        self._ranks = ranks
        self._max_block = max_block
        self._max_run = max_run

    def __call__(self, texts: Sequence[str]) -> list[Ids]:
        """Ids of each text, on all cores."""
        return in_threads(self._encode, texts)

    def _encode(self, texts: Sequence[str]) -> list[Ids]:
        if all(len(text) <= self._max_run for text in texts):
            return self._ranks.encode(texts)
        parts = [list(cut(text, self._max_block, self._max_run)) or [""] for text in texts]
        return [np.concatenate(self._ranks.encode(one)) for one in parts]


def cut(text: str, max_block: int, max_run: int) -> Iterator[str]:
    """Blocks of `max_block` characters, cut again where more than `max_run` of one kind (white space or not) follow."""
    for start in range(0, len(text), max_block):
        block, begin = text[start : start + max_block], 0
        for run in re.finditer(r"\s+|\S+", block):
            for at in range(run.start() + max_run, run.end(), max_run):
                yield block[begin:at]
                begin = at
        yield block[begin:]


def from_tokenizer_json(path: Path) -> Tokenizer:
    """A Tokenizer of a byte-level BPE tokenizer.json; TargetError for any other kind."""
    with storage_errors(path):
        text = path.read_text(encoding="utf-8")
    try:
        file: dict[str, Any] = json.loads(text)
        model, added = file["model"], file["added_tokens"]
        byte_level = model["type"] == "BPE" and "ByteLevel" in json.dumps(file["pre_tokenizer"])
    except (ValueError, KeyError, TypeError) as error:
        raise TargetError(
            f"{path} is no tokenizer.json ({' '.join(str(error).split())[:100]}).",
            do="Check that the folder is whole (compare it with the model's own).",
        ) from None
    if not byte_level or model.get("byte_fallback"):
        raise TargetError(
            f"{path} isn't a byte-level BPE tokenizer (its model is {model.get('type')}).",
            do="Only byte-level BPE is known here, as Kimi, Qwen, DeepSeek, Llama 3 and GPT-OSS have it.",
        )
    control = {str(token["content"]): int(token["id"]) for token in added}
    greedy = [t["content"] for t in added if t.get("lstrip") or t.get("rstrip") or t.get("single_word")]
    if greedy:
        raise TargetError(
            f"The control token {greedy[0]!r} in {path} depends on the text next to it.",
            do="Only control tokens without lstrip, rstrip and single_word are known here.",
        )
    letters = {token: id_ for token, id_ in model["vocab"].items() if token not in control}
    vocabulary = {_to_bytes(token): id_ for token, id_ in letters.items()}
    try:
        reference = HuggingFace(file)
    except Exception as error:  # the library has no exception of its own
        raise TargetError(
            f"{path} can't be loaded ({' '.join(str(error).split())[:100]}).",
            do="Compare the folder with the model's own.",
        ) from None
    fast = _as_tiktoken(file, letters, vocabulary)
    encoder = Tiktoken(fast, _normaliser(file), reference) if fast else reference
    return Tokenizer(encoder, _table(vocabulary, control), control, file_digest(path))


def from_tiktoken_model(path: Path, how: TiktokenFile) -> Tokenizer:
    """A Tokenizer of a tiktoken.model file: ranks as base64, one a line; control tokens behind them."""
    with storage_errors(path):
        lines = path.read_bytes().split(b"\n")
    try:
        ranks = {
            base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)
        }
    except ValueError:
        raise TargetError(
            f"{path} is no tiktoken file.", do="Compare the model's folder with its own."
        ) from None
    if sorted(ranks.values()) != list(range(how.ranks)):
        raise TargetError(
            f"{path} has {len(ranks)} ranks, not 0 to {how.ranks - 1}.",
            do="Compare the model's folder with its own, or fix `tiktoken.ranks` in the target's YAML.",
        )
    control = _named_control_tokens(path.parent, how)
    encoder = TiktokenModel(Ranks("|".join(how.pattern), ranks), how.max_block, how.max_run)
    return Tokenizer(encoder, _table(ranks, control), control, file_digest(path))


def _named_control_tokens(folder: Path, how: TiktokenFile) -> dict[str, int]:
    """Names from the model's tokenizer_config.json if it has one, because families re-use the ids."""
    said = tokenizer_config(folder).get("added_tokens_decoder") or {}
    names = {int(id_): str(token["content"]) for id_, token in said.items()} or {
        how.ranks + offset: name for offset, name in how.control_tokens.items()
    }
    last = max(how.ranks + how.reserved - 1, *names)
    return {names.get(id_, how.reserved_name.format(id=id_)): id_ for id_ in range(how.ranks, last + 1)}


def _as_tiktoken(
    file: Mapping[str, Any], letters: Mapping[str, int], vocabulary: Mapping[bytes, int]
) -> Ranks | None:
    """tiktoken's encoder with the same ids, or None where that isn't certain.

    Both join the pair of lowest rank first. tiktoken's rank is the id of what a pair makes, whichever pair that is, and
    it takes a token whole where it finds one. That is the same where the merges stand in the order of the ids they
    make, every token but the 256 bytes is made by one merge, and joining a token's bytes gives that token: then each
    is made of the same pair wherever it stands (by induction on its length).
    """
    model = file["model"]
    pattern = _only_pattern(file["pre_tokenizer"])
    odd = ("ignore_merges", "dropout", "continuing_subword_prefix", "end_of_word_suffix", "unk_token")
    if pattern is None or _normaliser(file) is False or any(model.get(option) for option in odd):
        return None
    made = [vocabulary.get(_to_bytes(a) + _to_bytes(b), -1) for a, b in map(_pair, model["merges"])]
    singles = [id_ for token, id_ in vocabulary.items() if len(token) == 1]
    ordered = all(a < b for a, b in pairwise((max(singles, default=-1), *made)))
    if not ordered or len(singles) != 256 or len(made) + 256 != len(vocabulary):
        return None
    joined = tokenizers.models.BPE(vocab=model["vocab"], merges=[_pair(merge) for merge in model["merges"]])
    if any([t.id for t in joined.tokenize(token)] != [id_] for token, id_ in letters.items()):
        return None
    return Ranks(pattern, vocabulary)


def _only_pattern(pre_tokenizer: Mapping[str, Any]) -> str | None:
    """The pattern of Split(pattern, isolated) + ByteLevel; None for anything else."""
    steps = pre_tokenizer.get("pretokenizers", [])
    if pre_tokenizer.get("type") != "Sequence" or [s["type"] for s in steps] != ["Split", "ByteLevel"]:
        return None
    split, bytes_ = steps
    plain = not bytes_.get("use_regex", True) and not bytes_.get("add_prefix_space")
    if not plain or split.get("behavior") != "Isolated" or split.get("invert"):
        return None
    pattern = split.get("pattern", {}).get("Regex")
    return str(pattern) if pattern else None


def _normaliser(file: Mapping[str, Any]) -> Any:
    """NFC, None for no normaliser, False for one that isn't known here."""
    said = file.get("normalizer")
    if said is None or said == {"type": "Sequence", "normalizers": []}:
        return None
    return tokenizers.normalizers.NFC() if said == {"type": "NFC"} else False


def _table(vocabulary: Mapping[bytes, int], control: Mapping[str, int]) -> list[bytes | None]:
    table: list[bytes | None] = [None] * (1 + max([*vocabulary.values(), *control.values()]))
    for token, id_ in vocabulary.items():
        table[id_] = token
    for text, id_ in control.items():
        table[id_] = text.encode()
    return table


def _pair(merge: str | Sequence[str]) -> tuple[str, str]:
    a, b = merge.split(" ") if isinstance(merge, str) else merge
    return a, b


def _letters() -> dict[str, int]:
    """The letters by which byte-level BPE writes bytes in JSON (GPT-2's table): printable ones stand for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


_BYTE_OF = _letters()


def _to_bytes(token: str) -> bytes:
    try:
        return bytes([_BYTE_OF[letter] for letter in token])
    except KeyError:
        return token.encode()

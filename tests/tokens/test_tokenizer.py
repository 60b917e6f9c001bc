"""Tokenizers, on the real thing: golden ids, the references, and texts that break tokenizers."""

from __future__ import annotations

import json
import logging
import multiprocessing
import random
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from include.core.errors import TargetError
from include.core.profile import TiktokenFile, target_named
from include.core.records import Ids
from include.tokens.encoders import (
    HuggingFace,
    Tiktoken,
    TiktokenModel,
    cut,
    from_tiktoken_model,
    from_tokenizer_json,
)
from include.tokens.target import Target
from include.tokens.tokenizer import Encoder, Tokenizer, places
from tests.conftest import shared

SCRIPTS = "aZé東ñ한กअעـʰǅ\u0301\u200d\ufe0f👩🇩½٣٤ Ⅷ\t \n\r\u00a0\u2028\u3000'’s.,!?<|>_-/\\\x00\x1c\x85\ufeff\u202eſK"


def same(a: Sequence[Ids], b: Sequence[Ids]) -> list[int]:
    """The places where they differ."""
    return [i for i, (x, y) in enumerate(zip(a, b, strict=True)) if not np.array_equal(x, y)]


# --- Kimi: golden ids of an independent tokenizer -------------------------------------------------------------------


@pytest.mark.parametrize("name", ["small", "mixed"])
def test_kimi_gives_the_golden_ids_line_by_line(kimi: Target, name: str) -> None:
    folder = shared("kimi-k2/golden")
    lines = (folder / f"{name}_input.txt").read_text(encoding="utf-8").split("\n")
    golden = (folder / f"{name}_tokens_kimi_k2.txt").read_text().split("\n")
    texts = [line.replace("\\n", "\n").replace("\\s", " ") for line in lines]
    while texts[-1] == "":
        texts.pop()
    expected = [[int(id_) for id_ in line.split(",")] for line in golden if line]
    assert [ids.tolist() for ids in kimi.tokenizer.encode(texts)] == expected


def test_kimi_gives_the_golden_ids_of_a_whole_file(kimi: Target) -> None:
    folder = shared("kimi-k2/golden")
    text = (folder / "utf8_input.txt").read_text(encoding="utf-8")
    golden = (folder / "utf8_tokens_kimi_k2.txt").read_text()
    assert kimi.encode(text).tolist() == [int(id_) for id_ in golden.split(",")]


def test_kimis_control_tokens_are_the_known_256(kimi: Target) -> None:
    known = json.loads(shared("kimi-k2/special_tokens.json").read_text())
    names = {int(id_): token["content"] for id_, token in known["tokens"].items()}
    expected = {
        names.get(id_, known["reserved_name"].format(id=id_)): id_
        for id_ in range(known["base_tokens"], known["vocab_size"])
    }
    assert dict(kimi.control_tokens) == expected
    assert len(expected) == 256 and kimi.vocab_size == 163_840
    assert kimi.special_ids == {"end_of_turn": 163_586, "thinking_open": 163_606, "thinking_close": 163_607}


def test_names_come_from_the_models_own_config_where_there_is_one(kimi_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "tiktoken.model").symlink_to(kimi_folder / "tiktoken.model")
    config = {"added_tokens_decoder": {"163586": {"content": "<|end_of_msg|>"}, "163841": {"content": "<x>"}}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    how = target_named("kimi-k2.5").tiktoken
    assert how is not None
    tokenizer = from_tiktoken_model(tmp_path / "tiktoken.model", how)
    assert tokenizer.control_tokens["<|end_of_msg|>"] == 163_586
    assert "<|im_end|>" not in tokenizer.control_tokens
    assert tokenizer.control_tokens["<|reserved_token_163587|>"] == 163_587
    assert tokenizer.size == 163_842
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(TargetError, match=r"tokenizer_config.json isn't valid JSON"):
        from_tiktoken_model(tmp_path / "tiktoken.model", how)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["QQ== 0", "Qg== 1"], "has 2 ranks"),
        (["QQ== 0", *(f"{i} {i}" for i in range(3))], "tiktoken file"),
        (["not a rank"], "tiktoken file"),
    ],
)
def test_a_file_that_was_cut_short_moves_no_control_token(
    tmp_path: Path, lines: list[str], message: str
) -> None:
    path = tmp_path / "tiktoken.model"
    path.write_text("\n".join(lines))
    how = TiktokenFile(pattern=(r"\S+|\s+",), ranks=256, control_tokens={0: "<a>"}, reserved=1)
    with pytest.raises(TargetError, match=message):
        from_tiktoken_model(path, how)


def cut_by_hand(text: str, max_block: int, max_run: int) -> Iterator[str]:
    """The same cuts, one character at a time."""
    for begin in range(0, len(text), max_block):
        block = text[begin : begin + max_block]
        piece, run, kind = "", 0, None
        for letter in block:
            if letter.isspace() is not kind:
                kind, run = letter.isspace(), 0
            if run == max_run:
                yield piece
                piece, run = "", 0
            piece += letter
            run += 1
        yield piece


@settings(deadline=None, max_examples=300)
@given(st.text(alphabet="ab \n\u00a0\x1c\x85東", max_size=60), st.integers(1, 20), st.integers(1, 8))
def test_long_texts_are_cut_where_the_models_own_code_cuts(text: str, max_block: int, max_run: int) -> None:
    assert list(cut(text, max_block, max_run)) == list(cut_by_hand(text, max_block, max_run))


@pytest.mark.parametrize(
    "text",
    ["a" * 25_001, " " * 60_000 + "x", "a b" * 140_000, ("x" * 24_999 + " ") * 40, "東" * 450_000],
    ids=["run", "blanks", "blocks", "runs just below", "han"],
)
def test_kimis_long_texts_are_encoded_cut_by_cut(kimi: Target, text: str) -> None:
    assert isinstance(kimi.tokenizer.encoder, TiktokenModel)
    encoding = kimi.tokenizer.encoder._ranks._encoding
    begin = time.monotonic()
    ids = kimi.encode(text)
    assert time.monotonic() - begin < 10  # runs just below the limit took a minute once
    expected = [id_ for piece in cut_by_hand(text, 400_000, 25_000) for id_ in encoding.encode(piece)]
    assert ids.tolist() == expected
    assert kimi.decode(ids) == text


def test_texts_that_are_encoded_in_one_call_are_encoded_each_for_itself(qwen3: Target, kimi: Target) -> None:
    texts = ["a ", " b", "", "\ufdd1", "c\ufdd1d", "e\u0301", "\u0301e", "\n", "", "\n\n x"]
    for target in (qwen3, kimi):
        alone = [target.encode(text).tolist() for text in texts]
        assert [ids.tolist() for ids in target.tokenizer.encode(texts)] == alone
        without = [text for text in texts if "\ufdd1" not in text]
        expected = [ids for text, ids in zip(texts, alone, strict=True) if "\ufdd1" not in text]
        assert [ids.tolist() for ids in target.tokenizer.encode(without)] == expected


def test_encoding_logs_nothing(kimi: Target, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        kimi.encode("word " * 200_000)
        kimi.tokenizer.encode(["word " * 1000] * 100)
    assert not caplog.records


# --- Qwen3: the fast path against Hugging Face's tokenizers ---------------------------------------------------------


def reference(target: Target) -> tuple[Encoder, Encoder]:
    """(fast, reference) of a target that tiktoken encodes."""
    fast = target.tokenizer.encoder
    assert isinstance(fast, Tiktoken)
    return fast, fast._reference


def code_points() -> list[str]:
    """Every code point of the planes in use, whatever this Python's Unicode knows of them; a sample of the others."""
    return [
        chr(code)
        for code in range(0x110000)
        if not 0xD800 <= code < 0xE000 and (code < 0x34000 or 0xE0000 <= code < 0xE0200 or code % 211 == 0)
    ]


@pytest.mark.parametrize("context", ["a{}b", "1{}2", " {} ", "\n{}!", "'{}s"])
def test_every_code_point_has_the_references_ids(qwen3: Target, context: str) -> None:
    fast, slow = reference(qwen3)
    texts = [context.replace("{}", letter) for letter in code_points()]
    assert len(texts) > 210_000
    assert [texts[i] for i in same(fast(texts), slow(texts))] == []


def random_texts(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    words = [
        "the",
        "Don't",
        "I'LL",
        "東京tower",
        "12345",
        "  ",
        "\n\n",
        "\r\n",
        "===",
        "é",
        "e\u0301",
        "<|im_end",
        "'s",
    ]
    return [
        "".join(
            draw.choice(words) if draw.random() < 0.4 else draw.choice(SCRIPTS)
            for _ in range(draw.randrange(60))
        )
        for _ in range(count)
    ]


def test_random_strings_have_the_references_ids(qwen3: Target) -> None:
    fast, slow = reference(qwen3)
    texts = random_texts(3000, seed=1)
    assert [texts[i] for i in same(fast(texts), slow(texts))] == []


HARD = {
    "one letter": "a" * 1_000_000,
    "blanks": " " * 1_000_000,
    "newlines": "\n" * 1_000_000,
    "100,000 spaces": " " * 100_000,
    "just below": " " * 99_999 + "x",
    "blanks before a letter": "\t" * 99_999 + "x",
    "mixed blanks": " \n" * 49_999,
    "CRLF": "a\r\n" * 33_000,
    "digits": "7" * 99_999,
    "punctuation": "=" * 99_999,
    "han": "東" * 99_999,
    "emoji sequences": "👩‍👩‍👧" * 12_000,
    "NFD": "e\u0301" * 49_000,
    "combining": "e" + "\u0301" * 99_000,
    "contractions": "'s" * 49_000,
    "NUL": "\0" * 99_999,
    "right to left": "\u202eabc\u202c אבג " * 5_000,
    "BOM": "\ufeffx" * 5_000,
}


@pytest.mark.parametrize("name", HARD)
def test_hard_texts_take_bounded_time_and_have_the_references_ids(
    qwen3: Target, kimi: Target, name: str
) -> None:
    text = HARD[name]
    fast, slow = reference(qwen3)
    begin = time.monotonic()
    found = fast([text, text])  # two: in threads, whose stacks may be smaller
    assert time.monotonic() - begin < 20
    assert same(found, slow([text, text])) == []
    assert qwen3.decode(found[0]) == unicodedata.normalize("NFC", text)
    ids = kimi.tokenizer.encode([text, text])
    assert time.monotonic() - begin < 40
    assert kimi.decode(ids[1]) == text


def test_a_lone_surrogate_is_said_on_every_path(qwen3: Target, kimi: Target, deepseek_v3: Target) -> None:
    for target in (qwen3, kimi, deepseek_v3):
        with pytest.raises(UnicodeEncodeError):
            target.encode("a\ud83d")
        with pytest.raises(UnicodeEncodeError):
            target.tokenizer.encode(["fine"] * 50_000 + ["\udc00"])
        with pytest.raises(UnicodeEncodeError):
            target.tokenizer.encode_marked(["x<|im_end|>\udc00"])
    with pytest.raises(UnicodeEncodeError):
        qwen3.encode("\ud83d" + "a" * 200_000)  # the reference path


# --- a tokenizer.json that tiktoken isn't proven for ----------------------------------------------------------------


def small_file() -> dict[str, Any]:
    """A small byte-level BPE for which tiktoken is proven."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = [*map(chr, printable), *map(chr, range(256, 512 - len(printable)))]
    merges = [["a", "b"], ["b", "c"], ["ab", "c"], ["Ġ", "a"], ["Ġ", "abc"], ["c", "c"]]
    vocab = {letter: id_ for id_, letter in enumerate(letters)}
    vocab |= {a + b: 256 + i for i, (a, b) in enumerate(merges)}
    plain = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    pattern = {"Regex": r" ?[a-z]+|\s+|[^\sa-z]+"}
    split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "added_tokens": [{"id": 300, "content": "<end>", "special": True, **plain}],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytes_]},
        "post_processor": None,
        "decoder": bytes_,
        "model": {"type": "BPE", "vocab": vocab, "merges": merges, "ignore_merges": False},
    }


def loaded(folder: Path, file: dict[str, Any]) -> Tokenizer:
    (folder / "tokenizer.json").write_text(json.dumps(file))
    return from_tokenizer_json(folder / "tokenizer.json")


def swap_order(file: dict[str, Any]) -> None:
    merges = file["model"]["merges"]
    merges[0], merges[1] = merges[1], merges[0]


def join_another_pair(file: dict[str, Any]) -> None:
    """abc of a and bc: the ids stand in order, but joining never gets there, while tiktoken does."""
    file["model"]["merges"][2] = ["a", "bc"]


def make_one_twice(file: dict[str, Any]) -> None:
    file["model"]["merges"].append(["a", "bc"])


def make_none(file: dict[str, Any]) -> None:
    file["model"]["vocab"]["cab"] = 290


def bytes_after_pairs(file: dict[str, Any]) -> None:
    vocab = file["model"]["vocab"]
    vocab["ab"], vocab["Z"] = vocab["Z"], vocab["ab"]


def set_model(**options: Any) -> Callable[[dict[str, Any]], None]:
    return lambda file: file["model"].update(options)


def set_step(step: int, **options: Any) -> Callable[[dict[str, Any]], None]:
    return lambda file: file["pre_tokenizer"]["pretokenizers"][step].update(options)


def normalise(how: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
    return lambda file: file.update(normalizer=how)


UNPROVEN = {
    "merges swapped": swap_order,
    "another pair": join_another_pair,
    "made twice": make_one_twice,
    "made by none": make_none,
    "pair before bytes": bytes_after_pairs,
    "ignore_merges": set_model(ignore_merges=True),
    "NFKC": normalise({"type": "NFKC"}),
    "lower case": normalise({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}),
    "split away": set_step(0, behavior="Removed"),
    "split inverted": set_step(0, invert=True),
    "a text as pattern": set_step(0, pattern={"String": "b"}),
    "GPT-2's pattern too": set_step(1, use_regex=True),
    "prefix space": set_step(1, add_prefix_space=True),
    "ByteLevel alone": lambda file: file.update(pre_tokenizer=file["pre_tokenizer"]["pretokenizers"][1]),
    "other steps": lambda file: file["pre_tokenizer"]["pretokenizers"].insert(
        0, {"type": "Digits", "individual_digits": True}
    ),
}
SMALL_TEXTS = [
    "".join(random.Random(seed).choices("aabbbcc ABZ1é\u2075\n", k=seed % 40)) for seed in range(400)
] + ["abc", " abc", "cabc", "abcc", "ﬁ abc"]


def hugging_face(file: dict[str, Any], texts: Sequence[str]) -> list[list[int]]:
    """What `tokenizers` itself makes of the file."""
    reference = tokenizers.Tokenizer.from_str(json.dumps(file))
    return [reference.encode(text, add_special_tokens=False).ids for text in texts]


def test_tiktoken_encodes_where_it_is_proven(tmp_path: Path) -> None:
    tokenizer = loaded(tmp_path, small_file())
    assert isinstance(tokenizer.encoder, Tiktoken)
    assert [ids.tolist() for ids in tokenizer.encode(SMALL_TEXTS)] == hugging_face(small_file(), SMALL_TEXTS)


@pytest.mark.parametrize("how", UNPROVEN)
def test_what_isnt_proven_stays_with_the_reference(tmp_path: Path, how: str) -> None:
    file = small_file()
    UNPROVEN[how](file)
    tokenizer = loaded(tmp_path, file)
    assert isinstance(tokenizer.encoder, HuggingFace)
    assert [ids.tolist() for ids in tokenizer.encode(SMALL_TEXTS)] == hugging_face(file, SMALL_TEXTS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda file: file["model"].update(type="Unigram"), "byte-level BPE"),
        (lambda file: file["model"].update(byte_fallback=True), "byte-level BPE"),
        (lambda file: file.update(pre_tokenizer=None), "byte-level BPE"),
        (lambda file: file["added_tokens"][0].update(rstrip=True), "'<end>'.*next to it"),
        (lambda file: file["model"].update(continuing_subword_prefix="a"), "can't be loaded"),
        (lambda file: file.pop("model"), r"no tokenizer.json \('model'\)"),
    ],
)
def test_a_file_of_another_kind_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    file = small_file()
    change(file)
    with pytest.raises(TargetError, match=message):
        loaded(tmp_path, file)


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": ')
    with pytest.raises(TargetError, match=r"no tokenizer.json"):
        from_tokenizer_json(tmp_path / "tokenizer.json")


@pytest.mark.parametrize(("model", "fast"), [("qwen3", True), ("deepseek_v3", False), ("target", False)])
def test_the_real_ones_have_tokenizers_ids(
    model: str, fast: bool, request: pytest.FixtureRequest, models_dir: Path
) -> None:
    loaded_target: Target = request.getfixturevalue(model)
    assert isinstance(loaded_target.tokenizer.encoder, Tiktoken) is fast
    file = models_dir / loaded_target.profile.folder_name / "tokenizer.json"
    reference = tokenizers.Tokenizer.from_file(str(file))
    names = list(loaded_target.control_tokens)
    draw = random.Random(3)
    texts = [
        "".join(draw.choice(names) + text for text in draw.choices(random_texts(50, 2), k=3))
        for _ in range(300)
    ]
    assert [ids.tolist() for ids in loaded_target.tokenizer.encode_marked(texts)] == [
        reference.encode(text, add_special_tokens=False).ids for text in texts
    ]
    for text, ids in zip(texts, loaded_target.tokenizer.encode(texts), strict=True):
        assert not set(ids.tolist()) & set(loaded_target.control_tokens.values()), text


# --- characters, control tokens, bytes ------------------------------------------------------------------------------


def test_text_is_characters_and_marked_text_isnt(qwen3: Target) -> None:
    end = qwen3.end_of_turn
    tokenizer = qwen3.tokenizer
    assert end not in tokenizer.encode(["a<|im_end|>b"])[0]
    assert tokenizer.encode_marked(["a<|im_end|>b"])[0].tolist() == [64, end, 65]
    assert tokenizer.encode_marked(["<|im_end|><|im_end|>", ""])[0].tolist() == [end, end]
    assert tokenizer.encode_marked([""])[0].dtype == np.int32
    assert tokenizer.encode([]) == [] and tokenizer.encode_marked([]) == []


def test_the_escape_goes_and_leaves_characters(qwen3: Target) -> None:
    tokenizer, mark = qwen3.tokenizer, "\ufdd0"
    escaped = tokenizer.escaped("x<|im_end|>y<think>", mark)
    assert tokenizer.control_token_in(escaped) is None
    (ids,) = tokenizer.encode_marked([escaped + "<|im_end|>"], dropped=mark)
    assert ids.tolist() == [*tokenizer.encode(["x<|im_end|>y<think>"])[0].tolist(), qwen3.end_of_turn]


def test_what_was_encoded_without_an_escape_isnt_taken_for_the_escaped(qwen3: Target) -> None:
    """Short segments are kept; one that holds the character as text once gave its ids to an escaped one."""
    tokenizer, mark = qwen3.tokenizer, "\ufdd1"
    (with_it,) = tokenizer.encode_marked([f"k{mark}ept"])
    assert tokenizer.decode(with_it) == f"k{mark}ept"
    (without,) = tokenizer.encode_marked([f"k{mark}ept"], dropped=mark)
    assert tokenizer.decode(without) == "kept"


def test_kept_segments_are_bounded(tmp_path: Path) -> None:
    tokenizer = loaded(tmp_path, small_file())
    for batch in range(3):
        tokenizer.encode_marked([f"<end>{batch} {i}<end>" for i in range(3000)])
    assert len(tokenizer._segments) <= 4096
    assert tokenizer.decode(tokenizer.encode_marked(["<end>2 2999<end>"])[0]) == "<end>2 2999<end>"


def test_ids_that_no_token_has_are_shown_and_never_wrap_around(qwen3: Target, kimi: Target) -> None:
    for target in (qwen3, kimi):
        size = target.vocab_size
        assert target.decode([-1, size, 2**40]) == f"⟨-1⟩⟨{size}⟩⟨{2**40}⟩"
        assert target.decode(np.array([-1, size], np.int64)) == f"⟨-1⟩⟨{size}⟩"
        for wrong in (-1, size, -size):
            with pytest.raises((IndexError, TypeError)):
                target.tokenizer.decode_bytes([0, wrong])
        assert target.decode([]) == ""
        with pytest.raises((IndexError, TypeError)):
            target.tokenizer.decode_bytes(np.array([0, -1], np.int32))


def test_part_of_a_character_decodes_to_the_replacement_and_bytes_stay(kimi: Target) -> None:
    ids = kimi.encode("🜝")
    assert len(ids) > 1
    assert "\ufffd" in kimi.decode(ids[:1])
    assert kimi.tokenizer.decode_bytes(ids) == "🜝".encode()
    assert [kimi.tokenizer.id_of(kimi.tokenizer.token_bytes[id_] or b"") for id_ in ids] == ids.tolist()
    assert kimi.tokenizer.id_of(b"<|im_end|>") == 163_586
    assert kimi.tokenizer.id_of(b"no such token, surely") is None


def test_places_are_found(kimi: Target) -> None:
    ids = np.array([5, 7, 5], np.int32)
    assert places(ids, 5).tolist() == [0, 2]
    assert places(ids, None).tolist() == []


@settings(deadline=None, max_examples=200)
@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=80))
def test_kimi_gives_every_text_back(kimi: Target, text: str) -> None:
    assert kimi.decode(kimi.encode(text)) == text


def test_deepseeks_file_is_right_and_the_class_that_its_config_names_is_wrong(
    deepseek_v3: Target, models_dir: Path
) -> None:
    """tokenizer_config.json says LlamaTokenizerFast. transformers 5 builds Llama's own steps under that name and loses
    every blank; AutoTokenizer takes the file as it is, and so do servers.
    """
    transformers = pytest.importorskip("transformers")
    text = "Hello world's I'LL 東京tower\n\n  x  123456 <｜User｜>hi"
    (ours,) = deepseek_v3.tokenizer.encode_marked([text])
    folder = str(models_dir / "DeepSeek-V3")
    auto = transformers.AutoTokenizer.from_pretrained(folder)
    assert auto(text, add_special_tokens=False)["input_ids"] == ours.tolist()
    named = transformers.LlamaTokenizerFast.from_pretrained(folder)
    assert " " not in named.decode(named(text, add_special_tokens=False)["input_ids"])


def test_a_forked_process_encodes_too(qwen3: Target) -> None:
    """Airflow forks for each task. A pool of threads that was kept hung in the child, where its threads are missing."""
    texts = ["word " * 10_000] * 4
    qwen3.tokenizer.encode(texts)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        (first, *_) = pool.apply_async(qwen3.tokenizer.encode, (texts,)).get(timeout=60)
    assert np.array_equal(first, qwen3.encode(texts[0]))

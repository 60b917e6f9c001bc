"""The table of ways to break a good sample: the rule meant for it, what is done, to which sample, and the place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from include.core.records import TokenSample
from include.tokens.target import Target
from tests.tokens.broken_samples import answered, captured, masked, place, put, swapped, with_mask

KIMI, QWEN, SMOL = "kimi", "qwen3", "target"


END, OPEN, CLOSE = 163586, 163606, 163607
SECTION, SECTION_END, CALL, ARGUMENTS, CALL_END = range(163595, 163600)
QWEN_END, QWEN_OPEN, QWEN_CLOSE, QWEN_CALL, QWEN_CALL_END = 151645, 151667, 151668, 151657, 151658

Change = Callable[[TokenSample, Target], TokenSample]
Place = Callable[[TokenSample], int | None]


def start(s: TokenSample) -> int:
    return s.prompt_len


def last(s: TokenSample) -> int:
    return len(s.input_ids) - 1


def beyond(s: TokenSample) -> int:
    return len(s.input_ids)


def nowhere(s: TokenSample) -> None:
    return None


def at(token: int, nth: int = 0, plus: int = 0) -> Place:
    return lambda s: place(s, token, nth) + plus


def answers(s: TokenSample) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], s.loss_mask, [0]]).astype(int)))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def letters(token: int) -> Change:
    """The token's name as characters in its place."""
    return lambda s, t: put(s, place(s, token), *t.encode(t.decode([token])).tolist(), drop=1)


def text(words: str, where: Place) -> Change:
    return lambda s, t: put(s, where(s) or 0, *t.encode(words).tolist())


def call_text(old: str, new: str) -> Change:
    """Another text inside the tool section."""

    def change(s: TokenSample, t: Target) -> TokenSample:
        whole = t.decode(s.input_ids[s.prompt_len :])
        assert old in whole
        return answered(s, t, whole.replace(old, new, 1))

    return change


def split(s: TokenSample, t: Target) -> TokenSample:
    """The answer's words as single letters: the same text in ids that the tokenizer wouldn't choose."""
    ids = s.input_ids[s.prompt_len : -1].tolist()
    plain = [b for id_ in ids for b in (t.tokenizer.token_bytes[id_] or b"")]
    singles = [t.tokenizer.id_of(bytes([b])) or 0 for b in plain]
    return replace(put(s, s.prompt_len, *singles, drop=len(ids)), round_trip_exact=False)


def one_split(s: TokenSample, t: Target) -> TokenSample:
    """One token of the answer (" Paris") as two."""
    at = place(s, int(t.encode(" Paris")[0]))
    return put(s, at, t.tokenizer.id_of(b" P") or 0, t.tokenizer.id_of(b"aris") or 0, drop=1)


def middle(s: TokenSample) -> tuple[int, int]:
    return answers(s)[1]


Break = tuple[str, str, str, str, Change, Place | None]  # the place of None isn't looked at

# fmt: off
BREAKS: list[Break] = [
    ("A01", "the mask is one short", SMOL, "plain", lambda s, t: with_mask(s, s.loss_mask[:-1]), nowhere),
    ("A01", "the mask is one long", KIMI, "off", lambda s, t: with_mask(s, [*s.loss_mask, 1]), nowhere),
    ("A01", "prompt_len 0", SMOL, "plain", lambda s, t: replace(s, prompt_len=0), nowhere),
    ("A01", "prompt_len −1", SMOL, "plain", lambda s, t: replace(s, prompt_len=-1), nowhere),
    ("A01", "prompt_len is seq_len", SMOL, "plain", lambda s, t: replace(s, prompt_len=beyond(s)), nowhere),
    ("A01", "no ids at all", SMOL, "plain", lambda s, t: put(s, 0, drop=beyond(s)), nowhere),
    ("A02", "one above Kimi's vocabulary", KIMI, "thinks",
     lambda s, t: put(s, -2, 163840, drop=1), lambda s: last(s) - 1),
    ("A02", "one above Qwen3's last token", QWEN, "thinks",
     lambda s, t: put(s, -2, 151669, drop=1), lambda s: last(s) - 1),
    ("A02", "a padded id of Qwen3's embedding", QWEN, "off",
     lambda s, t: put(s, -2, 151935, drop=1), lambda s: last(s) - 1),
    ("A02", "a negative id", SMOL, "plain", lambda s, t: put(s, -2, -1, drop=1), lambda s: last(s) - 1),
    ("A02", "the largest id there is", SMOL, "plain", lambda s, t: put(s, 3, 2**31 - 1, drop=1), lambda s: 3),
    ("A02", "a negative id in the prompt", KIMI, "thinks", lambda s, t: put(s, 0, -100, drop=1), lambda s: 0),
    ("A03", "config.json's eos", KIMI, "thinks", lambda s, t: put(s, -1, 163585, drop=1), last),
    ("A03", "config.json's eos, thinking off", KIMI, "off", lambda s, t: put(s, -1, 163585, drop=1), last),
    ("A03", "a number mistyped", KIMI, "thinks", lambda s, t: put(s, -1, 163533, drop=1), last),
    ("A03", "Qwen3's endoftext", QWEN, "thinks", lambda s, t: put(s, -1, 151643, drop=1), last),
    ("A03", "no end of turn", KIMI, "calls", lambda s, t: put(s, -1, drop=1), lambda s: last(s) - 1),
    ("A03", "the end of turn in letters", KIMI, "off", letters(END), None),
    ("A03", "the template's newline supervised", QWEN, "thinks", lambda s, t: put(s, beyond(s), 198), beyond),
    ("A03", "the end of a middle answer not supervised", KIMI, "merged",
     lambda s, t: masked(s, middle(s)[1] - 1, middle(s)[1], 0), lambda s: middle(s)[1] - 2),
    ("A04", "the end of turn twice", KIMI, "thinks", lambda s, t: put(s, -1, END), last),
    ("A04", "the end of turn and a word behind", KIMI, "off",
     lambda s, t: swapped(s, last(s), last(s) - 1), lambda s: last(s) - 1),
    ("A04", "the next user's turn in the answer", KIMI, "thinks", lambda s, t: put(s, -1, 163587), last),
    ("A04", "a begin of text in the answer", KIMI, "off", lambda s, t: put(s, start(s), 163584), start),
    ("A04", "padding in the answer", KIMI, "off", lambda s, t: put(s, -1, 163839, 163839), last),
    ("A04", "a reserved token", KIMI, "off", lambda s, t: put(s, -2, 163700, drop=1), lambda s: last(s) - 1),
    ("A04", "a turn opened by Qwen3", QWEN, "off", lambda s, t: put(s, -3, 151644), lambda s: last(s) - 2),
    ("A04", "a tool's response in the answer", QWEN, "calls", lambda s, t: put(s, -1, 151665), last),
    ("A04", "a turn opened by SmolLM2", SMOL, "plain", lambda s, t: put(s, -3, 1), lambda s: last(s) - 2),
    ("A05", "<think> not in the prompt", KIMI, "thinks",
     lambda s, t: put(s, start(s) - 1, drop=1), lambda s: start(s) - 2),
    ("A05", "the generation prompt is lost", QWEN, "thinks",
     lambda s, t: put(s, start(s) - 3, drop=3), lambda s: start(s) - 4),
    ("A05", "a newline behind the generation prompt", SMOL, "plain",
     lambda s, t: put(s, start(s) - 1, 198), start),
    ("A05", "the user speaks last", KIMI, "off",
     lambda s, t: swapped(s, start(s) - 1, start(s) - 5), lambda s: start(s) - 1),
    ("A05", "prompt_len one short", SMOL, "plain",
     lambda s, t: replace(s, prompt_len=start(s) - 1), lambda s: start(s) - 2),
    ("A05", "prompt_len one long", SMOL, "plain", lambda s, t: replace(s, prompt_len=start(s) + 1), start),
    ("A05", "prompt_len one short, Kimi thinks", KIMI, "thinks",
     lambda s, t: replace(s, prompt_len=start(s) - 1), lambda s: start(s) - 2),
    ("A05", "prompt_len one long, Kimi thinks", KIMI, "thinks",
     lambda s, t: replace(s, prompt_len=start(s) + 1), start),
    ("A05", "prompt_len and mask one short", QWEN, "off",
     lambda s, t: masked(replace(s, prompt_len=start(s) - 1), start(s) - 1, start(s), 1), lambda s: start(s) - 2),
    ("A05", "prompt_len and mask one long", QWEN, "off",
     lambda s, t: masked(replace(s, prompt_len=start(s) + 1), start(s), start(s) + 1, 0), start),
    ("A06", "prompt_len one short between <think></think>", KIMI, "off",
     lambda s, t: replace(s, prompt_len=start(s) - 1), lambda s: start(s) - 1),
    ("A06", "mask shifted left", SMOL, "plain",
     lambda s, t: with_mask(s, [*s.loss_mask[1:], 1]), lambda s: start(s) - 1),
    ("A06", "mask shifted right", SMOL, "plain", lambda s, t: with_mask(s, [0, *s.loss_mask[:-1]]), start),
    ("A06", "mask shifted left and last 0", KIMI, "thinks",
     lambda s, t: with_mask(s, [*s.loss_mask[1:], 0]), lambda s: start(s) - 1),
    ("A06", "mask of a merged sample shifted right", KIMI, "merged",
     lambda s, t: with_mask(s, [0, *s.loss_mask[:-1]]), start),
    ("A06", "mask all ones", KIMI, "thinks", lambda s, t: masked(s, 0, beyond(s), 1), lambda s: 0),
    ("A06", "mask all zeros", KIMI, "thinks", lambda s, t: masked(s, 0, beyond(s), 0), start),
    ("A06", "a hole in the mask", KIMI, "thinks",
     lambda s, t: masked(s, start(s) + 3, start(s) + 4, 0), lambda s: start(s) + 3),
    ("A06", "a 2 in the mask", QWEN, "calls", lambda s, t: masked(s, last(s), last(s) + 1, 2), last),
    ("A06", "255 for −1", QWEN, "calls", lambda s, t: masked(s, start(s), start(s) + 1, 255), start),
    ("A06", "a word of the question supervised", SMOL, "plain", lambda s, t: masked(s, 5, 6, 1), lambda s: 5),
    ("A06", "the generation prompt supervised", KIMI, "off",
     lambda s, t: masked(s, start(s) - 3, start(s), 1), lambda s: start(s) - 3),
    ("A06", "the first of three answers left out", KIMI, "merged",
     lambda s, t: masked(s, *answers(s)[0], 0), start),
    ("A06", "the second of three answers left out", KIMI, "merged",
     lambda s, t: masked(s, *middle(s), 0), lambda s: middle(s)[0]),
    ("A06", "the last of three answers left out", KIMI, "merged",
     lambda s, t: masked(s, *answers(s)[2], 0), lambda s: middle(s)[1]),
    ("A06", "the second of three left out, SmolLM2", SMOL, "merged",
     lambda s, t: masked(s, *middle(s), 0), lambda s: middle(s)[0]),
    ("A06", "the end of turn not supervised", KIMI, "thinks",
     lambda s, t: masked(s, last(s), beyond(s), 0), last),
    ("A06", "a question between two answers supervised", KIMI, "merged",
     lambda s, t: masked(s, middle(s)[0] - 3, middle(s)[0], 1), lambda s: answers(s)[0][1]),
    ("A07", "cut by max_tokens", KIMI, "thinks", lambda s, t: replace(s, finish_reason="length"), nowhere),
    ("A07", "filtered", KIMI, "off", lambda s, t: replace(s, finish_reason="content_filter"), nowhere),
    ("A07", "no reason", KIMI, "off", lambda s, t: replace(s, finish_reason=""), nowhere),
    ("A08", "too long", SMOL, "plain", lambda s, t: put(s, -1, *[260] * 4096), lambda s: 4096),
    ("A09", "the engine counted one more", KIMI, "thinks", lambda s, t: replace(s, count_delta=1), nowhere),
    ("A09", "the provider counted one less", KIMI, "off",
     lambda s, t: replace(captured(s, "text"), count_delta=-1), nowhere),
    ("A09", "text that nobody counted", KIMI, "off",
     lambda s, t: replace(captured(s, "text"), count_delta=None), nowhere),
    ("A09", "logprobs that nobody counted", KIMI, "off",
     lambda s, t: replace(captured(s, "logprobs"), count_delta=None), nowhere),
    ("A10", "words as letters", KIMI, "off", lambda s, t: captured(split(s, t), "text"), start),
    ("A20", "words as letters", KIMI, "off", split, start),
    ("A20", "words as letters, SmolLM2", SMOL, "plain", split, start),
    ("A11", "U+FFFD in an answer from text", KIMI, "off",
     lambda s, t: captured(put(s, -2, *t.encode("\ufffd").tolist()), "text"), None),
    ("A11", "half a character from logprobs", KIMI, "off",
     lambda s, t: captured(put(s, start(s) + 2, t.tokenizer.id_of(b"\xe6") or 0), "logprobs"), lambda s: start(s) + 3),
    ("A12", "half a character from the engine", KIMI, "off",
     lambda s, t: put(s, start(s) + 2, t.tokenizer.id_of(b"\xff") or 0), lambda s: start(s) + 2),
    ("A13", "thinking never closes", KIMI, "thinks", lambda s, t: put(s, place(s, CLOSE), drop=1), start),
    ("A13", "thinking closes twice", KIMI, "thinks", lambda s, t: put(s, -2, CLOSE), lambda s: last(s) - 1),
    ("A13", "thinking closes in letters", KIMI, "thinks", letters(CLOSE), start),
    ("A13", "thinking closes in letters, Qwen3", QWEN, "thinks", letters(QWEN_CLOSE), start),
    ("A13", "thinking never closes, Qwen3", QWEN, "calls",
     lambda s, t: put(s, place(s, QWEN_CLOSE), drop=1), start),
    ("A13", "thinking closes although it is off", KIMI, "off", lambda s, t: put(s, start(s), CLOSE), start),
    ("A13", "thinking closes again in a tool's dataset", KIMI, "calls",
     lambda s, t: put(s, place(s, SECTION), CLOSE), at(SECTION)),
    ("A13", "the prompt's closing is gone", KIMI, "off",
     lambda s, t: put(s, start(s) - 1, drop=1), lambda s: start(s) - 1),
    ("A03", "thinking closes behind the end", KIMI, "thinks",
     lambda s, t: put(put(s, beyond(s), CLOSE), place(s, CLOSE), drop=1), last),
    ("A14", "Kimi opens its thoughts itself", KIMI, "thinks", lambda s, t: put(s, start(s), OPEN), start),
    ("A14", "thoughts open although they are off", KIMI, "off", lambda s, t: put(s, start(s), OPEN), start),
    ("A14", "thoughts open in the middle", KIMI, "calls",
     lambda s, t: put(s, place(s, CLOSE) + 1, OPEN), at(CLOSE, plus=1)),
    ("A14", "Qwen3 doesn't open its thoughts", QWEN, "thinks", lambda s, t: put(s, start(s), drop=1), start),
    ("A14", "Qwen3 opens them twice", QWEN, "thinks",
     lambda s, t: put(s, start(s) + 1, QWEN_OPEN), lambda s: start(s) + 1),
    ("A14", "Qwen3 opens them late", QWEN, "thinks",
     lambda s, t: swapped(s, start(s), start(s) + 1), lambda s: start(s) + 1),
    ("A14", "Qwen3 opens them in letters", QWEN, "thinks", letters(QWEN_OPEN), start),
    ("A14", "Qwen3 opens closed thoughts", QWEN, "off", lambda s, t: put(s, start(s), QWEN_OPEN), start),
    ("A15", "a section without its end", KIMI, "calls",
     lambda s, t: put(s, place(s, SECTION_END), drop=1), at(CALL_END, 1)),
    ("A15", "a section without its begin", KIMI, "calls",
     lambda s, t: put(s, place(s, SECTION), drop=1), at(SECTION)),
    ("A15", "a call without its end", KIMI, "calls",
     lambda s, t: put(s, place(s, CALL_END), drop=1), at(CALL, 1, -1)),
    ("A15", "a call without its begin", KIMI, "calls", lambda s, t: put(s, place(s, CALL), drop=1), None),
    ("A15", "a call without arguments", KIMI, "calls", lambda s, t: put(s, place(s, ARGUMENTS), drop=1), None),
    ("A15", "call and arguments swapped", KIMI, "calls",
     lambda s, t: swapped(s, place(s, CALL), place(s, ARGUMENTS)), at(CALL)),
    ("A15", "a section with no call", KIMI, "calls",
     lambda s, t: put(s, place(s, CALL), drop=place(s, SECTION_END) - place(s, CALL)), at(SECTION, plus=1)),
    ("A15", "a section that begins in letters", KIMI, "calls", letters(SECTION), None),
    ("A15", "arguments that are no JSON", KIMI, "calls", call_text('"days": 0}', '"days": 0'), at(CALL)),
    ("A15", "arguments that are a list", KIMI, "calls",
     call_text('{"city": "Ulm", "days": 1}', '["Ulm", 1]'), at(CALL, 1)),
    ("A15", "no arguments", KIMI, "calls", call_text('{"city": "Ulm", "days": 0}', ""), at(CALL)),
    ("A15", "arguments a hundred thousand lists deep", KIMI, "calls",
     call_text('"Ulm"', "[" * 100_000), at(CALL)),
    ("A15", "the id of another API", KIMI, "calls", call_text("functions.get_weather:0", "call_1"), at(CALL)),
    ("A15", "an id without its number", KIMI, "calls",
     call_text("functions.get_weather:1", "functions.get_weather"), at(CALL, 1)),
    ("A15", "a tool token inside the thoughts", KIMI, "calls",
     lambda s, t: put(s, start(s) + 1, SECTION), lambda s: start(s) + 1),
    ("A15", "thoughts that close behind the calls", KIMI, "calls",
     lambda s, t: put(put(s, last(s), CLOSE), place(s, CLOSE), drop=1), at(SECTION, plus=-1)),
    ("A15", "text behind the section", KIMI, "calls", text(" Done.", last), last),
    ("A15", "text between two calls", KIMI, "calls", text(" and", at(CALL, 1)), at(CALL, 1)),
    ("A15", "text before the first call", KIMI, "calls", text("calls:", at(CALL)), at(SECTION)),
    ("A15", "text before the section's end", KIMI, "calls", text("x", at(SECTION_END)), at(SECTION_END)),
    ("A15", "Qwen3's call without its end", QWEN, "calls",
     lambda s, t: put(s, place(s, QWEN_CALL_END, 1), drop=1), at(QWEN_CALL, 1)),
    ("A15", "Qwen3's call without a name", QWEN, "calls", call_text('"name"', '"tool"'), at(QWEN_CALL)),
    ("A15", "Qwen3's arguments cut", QWEN, "calls", call_text('"days": 1}}', '"days": 1}'), at(QWEN_CALL, 1)),
    ("A15", "text between Qwen3's calls", QWEN, "calls",
     text("then", at(QWEN_CALL, 1, -1)), at(QWEN_CALL_END, plus=1)),
    ("A16", "nothing but the end of turn", KIMI, "off", lambda s, t: answered(s, t, "<|im_end|>"), start),
    ("A16", "nothing but white space", KIMI, "off",
     lambda s, t: answered(s, t, " \n\u3000\t <|im_end|>"), start),
    ("A16", "nothing but thoughts", KIMI, "thinks",
     lambda s, t: answered(s, t, " Hm.</think>\n\n<|im_end|>"), lambda s: start(s) + 4),
    ("A16", "nothing but thoughts, Qwen3", QWEN, "thinks",
     lambda s, t: answered(s, t, "<think>\nHm.\n</think>\n\n<|im_end|>"), None),
    ("A17", "round_trip_exact said wrongly", KIMI, "thinks",
     lambda s, t: replace(s, round_trip_exact=False), nowhere),
    ("A17", "round_trip_exact of an answer that isn't", KIMI, "off", one_split, start),
    ("A18", "a capture that nobody knows", KIMI, "off",
     lambda s, t: replace(s, capture="guess"), nowhere),  # type: ignore[arg-type]
    ("A19", "the leading space stripped", KIMI, "off",
     lambda s, t: captured(answered(s, t, "It is Paris, on the Seine.<|im_end|>"), "text"), start),
]

WITHOUT_TOOLS: list[Break] = [
    ("A15", "a tool token in a dataset without tools", KIMI, "calls", lambda s, t: s, at(SECTION)),
    ("A15", "a tool token in a dataset without tools, Qwen3", QWEN, "calls", lambda s, t: s, at(QWEN_CALL)),
    ("A07", "tool_calls in a dataset without tools", KIMI, "off",
     lambda s, t: replace(s, finish_reason="tool_calls"), nowhere),
]
# fmt: on

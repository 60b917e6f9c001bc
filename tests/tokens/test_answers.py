"""Capture from text: the ids of an answer, or the reason why they can't be told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from include.core.records import TextAnswer, ToolCall
from include.tokens.answers import Reconstruction, learn_offsets, reconstruct
from include.tokens.target import Target, Thinking
from tests.conftest import shared

PLAIN = TextAnswer(" Why not?", " Oi!", provider="P")
CALL = ToolCall("functions.f:0", "f", '{"a": 2}')


def one(answer: TextAnswer, target: Target, how: Thinking = "in_prompt", **offsets: int) -> Reconstruction:
    return reconstruct([answer], [how], target, offsets)[0]


def ids_of(target: Target, *parts: str) -> list[int]:
    """Control tokens by name, everything else as characters."""
    ids: list[int] = []
    for part in parts:
        control = target.control_tokens.get(part)
        ids += [control] if control is not None else target.encode(part).tolist()
    return ids


def counted(answer: TextAnswer, ids: Sequence[int]) -> TextAnswer:
    return replace(answer, completion_tokens=len(ids))


# --- recorded answers -----------------------------------------------------------------------------------------------


def recorded() -> dict[str, TextAnswer]:
    lines = shared("openrouter-kimi/exchanges.jsonl").read_text(encoding="utf-8").splitlines()
    return {said["id"]: answer_from(said) for said in map(json.loads, lines)}


def answer_from(said: dict[str, Any]) -> TextAnswer:
    calls = said["tool_calls"] or ()
    return TextAnswer(
        said["reasoning"] or "",
        said["content"] or "",
        tuple(ToolCall(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in calls),
        said["finish_reason"],
        said["usage"]["completion_tokens"],
        said["usage"]["completion_tokens_details"]["reasoning_tokens"],
        said["provider"],
        tuple((field, text) for field, text in said["deltas"] or ()),
    )


def test_recorded_answers_have_productions_counts(kimi: Target) -> None:
    answers = list(recorded().values())
    made = reconstruct(answers, ["in_prompt"] * len(answers), kimi)
    for answer, found in zip(answers, made, strict=True):
        assert found.left_out == ""
        assert found.count_delta == (0 if answer.provider == "Chutes" else -1)
        assert found.output_ids[-1] == kimi.end_of_turn
        assert answer.reasoning_tokens == found.output_ids.tolist().index(163_607) + 1
        assert kimi.decode(found.output_ids).startswith(answer.reasoning + "</think>" + answer.content)
    assert [answer.provider for answer in answers].count("Chutes") == 4


def test_a_providers_constant_is_learned_from_several_answers(kimi: Target) -> None:
    (alone,) = (answer for answer in recorded().values() if answer.provider == "Inceptron")
    made = reconstruct([alone] * 4, ["in_prompt"] * 4, kimi)
    assert learn_offsets([("Inceptron", found.count_delta) for found in made]) == {}
    offsets = learn_offsets([("Inceptron", found.count_delta) for found in [*made, made[0]]])
    assert offsets == {"Inceptron": -1}
    assert one(alone, kimi, **offsets).count_delta == 0


@pytest.mark.parametrize(
    ("deltas", "offset"),
    [
        ([-1, -1, -1, -1, -1], -1),
        ([0, 0, 0, 0, 0], 0),
        ([-1] * 6 + [5, 9, -40, None], -1),
        ([1, -1, 2, 0, 3, -2, 7], None),
        ([-1, -1, -1, 4, 9], -1),
        ([-1, -1, 5, 4, 9], None),
        ([12] * 20, None),
        ([None] * 20, None),
        ([], None),
    ],
)
def test_only_what_most_answers_show_is_an_offset(deltas: list[int | None], offset: int | None) -> None:
    assert learn_offsets([("P", delta) for delta in deltas]).get("P") == offset


# --- what was generated, in order -----------------------------------------------------------------------------------


def test_an_answer_is_put_together_from_its_parts(kimi: Target) -> None:
    found = one(PLAIN, kimi)
    assert found == Reconstruction(found.output_ids, "text", None, "", encoded=True)
    assert found.output_ids.tolist() == ids_of(kimi, " Why not?", "</think>", " Oi!", "<|im_end|>")
    off = one(replace(PLAIN, reasoning=""), kimi, "off")
    assert off.output_ids.tolist() == ids_of(kimi, " Oi!", "<|im_end|>")


def test_tool_calls_are_written_as_the_target_writes_them(
    kimi: Target, qwen3: Target, deepseek_v3: Target
) -> None:
    answer = TextAnswer(" Hm.", "", (CALL, ToolCall("functions.g:1", "g", "{}")), "tool_calls")
    section = ["<|tool_calls_section_begin|>", "<|tool_call_begin|>", "functions.f:0", "<|tool_call_argument_begin|>",
               '{"a": 2}', "<|tool_call_end|>", "<|tool_call_begin|>", "functions.g:1",
               "<|tool_call_argument_begin|>", "{}", "<|tool_call_end|>", "<|tool_calls_section_end|>"]  # fmt: skip
    assert one(answer, kimi).output_ids.tolist() == ids_of(kimi, " Hm.", "</think>", *section, "<|im_end|>")
    found = one(replace(answer, content="ok"), qwen3, "generated")
    assert qwen3.decode(found.output_ids) == (
        "<think> Hm.</think>ok\n"
        '<tool_call>\n{"name": "f", "arguments": {"a": 2}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call><|im_end|>'
    )
    plain = one(replace(answer, reasoning="", tool_calls=(CALL,)), deepseek_v3, "none")
    assert deepseek_v3.decode(plain.output_ids) == (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
        '{"a": 2}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>'
    )


def test_tool_arguments_stay_as_they_were_written(kimi: Target) -> None:
    tight, loose = (one(TextAnswer("r", "", (replace(CALL, arguments=a),), "tool_calls"), kimi)
                    for a in ('{"a":2}', '{"a": 2}'))  # fmt: skip
    assert not np.array_equal(tight.output_ids, loose.output_ids)


text_strategy = st.text(
    alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd"), max_size=40
)
spelling = st.sampled_from(
    ["<", "<|", "|>", "</", "think>", "<|im_end|", "im_end|>", "\n", "東", "'s", "\u0301", " "]
)
texts = st.lists(st.one_of(text_strategy, spelling), max_size=5).map("".join)
calls_of = st.lists(st.builds(ToolCall, st.just("functions.f:0"), st.just("f"), texts), max_size=2).map(tuple)


@settings(deadline=None, max_examples=300)
@given(reasoning=texts, content=texts, calls=calls_of)
def test_pieces_encoded_apart_are_the_whole(
    kimi: Target, reasoning: str, content: str, calls: tuple[ToolCall, ...]
) -> None:
    all_texts = (reasoning, content, *(call.arguments for call in calls))
    if any(kimi.tokenizer.control_token_in(text) for text in all_texts):
        return
    if not content.strip() and not calls:
        return
    found = one(TextAnswer(reasoning, content, calls), kimi)
    section: list[str] = ["<|tool_calls_section_begin|>"] if calls else []
    for call in calls:
        section += [
            "<|tool_call_begin|>",
            call.id,
            "<|tool_call_argument_begin|>",
            call.arguments,
            "<|tool_call_end|>",
        ]
    section += ["<|tool_calls_section_end|>"] if calls else []
    parts = (reasoning, "</think>", content, *section, "<|im_end|>")
    assert found.left_out == ""
    assert found.output_ids.tolist() == ids_of(kimi, *parts)
    assert kimi.decode(found.output_ids) == "".join(parts)


# --- what goes wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (TextAnswer(" all of it in here", ""), "empty"),
        (TextAnswer(" r", " \n"), "empty"),
        (TextAnswer(" r", " a</think>b"), "control token in the text"),
        (TextAnswer("", " a</think>b</think>c"), "control token in the text"),
        (TextAnswer(" <|tool_calls_section_begin|>", " a"), "control token in the text"),
        (TextAnswer(" r", " a<|tool_call_begin|>functions.f:0"), "control token in the text"),
        (TextAnswer(" r", "", (replace(CALL, arguments="<|im_end|>"),)), "control token in the text"),
        (TextAnswer(" r", " <|im_end|> and on"), "control token in the text"),
        (TextAnswer(" r", " a\ufffd"), "replacement character in the text"),
        (TextAnswer(" r", "", (replace(CALL, arguments="\ufffd"),)), "replacement character in the text"),
        (TextAnswer(" r\ud83d", " a"), "lone surrogate in the text"),
        (TextAnswer(" r", " a", (replace(CALL, name="\udc00"),)), "lone surrogate in the text"),
        (TextAnswer(" r", " a", finish_reason="length"), "truncated"),
        (TextAnswer(" r", " a", finish_reason="content_filter"), "refused"),
        (TextAnswer(" r", " a", finish_reason="error"), "finish_reason error"),
        (TextAnswer("", " a", reasoning_tokens=90), "the provider keeps the thoughts to itself"),
    ],
)
def test_what_cant_be_told_is_left_out_with_a_reason(kimi: Target, answer: TextAnswer, reason: str) -> None:
    found = one(answer, kimi)
    assert found.left_out == reason
    for id_ in (163_586, 163_607):
        assert found.output_ids.tolist().count(id_) <= 1
    assert 163_595 not in found.output_ids


def test_thoughts_and_calls_that_nobody_asked_for(kimi: Target, target: Target) -> None:
    assert one(PLAIN, kimi, "off").left_out == "thoughts where none were asked for"
    assert one(PLAIN, target, "none").left_out == "thoughts where none were asked for"
    calls = TextAnswer("", "", (CALL,), "tool_calls")
    assert one(calls, target, "none").left_out == "tool calls from a target without them"


def test_a_truncated_answer_keeps_what_was_generated_and_nothing_more(kimi: Target, qwen3: Target) -> None:
    thinking = one(TextAnswer(" I thi", "", finish_reason="length", completion_tokens=3), kimi)
    assert thinking.output_ids.tolist() == ids_of(kimi, " I thi")
    assert thinking.count_delta == 3 - len(thinking.output_ids)
    answering = one(TextAnswer(" r", " I ans", finish_reason="length"), kimi)
    assert answering.output_ids.tolist() == ids_of(kimi, " r", "</think>", " I ans")
    generated = one(TextAnswer("\nI thi", "", finish_reason="length"), qwen3, "generated")
    assert generated.output_ids.tolist() == ids_of(qwen3, "<think>", "\nI thi")


@pytest.mark.parametrize(
    "answer",
    [
        TextAnswer("", " r</think> a"),
        TextAnswer("", "<think> r</think> a"),
        TextAnswer("<think> r", " a"),
        TextAnswer(" r</think> a", ""),
        TextAnswer(" r", " a<|im_end|>"),
        TextAnswer(" r", " a[EOS]<|im_end|>"),
    ],
)
def test_what_a_parser_left_in_place_is_put_right(kimi: Target, answer: TextAnswer) -> None:
    expected = ids_of(kimi, " r", "</think>", " a", "<|im_end|>")
    assert one(answer, kimi).output_ids.tolist() == expected
    assert one(counted(answer, expected), kimi).count_delta == 0
    streamed = replace(answer, deltas=(("content", " a"), ("reasoning", " r")))
    assert one(streamed, kimi).output_ids.tolist() == expected


def test_a_stripped_first_space_cant_be_seen_from_the_count(kimi: Target) -> None:
    """So `usual_start` is counted for each provider; here it only must not be invented."""
    answer = TextAnswer("The user", "Sure!")
    expected = ids_of(kimi, "The user", "</think>", "Sure!", "<|im_end|>")
    assert one(counted(answer, expected), kimi).output_ids.tolist() == expected
    assert len(expected) == len(ids_of(kimi, " The user", "</think>", " Sure!", "<|im_end|>"))
    assert kimi.profile.usual_start == " "


def test_a_stripped_first_space_is_found_again_where_the_count_shows_it(kimi: Target) -> None:
    whole = ids_of(kimi, " Why not?", "</think>", " Oi!", "<|im_end|>")
    assert len(whole) != len(ids_of(kimi, " Why not?", "</think>", "Oi!", "<|im_end|>"))
    found = one(counted(replace(PLAIN, content="Oi!"), whole), kimi)
    assert (found.output_ids.tolist(), found.count_delta) == (whole, 0)


def test_a_count_that_differs_stays_a_difference(kimi: Target) -> None:
    found = one(replace(PLAIN, completion_tokens=50), kimi)
    assert found.count_delta == 50 - len(found.output_ids)
    assert found.output_ids.tolist() == ids_of(kimi, " Why not?", "</think>", " Oi!", "<|im_end|>")


# --- white space that parsers strip ---------------------------------------------------------------------------------


def test_qwen3s_white_space_is_found_again_by_the_count(qwen3: Target) -> None:
    whole = ids_of(qwen3, "<think>", "\nI think.\n", "</think>", "\n\nYes.", "<|im_end|>")
    found = one(counted(TextAnswer("I think.", "Yes."), whole), qwen3, "generated")
    assert (found.output_ids.tolist(), found.count_delta) == (whole, 0)
    kept = one(counted(TextAnswer("\nI think.\n", "\n\nYes."), whole), qwen3, "generated")
    assert (kept.output_ids.tolist(), kept.count_delta) == (whole, 0)
    some = one(counted(TextAnswer("\nI think.\n", "Yes."), whole), qwen3, "generated")
    assert (some.output_ids.tolist(), some.count_delta) == (whole, 0)


def test_what_came_is_preferred_where_the_count_agrees(qwen3: Target) -> None:
    tight = ids_of(qwen3, "<think>", "I think.", "</think>", "Yes.", "<|im_end|>")
    found = one(counted(TextAnswer("I think.", "Yes."), tight), qwen3, "generated")
    assert (found.output_ids.tolist(), found.count_delta) == (tight, 0)


def test_an_answer_without_a_thought_is_found_by_the_count(qwen3: Target) -> None:
    empty = ids_of(qwen3, "<think>", "\n\n", "</think>", "\n\n", "Yes.", "<|im_end|>")
    assert one(counted(TextAnswer("", "Yes."), empty), qwen3, "generated").output_ids.tolist() == empty
    none = ids_of(qwen3, "Yes.", "<|im_end|>")
    assert one(counted(TextAnswer("", "Yes."), none), qwen3, "generated").output_ids.tolist() == none


def test_white_space_is_only_looked_for_where_none_came(kimi: Target) -> None:
    """vLLM strips the end of the thoughts; the answer's own first space says that its start is whole."""
    whole = ids_of(kimi, " I see: ", "</think>", " Oi!", "<|im_end|>")
    verbatim = ids_of(kimi, " I see:", "</think>", " Oi!", "<|im_end|>")
    assert len(whole) == len(verbatim) + 1
    text = kimi.decode(one(counted(TextAnswer(" I see:", " Oi!"), whole), kimi).output_ids)
    assert text.startswith(" I see:") and text.endswith("</think> Oi!<|im_end|>")
    both = one(counted(TextAnswer(" I see:\n", " Oi!"), [*whole, 0, 0]), kimi)
    assert both.output_ids.tolist() == ids_of(kimi, " I see:\n", "</think>", " Oi!", "<|im_end|>")
    assert both.count_delta


def test_a_provider_that_counts_one_more_is_no_stripped_white_space(kimi: Target, qwen3: Target) -> None:
    """Once each of its answers got a newline that the target never wrote, and the count was right."""
    batch = [TextAnswer(f" Because {i},", " Oi!", provider="P") for i in range(6)]
    plain = [one(answer, kimi).output_ids for answer in batch]
    batch = [replace(a, completion_tokens=len(ids) + 1) for a, ids in zip(batch, plain, strict=True)]
    first = reconstruct(batch, ["in_prompt"] * 6, kimi)
    assert [found.count_delta for found in first] == [1] * 6
    offsets = learn_offsets([("P", found.count_delta) for found in first])
    assert offsets == {"P": 1}
    for found, ids in zip(reconstruct(batch, ["in_prompt"] * 6, kimi, offsets), plain, strict=True):
        assert (found.output_ids.tolist(), found.count_delta) == (ids.tolist(), 0)
    whole = ids_of(qwen3, "<think>", "\nI think.\n", "</think>", "\n\nYes.", "<|im_end|>")
    stripped = [counted(TextAnswer("I think.", "Yes.", provider="P"), whole)] * 6
    for found in reconstruct(stripped, ["generated"] * 6, qwen3):
        assert (found.output_ids.tolist(), found.count_delta) == (whole, 0)


# --- tokens as they were streamed, tokens as logprobs say -----------------------------------------------------------


def pieces(target: Target, ids: Sequence[int], field: str) -> tuple[tuple[str, str], ...]:
    return tuple((field, target.decode([id_])) for id_ in ids)


def test_a_stream_of_single_tokens_keeps_a_tokenisation_of_its_own(kimi: Target) -> None:
    letters = [kimi.encode(letter)[0] for letter in " hello"]
    deltas = pieces(kimi, letters, "reasoning") + pieces(kimi, kimi.encode(" Oi!").tolist(), "content")
    expected = [*letters, 163_607, *kimi.encode(" Oi!").tolist(), 163_586]
    answer = TextAnswer(" hello", " Oi!", deltas=deltas, completion_tokens=len(expected))
    found = one(answer, kimi)
    assert (found.output_ids.tolist(), found.count_delta, found.capture) == (expected, 0, "text")
    assert expected != ids_of(kimi, " hello", "</think>", " Oi!", "<|im_end|>")
    canonical = one(counted(answer, ids_of(kimi, " hello", "</think>", " Oi!", "<|im_end|>")), kimi)
    assert canonical.output_ids.tolist() == ids_of(kimi, " hello", "</think>", " Oi!", "<|im_end|>")
    other_text = one(replace(answer, deltas=deltas[1:]), kimi)
    assert other_text.count_delta != 0


def test_recorded_streams_agree_with_the_text(kimi: Target) -> None:
    for answer in recorded().values():
        found, plain = one(answer, kimi), one(replace(answer, deltas=()), kimi)
        assert np.array_equal(found.output_ids, plain.output_ids)


def token_bytes(target: Target, ids: Sequence[int]) -> tuple[bytes, ...]:
    return tuple(target.tokenizer.token_bytes[id_] or b"" for id_ in ids)


def test_logprobs_give_the_ids(kimi: Target, qwen3: Target) -> None:
    letters = [kimi.encode(letter)[0] for letter in " hello"]
    split = kimi.encode("🜝").tolist()
    assert len(split) > 1  # tokens that are parts of a character
    expected = [*letters, 163_607, *split, 163_586]
    answer = TextAnswer(" hello", "🜝", token_bytes=token_bytes(kimi, expected))
    for said in (answer, counted(answer, expected), replace(answer, token_bytes=answer.token_bytes[:-1])):
        found = one(said, kimi)
        assert (found.output_ids.tolist(), found.capture) == (expected, "logprobs")
    generated = ids_of(qwen3, "<think>", "\nr\n", "</think>", "\n\na", "<|im_end|>")
    bytes_ = token_bytes(qwen3, generated)
    found = one(TextAnswer("r", "a", token_bytes=bytes_), qwen3, "generated")
    assert (found.output_ids.tolist(), found.capture) == (generated, "logprobs")
    ended = ids_of(qwen3, "a", "<|endoftext|>")
    found = one(TextAnswer("", "a", token_bytes=token_bytes(qwen3, ended)), qwen3, "off")
    assert found.output_ids.tolist() == ended  # another end than usual: nothing is added, the audit says so


@pytest.mark.parametrize(
    "wrong",
    [
        (b" Why", b" no such token in it", b"</think>", b"<|im_end|>"),
        (b" Why", b"", b"</think>", b"<|im_end|>"),
        (b" Oi", b"!", b"<|im_end|>"),
        (b" Why", b" not", b"?", b"</think>", b" Other", b"<|im_end|>"),
    ],
    ids=["another tokenizer", "no bytes", "without the thoughts", "another text"],
)
def test_logprobs_that_arent_this_answers_fall_back_to_its_text(
    kimi: Target, wrong: tuple[bytes, ...]
) -> None:
    found = one(replace(PLAIN, token_bytes=wrong), kimi)
    assert found.capture == "text"
    assert found.output_ids.tolist() == ids_of(kimi, " Why not?", "</think>", " Oi!", "<|im_end|>")


def test_logprobs_against_the_count_fall_back_to_the_text(kimi: Target) -> None:
    expected = ids_of(kimi, " Why not?", "</think>", " Oi!", "<|im_end|>")
    letters = [*(kimi.encode(letter)[0] for letter in " Why not?"), *expected[-4:]]
    answer = counted(replace(PLAIN, token_bytes=token_bytes(kimi, letters)), expected)
    assert (one(answer, kimi).capture, one(answer, kimi).count_delta) == ("text", 0)


def test_a_batch_is_taken_apart_in_order(kimi: Target) -> None:
    answers = [PLAIN, TextAnswer(" r", "\ud83d"), replace(PLAIN, content=" Tchau!"), TextAnswer("", "")]
    found = reconstruct(answers, ["in_prompt"] * 4, kimi)
    assert [bool(one_.left_out) for one_ in found] == [False, True, False, True]
    assert "Tchau" in kimi.decode(found[2].output_ids)
    assert reconstruct([], [], kimi) == []

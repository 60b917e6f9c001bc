"""Tool calls as three targets write them: what is written is read back, and every fault is named."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from include.core.profile import ToolCallSyntax
from include.core.records import ToolCall
from include.tokens.samples import message_of
from include.tokens.target import Target
from include.tokens.tool_calls import Section, read, tool_tokens, written

TARGETS = ("kimi", "qwen3", "deepseek_v3")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,12}", fullmatch=True)


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> Target:
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


def syntax_of(target: Target) -> ToolCallSyntax:
    assert target.profile.tool_calls is not None
    return target.profile.tool_calls


def section_of(target: Target, text: str) -> Section:
    return read(syntax_of(target), target.tokenizer.encode_marked([text])[0], target.tokenizer)


def call(target: Target, name: str, arguments: str, index: int = 0) -> ToolCall:
    form = syntax_of(target).id
    return ToolCall(form.format(name=name, index=index) if form else "", name, arguments)


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_what_is_written_is_read_back(request: pytest.FixtureRequest, name: str, data: st.DataObject) -> None:
    target: Target = request.getfixturevalue(name)
    values = data.draw(
        st.lists(
            st.tuples(NAMES, st.dictionaries(st.text(max_size=5), JSON, max_size=3)), min_size=1, max_size=3
        )
    )
    indent = data.draw(st.sampled_from([None, 2]))
    calls = tuple(
        call(target, name, json.dumps(value, ensure_ascii=data.draw(st.booleans()), indent=indent), index)
        for index, (name, value) in enumerate(values)
    )
    content = data.draw(st.sampled_from(["", " Let me look.", "é\r\n"]))
    for one in calls:
        # Qwen3's tokenizer composes characters (NFC): other text can't come from its ids as it was
        assume(target.decode(target.encode(one.arguments)) == one.arguments)
        assume(not target.tokenizer.control_token_in(one.arguments))
    text = content + written(syntax_of(target), calls, after_text=bool(content))
    ids = target.tokenizer.encode_marked([text])[0]
    section = read(syntax_of(target), ids, target.tokenizer)
    assert (section.calls, section.fault, section.end) == (calls, None, len(ids))
    assert target.decode(ids[: section.start]) == content + (
        syntax_of(target).after_content if content else ""
    )
    message = message_of(np.append(ids, target.end_of_turn).astype(np.int32), target)
    assert message is not None
    assert (message.content, message.tool_calls, message.reasoning) == (content, calls, "")


def test_ids_without_a_section_have_an_empty_one(target: Target) -> None:
    ids = target.encode("nothing")
    assert read(syntax_of(target), ids, target.tokenizer) == Section((), None, len(ids), len(ids))
    assert tool_tokens(None, target.tokenizer) == frozenset()


KIMI_CALL = "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
DEEPSEEK_CALL = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜>"
FAULTS = [
    ("kimi", "<|tool_calls_section_begin|>", "the tool section ends after <|tool_calls_section_begin|>", 0),
    ("kimi", f"a<|tool_calls_section_begin|>{KIMI_CALL}", "the tool section ends after <|tool_call_end|>", -1),
    ("kimi", KIMI_CALL, "<|tool_call_begin|> out of order", 0),
    ("kimi", f"<|tool_calls_section_begin|>{KIMI_CALL}<|tool_calls_section_end|><|tool_calls_section_end|>",
     "<|tool_calls_section_end|> out of order", -1),
    ("kimi", f"<|tool_calls_section_begin|>x{KIMI_CALL}<|tool_calls_section_end|>", "text between the tool calls", 0),
    ("kimi", f"<|tool_calls_section_begin|>{KIMI_CALL}\nand\n{KIMI_CALL}<|tool_calls_section_end|>",
     "text between the tool calls", None),
    ("kimi", f"<|tool_calls_section_begin|>{KIMI_CALL} x<|tool_calls_section_end|>",
     "text between the last tool call and the section's end", -2),
    ("kimi", f"<|tool_calls_section_begin|>{KIMI_CALL}<|tool_calls_section_end|>".replace("{}", "{'a': 1}"),
     "arguments aren't JSON", 1),
    ("kimi", f"<|tool_calls_section_begin|>{KIMI_CALL}<|tool_calls_section_end|>".replace("{}", "7"),
     "arguments aren't a JSON object", 1),
    ("kimi", f"<|tool_calls_section_begin|>{KIMI_CALL}<|tool_calls_section_end|>".replace("{}", " \n "),
     "arguments aren't JSON", 1),
    ("kimi", f"<|tool_calls_section_begin|>{KIMI_CALL}<|tool_calls_section_end|>".replace("functions.", ""),
     "the tool call id 'f:0' isn't in the target's form", 1),
    ("kimi", f"<|tool_calls_section_begin|>{KIMI_CALL}<|tool_calls_section_end|>".replace("ns.f:0", "ns.f g:0"),
     "isn't in the target's form", 1),
    ("kimi", f"<|tool_calls_section_begin|>{KIMI_CALL}<|tool_calls_section_end|>".replace("functions.f:0", ""),
     "the tool call id '' isn't in the target's form", 1),
    ("qwen3", "</tool_call>", "</tool_call> out of order", 0),
    ("qwen3", '<tool_call>\n{"name": "f", "arguments": {}}\n', "the tool section ends after <tool_call>", 0),
    ("qwen3", '<tool_call>\n{"name": "f"}\n</tool_call>', "a tool call isn't in the target's form", 0),
    ("qwen3", '<tool_call>\n{"name": "f", "arguments": }\n</tool_call>', "arguments aren't JSON", 0),
    ("qwen3", '<tool_call>\n{"name": "f", "arguments": [{}]}\n</tool_call>', "aren't a JSON object", 0),
    ("qwen3", "<tool_call><tool_call></tool_call></tool_call>", "<tool_call> out of order", 1),
    ("deepseek_v3", DEEPSEEK_CALL, "out of order", 0),
    ("deepseek_v3", f"<｜tool▁calls▁begin｜>{DEEPSEEK_CALL}<｜tool▁calls▁end｜>".replace("json", "yaml"),
     "a tool call isn't in the target's form", 1),
    ("deepseek_v3", f"<｜tool▁calls▁begin｜>{DEEPSEEK_CALL}<｜tool▁calls▁end｜>".replace("{}", "{"),
     "arguments aren't JSON", 1),
    ("deepseek_v3", f"<｜tool▁calls▁begin｜>{DEEPSEEK_CALL}", "the tool section ends after", -1),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "what", "at"), FAULTS, ids=[f"{n}-{i}" for i, (n, *_) in enumerate(FAULTS)]
)
def test_every_fault_is_named_where_it_is(
    request: pytest.FixtureRequest, name: str, text: str, what: str, at: int | None
) -> None:
    target: Target = request.getfixturevalue(name)
    ids = target.tokenizer.encode_marked([text])[0]
    fault = read(syntax_of(target), ids, target.tokenizer).fault
    assert fault is not None and what in fault.what
    if at is not None:
        assert fault.at == at % len(ids)
    assert message_of(ids, target) is None


def test_the_calls_before_a_fault_are_kept(qwen3: Target) -> None:
    one = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    section = section_of(qwen3, one + "\n" + one.replace("{}", "[]"))
    assert section.calls == (ToolCall("", "f", "{}"),) and section.fault is not None


def test_white_space_in_a_call_is_as_the_model_wrote_it(qwen3: Target) -> None:
    loose = '<tool_call>{"name":"f","arguments":  {"a": "x  y"}  }\n\n</tool_call>'
    assert section_of(qwen3, loose).calls == (ToolCall("", "f", '{"a": "x  y"}'),)


@pytest.mark.parametrize("blanks", [" " * 100_000, "\n" * 100_000, "{" * 50_000, "a " * 50_000])
def test_a_hundred_thousand_blanks_take_no_time(target: Target, blanks: str) -> None:
    for arguments in (blanks, f'{{"a": "{blanks}"', f"{blanks}}}{blanks}"):
        text = written(syntax_of(target), [call(target, "f", arguments)], after_text=False)
        started = time.perf_counter()
        assert section_of(target, text).fault is not None
        assert time.perf_counter() - started < 2


def test_message_of_gives_what_a_template_can_show(kimi: Target, qwen3: Target) -> None:
    def of(target: Target, text: str) -> object:
        message = message_of(target.tokenizer.encode_marked([text])[0], target)
        return message and (message.reasoning, message.content)

    assert of(kimi, " Hm.</think> Paris.<|im_end|>") == (" Hm.", " Paris.")
    assert of(kimi, " Paris.<|im_end|>") == ("", " Paris.")
    assert of(kimi, " Paris.") == ("", " Paris.")
    assert of(kimi, "") == ("", "")
    assert of(kimi, " a</think> b</think> c<|im_end|>") is None
    assert of(kimi, " a<|im_user|> b<|im_end|>") is None
    assert of(kimi, " a<|im_end|><|im_end|>") is None
    assert of(qwen3, "<think>\nHm.\n</think>\n\nParis.<|im_end|>") == ("\nHm.\n", "\n\nParis.")
    assert (
        of(qwen3, 'x\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call> and more<|im_end|>') is None
    )
    half = np.array([kimi.tokenizer.id_of(b"\xe6"), kimi.end_of_turn], np.int32)
    assert message_of(half, kimi) is None

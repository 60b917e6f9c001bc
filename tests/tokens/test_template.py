"""Templates: what the target reads, held to production's counts, to transformers and to Kimi's description."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from include.core.errors import TargetError
from include.core.profile import target_named
from include.core.records import Conversation, Message, ToolCall
from include.tokens.target import Target, load_target
from include.tokens.template import NotRendered
from include.tokens.typescript import declare
from tests.conftest import shared

ASSISTANT = "<|im_assistant|>assistant<|im_middle|>"
HI = Message("user", "hi")


def asks(
    *messages: Message, tools: Sequence[dict[str, Any]] = (), thinking: bool | None = None
) -> Conversation:
    return Conversation("x-t0", messages, "rows:1", "d", tuple(tools), thinking)


def shown(target: Target, *messages: Message, thinking: bool = True, **also: Any) -> str:
    (ids,) = target.render([asks(*messages, **also)], thinking=thinking)
    return target.decode(ids)


def message_from(said: dict[str, Any]) -> Message:
    calls = tuple(
        ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in said.get("tool_calls") or ()
    )
    return Message(
        said["role"], said.get("content") or "", tool_calls=calls, tool_call_id=said.get("tool_call_id", "")
    )


def function(parameters: dict[str, Any], **also: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": parameters, **also}}


# --- Kimi -----------------------------------------------------------------------------------------------------------


def test_kimis_prompts_have_productions_token_counts(kimi: Target) -> None:
    lines = shared("openrouter-kimi/exchanges.jsonl").read_text(encoding="utf-8").splitlines()
    for exchange in map(json.loads, lines):
        conversation = asks(*map(message_from, exchange["messages"]), tools=exchange["tools"] or ())
        (ids,) = kimi.render([conversation])
        assert len(ids) == exchange["usage"]["prompt_tokens"], exchange["id"]


def test_kimis_known_example(kimi: Target) -> None:
    messages = (Message("system", "You are a helpful assistant"), Message("user", "Say hi in Portuguese"))
    (ids,) = kimi.render([asks(*messages)])
    assert len(ids) == 21
    assert kimi.decode(ids) == (
        "<|im_system|>system<|im_middle|>You are a helpful assistant<|im_end|>"
        f"<|im_user|>user<|im_middle|>Say hi in Portuguese<|im_end|>{ASSISTANT}<think>"
    )
    assert shown(kimi, HI, thinking=False).endswith(f"{ASSISTANT}<think></think>")


CALL = Message("assistant", " I look.", " Why?", (ToolCall("call_9", "search", '{"q":"é"}'),))
RESULT = Message("tool", "found", tool_call_id="call_9")


def test_earlier_thoughts_go_with_the_last_answer_without_calls(kimi: Target) -> None:
    old, again = Message("assistant", " A.", " old"), Message("user", "and?")
    text = shown(kimi, HI, CALL, RESULT, old, again, CALL, RESULT)
    first, second = text.split("<|im_user|>user<|im_middle|>and?<|im_end|>")
    assert "Why?" not in first and "old" not in first
    assert f"{ASSISTANT}<think></think> I look.<|tool_calls_section_begin|>" in first
    assert f"{ASSISTANT}<think></think> A.<|im_end|>" in first
    assert f"{ASSISTANT}<think> Why?</think> I look.<|tool_calls_section_begin|>" in second
    off = shown(kimi, HI, CALL, RESULT, thinking=False)
    assert "Why?" not in off and off.count("<think></think>") == 2


def test_calls_are_named_over_the_whole_conversation_and_results_follow(kimi: Target) -> None:
    two = Message("assistant", "", "", (ToolCall("a", "f", '{"a":2,"b":3}'), ToolCall("b", "g", "not json")))
    text = shown(
        kimi,
        HI,
        two,
        Message("tool", "1", tool_call_id="b"),
        Message("tool", "2", tool_call_id="a"),
        CALL,
        RESULT,
    )
    assert (
        "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
        '{"a": 2, "b": 3}<|tool_call_end|>'
        "<|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>not json<|tool_call_end|>"
    ) in text
    assert "<|im_system|>tool<|im_middle|>## Return of functions.g:1\n1<|im_end|>" in text
    assert "## Return of functions.f:0\n2<|im_end|>" in text
    assert (
        '<|tool_call_begin|>functions.search:2<|tool_call_argument_begin|>{"q": "é"}<|tool_call_end|>' in text
    )
    assert "## Return of functions.search:2\nfound<|im_end|>" in text


def test_calls_that_come_without_ids_are_answered_in_order(kimi: Target) -> None:
    two = Message("assistant", "", "", (ToolCall("", "f", "{}"), ToolCall("", "g", "{}")))
    text = shown(kimi, HI, two, Message("tool", "1"), Message("tool", "2"))
    assert "## Return of functions.f:0\n1<|im_end|>" in text
    assert "## Return of functions.g:1\n2<|im_end|>" in text


def test_the_same_foreign_id_in_two_turns_means_the_later_call(kimi: Target) -> None:
    text = shown(kimi, HI, CALL, RESULT, CALL, RESULT)
    assert text.index("## Return of functions.search:0") < text.index("functions.search:1")
    assert "## Return of functions.search:1" in text


def test_a_name_stands_in_place_of_the_role(kimi: Target) -> None:
    text = shown(
        kimi,
        Message("user", "hi", name="Ann"),
        CALL,
        Message("tool", "r", tool_call_id="call_9", name="search"),
    )
    assert text.startswith("<|im_user|>Ann<|im_middle|>hi<|im_end|>")
    assert "<|im_system|>search<|im_middle|>## Return of functions.search:0\nr<|im_end|>" in text


def test_thoughts_in_the_content_are_thoughts(kimi: Target) -> None:
    call = Message("assistant", "<think>\n why\n</think>\n\n done", tool_calls=CALL.tool_calls)
    assert f"{ASSISTANT}<think> why</think> done<|tool_calls" in shown(kimi, HI, call, RESULT)
    assert kimi.forged_control_token(asks(HI, call)) is None
    assert kimi.forged_control_token(asks(Message("user", call.content))) == "<think>"


def test_k2_instruct_has_a_system_turn_of_its_own(kimi_folder: Path) -> None:
    target = load_target(target_named("kimi-k2-instruct"), kimi_folder)
    default = (
        "<|im_system|>system<|im_middle|>You are Kimi, an AI assistant created by Moonshot AI.<|im_end|>"
    )
    user = "<|im_user|>user<|im_middle|>hi<|im_end|>"
    assert shown(target, HI) == default + user + ASSISTANT
    own = shown(target, Message("system", "s"), HI)
    assert own == "<|im_system|>system<|im_middle|>s<|im_end|>" + user + ASSISTANT
    tools = shown(target, HI, tools=[function({"type": "object"})])
    assert tools.startswith(
        '<|im_system|>tool_declare<|im_middle|>[{"type":"function","function":{"name":"f"'
    )
    assert {o.thinking for o in target.openings(thinking=True)} == {"none"}


# --- which template renders -----------------------------------------------------------------------------------------


def copy_with_template(folder: Path, into: Path, template: str) -> Path:
    for name in ("tiktoken.model", "tokenizer.json"):
        if (folder / name).exists():
            (into / name).symlink_to((folder / name).resolve())
    (into / "chat_template.jinja").write_text(template, encoding="utf-8")
    return into


def test_the_folders_own_template_renders_and_a_difference_is_said_once(
    kimi: Target, kimi_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    changed = kimi.template.source.replace("## Return of ", "# Result of ").replace("tool_declare", "tools")
    folder = copy_with_template(kimi_folder, tmp_path, changed)
    with caplog.at_level(logging.WARNING):
        target = load_target(kimi.profile, folder)
    assert len(caplog.records) == 1
    assert "differs from the one known for kimi-k2.5" in caplog.text
    assert "# Result of functions.search:0" in shown(target, HI, CALL, RESULT)


def test_another_text_with_the_same_effect_is_no_warning(
    kimi: Target, kimi_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = copy_with_template(kimi_folder, tmp_path, "{#- theirs -#}" + kimi.template.source)
    with caplog.at_level(logging.WARNING):
        load_target(kimi.profile, folder)
    assert not caplog.records


def thinking_modes(target: Target, *, thinking: bool) -> set[str]:
    return {opening.thinking for opening in target.openings(thinking=thinking)}


def test_openings_are_found_from_what_is_rendered(
    kimi: Target, qwen3: Target, deepseek_v3: Target, target: Target
) -> None:
    assert thinking_modes(kimi, thinking=True) == {"in_prompt"}
    assert thinking_modes(kimi, thinking=False) == {"off"}
    assert thinking_modes(qwen3, thinking=True) == {"generated"}
    assert thinking_modes(qwen3, thinking=False) == {"off"}
    for without in (deepseek_v3, target):
        assert thinking_modes(without, thinking=True) == thinking_modes(without, thinking=False) == {"none"}
    for one in (kimi, qwen3, deepseek_v3, target):
        (ids,) = one.render([asks(HI)])
        found = one.opening_of(ids)
        assert found is not None and one.decode(ids).endswith(one.decode(found.ids))
        assert one.opening_of(ids[:-1]) is None
    assert kimi.can_stop_thinking and qwen3.can_stop_thinking and deepseek_v3.can_stop_thinking
    (off,) = kimi.render([asks(HI, thinking=False)])
    assert (kimi.opening_of(off) or pytest.fail("none")).thinking == "off"


def test_a_template_that_ends_before_the_thoughts_lets_the_target_open_them(
    kimi: Target, kimi_folder: Path, tmp_path: Path
) -> None:
    """As K2-Thinking's does."""
    source = kimi.template.source.replace("{{- '<think>' if thinking else '<think></think>' -}}", "")
    like = load_target(kimi.profile, copy_with_template(kimi_folder, tmp_path, source))
    assert thinking_modes(like, thinking=True) == thinking_modes(like, thinking=False) == {"generated"}
    assert not like.can_stop_thinking


def test_deepseek_r1s_template_opens_the_thoughts_in_the_prompt(models_dir: Path, tmp_path: Path) -> None:
    source = models_dir / "DeepSeek-V3"
    if not source.is_dir():
        pytest.skip("EAGLE3_MODELS_DIR holds no DeepSeek-V3")
    text = (source / "tokenizer.json").read_text(encoding="utf-8")
    for place, name in (("798", "<think>"), ("799", "</think>")):
        assert f'"<｜place▁holder▁no▁{place}｜>"' in text
        text = text.replace(f'"<｜place▁holder▁no▁{place}｜>"', f'"{name}"')
    (tmp_path / "tokenizer.json").write_text(text, encoding="utf-8")
    config = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
    config["chat_template"] = config["chat_template"].replace(
        "{{'<｜Assistant｜>'}}{% endif %}", "{{'<｜Assistant｜><think>\\n'}}{% endif %}"
    )
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    target = load_target(target_named("deepseek-r1"), tmp_path)
    assert target.openings(thinking=True)[0].thinking == "in_prompt"
    assert not target.can_stop_thinking
    assert shown(target, HI) == "<｜begin▁of▁sentence｜><｜User｜>hi<｜Assistant｜><think>\n"


def test_a_folder_without_tokenizer_or_template_says_where_they_belong(
    models_dir: Path, tmp_path: Path
) -> None:
    profile = target_named("smollm2-135m-instruct")
    with pytest.raises(TargetError, match=r"There is no tokenizer of .*SmolLM2.*EAGLE3_MODELS_DIR"):
        load_target(profile, tmp_path)
    shutil.copy(models_dir / "SmolLM2-135M-Instruct" / "tokenizer.json", tmp_path)
    with pytest.raises(TargetError, match="has no chat template"):
        load_target(profile, tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ messages[-1].content }}")
    with pytest.raises(TargetError, match="no control token"):
        load_target(profile, tmp_path)


def test_roles_that_arent_the_folders_are_refused(models_dir: Path, tmp_path: Path) -> None:
    profile = target_named("smollm2-135m-instruct")
    folder = models_dir / "SmolLM2-135M-Instruct"
    wrong = profile.model_copy(update={"special_tokens": {"end_of_turn": "<|endofturn|>"}})
    with pytest.raises(TargetError, match=r"end_of_turn token '<\|endofturn\|>' is \d+ ids"):
        load_target(wrong, folder)
    other = profile.model_copy(update={"special_tokens": {"end_of_turn": "<|endoftext|>"}})
    with pytest.raises(
        TargetError, match=r"ends an answer with <\|im_end\|>, the profile .* <\|endoftext\|>"
    ):
        load_target(other, folder)
    half = profile.model_copy(
        update={"special_tokens": {"end_of_turn": "<|im_end|>", "thinking_close": "<jupyter_code>"}}
    )
    with pytest.raises(TargetError, match="how thoughts end, not how they begin"):
        load_target(half, folder)


def test_a_refusal_has_the_templates_words(models_dir: Path, tmp_path: Path) -> None:
    folder = models_dir / "SmolLM2-135M-Instruct"
    source = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}<|im_end|>"
    target = load_target(target_named("smollm2-135m-instruct"), copy_with_template(folder, tmp_path, source))
    with pytest.raises(NotRendered, match="refuses a conversation: no system"):
        target.render([asks(Message("system", "s"), HI)])


# --- the ids of transformers ----------------------------------------------------------------------------------------


def as_openai(message: Message, *, text: bool) -> dict[str, Any]:
    said: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        said["reasoning_content"] = message.reasoning
    if message.tool_calls:
        said["tool_calls"] = [
            {
                "type": "function",
                "id": call.id,
                "function": {
                    "name": call.name,
                    "arguments": call.arguments if text else json.loads(call.arguments),
                },
            }
            for call in message.tool_calls
        ]
        said["content"] = said["content"] or (None if text else "")
    if message.role == "tool":
        said["tool_call_id"] = message.tool_call_id
    return said


TOOLS = [function({"type": "object", "properties": {"q": {"type": "string"}}}, description="é <b> 東")]
TALKS: dict[str, tuple[Message, ...]] = {
    "one": (Message("user", "I'LL go 東京tower  \n\n 123456 \u00e9 e\u0301 👩‍👩‍👧"),),
    "system": (Message("system", "s"), HI),
    "turns": (HI, Message("assistant", "A.\n", reasoning="\nwhy\n"), Message("user", "  and?\r\n")),
    "tools": (HI, Message("assistant", "", "", CALL.tool_calls), RESULT),
    "two": (
        HI,
        Message("assistant", "", "", CALL.tool_calls),
        RESULT,
        Message("assistant", "ok"),
        Message("user", "z"),
    ),
}


@pytest.mark.parametrize("model", ["qwen3", "deepseek_v3", "target"])
@pytest.mark.parametrize("talk", TALKS)
@pytest.mark.parametrize("thinking", [True, False])
def test_prompts_have_the_ids_of_transformers(
    model: str, talk: str, thinking: bool, request: pytest.FixtureRequest, models_dir: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    ours: Target = request.getfixturevalue(model)
    theirs = transformers.AutoTokenizer.from_pretrained(str(models_dir / ours.profile.folder_name))
    text = ours.profile.tool_calls is not None and ours.profile.tool_calls.arguments == "text"
    if text and any(message.tool_calls for message in TALKS[talk]):
        pytest.skip("transformers 5 takes `content: None` away, on which DeepSeek-V3's template counts")
    for tools in (None, TOOLS):
        found = theirs.apply_chat_template(
            [as_openai(message, text=text) for message in TALKS[talk]],
            tools=tools,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,  # what comes otherwise depends on the version: ids, or a mapping of two keys
            enable_thinking=thinking,
        )["input_ids"]
        (ids,) = ours.render([asks(*TALKS[talk], tools=tools or ())], thinking=thinking)
        assert ids.tolist() == found


# --- declarations as TypeScript -------------------------------------------------------------------------------------


def declared(parameters: dict[str, Any], **also: Any) -> str:
    text = declare([function(parameters, **also)])
    assert text.startswith("# Tools\n\n## functions\nnamespace functions {\n") and text.endswith("\n}\n")
    return text.removeprefix("# Tools\n\n## functions\nnamespace functions {\n").removesuffix("\n}\n")


def member(schema: Any) -> str:
    found = declared({"type": "object", "properties": {"a": schema}, "required": ["a"]})
    return found.removeprefix("type f = (_: {\n").removesuffix("\n}) => any;")


def test_required_members_come_first_each_in_the_alphabet() -> None:
    properties = {name: {"type": "integer"} for name in ("d", "b", "c", "a")}
    found = declared(
        {"type": "object", "properties": properties, "required": ["d", "c"]}, description="what\nit does"
    )
    assert found == (
        "// what\n// it does\ntype f = (_: {\n  c: number,\n  d: number,\n  a?: number,\n  b?: number\n}) => any;"
    )


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "string", "description": 'say "hi"'}, '  // say "hi"\n  a: string'),
        ({"type": "string", "description": "one\n\ntwo"}, "  // one\n\n  // two\n  a: string"),
        ({"type": "integer", "maximum": 9, "minimum": 1}, "  // maximum: 9, minimum: 1\n  a: number"),
        (
            {"type": "string", "pattern": "^x$", "maxLength": 3},
            "  // maxLength: 3, pattern: ^x$\n  a: string",
        ),
        ({"type": "boolean", "default": True}, "  // Default: True\n  a: boolean"),
        ({"type": "number", "default": 0}, "  // Default: 0\n  a: number"),
        ({"type": "string", "default": 'é"'}, '  // Default: "é\\""\n  a: string'),
        ({"type": "string", "default": None}, "  a: string"),
        ({"enum": ["x", 'q"', 2, None, True]}, '  a: "x" | "q"" | 2 | None | True'),
        ({"type": ["string", "null", "object", "array"]}, "  a: string | null | {} | Array<any>"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "  a: string | null"),
        ({"type": "array"}, "  a: Array<any>"),
        (
            {"type": "array", "items": {"type": "integer"}, "minItems": 1},
            "  // minItems: 1\n  a: Array<number>",
        ),
        (
            {"type": "array", "items": {"type": "string", "description": "each"}},
            "  a: Array<\n    // each\n    string\n  >",
        ),
        (
            {"type": "object", "properties": {"b": {"type": "string"}}, "additionalProperties": False},
            "  a: {\n    b?: string,\n    [k: string]: never\n  }",
        ),
        (
            {"type": "object", "additionalProperties": {"type": "integer"}},
            "  a: {\n    [k: string]: number\n  }",
        ),
        ({"type": "object"}, "  a: {}"),
        ({}, "  a: any"),
        (True, "  a: any"),
        ({"$ref": "#"}, "  a: parameters"),
    ],
)
def test_a_schema_is_written_as_the_target_has_seen_it(schema: Any, text: str) -> None:
    if schema == {"$ref": "#"}:
        assert declared({"type": "object", "properties": {"a": schema}}) == (
            "interface parameters {\n  a?: parameters\n}\ntype f = (_: parameters) => any;"
        )
    else:
        assert member(schema) == text


def test_definitions_are_interfaces_before_the_function() -> None:
    parameters = {
        "type": "object",
        "$defs": {"P": {"type": "object", "description": "a point", "properties": {"x": {"type": "number"}}}},
        "properties": {"p": {"$ref": "#/$defs/P", "description": "where"}},
    }
    assert declared(parameters, description="d") == (
        "// a point\ninterface P {\n  x?: number\n}\n// d\ntype f = (_: {\n  // where\n  p?: P\n}) => any;"
    )


def test_no_parameters_and_other_kinds_of_tools() -> None:
    assert declared({}) == "type f = (_: {}) => any;"
    assert declare([{"type": "_plugin", "name": "x"}]) == ""


BAD: list[Callable[[], dict[str, Any]]] = [
    lambda: {"$ref": "#/$defs/none"},
    lambda: {"$ref": "http://elsewhere"},
    lambda: {"description": "no type"},
    lambda: {"enum": [1], "type": "string"},
    lambda: {"enum": [1], "type": ["string", "integer"]},
    lambda: {"type": ["sort of"]},
]


@pytest.mark.parametrize("schema", BAD)
def test_what_typescript_cant_say_is_declared_as_json(
    kimi: Target, schema: Callable[[], dict[str, Any]]
) -> None:
    tools = [function({"type": "object", "properties": {"a": schema()}})]
    text = shown(kimi, HI, tools=tools)
    assert text.startswith('<|im_system|>tool_declare<|im_middle|>[{"function":{"name":"f","parameters":')


def test_deepseeks_calls_are_rendered_where_the_message_has_no_text(deepseek_v3: Target) -> None:
    call = Message("assistant", "", "", CALL.tool_calls)
    assert shown(deepseek_v3, HI, call, RESULT).endswith(
        "<｜Assistant｜><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>search\n```json\n"
        '{"q":"é"}\n```<｜tool▁call▁end｜><｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>found'
        "<｜tool▁output▁end｜><｜tool▁outputs▁end｜>"
    )

"""Good samples by the thousand, made as the pipeline makes them: real templates and tokenizers, varied text, seeded."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from include.core.records import Capture, Conversation, Ids, Message, TextAnswer, TokenSample, ToolCall
from include.tokens.answers import reconstruct
from include.tokens.samples import Turn, message_of, recoded, samples_of
from include.tokens.target import Target

TEXTS = (
    "The capital of France is Paris.",
    "I'll say that 42 is the answer, isn't it?",
    "Übergrößen kosten 3,50 € mehr; naïve façade.",
    "Привет, мир! Это предложение на русском.",
    "東京タワーは333メートルです。",
    "你好，世界！今天天气很好。",
    "I'LL 東京tower",
    "مرحبا بالعالم \u202bנא\u202c",
    "नमस्ते दुनिया สวัสดี",
    "👩‍👩‍👧‍👦 🇩🇪 ✅ 🏳️‍🌈",
    "NFD: e\u0301te\u0301 n\u0303 A\u030a, NFC: été",
    "one\r\ntwo\r\n",
    "```python\ndef f(x: int) -> int:\n\treturn x ** 2  # squared\n```",
    '<script>alert("1 & 2")</script> <b>bold</b>',
    '{"a": [1, 2, {"b": null}]}',
    "SELECT * FROM t WHERE a <> 'b';",
    "$\\sum_{i=0}^{n} i^2$ \\n isn't a newline",
    "a\u00a0b\u3000c\u200bd\ufeff",
    "0123456789 1e-7 0xDEADBEEF",
    "          many     blanks\t\tand tabs",
    "\n\n\n",
    "<|not_a_token|> <thinking> [INST]",
    "x",
)
TOOLS = (
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "its name"},
                    "days": {"type": "integer"},
                },
                "required": ["city"],
            },
        },
    },
)
WITH_TOOL_RESULT = (
    Message("user", "Will it rain?"),
    Message(
        "assistant", "", tool_calls=(ToolCall("functions.get_weather:0", "get_weather", '{"city": "Ulm"}'),)
    ),
    Message("tool", "22 °C, sun", tool_call_id="functions.get_weather:0", name="get_weather"),
)


@dataclass(frozen=True)
class Shape:
    """What a conversation is like. `tools`: the answer calls them; `after_tool`: it follows a tool's result."""

    thinking: bool = False
    tools: bool = False
    after_tool: bool = False
    capture: Capture = "direct"
    turns: int = 1


@dataclass
class Maker:
    """Makes good samples of one target; the same seed makes the same."""

    target: Target
    seed: int = 0
    made: int = 0
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(f"{self.target.profile.name} {self.seed}")

    def many(self, count: int) -> Iterator[TokenSample]:
        """Samples of all shapes."""
        left = count
        while left > 0:
            for sample in self.samples(self.shape())[:left]:
                left -= 1
                yield sample

    def shape(self) -> Shape:
        r, profile = self.random, self.target.profile
        tools = profile.tool_calls is not None and r.random() < 0.25
        return Shape(
            thinking=profile.thinks and r.random() < 0.5,
            tools=tools,
            after_tool=profile.tool_calls is not None and not tools and r.random() < 0.1,
            capture=r.choice(("direct", "text", "logprobs")),
            turns=1 if tools else r.choice((1, 1, 1, 2, 3)),
        )

    def one(self, shape: Shape) -> TokenSample:
        """The last sample of a conversation of this shape."""
        return self.samples(shape)[-1]

    def samples(self, shape: Shape) -> list[TokenSample]:
        self.made += 1
        base, messages = f"good-{self.made:06}", self._question(shape)
        turns = []
        for at in range(shape.turns):
            tools = TOOLS if shape.tools or shape.after_tool else ()
            conversation = Conversation("", messages, "", "", tools)
            prompt = self.target.render([conversation], thinking=shape.thinking)[0]
            output = self.answer(shape, prompt)
            turns.append(self._turn(f"{base}-t{at}", prompt, output, shape))
            message = message_of(output, self.target)
            assert message is not None
            messages = (*messages, message, Message("user", self.text()))
        return list(samples_of(turns))

    def answer(self, shape: Shape, prompt: Ids) -> Ids:
        """An answer to the prompt, as it is captured."""
        text = self._text_answer(shape)
        opening = self.target.opening_of(prompt)
        assert opening is not None
        verbatim = reconstruct([text], [opening.thinking], self.target)[0]
        assert not verbatim.left_out, verbatim.left_out
        if shape.capture != "logprobs":
            return verbatim.output_ids
        table = self.target.tokenizer.token_bytes
        token_bytes = tuple(table[id_] or b"" for id_ in verbatim.output_ids.tolist())
        reported = replace(text, token_bytes=token_bytes, completion_tokens=len(token_bytes))
        return reconstruct([reported], [opening.thinking], self.target)[0].output_ids

    def text(self, most: int = 8) -> str:
        parts = self.random.choices(TEXTS, k=self.random.randint(1, most))
        return self.random.choice((" ", "\n", "\n\n")).join(parts)

    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(
            ToolCall(
                f"functions.get_weather:{at}" if self.target.profile.tool_calls.id else "",
                "get_weather",
                json.dumps({"city": self.text(2), "days": at}, ensure_ascii=self.random.random() < 0.5),
            )
            for at in range(self.random.randint(1, 3))
        )

    def _question(self, shape: Shape) -> tuple[Message, ...]:
        if shape.after_tool:
            return WITH_TOOL_RESULT
        system = (Message("system", self.text(2)),) if self.random.random() < 0.3 else ()
        return (*system, Message("user", self.text()))

    def _text_answer(self, shape: Shape) -> TextAnswer:
        start = self.target.profile.usual_start
        content = "" if shape.tools and self.random.random() < 0.5 else start + self.text(12) + "."
        reasoning = start + self.text(12) if shape.thinking else ""
        white = self.target.profile.thinking.after_close[0] if shape.thinking else ""
        if shape.thinking and self.target.profile.name == "qwen3":
            reasoning = f"\n{reasoning}\n"
        return TextAnswer(
            reasoning=reasoning,
            content=white + content,
            tool_calls=self.calls() if shape.tools else (),
            finish_reason="tool_calls" if shape.tools else "stop",
        )

    def _turn(self, sample_id: str, prompt: Ids, output: Ids, shape: Shape) -> Turn:
        again = recoded([output], self.target)[0]
        return Turn(
            sample_id=sample_id,
            prompt_ids=prompt,
            output_ids=output,
            capture=shape.capture,
            count_delta=0,
            round_trip_exact=bool(np.array_equal(again, output)),
            engine="sglang",
            provider="engine",
            model="m",
            finish_reason="tool_calls" if shape.tools else "stop",
            source_row="rows.jsonl:1",
        )

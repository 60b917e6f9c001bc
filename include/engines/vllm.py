"""vLLM: /v1/completions with token ids in and, by `return_token_ids`, token ids out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from include.core.spec import Sampling
from include.engines.base import Answer, Endpoint, Expected, MalformedAnswer, ask, require_ok, require_served


class Vllm:
    """The engine protocol for vLLM ≥ 0.11 (read and run with 0.32)."""

    name = "vllm"
    path = "/v1/completions"

    def check(self, endpoint: Endpoint, expected: Expected) -> str:
        """Served model, context length and tokenizer, before the first request."""
        room = require_served(endpoint, expected)
        version = require_ok(ask(endpoint, "GET", "/version"), endpoint, "/version").get("version", "?")
        return f"vLLM {version} at {endpoint.base_url} serves {expected.served_as}, context {room}, same tokenizer"

    def payload(self, prompt_ids: Sequence[int], sampling: Sampling, model: str) -> dict[str, Any]:
        """`skip_special_tokens` only touches text, which isn't used."""
        return {
            "model": model,
            "prompt": list(prompt_ids),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "seed": sampling.seed,
            "return_token_ids": True,
        }

    def read(self, body: Mapping[str, Any]) -> Answer:
        """One choice with its token ids."""
        try:
            choice = body["choices"][0]
            ids = choice["token_ids"]
            usage = body.get("usage") or {}
            if not isinstance(ids, list) or not all(isinstance(i, int) for i in ids):
                raise MalformedAnswer("the answer carries no token ids (is this vLLM too old?)")
            return Answer(
                output_ids=ids,
                finish_reason=choice.get("finish_reason") or "unknown",
                prompt_tokens=usage.get("prompt_tokens"),
                completion_tokens=usage.get("completion_tokens"),
                model=body.get("model") or "",
            )
        except (KeyError, IndexError, TypeError) as error:
            raise MalformedAnswer(f"the answer lacks {error}") from None

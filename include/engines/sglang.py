"""SGLang: the native /generate, token ids in and token ids out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from include.core.spec import Sampling
from include.engines.base import Answer, Endpoint, Expected, MalformedAnswer, require_served


class Sglang:
    """The engine protocol for SGLang's native API (read and run with 0.5.23)."""

    name = "sglang"
    path = "/generate"

    def check(self, endpoint: Endpoint, expected: Expected) -> str:
        """Served model, context length and tokenizer, before the first request."""
        room = require_served(endpoint, expected)
        return f"SGLang at {endpoint.base_url} serves {expected.served_as}, context {room}, same tokenizer"

    def payload(self, prompt_ids: Sequence[int], sampling: Sampling, model: str) -> dict[str, Any]:
        """`no_stop_trim` keeps the stop token in the ids; the model is the server's only one."""
        return {
            "input_ids": list(prompt_ids),
            "sampling_params": {
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "max_new_tokens": sampling.max_tokens,
                "sampling_seed": sampling.seed,
                "no_stop_trim": True,
                "skip_special_tokens": False,
            },
        }

    def read(self, body: Mapping[str, Any]) -> Answer:
        """`output_ids` and `meta_info` of one request."""
        try:
            meta = body["meta_info"]
            ids = body["output_ids"]
            if not isinstance(ids, list) or not all(isinstance(i, int) for i in ids):
                raise MalformedAnswer("the answer carries no output_ids")
            reason = meta["finish_reason"]
            return Answer(
                output_ids=ids,
                finish_reason=reason["type"] if isinstance(reason, dict) else str(reason),
                prompt_tokens=meta.get("prompt_tokens"),
                completion_tokens=meta.get("completion_tokens"),
                model="",
            )
        except (KeyError, TypeError) as error:
            raise MalformedAnswer(f"the answer lacks {error}") from None

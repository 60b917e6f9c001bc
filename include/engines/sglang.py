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
        """The model is the server's only one. The server heeds `sampling_seed` only where it was started with
        --enable-deterministic-inference; the stop token is in `output_ids` without being asked for.
        """
        return {
            "input_ids": list(prompt_ids),
            "sampling_params": {
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "max_new_tokens": sampling.max_tokens,
                "sampling_seed": sampling.seed,
            },
        }

    def read(self, body: Mapping[str, Any]) -> Answer:
        """`output_ids` and `meta_info` of one request."""
        try:
            meta = body["meta_info"]
            reason = _finish_reason(meta["finish_reason"])
            ids = body["output_ids"]
            if not isinstance(ids, list) or not all(isinstance(i, int) for i in ids):
                raise MalformedAnswer("the answer carries no output_ids")
            return Answer(
                output_ids=ids,
                finish_reason=reason,
                prompt_tokens=meta.get("prompt_tokens"),
                completion_tokens=meta.get("completion_tokens"),
                model="",
            )
        except (KeyError, TypeError) as error:
            raise MalformedAnswer(f"the answer lacks {error}") from None


def _finish_reason(said: Mapping[str, Any]) -> str:
    """The `type` of SGLang's {type: stop, matched: 2}, {type: length, length: 32} or {type: abort, message: …}."""
    if said["type"] == "abort":
        raise MalformedAnswer("the server has aborted the request")
    # No stop text is ever asked for. SGLang says one where the model's numbers broke ("NaN happened"), and then puts
    # an end of turn that the model never chose into the ids: nothing to train on.
    if said["type"] == "stop" and isinstance(matched := said.get("matched"), str):
        return f"stop ({matched})"
    return str(said["type"])

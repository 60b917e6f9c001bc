"""What every engine speaks: a check before the first request, and pure request building and answer reading."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import requests

from include.core.connections import Connection
from include.core.errors import EngineError
from include.core.spec import Sampling

PROBE = "I'LL say «hé» 東京tower 12345\n\n  x = {'a': [1, 2]}\t🙂 e\u0301"


@dataclass(frozen=True)
class Endpoint:
    """Where an engine listens. The key goes into a header, and nowhere else."""

    conn_id: str
    base_url: str
    api_key: str = field(default="", repr=False)

    @classmethod
    def of(cls, connection: Connection) -> Endpoint:
        """From an Airflow connection of type http; `schema` (https) and the password (API key) are optional."""
        if not connection.host:
            raise EngineError(
                f"The connection '{connection.conn_id}' names no host.",
                do="Give it the engine's host and port.",
            )
        scheme = connection.schema or ("https" if connection.conn_type == "https" else "http")
        host = connection.host.removeprefix("http://").removeprefix("https://")
        port = f":{connection.port}" if connection.port else ""
        return cls(connection.conn_id, f"{scheme}://{host}{port}", connection.password)

    @property
    def headers(self) -> dict[str, str]:
        """The HTTP headers that carry the key, where there is one."""
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}


@dataclass(frozen=True)
class Expected:
    """What the dataset's target says the engine must be."""

    served_as: str
    vocab_size: int
    max_seq_len: int
    encode: Callable[[str], Sequence[int]]


@dataclass(frozen=True)
class Answer:
    """What the engine returned for one prompt: its own ids, the stop token included."""

    output_ids: Sequence[int]
    finish_reason: str
    prompt_tokens: int | None
    completion_tokens: int | None
    model: str


class MalformedAnswer(Exception):
    """A 200 whose body isn't an answer; asked again like a 502."""


class Engine(Protocol):
    """One kind of engine. Everything but `check` is pure, so the client alone owns the network."""

    name: str
    path: str

    def check(self, endpoint: Endpoint, expected: Expected) -> str:
        """Asks for health, model, limits and tokenizer; returns a line for the log or raises EngineError."""

    def payload(self, prompt_ids: Sequence[int], sampling: Sampling, model: str) -> dict[str, Any]:
        """The JSON body of one request."""

    def read(self, body: Mapping[str, Any]) -> Answer:
        """The answer in a 200's body; raises MalformedAnswer."""


def ask(
    endpoint: Endpoint, method: str, path: str, body: Mapping[str, Any] | None = None
) -> requests.Response:
    """One call of the control plane; trouble with the network becomes one sentence."""
    try:
        return requests.request(
            method, endpoint.base_url + path, json=body, headers=endpoint.headers, timeout=(5, 30)
        )
    except requests.RequestException as error:
        raise EngineError(
            f"No engine answers at {endpoint.base_url} ({_reason(error)}).",
            do=f"Start it, or fix host and port of the connection '{endpoint.conn_id}'.",
            retryable=True,
        ) from None


def require_ok(response: requests.Response, endpoint: Endpoint, what: str) -> Any:
    """The JSON of a 200, or one sentence with the engine's own words."""
    if response.status_code in (401, 403):
        raise EngineError(
            f"The engine at {endpoint.base_url} refuses the key (HTTP {response.status_code}).",
            do=f"Put the right key into the password of the connection '{endpoint.conn_id}'.",
        )
    if response.status_code != 200:
        raise EngineError(
            f"The engine at {endpoint.base_url} answers {what} with HTTP {response.status_code}: "
            f"{' '.join(response.text.split())[:200] or 'no text'}.",
            do="Look at the engine's log; if it is still starting, run the task again.",
            retryable=response.status_code >= 500,
        )
    try:
        return response.json()
    except requests.JSONDecodeError:
        raise EngineError(
            f"What listens at {endpoint.base_url} is no inference engine ({what} isn't JSON).",
            do=f"Fix host and port of the connection '{endpoint.conn_id}'.",
        ) from None


def require_served(endpoint: Endpoint, expected: Expected) -> int | None:
    """Asks for the served model, its context and its tokenizer; returns the context length in tokens.

    Both vLLM and SGLang answer these OpenAI-style calls.
    """
    models = require_ok(ask(endpoint, "GET", "/v1/models"), endpoint, "/v1/models").get("data", [])
    served = {m["id"]: m.get("max_model_len") for m in models}
    if expected.served_as not in served:
        raise EngineError(
            f"The engine at {endpoint.base_url} serves {', '.join(served) or 'no model'}, "
            f"not {expected.served_as}.",
            do="Start it with that --served-model-name, or fix `served_as` in the target's YAML.",
        )
    room = served[expected.served_as]
    if room is not None and room < expected.max_seq_len:
        raise EngineError(
            f"The engine at {endpoint.base_url} takes {room} tokens, the dataset up to {expected.max_seq_len}.",
            do="Start it with a longer context, or lower `limits.max_seq_len` in the dataset's YAML.",
        )
    probe = {"model": expected.served_as, "prompt": PROBE, "add_special_tokens": False}
    theirs = require_ok(ask(endpoint, "POST", "/tokenize", probe), endpoint, "/tokenize").get("tokens", [])
    _require_same_ids(endpoint, theirs, list(expected.encode(PROBE)))
    return int(room) if room is not None else None


def _require_same_ids(endpoint: Endpoint, theirs: Sequence[int], ours: Sequence[int]) -> None:
    if list(theirs) == list(ours):
        return
    pairs = enumerate(zip(ours, theirs, strict=False))
    at = next((i for i, (a, b) in pairs if a != b), min(len(ours), len(theirs)))
    raise EngineError(
        f"The engine at {endpoint.base_url} has another tokenizer than the target: on a test text of "
        f"{len(ours)} ids (theirs {len(theirs)}) the first difference is at {at}.",
        do="Serve the model of the target's folder, or set EAGLE3_MODELS_DIR to the served model's folder.",
    )


def _reason(error: requests.RequestException) -> str:
    if isinstance(error, requests.exceptions.SSLError):
        return "TLS failed"
    if isinstance(error, requests.Timeout):
        return "no answer in time"
    text = str(error)
    if "refused" in text:
        return "connection refused"
    if "resolve" in text or "Name or service" in text:
        return "the host's name isn't known"
    return type(error).__name__

"""A server that speaks vLLM's protocol and misbehaves as it is told: only for injecting faults."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any

from aiohttp import web

END_OF_TURN = 2
Behaviour = Callable[[int, dict[str, Any]], "web.Response | float | str | None"]
BREAK_OFF = "break off"


def answer_ids(prompt: list[int]) -> list[int]:
    """The ids that this server 'generates': decided by the prompt, so a test can tell whose answer it holds."""
    return [100 + sum(prompt) % 7000, 100 + len(prompt), END_OF_TURN]


def answer(prompt: list[int], finish_reason: str = "stop", ids: list[int] | None = None) -> web.Response:
    """A whole answer in vLLM's shape."""
    out = answer_ids(prompt) if ids is None else ids
    choice = {"index": 0, "text": "", "finish_reason": finish_reason, "token_ids": out}
    usage = {"prompt_tokens": len(prompt), "completion_tokens": len(out)}
    return web.json_response({"model": "SmolLM2-135M-Instruct", "choices": [choice], "usage": usage})


class FaultServer:
    """`behave(n, body)` gets the number of the request (from 1) and its body; it returns a response, seconds to
    hang before the good answer, BREAK_OFF for a body that ends in the middle, or None for the good answer at once.
    """

    def __init__(
        self, behave: Behaviour | None = None, tokenize: Callable[[str], list[int]] | None = None
    ) -> None:
        self.behave = behave or (lambda n, body: None)
        self.tokenize = tokenize
        self.model = "SmolLM2-135M-Instruct"
        self.max_model_len = 2048
        self.asked: Counter[tuple[int, ...]] = Counter()
        self.in_flight = self.most_in_flight = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._started = threading.Event()
        self.url = ""

    @property
    def requests(self) -> int:
        """How many completions were asked for."""
        return sum(self.asked.values())

    def __enter__(self) -> FaultServer:
        self._thread.start()
        self._started.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Closes the port: from now on connections are refused."""
        if self._loop.is_running():
            asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(10)
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        app = web.Application(client_max_size=1 << 28)
        app.add_routes(
            [
                web.get("/v1/models", self._models),
                web.get("/version", self._version),
                web.post("/tokenize", self._tokenize),
                web.post("/v1/completions", self._complete),
            ]
        )
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        self._loop.run_until_complete(self._runner.setup())
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        self._loop.run_until_complete(site.start())
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        self._started.set()
        self._loop.run_forever()

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": self.model, "max_model_len": self.max_model_len}]})

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": "test"})

    async def _tokenize(self, request: web.Request) -> web.Response:
        text = (await request.json())["prompt"]
        return web.json_response({"tokens": self.tokenize(text) if self.tokenize else []})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked[tuple(body["prompt"])] += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            what = self.behave(self.requests, body)
            if isinstance(what, web.Response):
                return what
            if what == BREAK_OFF:
                half = web.StreamResponse(headers={"Content-Length": "1000"})
                await half.prepare(request)
                await half.write(b'{"choices": [')
                if request.transport:
                    request.transport.close()
                return half
            await asyncio.sleep(float(what or 0))
            return answer(body["prompt"])
        finally:
            self.in_flight -= 1

"""The client that drives an engine: many requests at once, each finished one durable in the ledger before it counts."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import aiohttp
import orjson

from include.core.errors import EngineError
from include.core.records import GenerationRecord, Outcome
from include.core.spec import EngineSpec, Sampling
from include.engines.base import Answer, Endpoint, Engine, MalformedAnswer
from include.engines.ledger import Ledger

ATTEMPTS = 5
DRAIN_S = 30.0
_ROW_REFUSED = (400, 413, 422)
_STOP = (401, 402, 403, 404)
_NETWORK_TROUBLE = (aiohttp.ClientConnectionError, ConnectionError)


@dataclass(frozen=True)
class Request:
    """One prompt to be answered; `digest` covers everything that decides the answer.

    `then` makes the next request of a conversation from this one's answer (or says why there is none). `again` counts
    the answers that were discarded before: each time the seed is another one.
    """

    sample_id: str
    digest: str
    prompt_ids: Sequence[int]
    then: Callable[[GenerationRecord], Request | str | None] | None = None
    again: int = 0


@dataclass
class Progress:
    """What has come of the requests so far; a request counts once it is on the disk."""

    total: int
    outcomes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    retries: Counter[str] = field(default_factory=Counter)
    output_tokens: int = 0
    in_flight: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def finished(self) -> int:
        """Requests that are on the disk, whatever came of them."""
        return sum(self.outcomes.values())

    @property
    def seconds(self) -> float:
        """Since the start."""
        return max(time.monotonic() - self.started, 1e-9)

    def count(self, record: GenerationRecord) -> None:
        """Adds a record that is on the disk."""
        self.outcomes[record.outcome] += 1
        self.output_tokens += len(record.output_ids)
        if record.reason:
            self.reasons[record.reason] += 1


class Client:
    """Drives one engine for one shard."""

    def __init__(
        self,
        engine: Engine,
        endpoint: Endpoint,
        spec: EngineSpec,
        sampling: Sampling,
        model: str,
        end_of_turn: int,
    ) -> None:
        self._engine = engine
        self._endpoint = endpoint
        self._spec = spec
        self._sampling = sampling
        self._model = model
        self._end_of_turn = end_of_turn
        self._last_contact = time.monotonic()
        self._stopping = False

    async def run(
        self,
        requests: Iterator[Request],
        ledger: Ledger,
        progress: Progress,
        on_progress: Callable[[Progress], None],
        every_seconds: float = 5.0,
    ) -> None:
        """Answers all requests, or raises EngineError or StorageError with everything finished on the disk."""
        self._last_contact = time.monotonic()
        finished: asyncio.Queue[GenerationRecord] = asyncio.Queue(maxsize=2 * self._spec.concurrency)
        timeout = aiohttp.ClientTimeout(total=self._spec.request_timeout_s, sock_connect=10)
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30)
        headers = {"Content-Type": "application/json", **self._endpoint.headers}
        async with aiohttp.ClientSession(timeout=timeout, connector=connector, headers=headers) as session:
            writer = asyncio.create_task(_write(finished, ledger, progress))
            ticker = asyncio.create_task(_tick(progress, on_progress, every_seconds))
            workers = [
                asyncio.create_task(self._work(session, requests, finished, progress))
                for _ in range(self._spec.concurrency)
            ]
            try:
                await _all_or_first_error(workers, writer)
            except EngineError:
                self._stopping = (
                    True  # no new request, but what is in flight is paid for: it may still come in
                )
                await asyncio.wait(workers, timeout=DRAIN_S)
                raise
            finally:
                await _end(*workers, ticker)
                await _end(writer)
                _flush(finished, ledger, progress)

    async def _work(
        self,
        session: aiohttp.ClientSession,
        requests: Iterator[Request],
        finished: asyncio.Queue[GenerationRecord],
        progress: Progress,
    ) -> None:
        for first in requests:
            request: Request | str | None = first
            while isinstance(request, Request) and not self._stopping:
                progress.in_flight += 1
                try:
                    record = await self._answer(session, request, progress)
                    await finished.put(record)
                finally:
                    progress.in_flight -= 1
                request = request.then(record) if request.then and record.outcome == "answered" else None
            if self._stopping:
                return

    async def _answer(
        self, session: aiohttp.ClientSession, request: Request, progress: Progress
    ) -> GenerationRecord:
        """One request until it is answered, left out or given up; raises EngineError where all must stop."""
        sampling = self._sampling.model_copy(update={"seed": self._sampling.seed + request.again})
        body = orjson.dumps(self._engine.payload(request.prompt_ids, sampling, self._model))
        started, attempts, cause = time.monotonic(), 0, ""
        while attempts < ATTEMPTS:
            attempts += 1
            try:
                status, raw = await self._post(session, body)
                if status == 200:
                    answer = self._engine.read(_json(raw))
                    return self._settled(request, answer, attempts, started)
                words = " ".join(raw.decode(errors="replace").split())[:300]
                if status in _STOP:
                    raise EngineError(
                        f"The engine at {self._endpoint.base_url} refuses all requests (HTTP {status}): {words}",
                        do="What was answered is kept.",
                    )
                if status in _ROW_REFUSED:
                    return self._record(
                        request, "left_out", f"refused (HTTP {status})", None, attempts, started, words
                    )
                cause = f"HTTP {status}"
            except _NETWORK_TROUBLE as error:
                cause = type(error).__name__
                attempts -= 1  # the engine is away: the row isn't to blame, patience_s decides
                self._check_patience(error)
            except TimeoutError:
                cause = "timeout"
            except aiohttp.ClientError as error:  # a body that breaks off, a header that isn't HTTP
                cause = type(error).__name__
            except MalformedAnswer as error:
                cause = str(error)
            if self._stopping:
                raise asyncio.CancelledError
            progress.retries[cause] += 1
            await asyncio.sleep(min(10.0, 0.25 * 2**attempts) * (0.5 + random.random()))  # noqa: S311 (jitter)
        return self._record(request, "failed", cause, None, attempts, started)

    async def _post(self, session: aiohttp.ClientSession, body: bytes) -> tuple[int, bytes]:
        async with session.post(self._endpoint.base_url + self._engine.path, data=body) as response:
            raw = await response.read()
            self._last_contact = time.monotonic()
            return response.status, raw

    def _check_patience(self, error: Exception) -> None:
        away = time.monotonic() - self._last_contact
        if away > self._spec.patience_s:
            raise EngineError(
                f"The engine at {self._endpoint.base_url} has been away for {away:.0f} s ({type(error).__name__}).",
                do="What was answered is kept. Start the engine and run the task again: it goes on from there.",
                retryable=True,
            ) from None

    def _settled(self, request: Request, answer: Answer, attempts: int, started: float) -> GenerationRecord:
        outcome, reason = classify(answer, self._end_of_turn)
        return self._record(request, outcome, reason, answer, attempts, started)

    def _record(
        self,
        request: Request,
        outcome: Outcome,
        reason: str,
        answer: Answer | None,
        attempts: int,
        started: float,
        words: str = "",
    ) -> GenerationRecord:
        return GenerationRecord(
            sample_id=request.sample_id,
            request=request.digest,
            outcome=outcome,
            reason=reason,
            finish_reason=answer.finish_reason if answer else words,
            output_ids=list(answer.output_ids) if answer else [],
            prompt_tokens=answer.prompt_tokens if answer else None,
            completion_tokens=answer.completion_tokens if answer else None,
            engine=self._engine.name,
            provider=self._endpoint.conn_id,
            model=(answer.model if answer else "") or self._model,
            attempts=attempts,
            seconds=round(time.monotonic() - started, 3),
            at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )


def classify(answer: Answer, end_of_turn: int) -> tuple[Outcome, str]:
    """Whether an answer is usable, and the reason where it isn't."""
    if answer.finish_reason == "length":
        return "left_out", "truncated"
    if answer.finish_reason != "stop":
        return "failed", f"finish_reason {answer.finish_reason}"
    if not answer.output_ids or list(answer.output_ids) == [end_of_turn]:
        return "left_out", "empty"
    return "answered", ""


def _json(raw: bytes) -> dict[str, object]:
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise MalformedAnswer("the answer isn't JSON") from None
    if not isinstance(value, dict):
        raise MalformedAnswer("the answer is no JSON object")
    return value


async def _write(finished: asyncio.Queue[GenerationRecord], ledger: Ledger, progress: Progress) -> None:
    """Group commit: whatever has piled up goes to the disk with one sync."""
    while True:
        batch = [await finished.get()]
        while not finished.empty():
            batch.append(finished.get_nowait())
        # not in a thread that a cancellation would leave behind: one sync of a small file
        ledger.append(batch)
        for record in batch:
            progress.count(record)
        for _ in batch:
            finished.task_done()


def _flush(finished: asyncio.Queue[GenerationRecord], ledger: Ledger, progress: Progress) -> None:
    """What was answered but not yet written when the run ended."""
    rest = []
    while not finished.empty():
        rest.append(finished.get_nowait())
    if rest:
        ledger.append(rest)
        for record in rest:
            progress.count(record)


async def _tick(progress: Progress, on_progress: Callable[[Progress], None], every_seconds: float) -> None:
    while True:
        await asyncio.sleep(every_seconds)
        on_progress(progress)


async def _all_or_first_error(workers: list[asyncio.Task[None]], writer: asyncio.Task[None]) -> None:
    """Waits until every worker is done; the first error of a worker or of the writer is raised at once."""
    waiting = {*workers, writer}
    while waiting != {writer}:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()


async def _end(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

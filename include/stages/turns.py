"""The requests of a shard: a prompt each, or every turn in order with the answers so far."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import orjson

from include.core.errors import LedgerError
from include.core.parquet import Row, read_rows
from include.core.records import Conversation, GenerationRecord, Ids, Message, TextAnswer
from include.core.schema import PROMPTS
from include.engines.client import Request
from include.engines.ledger import Ledger
from include.stages.work import Work
from include.tokens.answers import reconstruct
from include.tokens.prompts import PromptMaker, answer_positions, from_json, up_to
from include.tokens.samples import message_of

AFTER_ONE_LEFT_OUT = "an earlier turn was left out"


@dataclass(frozen=True)
class Asked:
    """A request and what the ledger holds for it."""

    request: Request
    record: GenerationRecord
    source_row: str

    @property
    def prompt_ids(self) -> Ids:
        """The ids that were sent."""
        return np.asarray(self.request.prompt_ids, np.int32)


@dataclass(frozen=True)
class Walked:
    """A conversation as far as it got: its answered turns, those left out by reason, or what is missing."""

    turns: Sequence[Asked]
    left_out: dict[str, int] = field(default_factory=dict)
    missing: Request | None = None
    planned: int = 1


class Requests:
    """Makes the requests of one shard, each with the digest of what decides its answer."""

    def __init__(self, work: Work) -> None:
        self._work = work
        decides = [work.profile.served_as, work.spec.sampling.model_dump()]
        self._decides = orjson.dumps(decides, option=orjson.OPT_SORT_KEYS)

    def rows(self) -> Iterator[tuple[Row, Request]]:
        """Every row of the prompts file with its first request, streamed."""
        for row in read_rows(self._work.shard.prompts, PROMPTS):
            whole = from_json(row["conversation"]) if row["conversation"] else None
            yield row, self._request(row["sample_id"], row["prompt_ids"], whole, ())

    def walk(self, row: Row, first: Request, ledger: Ledger) -> Walked:
        """Follows a conversation through the ledger to its end, to a turn that is left out, or to the first missing."""
        planned = planned_turns(row)
        turns: list[Asked] = []
        request: Request | None = first
        while request is not None:
            record = ledger.record(request.sample_id, request.digest)
            if record is None or not ledger.settled(request.sample_id, request.digest):
                return Walked(turns, {}, request, planned)
            if record.outcome == "left_out":
                return Walked(turns, _stopped(record.reason, planned - len(turns) - 1), None, planned)
            turns.append(Asked(request, record, row["source_row"]))
            following = request.then(record) if request.then else None
            if isinstance(following, str):
                return Walked(turns, _stopped(following, planned - len(turns) - 1), None, planned)
            request = following
        return Walked(turns, {}, None, planned)

    def _request(
        self, sample_id: str, prompt_ids: Ids, whole: Conversation | None, answers: tuple[Message, ...]
    ) -> Request:
        digest = hashlib.sha256(self._decides + orjson.dumps(prompt_ids.tolist())).hexdigest()[:32]
        then = partial(self._next, whole, prompt_ids, answers) if whole else None
        return Request(sample_id, digest, prompt_ids.tolist(), then)

    def _next(
        self,
        whole: Conversation,
        prompt_ids: Ids,
        answers: tuple[Message, ...],
        record: GenerationRecord,
    ) -> Request | str | None:
        """The request after an answer; None at the end, or why the conversation can't go on."""
        positions = answer_positions(whole)
        if len(answers) + 1 >= len(positions):
            return None
        message = self._message(prompt_ids, record)
        if message is None:
            return "an answer that no template can show"
        answers = (*answers, message)
        prompt = up_to(whole, positions[len(answers)], answers)
        maker = PromptMaker(self._work.target, self._work.spec)
        ids = maker.render([prompt])[0]
        if isinstance(ids, str):
            return ids
        return maker.too_long(ids) or self._request(prompt.sample_id, ids, whole, answers)

    def _message(self, prompt_ids: Ids, record: GenerationRecord) -> Message | None:
        """The answer as history, from the ids that a sample would have."""
        target = self._work.target
        if not record.text:
            return message_of(np.asarray(record.output_ids, np.int32), target)
        opening = target.opening_of(prompt_ids)
        thinking = opening.thinking if opening else "none"
        (one,) = reconstruct([TextAnswer.of(record.text)], [thinking], target)
        return None if one.left_out else message_of(one.output_ids, target)


def planned_turns(row: Row) -> int:
    """How many answers a row of the prompts file asks for."""
    return len(answer_positions(from_json(row["conversation"]))) if row["conversation"] else 1


def answered(work: Work, ledger: Ledger) -> Iterator[Walked]:
    """Every conversation of the shard, whole; LedgerError where an answer is missing."""
    requests = Requests(work)
    for row, first in requests.rows():
        walked = requests.walk(row, first, ledger)
        if walked.missing:
            raise LedgerError(
                f"{walked.missing.sample_id} of {work.shard.label} has no answer in the ledger.",
                do="Run `generate` first.",
            )
        yield walked


def _stopped(reason: str, not_asked: int) -> dict[str, int]:
    return {reason: 1} | ({AFTER_ONE_LEFT_OUT: not_asked} if not_asked else {})

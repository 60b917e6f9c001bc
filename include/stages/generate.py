"""generate: prompt ids → the engine's own output ids, each one durable in the ledger."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from datetime import UTC, datetime

from include.core.errors import EngineError
from include.core.files import read_json
from include.core.parquet import Row
from include.engines import ENGINES
from include.engines.base import Endpoint, Expected
from include.engines.client import Client, Progress, Request
from include.engines.ledger import Ledger
from include.stages.turns import Requests, planned_turns
from include.stages.work import Report, Work

log = logging.getLogger(__name__)


def run(work: Work) -> Report:
    """Asks only what the ledger doesn't hold yet; the engine isn't even called when nothing is missing."""
    shard = work.shard
    requests = Requests(work)
    with Ledger(shard.ledger) as ledger:
        if ledger.damaged_lines:
            log.warning(
                "%d line(s) of %s were cut by a crash and are asked again", ledger.damaged_lines, shard.ledger
            )
        discarded = _discard_malformed(work, ledger) if work.regenerate else 0
        prompts = total = outdated = missing = 0
        for row, first in requests.rows():
            prompts += 1
            total += planned_turns(row)
            outdated += ledger.outdated(first.sample_id, first.digest)
            missing += _missing(requests, row, first, ledger)[1]
        if outdated:
            log.info("%d earlier answers don't count: their prompt or sampling has changed", outdated)
        progress = Progress(missing)
        if progress.total:
            _ask(work, requests, ledger, progress)
        else:
            log.info("all %d prompts are in the ledger already: no request is sent", prompts)
    if failed := progress.outcomes["failed"]:
        worst = ", ".join(f"{reason} ({n})" for reason, n in progress.reasons.most_common(3))
        raise EngineError(
            f"{failed} of {progress.total} requests of {shard.label} failed: {worst}.",
            do="Look at the engine's log and run this task again: it asks only those.",
            retryable=True,
        )
    return {
        "prompts": prompts,
        "answers_planned": total,
        "in_ledger_before": total - missing,
        "discarded": discarded,
        "requests": progress.finished,
        "answered": progress.outcomes["answered"],
        "left_out": progress.outcomes["left_out"],
        "retries": dict(progress.retries),
        "output_tokens": progress.output_tokens,
        "tokens_per_s": round(progress.output_tokens / progress.seconds, 1),
        "file": str(shard.ledger),
    }


def _missing(requests: Requests, row: Row, first: Request, ledger: Ledger) -> tuple[Request | None, int]:
    """(the first request of a row that is to be sent, how many its conversation may take)."""
    if first.then is None:  # nothing hangs on the answer, so it needn't be read
        missing = None if ledger.settled(first.sample_id, first.digest) else first
        return missing, int(missing is not None)
    walked = requests.walk(row, first, ledger)
    return walked.missing, walked.planned - len(walked.turns) if walked.missing else 0


def _discard_malformed(work: Work, ledger: Ledger) -> int:
    """Takes back the answers of the samples that the shard's last audit found malformed."""
    report = read_json(work.shard.audit) if work.shard.audit.exists() else {}
    malformed = {sample_id.rpartition("-t")[0] for sample_id in report.get("malformed", [])}
    count = ledger.discard(
        lambda sample_id: sample_id.rpartition("-t")[0] in malformed,
        "malformed",
        datetime.now(UTC).isoformat(timespec="milliseconds"),
    )
    log.info("regenerate: %d answers of %d malformed samples are asked for again", count, len(malformed))
    return count


def _ask(work: Work, requests: Requests, ledger: Ledger, progress: Progress) -> None:
    spec, target = work.spec, work.target
    endpoint = Endpoint.of(work.connections(spec.engine.connection))
    engine = ENGINES[spec.engine.kind]
    expected = Expected(
        work.profile.served_as,
        target.vocab_size,
        spec.limits.max_seq_len,
        lambda text: target.encode(text).tolist(),
    )
    log.info("%s", engine.check(endpoint, expected))
    log.info("asking for up to %d answers, up to %d at once", progress.total, spec.engine.concurrency)
    pending = (
        replace(request, again=ledger.discards(request.sample_id, request.digest))
        for row, first in requests.rows()
        if (request := _missing(requests, row, first, ledger)[0])
    )
    client = Client(engine, endpoint, spec.engine, spec.sampling, work.profile.served_as, target.end_of_turn)
    asyncio.run(client.run(pending, ledger, progress, lambda p: log.info("%s", progress_line(p))))
    log.info("%s", progress_line(progress))


def progress_line(p: Progress) -> str:
    """`120/240  50%  answered 101  left out 19 …  3.1 requests/s  412 tokens/s  in flight 32  eta 39s`."""
    rate = p.finished / p.seconds
    eta = f"{(p.total - p.finished) / rate:.0f}s" if rate else "?"
    retries = "".join(f"  {cause} ×{n}" for cause, n in p.retries.most_common(3))
    return (
        f"{p.finished}/{p.total}  {100 * p.finished // max(p.total, 1)}%  answered {p.outcomes['answered']}"
        f"  left out {p.outcomes['left_out']}  failed {p.outcomes['failed']}  {rate:.1f} requests/s"
        f"  {p.output_tokens / p.seconds:.0f} tokens/s  in flight {p.in_flight}  eta {eta}"
        + (f"  retries:{retries}" if retries else "")
    )

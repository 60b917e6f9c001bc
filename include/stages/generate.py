"""generate: prompt ids → the engine's own output ids, each one durable in the ledger."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path

import orjson

from include.core.errors import EngineError
from include.core.parquet import read_rows
from include.core.schema import PROMPTS
from include.core.spec import DatasetSpec, TargetProfile
from include.engines import ENGINES
from include.engines.base import Endpoint, Expected
from include.engines.client import Client, Progress, Request
from include.engines.ledger import Ledger
from include.stages.work import Report, Work

log = logging.getLogger(__name__)


def run(work: Work) -> Report:
    """Asks only what the ledger doesn't hold yet; the engine isn't even called when nothing is missing."""
    spec, shard = work.spec, work.shard
    with Ledger(shard.ledger) as ledger:
        if ledger.damaged_lines:
            log.warning(
                "%d line(s) of %s were cut by a crash and are asked again", ledger.damaged_lines, shard.ledger
            )
        total = settled = outdated = 0
        for request in requests_of(shard.prompts, spec, work.profile):
            total += 1
            settled += ledger.settled(request.sample_id, request.digest)
            outdated += ledger.outdated(request.sample_id, request.digest)
        if outdated:
            log.info("%d earlier answers don't count: their prompt or sampling has changed", outdated)
        progress = Progress(total - settled)
        if progress.total:
            _ask(work, ledger, progress)
        else:
            log.info("all %d prompts are in the ledger already: no request is sent", total)
    if failed := progress.outcomes["failed"]:
        worst = ", ".join(f"{reason} ({n})" for reason, n in progress.reasons.most_common(3))
        raise EngineError(
            f"{failed} of {progress.total} requests of {shard.label} failed: {worst}.",
            do="Look at the engine's log and run this task again: it asks only those.",
            retryable=True,
        )
    return {
        "prompts": total,
        "in_ledger_before": settled,
        "requests": progress.total,
        "answered": progress.outcomes["answered"],
        "left_out": progress.outcomes["left_out"],
        "retries": dict(progress.retries),
        "output_tokens": progress.output_tokens,
        "tokens_per_s": round(progress.output_tokens / progress.seconds, 1),
        "file": str(shard.ledger),
    }


def requests_of(prompts: Path, spec: DatasetSpec, profile: TargetProfile) -> Iterator[Request]:
    """The requests of a shard, streamed, each with the digest of what decides its answer."""
    decides = orjson.dumps([profile.served_as, spec.sampling.model_dump()], option=orjson.OPT_SORT_KEYS)
    for row in read_rows(prompts, PROMPTS):
        digest = hashlib.sha256(decides + orjson.dumps(row["prompt_ids"])).hexdigest()[:32]
        yield Request(row["sample_id"], digest, row["prompt_ids"])


def _ask(work: Work, ledger: Ledger, progress: Progress) -> None:
    spec, target = work.spec, work.target
    endpoint = Endpoint.of(work.connections(spec.engine.connection))
    engine = ENGINES[spec.engine.kind]
    expected = Expected(work.profile.served_as, target.vocab_size, spec.limits.max_seq_len, target.encode)
    log.info("%s", engine.check(endpoint, expected))
    log.info("asking %d prompts, up to %d at once", progress.total, spec.engine.concurrency)
    pending = (
        request
        for request in requests_of(work.shard.prompts, spec, work.profile)
        if not ledger.settled(request.sample_id, request.digest)
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

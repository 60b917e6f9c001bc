"""reconstruct: prompts and ledger → training samples, and the books of what was left out."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

from include.core.errors import LedgerError
from include.core.files import file_digest
from include.core.parquet import parquet_writer, read_metadata, read_rows
from include.core.records import PromptRecord
from include.core.schema import PROMPTS, SAMPLES
from include.engines.ledger import Ledger
from include.stages.generate import requests_of
from include.stages.work import Report, Work
from include.tokens.reconstruct import direct_sample


def run(work: Work) -> Report:
    """Writes tokens.parquet in the prompts' order, streamed; every prompt is a sample or left out with a reason."""
    shard, target = work.shard, work.target
    left_out: Counter[str] = Counter()
    samples = tokens = supervised = exact = 0
    metadata = read_metadata(shard.prompts) | {"prompts_digest": file_digest(shard.prompts)}
    with Ledger(shard.ledger) as ledger, parquet_writer(shard.tokens, SAMPLES, metadata) as file:
        rows = read_rows(shard.prompts, PROMPTS)
        for row, request in zip(rows, requests_of(shard.prompts, work.spec, work.profile), strict=True):
            answer = ledger.record(request.sample_id, request.digest)
            if answer is None or answer.outcome == "failed":
                raise LedgerError(
                    f"{request.sample_id} of {shard.label} has no answer in the ledger.",
                    do="Run `generate` first.",
                )
            if answer.outcome == "left_out":
                left_out[answer.reason] += 1
                continue
            sample = direct_sample(PromptRecord(**row), answer, target)
            file.write(asdict(sample) | {"seq_len": len(sample.input_ids)})
            samples += 1
            tokens += len(sample.input_ids)
            supervised += len(sample.input_ids) - sample.prompt_len
            exact += sample.round_trip_exact
    return {
        "samples": samples,
        "tokens": tokens,
        "supervised_tokens": supervised,
        "left_out": dict(left_out),
        "round_trip_exact": exact,
        "file": str(shard.tokens),
    }

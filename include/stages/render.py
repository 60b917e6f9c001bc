"""render_prompts: source rows → prompt ids, with the target's own chat template."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator, Sequence

from include.core.batched import batched
from include.core.errors import SpecError
from include.core.files import require_writable, value_digest
from include.core.parquet import parquet_writer
from include.core.records import Conversation
from include.core.schema import PROMPTS, SCHEMA_VERSION
from include.core.spec import DatasetSpec
from include.sources.adapters import to_conversation
from include.sources.jsonl import read_rows
from include.sources.messages import LeftOut
from include.stages.shards import is_done, shard_count
from include.stages.work import Report, Work
from include.tokens.prompts import Prompt, PromptMaker
from include.tokens.target import Target

log = logging.getLogger(__name__)

_HELD_OUT_SLOTS = 10_000
_BATCH = 256


def run(work: Work) -> Report:
    """Writes prompts.parquet, sorted by sample_id, and counts what was left out, by reason."""
    spec, shard = work.spec, work.shard
    require_writable(shard.settings.data_dir)
    limit = work.limit
    if limit is not None and is_done(shard):
        log.info("%s is exported whole already: `limit` is ignored, it would take samples away", shard.label)
        limit = None
    first = shard.index * spec.shard_size
    maker = PromptMaker(work.target, spec)
    left_out: Counter[str] = Counter()
    prompts: dict[str, Prompt] = {}
    read = 0
    for rows in batched(source_rows(spec, first, first + spec.shard_size), _BATCH if limit is None else 1):
        if limit is not None and len(prompts) >= limit:
            break
        read += len(rows)
        for prompt in _prompts(maker, spec, rows, left_out):
            if prompt.sample_id in prompts:
                left_out["duplicate"] += 1
            else:
                prompts[prompt.sample_id] = prompt
    if read == 0:
        raise no_such_shard(work)
    if not prompts:
        reasons = ", ".join(f"{r}: {n}" for r, n in left_out.items())
        raise SpecError(
            f"{shard.label} has no prompt left of {read} rows ({reasons}).", do="Look at the limits."
        )
    with parquet_writer(shard.prompts, PROMPTS, describe(work)) as file:
        for sample_id in sorted(prompts):
            file.write(dict(vars(prompts[sample_id])))
    return {
        "rows": read,
        "prompts": len(prompts),
        "left_out": dict(left_out),
        "prompt_tokens": sum(len(p.prompt_ids) for p in prompts.values()),
        "limit": limit,
        "file": str(shard.prompts),
    }


def source_rows(spec: DatasetSpec, start: int, stop: int | None) -> Iterator[Conversation | str]:
    """The source's rows [start, stop) as conversations, or why one is left out; SourceError for no row."""
    path = spec.source_path
    for number, row in read_rows(path, start, stop):
        try:
            yield to_conversation(spec.name, spec.source.adapter, row, f"{path.name}:{number + 1}")
        except LeftOut as why:
            yield why.reason


def held_out_prompts(target: Target, spec: DatasetSpec, count: int) -> list[Prompt]:
    """The first `count` held-out prompts of the source: never trained on, whatever the shard."""
    maker = PromptMaker(target, spec)
    found: list[Prompt] = []
    for row in source_rows(spec, 0, None):
        if len(found) == count:
            break
        if isinstance(row, Conversation) and held_out(spec, row):
            found += [prompt for prompt in maker.make([row]) if isinstance(prompt, Prompt)]
    return found


def _prompts(
    maker: PromptMaker, spec: DatasetSpec, rows: Sequence[Conversation | str], left_out: Counter[str]
) -> Iterator[Prompt]:
    conversations = []
    for row in rows:
        if isinstance(row, str):
            left_out[row] += 1
        elif held_out(spec, row):
            left_out["held out for evaluation"] += 1
        else:
            conversations.append(row)
    for made in maker.make(conversations):
        if isinstance(made, str):
            left_out[made] += 1
        else:
            yield made


def held_out(spec: DatasetSpec, conversation: Conversation) -> bool:
    """Whether the row is kept for evaluation: decided by its content alone, so it stays so for ever."""
    slot = int(value_digest(["held out", conversation.row_digest])[:12], 16) % _HELD_OUT_SLOTS
    return slot < spec.held_out_share * _HELD_OUT_SLOTS


def no_such_shard(work: Work) -> SpecError:
    """The error for a shard beyond the end of the source."""
    return SpecError(
        f"{work.shard.label} doesn't exist: the source has {shard_count(work.spec)} shard(s) "
        f"of {work.spec.shard_size} rows.",
        do="Choose a lower shard.",
    )


def describe(work: Work) -> dict[str, str]:
    """The file metadata that says what decided these ids; it travels with every later file of the shard."""
    values = {
        "schema_version": SCHEMA_VERSION,
        "dataset": work.spec.name,
        "shard": work.shard.key,
        "spec_digest": work.spec.digest,
        "sampling": work.spec.sampling.model_dump(),
        "thinking": work.spec.prompts.thinking,
        "tools": work.spec.prompts.tools,
        "max_seq_len": work.spec.limits.max_seq_len,
        "max_count_delta": work.spec.limits.max_count_delta,
        **work.target.metadata(),
    }
    return {key: value if isinstance(value, str) else _json(value) for key, value in values.items()}


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)

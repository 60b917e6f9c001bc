"""render_prompts: source rows → prompt ids, with the target's own chat template."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping

from include.core.errors import SpecError
from include.core.files import require_writable, value_digest
from include.core.parquet import parquet_writer
from include.core.records import Conversation, PromptRecord
from include.core.schema import PROMPTS, SCHEMA_VERSION
from include.core.spec import DatasetSpec
from include.sources.adapters import RowError, to_conversation
from include.sources.jsonl import broken_line, read_rows
from include.stages.shards import is_done, shard_count
from include.stages.work import Report, Work
from include.tokens.target import Target

log = logging.getLogger(__name__)

_HELD_OUT_SLOTS = 10_000


def run(work: Work) -> Report:
    """Writes prompts.parquet, sorted by sample_id, and counts what was left out, by reason."""
    spec, shard = work.spec, work.shard
    require_writable(shard.settings.data_dir)
    limit = work.limit
    if limit is not None and is_done(shard):
        log.info("%s is exported whole already: `limit` is ignored, it would take samples away", shard.label)
        limit = None
    first = shard.index * spec.shard_size
    left_out: Counter[str] = Counter()
    prompts: dict[str, PromptRecord] = {}
    read = 0
    for conversation in conversations(spec, first, first + spec.shard_size):
        if limit is not None and len(prompts) >= limit:
            break
        read += 1
        reason, prompt = render_one(work.target, spec, conversation)
        if held_out(spec, conversation):
            reason = "held out for evaluation"
        elif conversation.sample_id in prompts:
            reason = "duplicate"
        if reason:
            left_out[reason] += 1
        elif prompt:
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
            prompt = prompts[sample_id]
            file.write(
                {"sample_id": sample_id, "prompt_ids": prompt.prompt_ids, "source_row": prompt.source_row}
            )
    tokens = sum(len(p.prompt_ids) for p in prompts.values())
    return {
        "rows": read,
        "prompts": len(prompts),
        "left_out": dict(left_out),
        "prompt_tokens": tokens,
        "limit": limit,
        "file": str(shard.prompts),
    }


def conversations(spec: DatasetSpec, start: int, stop: int | None) -> Iterator[Conversation]:
    """The source's rows [start, stop) as conversations; SourceError names a broken line."""
    path = spec.source_path
    for number, row in read_rows(path, start, stop):
        try:
            yield to_conversation(spec.name, spec.source.adapter, row, f"{path.name}:{number + 1}")
        except RowError as error:
            raise broken_line(path, number, str(error)) from None


def render_one(
    target: Target, spec: DatasetSpec, conversation: Conversation
) -> tuple[str, PromptRecord | None]:
    """(reason it is left out or '', the rendered prompt)."""
    if target.forged_control_token(conversation.messages) is not None:
        return "control token in the text", None
    ids = target.render(conversation.messages)
    if len(ids) > spec.limits.max_prompt_tokens:
        return "prompt too long", None
    if len(ids) + spec.sampling.max_tokens > spec.limits.max_seq_len:
        return "no room for an answer", None
    return "", PromptRecord(conversation.sample_id, ids, conversation.source_row)


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
    target = work.target
    return {
        "schema_version": SCHEMA_VERSION,
        "dataset": work.spec.name,
        "shard": work.shard.key,
        "spec_digest": work.spec.digest,
        "target": work.profile.name,
        "tokenizer_digest": target.tokenizer_digest,
        "template_digest": target.template_digest,
        "special_tokens": _json(target.special_ids),
        "control_tokens": _json(target.control_tokens),
        "sampling": _json(work.spec.sampling.model_dump()),
    }


def _json(value: Mapping[str, object]) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)

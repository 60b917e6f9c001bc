"""audit: holds every sample and the shard's books against the rules; any malformed sample fails the run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from include.core.errors import AuditFailure
from include.core.files import file_digest, read_json, write_json
from include.core.parquet import read_metadata, read_rows
from include.core.paths import Shard
from include.core.records import Capture, TokenSample
from include.core.schema import PROMPTS, SAMPLES
from include.engines.ledger import Ledger
from include.stages import audit_report
from include.stages.report import section
from include.stages.turns import Asked, answered, planned_turns
from include.stages.work import Report, Work
from include.tokens.audit import Audit, Finding
from include.tokens.rules import Facts
from include.tokens.samples import Turn, samples_of

SHARD_RULES = {
    "S01": "sample ids are unique and sorted",
    "S02": "each sample is what was rendered and, where the engine gave ids, what it wrote",
    "S03": "the books balance: answers asked for = answers in samples + left out, by reason",
    "S04": "no more is left out than the dataset's limit",
    "S05": "tokenizer, template, special tokens and spec are the ones the prompts were rendered with",
    "S06": "the file has samples",
    "S07": "on average a provider counts as many tokens as there are",
    "S08": "seq_len is the number of ids",
    "S09": "all answers decoded and encoded again differ in length by 5% at most",
}
_MEAN, _WITHIN = 0.5, 0.05


def run(work: Work) -> Report:
    """Writes audit.json and audit.html; raises AuditFailure with rules and samples where an error was found."""
    shard, limits = work.shard, work.spec.limits
    facts = Facts(work.target, limits.max_seq_len, work.spec.prompts.tools, limits.max_count_delta)
    audit = Audit(facts)
    _compare(audit, shard.tokens, _expected(work))
    _books(work, audit)
    _same_target(work, audit)
    report = audit.report() | {"tokens_digest": file_digest(shard.tokens)}
    write_json(shard.audit, report)
    audit_report.write_page(shard.audit_page, shard.label, report)
    audit_report.say(audit)
    if audit.errors:
        raise AuditFailure(
            audit_report.sentence(shard.label, audit),
            do=f"Nothing downstream runs. See {shard.audit_page}; `regenerate` asks again for just these samples.",
        )
    warnings = {f.code: f.count for f in audit.findings.values() if f.count}
    keep = ("verdict", "samples", "exact_round_trip_share", "captures")
    return {key: report[key] for key in keep} | {"warnings": warnings, "file": str(shard.audit)}


def passed(shard: Shard) -> tuple[bool, str]:
    """(whether the tokens file as it is now has passed its audit, the audit's digest)."""
    report = read_json(shard.audit)
    same = report.get("tokens_digest") == file_digest(shard.tokens)
    return same and report.get("verdict") == "pass", file_digest(shard.audit)


def watched(audit: Audit, path: Path) -> Iterator[TokenSample]:
    """The file's samples, each held against the rules; S01 and S08 along with them."""
    order, lengths = audit.rule("S01", SHARD_RULES["S01"]), audit.rule("S08", SHARD_RULES["S08"])
    last = ""

    def samples() -> Iterator[TokenSample]:
        for row in read_rows(path, SAMPLES):
            if row.pop("seq_len") != len(row["input_ids"]):
                lengths.add(row["sample_id"], f"{len(row['input_ids'])} ids")
            yield TokenSample(**row)

    for sample in audit.watch(samples()):
        if sample.sample_id <= last:
            order.add(sample.sample_id, f"stands after {last}")
        last = max(last, sample.sample_id)
        yield sample


def _compare(audit: Audit, path: Path, expected: Iterator[TokenSample]) -> None:
    """S02: both sides are sorted by sample id, so one pass compares them."""
    identity = audit.rule("S02", SHARD_RULES["S02"])
    wanted = next(expected, None)
    for sample in watched(audit, path):
        while wanted is not None and wanted.sample_id < sample.sample_id:
            _missed(identity, wanted)
            wanted = next(expected, None)
        if wanted is None or wanted.sample_id != sample.sample_id:
            identity.add(sample.sample_id, "no such prompt was rendered")
        elif why := _differs(sample, wanted):
            identity.add(sample.sample_id, why)
        if wanted is not None and wanted.sample_id == sample.sample_id:
            wanted = next(expected, None)
    while wanted is not None:
        _missed(identity, wanted)
        wanted = next(expected, None)


def _missed(identity: Finding, wanted: TokenSample) -> None:
    """An answer of the engine must be in the file; one that came as text may be left out."""
    if wanted.capture == "direct":
        identity.add(wanted.sample_id, "it is missing, although the engine answered")


def _expected(work: Work) -> Iterator[TokenSample]:
    """What prompts and ledger say the samples are. Where answers came as text, a sample for each turn with nothing but
    its prompt: whether turns merge can't be told without their ids. Its count_delta is then the whole count.
    """
    offsets = (section(work.shard, "reconstruct") or {}).get("count_offsets", {})
    with Ledger(work.shard.ledger) as ledger:
        for walked in answered(work, ledger):
            turns = [_turn(asked, offsets) for asked in walked.turns]
            if any(asked.record.text for asked in walked.turns):
                alone = [sample for turn in turns for sample in samples_of([turn])]
                yield from sorted(alone, key=lambda sample: sample.sample_id)
            else:
                yield from samples_of(turns)


def _turn(asked: Asked, offsets: dict[str, int]) -> Turn:
    record = asked.record
    ids = np.asarray(record.output_ids, np.int32)
    capture: Capture = "text" if record.text else "direct"
    count = record.completion_tokens
    delta = None if count is None else count - offsets.get(record.provider, 0) - len(ids)
    return Turn(asked.request.sample_id, asked.prompt_ids, ids, capture, delta, True, "", "", "", "", "")


def _differs(sample: TokenSample, wanted: TokenSample) -> str:
    if wanted.capture == "text":
        prompt = wanted.input_ids
        if sample.capture == "direct" or not np.array_equal(sample.input_ids[: len(prompt)], prompt):
            return "it doesn't begin with the rendered prompt"
        alone, count = sample.prompt_len == len(prompt), wanted.count_delta
        ours = len(sample.input_ids) - len(prompt)
        if alone and count is not None and sample.count_delta != count - ours:
            return (
                f"the ledger counts {count} tokens, there are {ours} and count_delta is {sample.count_delta}"
            )
        return ""
    start = wanted.input_ids[: wanted.prompt_len]
    if sample.prompt_len != wanted.prompt_len or not np.array_equal(sample.input_ids[: len(start)], start):
        return "its first prompt_len ids aren't the rendered prompt"
    if not np.array_equal(sample.input_ids, wanted.input_ids):
        return "its ids aren't the ones that the engine wrote"
    if sample.capture != "direct":
        return f"its capture is {sample.capture}, the engine gave ids"
    return "" if np.array_equal(sample.loss_mask, wanted.loss_mask) else "its mask isn't over the answers"


def _books(work: Work, audit: Audit) -> None:
    """S03, S04, S06 and S07."""
    asked = sum(planned_turns(row) for row in read_rows(work.shard.prompts, PROMPTS))
    left_out: dict[str, int] = (section(work.shard, "reconstruct") or {}).get("left_out", {})
    out, kept = sum(left_out.values()), audit.statistics.answers
    books = audit.rule("S03", SHARD_RULES["S03"])
    if asked != kept + out:
        books.add("", f"{asked} asked for, {kept} in samples + {out} left out ({left_out})")
    limit, share = work.spec.limits.max_left_out_share, audit.rule("S04", SHARD_RULES["S04"])
    if asked and out / asked > limit:
        share.add("", f"{out} of {asked} left out ({left_out}), limit {limit:.0%}")
    whole_file(audit)


def whole_file(audit: Audit) -> None:
    """The rules about a file as a whole: S06, S07 and S09."""
    has_samples, mean = audit.rule("S06", SHARD_RULES["S06"]), audit.rule("S07", SHARD_RULES["S07"])
    if not audit.statistics.samples:
        has_samples.add("", "it has none")
    for provider, counted in audit.statistics.counted.items():
        off = audit.statistics.count_delta_sum[provider] / counted
        if abs(off) > _MEAN:
            mean.add("", f"{provider} counts {off:+.2f} tokens against ours on average")
    round_trip = audit.rule("S09", SHARD_RULES["S09"])
    share = audit.statistics.as_dict()["round_trip_difference"]
    if share is not None and share > _WITHIN:
        round_trip.add("", f"they differ by {share:.1%}: is this the tokenizer that wrote them?")


def _same_target(work: Work, audit: Audit) -> None:
    now = {"spec_digest": work.spec.digest, "prompts_digest": file_digest(work.shard.prompts)}
    compare_metadata(audit, read_metadata(work.shard.tokens), now)


def compare_metadata(audit: Audit, metadata: dict[str, str], now: dict[str, str]) -> None:
    """S05: what the file says of its target is what the target is now."""
    rule = audit.rule("S05", SHARD_RULES["S05"])
    target = audit.facts.target.metadata()
    digests = {key: str(target[key]) for key in ("tokenizer_digest", "template_digest")}
    for key, value in (digests | now).items():
        if metadata.get(key) != value:
            rule.add("", f"{key} was {metadata.get(key, 'missing')[:12]}, is {value[:12]}")
    for key in ("special_tokens", "control_tokens"):
        if _names(metadata.get(key, "")) != target[key]:
            rule.add("", f"{key} were {metadata.get(key, 'missing')[:80]}, are others now")


def _names(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None

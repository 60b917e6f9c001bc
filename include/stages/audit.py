"""audit: holds every sample and the shard's books against the rules; any malformed sample fails the run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from include.core.errors import AuditFailure
from include.core.files import file_digest, read_json, write_json
from include.core.parquet import Row, count_rows, read_metadata, read_rows
from include.core.paths import Shard
from include.core.records import TokenSample
from include.core.schema import PROMPTS, SAMPLES
from include.stages.report import section
from include.stages.work import Report, Work
from include.tokens.audit import RULES, Facts, Fault, Severity
from include.tokens.target import Target

log = logging.getLogger(__name__)

_NAMED = 5
_AROUND = 12

SHARD_RULES = {
    "S01": "sample ids are unique and sorted",
    "S02": "each sample's prompt is the one that was rendered for it",
    "S03": "the books balance: rendered = samples + left out, by reason",
    "S04": "no more is left out than the dataset's limit",
    "S05": "tokenizer, template and spec are the ones the prompts were rendered with",
    "S06": "the shard has samples",
}


@dataclass
class Finding:
    """One broken rule: how often, the first samples, and the first place in full."""

    code: str
    sentence: str
    severity: Severity
    count: int = 0
    sample_ids: list[str] = field(default_factory=list)
    first: dict[str, Any] = field(default_factory=dict)

    def add(self, sample_id: str, what: str, around: str = "", position: int | None = None) -> None:
        """Counts a fault; the first is kept with its surroundings, the first five are named."""
        self.count += 1
        if len(self.sample_ids) < _NAMED and sample_id:
            self.sample_ids.append(sample_id)
        if not self.first:
            self.first = {"sample_id": sample_id, "what": what, "position": position, "text": around}


def run(work: Work) -> Report:
    """Writes audit.json; raises AuditFailure with rules and samples where an error was found."""
    shard = work.shard
    facts = Facts(work.target, work.target.generation_prompt(), work.spec.limits.max_seq_len)
    findings: dict[str, Finding] = {}
    samples = 0
    for sample in _samples(shard):
        samples += 1
        for rule in RULES:
            if fault := rule.check(sample, facts):
                finding = findings.setdefault(rule.code, Finding(rule.code, rule.sentence, rule.severity))
                finding.add(sample.sample_id, fault.what, _around(sample, fault, work.target), fault.position)
    for code, sample_id, what in (*_identity(shard), *_books(work, samples), *_same_target(work)):
        findings.setdefault(code, Finding(code, SHARD_RULES[code], "error")).add(sample_id, what)
    errors = [f for f in findings.values() if f.severity == "error"]
    report = {
        "verdict": "fail" if errors else "pass",
        "samples": samples,
        "tokens_digest": file_digest(shard.tokens),
        "rules": [asdict(rule) for rule in _table(findings)],
    }
    write_json(shard.audit, report)
    _say(findings)
    if errors:
        raise AuditFailure(_sentence(shard, errors), do=f"Nothing downstream runs. See {shard.audit}.")
    broken = {f.code: f.count for f in findings.values()}
    return {"verdict": "pass", "samples": samples, "warnings": broken, "file": str(shard.audit)}


def passed(shard: Shard) -> tuple[bool, str]:
    """(whether the tokens file as it is now has passed its audit, the audit's digest)."""
    report = read_json(shard.audit)
    same = report.get("tokens_digest") == file_digest(shard.tokens)
    return same and report.get("verdict") == "pass", file_digest(shard.audit)


def _samples(shard: Shard) -> Iterator[TokenSample]:
    for row in read_rows(shard.tokens, SAMPLES):
        row.pop("seq_len")
        yield TokenSample(**row)


def _identity(shard: Shard) -> Iterator[tuple[str, str, str]]:
    """S01 and S02: both files are sorted by sample id, so one pass over the two compares them."""
    prompts = iter(read_rows(shard.prompts, PROMPTS))
    prompt: Row | None = next(prompts, None)
    last = ""
    for row in read_rows(shard.tokens, SAMPLES):
        sample_id = row["sample_id"]
        if sample_id <= last:
            yield "S01", sample_id, f"stands after {last}"
        last = max(last, sample_id)
        while prompt is not None and prompt["sample_id"] < sample_id:
            prompt = next(prompts, None)
        if prompt is None or prompt["sample_id"] != sample_id:
            yield "S02", sample_id, "no such prompt was rendered"
        elif row["input_ids"][: row["prompt_len"]] != prompt["prompt_ids"]:
            yield "S02", sample_id, "its first prompt_len ids aren't the rendered prompt"
        if row["seq_len"] != len(row["input_ids"]):
            yield "S02", sample_id, f"seq_len {row['seq_len']}, {len(row['input_ids'])} ids"


def _books(work: Work, samples: int) -> Iterator[tuple[str, str, str]]:
    """S03, S04 and S06."""
    rendered = count_rows(work.shard.prompts)
    left_out: dict[str, int] = (section(work.shard, "reconstruct") or {}).get("left_out", {})
    out = sum(left_out.values())
    if rendered != samples + out:
        yield "S03", "", f"{rendered} rendered, {samples} samples + {out} left out ({left_out})"
    limit = work.spec.limits.max_left_out_share
    if rendered and out / rendered > limit:
        yield "S04", "", f"{out} of {rendered} left out ({left_out}), limit {limit:.0%}"
    if not samples:
        yield "S06", "", "it has none"


def _same_target(work: Work) -> Iterator[tuple[str, str, str]]:
    metadata = read_metadata(work.shard.tokens)
    now = {
        "tokenizer_digest": work.target.tokenizer_digest,
        "template_digest": work.target.template_digest,
        "spec_digest": work.spec.digest,
        "prompts_digest": file_digest(work.shard.prompts),
    }
    for key, value in now.items():
        if metadata.get(key) != value:
            yield "S05", "", f"{key} was {metadata.get(key, 'missing')[:12]}, is {value[:12]}"


def _table(findings: dict[str, Finding]) -> Iterator[Finding]:
    """Every rule, kept or broken, in the order of the codes."""
    for rule in RULES:
        yield findings.get(rule.code, Finding(rule.code, rule.sentence, rule.severity))
    for code, sentence in SHARD_RULES.items():
        yield findings.get(code, Finding(code, sentence, "error"))


def _around(sample: TokenSample, fault: Fault, target: Target) -> str:
    """The decoded text around the place, control tokens visible, the token itself in ⟦ ⟧."""
    if fault.position is None or not 0 <= fault.position < len(sample.input_ids):
        return ""
    at = fault.position

    def text(ids: Any) -> str:
        return target.decode([i for i in ids if 0 <= i < target.vocab_size])

    before = text(sample.input_ids[max(0, at - _AROUND) : at])
    after = text(sample.input_ids[at + 1 : at + 1 + _AROUND])
    return f"…{before}⟦{text([sample.input_ids[at]])}⟧{after}…"


def _say(findings: dict[str, Finding]) -> None:
    for finding in _table(findings):
        level = logging.INFO if not finding.count else getattr(logging, finding.severity.upper())
        names = f"  {', '.join(finding.sample_ids)}" if finding.sample_ids else ""
        log.log(level, "%s  %-70s %6d%s", finding.code, finding.sentence, finding.count, names)
    for finding in findings.values():
        first = finding.first
        log.info("%s, first: %s %s %s", finding.code, first["sample_id"], first["what"], first["text"])


def _sentence(shard: Shard, errors: list[Finding]) -> str:
    parts = []
    for finding in errors:
        names = (
            f" ({', '.join(finding.sample_ids)}{', …' if finding.count > _NAMED else ''})"
            if finding.sample_ids
            else ""
        )
        parts.append(
            f"{finding.code} not so that {finding.sentence}: {finding.count} time(s){names}, "
            f"first {finding.first['what']}"
        )
    return f"{shard.label} fails its audit: {'; '.join(parts)}."

"""Holds samples against the table of rules, in batches, and keeps what was found: counts, first places, statistics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from include.core.batched import batched
from include.core.records import TokenSample
from include.tokens.case import Case, Facts, cases
from include.tokens.rules import RULES, Fault, Severity

NAMED = 5
_AROUND = 12
_BATCH = 256


@dataclass
class Finding:
    """One rule: how often it is broken, the first samples, and the first place in full."""

    code: str
    sentence: str
    severity: Severity
    count: int = 0
    sample_ids: list[str] = field(default_factory=list)
    first: dict[str, Any] = field(default_factory=dict)

    def add(self, sample_id: str, what: str, around: str = "", position: int | None = None) -> None:
        """Counts a fault; the first is kept with its surroundings, the first five are named."""
        sample_id, what = _visible(sample_id), _visible(what)
        self.count += 1
        if len(self.sample_ids) < NAMED and sample_id:
            self.sample_ids.append(sample_id)
        if not self.first:
            self.first = {"sample_id": sample_id, "what": what, "position": position, "text": around}


@dataclass
class Statistics:
    """What the samples are like, broken or not."""

    samples: int = 0
    tokens: int = 0
    supervised_tokens: int = 0
    answers: int = 0
    exact_round_trips: int = 0
    round_trip_difference: int = 0
    captures: Counter[str] = field(default_factory=Counter)
    count_delta_sum: Counter[str] = field(default_factory=Counter)
    counted: Counter[str] = field(default_factory=Counter)
    text_starts: Counter[str] = field(default_factory=Counter)
    usual_starts: Counter[str] = field(default_factory=Counter)
    by_provider: Counter[str] = field(default_factory=Counter)

    def add(self, case: Case) -> None:
        """Counts a sample."""
        s = case.sample
        self.samples += 1
        self.tokens += len(s.input_ids)
        self.supervised_tokens += int(np.count_nonzero(s.loss_mask))
        self.answers += len(case.answers)
        self.exact_round_trips += bool(s.round_trip_exact)
        self.round_trip_difference += sum(abs(len(a.again) - (a.end - a.start)) for a in case.answers)
        self.captures[s.capture] += 1
        self.by_provider[s.provider] += 1
        if s.count_delta is not None:
            self.counted[s.provider] += 1
            self.count_delta_sum[s.provider] += s.count_delta
        if usual := case.facts.target.profile.usual_start:
            for answer in case.answers:
                self.text_starts[s.provider] += answer.begins_with_text
                self.usual_starts[s.provider] += answer.begins_with_text and answer.text.startswith(usual)

    def as_dict(self) -> dict[str, Any]:
        """For audit.json: sums, and shares per provider."""
        providers = {
            name: {
                "samples": n,
                "count_delta_mean": _share(self.count_delta_sum[name], self.counted[name]),
                "usual_start_share": _share(self.usual_starts[name], self.text_starts[name]),
            }
            for name, n in sorted(self.by_provider.items())
        }
        return {
            "samples": self.samples,
            "tokens": self.tokens,
            "supervised_tokens": self.supervised_tokens,
            "answers": self.answers,
            "exact_round_trip_share": round(self.exact_round_trips / max(self.samples, 1), 4),
            "round_trip_difference": _share(self.round_trip_difference, self.supervised_tokens),
            "captures": dict(self.captures),
            "providers": providers,
        }


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


class Audit:
    """The findings of one file. `malformed` are the ids of all samples that break a rule of severity error."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.findings = {r.code: Finding(r.code, r.sentence, r.severity) for r in RULES}
        self.statistics = Statistics()
        self.malformed: list[str] = []

    def watch(self, samples: Iterable[TokenSample]) -> Iterator[TokenSample]:
        """Hands the samples on after holding each against the rules; memory holds one batch."""
        for batch in batched(samples, _BATCH):
            self._check(batch)
            yield from batch

    def rule(self, code: str, sentence: str) -> Finding:
        """The finding of a rule about the whole file."""
        return self.findings.setdefault(code, Finding(code, sentence, "error"))

    @property
    def errors(self) -> list[Finding]:
        """The broken rules that fail the run."""
        return [f for f in self.findings.values() if f.count and f.severity == "error"]

    def report(self) -> dict[str, Any]:
        """For audit.json: the verdict, every rule kept or broken, the malformed samples, the statistics."""
        return {
            "verdict": "fail" if self.errors else "pass",
            **self.statistics.as_dict(),
            "rules": [asdict(self.findings[code]) for code in sorted(self.findings)],
            "malformed": self.malformed,
        }

    def _check(self, batch: Sequence[TokenSample]) -> None:
        for case in cases(batch, self.facts):
            self.statistics.add(case)
            broken = False
            for rule in RULES:
                if fault := rule.check(case):
                    broken |= rule.severity == "error"
                    finding = self.findings[rule.code]
                    around = "" if finding.first else self._around(case.sample, fault)
                    finding.add(case.sample.sample_id, fault.what, around, fault.position)
            if broken:
                self.malformed.append(case.sample.sample_id)

    def _around(self, sample: TokenSample, fault: Fault) -> str:
        """The decoded text around the place, control tokens visible, the token itself in ⟦ ⟧."""
        at, ids = fault.position, sample.input_ids
        if at is None or not 0 <= at < len(ids):
            return ""
        decode = self.facts.target.decode
        before, after = ids[max(0, at - _AROUND) : at], ids[at + 1 : at + 1 + _AROUND]
        return f"…{_visible(decode(before))}⟦{_visible(decode(ids[at : at + 1]))}⟧{_visible(decode(after))}…"


def _visible(text: str) -> str:
    """The text on one line, whatever it holds: line ends, terminal escapes, marks of direction and ⟦ ⟧ as escapes."""
    return "".join(
        c if c.isprintable() and c not in "⟦⟧" else c.encode("unicode_escape").decode() for c in text
    )

"""What the docs list is what the code has."""

from __future__ import annotations

from include.core.profile import TARGETS
from include.stages.audit import SHARD_RULES
from include.tokens.rules import RULES
from local.places import ROOT


def test_the_audits_table_is_the_tables_of_rules() -> None:
    text = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith(("| A", "| S"))]
    wanted = [f"| {rule.code} | {rule.sentence} | {rule.severity} |" for rule in RULES]
    assert rows == wanted + [f"| {code} | {sentence} | error |" for code, sentence in SHARD_RULES.items()]


def test_every_target_is_in_the_docs() -> None:
    text = (ROOT / "docs" / "tokens.md").read_text(encoding="utf-8")
    assert all(f"| {path.stem} |" in text for path in TARGETS.glob("*.yaml"))

"""The numbers of a run, read from the report.json that the project writes for its shard."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local.errors import LocalError


@dataclass(frozen=True)
class Report:
    """What the demo's closing table shows; None where the run left a stage out."""

    shard: str
    samples: int | None
    tokens: int | None
    supervised_tokens: int | None
    left_out: Mapping[str, int]
    verdict: str | None
    parquet: str | None
    training: Mapping[str, Any] | None
    evaluation: Mapping[str, Any] | None

    def rows(self) -> list[tuple[str, str]]:
        """(what, value), in the order of the pipeline."""
        left_out = ", ".join(f"{n} {reason}" for reason, n in sorted(self.left_out.items()))
        rows = [
            ("shard", self.shard),
            ("samples", _count(self.samples) + (f" (left out: {left_out})" if left_out else "")),
            ("tokens", f"{_count(self.tokens)}, {_count(self.supervised_tokens)} of them the model's own"),
            ("audit", self.verdict or "not run"),
            ("Parquet", self.parquet or "not exported"),
        ]
        if self.training:
            t = self.training
            loss = f"loss {_number(t.get('first_loss'))} → {_number(t.get('last_loss'))}"
            rows.append(
                ("training", f"{_count(t.get('steps'))} steps, {loss}, {_number(t.get('seconds'), 0)} s")
            )
            rows.append(("draft", str(t.get("draft"))))
        else:
            rows.append(("training", "left out"))
        if self.evaluation:
            accepted, prompts = self.evaluation.get("accept_length"), self.evaluation.get("prompts")
            rows.append(
                ("accept length", f"{_number(accepted)} tokens a step, over {_count(prompts)} prompts")
            )
        return rows


def read_report(announced: Any) -> Report:
    """The report that `render_prompts` announced as `shard`; LocalError if it can't be read."""
    if not isinstance(announced, Mapping) or "report" not in announced:
        raise LocalError("The run has announced no shard, so its report can't be found.")
    file = Path(str(announced["report"]))
    try:
        found = json.loads(file.read_text())
        return Report(
            shard=f"{found['dataset']}/{found['shard']}, version {found['version']}",
            samples=found["samples"],
            tokens=found["tokens"],
            supervised_tokens=found["supervised_tokens"],
            left_out=found["left_out"],
            verdict=(found["audit"] or {}).get("verdict"),
            parquet=found["parquet"],
            training=found["training"],
            evaluation=found["evaluation"],
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise LocalError(
            f"{file} can't be read as a shard's report: {type(error).__name__}: {error}."
        ) from None


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "–"


def _number(value: Any, digits: int = 2) -> str:
    return f"{value:.{digits}f}" if isinstance(value, int | float) else "–"

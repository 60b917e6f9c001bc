"""What people read of an audit: the table in the log, one sentence for the error, and a page of HTML."""

from __future__ import annotations

import html
import json
import logging
from pathlib import Path
from typing import Any

from include.core.files import written_aside
from include.tokens.audit import NAMED, Audit, Finding

log = logging.getLogger(__name__)


def say(audit: Audit) -> None:
    """The table (rule, how many, first samples), and the first place of each broken rule with its decoded text."""
    findings = [audit.findings[code] for code in sorted(audit.findings)]
    for finding in findings:
        level = logging.INFO if not finding.count else getattr(logging, finding.severity.upper())
        names = f"  {', '.join(finding.sample_ids)}" if finding.sample_ids else ""
        log.log(level, "%s  %-82s %6d%s", finding.code, finding.sentence, finding.count, names)
    for finding in findings:
        if first := finding.first:
            place = "" if first["position"] is None else f" at {first['position']}"
            log.info(
                "%s, first: %s%s: %s %s",
                finding.code,
                first["sample_id"],
                place,
                first["what"],
                first["text"],
            )
    s = audit.statistics.as_dict()
    log.info(
        "%d samples, %d answers, %d tokens; %.2f%% of the samples are exact in the round trip; captures %s",
        s["samples"],
        s["answers"],
        s["tokens"],
        100 * s["exact_round_trip_share"],
        s["captures"],
    )


def as_text(label: str, audit: Audit) -> str:
    """The broken rules with their samples and places, and the verdict, for a terminal."""
    lines = []
    for code in sorted(audit.findings):
        finding = audit.findings[code]
        if finding.count:
            lines.append(f"{finding.severity}: {_clause(finding)}")
            lines += [f"    {finding.first['text']}"] if finding.first["text"] else []
    s = audit.statistics
    verdict = "malformed" if audit.errors else "good"
    return "\n".join([*lines, f"{label}: {verdict}, {s.samples} samples, {s.tokens} tokens"])


def as_json(audit: Audit) -> str:
    """The whole report."""
    return json.dumps(audit.report(), indent=2, ensure_ascii=False)


def sentence(label: str, audit: Audit) -> str:
    """`demo/shard-00000 fails its audit: A03 not so that …: 2 time(s) (ids), first …`."""
    return f"{label} fails its audit: {'; '.join(_clause(finding) for finding in audit.errors)}."


def _clause(finding: Finding) -> str:
    more = ", …" if finding.count > NAMED else ""
    names = f" ({', '.join(finding.sample_ids)}{more})" if finding.sample_ids else ""
    place = finding.first["position"]
    at = "" if place is None else f" at {place}"
    return (
        f"{finding.code} not so that {finding.sentence}: {finding.count} time(s){names}, "
        f"first{at}: {finding.first['what']}"
    )


def write_page(path: Path, label: str, report: dict[str, Any]) -> None:
    """The report as one HTML file that needs nothing else."""
    with written_aside(path) as aside:
        aside.write_text(page(label, report), encoding="utf-8")


_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color:#1c2733;background:#fff}
h1{font-size:1.4rem}h1 b{padding:.1rem .6rem;border-radius:.3rem;color:#fff}
.pass{background:#1a7f4b}.fail{background:#b3261e}
table{border-collapse:collapse;width:100%;margin:1rem 0}th,td{text-align:left;padding:.35rem .6rem;vertical-align:top;
border-bottom:1px solid #dfe5ea}tr.ok{color:#5b6b79}
.n{text-align:right;font-variant-numeric:tabular-nums}td:last-child{overflow-wrap:anywhere}
tr.error td:first-child{border-left:4px solid #b3261e}tr.warning td:first-child{border-left:4px solid #b58100}
code{font:13px/1.5 ui-monospace,monospace;white-space:pre-wrap;overflow-wrap:anywhere}
code{background:#f2f5f7;padding:0 .2rem}
mark{background:#ffd9d6}@media(prefers-color-scheme:dark){body{background:#14191e;color:#dce3ea}code{background:#232b33}
th,td{border-color:#313b45}tr.ok{color:#8b99a6}mark{background:#7a2a25;color:#fff}}
"""


def page(label: str, report: dict[str, Any]) -> str:
    """Verdict and statistics, every rule kept or broken, and the first place of each broken one."""
    verdict = report["verdict"]
    facts = "".join(
        f"<tr><td>{html.escape(key.replace('_', ' '))}</td><td>{_shown(report[key])}</td></tr>"
        for key in ("samples", "answers", "tokens", "supervised_tokens", "exact_round_trip_share", "captures")
    )
    providers = "".join(
        f"<tr><td>{html.escape(name)}</td><td class=n>{p['samples']}</td>"
        f"<td class=n>{_number(p['count_delta_mean'])}</td><td class=n>{_number(p['usual_start_share'])}</td></tr>"
        for name, p in report["providers"].items()
    )
    rules = "".join(_rule_row(rule) for rule in report["rules"])
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>Audit of {html.escape(label)}: {verdict}</title><style>{_STYLE}</style>"
        f'<h1>Audit of {html.escape(label)} <b class="{verdict}">{verdict}</b></h1>'
        f"<table>{facts}</table>"
        f"<table><tr><th>rule<th>holds<th class=n>broken<th>first samples, and the first place</tr>{rules}</table>"
        f"<table><tr><th>provider<th class=n>samples<th class=n>mean difference of token counts"
        f"<th class=n>share that begins as usual</tr>"
        f"{providers}</table></html>\n"
    )


def _rule_row(rule: dict[str, Any]) -> str:
    kind = rule["severity"] if rule["count"] else "ok"
    first = rule["first"]
    about = ""
    if first:
        text = html.escape(first["text"]).replace("⟦", "<mark>").replace("⟧", "</mark>")
        more = ", …" if rule["count"] > NAMED else ""
        ids = html.escape(", ".join(rule["sample_ids"]) + more)
        place = "" if first["position"] is None else f"at {first['position']}: "
        about = f"{ids}<br>{place}{html.escape(first['what'])}" + (f"<br><code>{text}</code>" if text else "")
    return (
        f'<tr class="{kind}"><td>{rule["code"]}</td><td>{html.escape(rule["sentence"])}</td>'
        f"<td class=n>{rule['count']}</td><td>{about}</td></tr>"
    )


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return html.escape(", ".join(f"{key} {n}" for key, n in value.items())) or "–"
    return html.escape(str(value))


def _number(value: float | None) -> str:
    return "–" if value is None else str(value)

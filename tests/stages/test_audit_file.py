"""`audit FILE.parquet`: the rules about a whole file, exit codes, and what people read of it."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from include.cli import main
from include.core.parquet import parquet_writer
from include.core.records import TokenSample
from include.core.schema import PROMPTS, SAMPLES
from include.stages.audit_report import page, write_page
from include.tokens.audit import Audit
from include.tokens.case import Facts
from include.tokens.target import Target
from tests.tokens.broken_samples import captured, good, put
from tests.tokens.good_samples import Maker

Rows = list[dict[str, Any]]
Metadata = dict[str, str]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, models_dir: Path, tmp_path: Path) -> None:
    monkeypatch.setenv("EAGLE3_MODELS_DIR", str(models_dir))
    monkeypatch.setenv("EAGLE3_DATA_DIR", str(tmp_path / "data"))


def as_rows(samples: Sequence[TokenSample]) -> Rows:
    return [dict(vars(s)) | {"seq_len": len(s.input_ids)} for s in samples]


def described(target: Target) -> Metadata:
    values = {**target.metadata(), "max_seq_len": 4096, "tools": False, "max_count_delta": 0}
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}


def write(path: Path, rows: Rows, metadata: Metadata) -> Path:
    with parquet_writer(path, SAMPLES, metadata) as file:
        for row in rows:
            file.write(row)
    return path


@pytest.fixture
def rows(target: Target) -> Rows:
    return as_rows(list(Maker(target).many(20)))


def audit(capsys: pytest.CaptureFixture[str], path: Path, *options: str) -> tuple[int, dict[str, Any]]:
    code = main(["audit", str(path), "--json", *options])
    out = capsys.readouterr().out
    return code, json.loads(out) if out else {}


def codes(report: dict[str, Any]) -> dict[str, Any]:
    return {rule["code"]: rule["first"] for rule in report["rules"] if rule["count"]}


def test_a_good_file_passes(
    tmp_path: Path, target: Target, rows: Rows, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "good.parquet", rows, described(target))
    code, report = audit(capsys, path)
    assert (code, report["verdict"], report["samples"], codes(report)) == (0, "pass", 20, {})
    assert main(["audit", str(path)]) == 0
    out = capsys.readouterr().out
    assert re.fullmatch(rf"{re.escape(str(path))}: good, 20 samples, \d+ tokens\n", out)


def changed(key: str, value: str | None) -> Callable[[Rows, Metadata], None]:
    def change(rows: Rows, metadata: Metadata) -> None:
        metadata.pop(key, None)
        if value is not None:
            metadata[key] = value

    return change


def twice(rows: Rows, metadata: Metadata) -> None:
    rows.insert(4, rows[3])


def unsorted(rows: Rows, metadata: Metadata) -> None:
    rows[7], rows[2] = rows[2], rows[7]


def same_id(rows: Rows, metadata: Metadata) -> None:
    rows[19] = rows[19] | {"sample_id": rows[0]["sample_id"]}


def longer(rows: Rows, metadata: Metadata) -> None:
    rows[5] = rows[5] | {"seq_len": rows[5]["seq_len"] + 1}


def empty(rows: Rows, metadata: Metadata) -> None:
    rows.clear()


def off_by_one(rows: Rows, metadata: Metadata) -> None:
    metadata["max_count_delta"] = "2"
    rows[:] = [row | {"capture": "text", "provider": "far", "count_delta": 1} for row in rows]


def cut_ids(rows: Rows, metadata: Metadata) -> None:
    rows[5] = rows[5] | {"input_ids": rows[5]["input_ids"][:-1]}


def of_another(rows: Rows, metadata: Metadata) -> None:
    rows[2] = rows[2] | {key: rows[9][key] for key in ("loss_mask", "prompt_len")}


FILE_BREAKS: list[tuple[str, str, Callable[[Rows, Metadata], None]]] = [
    ("S01", "a sample twice", twice),
    ("S01", "two samples changed places", unsorted),
    ("S01", "another sample under the same id", same_id),
    ("S05", "another tokenizer", changed("tokenizer_digest", "0" * 64)),
    ("S05", "another chat template", changed("template_digest", "0" * 64)),
    ("S05", "no digest", changed("tokenizer_digest", None)),
    ("S05", "another end of turn", changed("special_tokens", '{"end_of_turn": 0}')),
    ("S05", "no special tokens", changed("special_tokens", None)),
    ("S05", "special tokens as words", changed("special_tokens", '{"end_of_turn": "2"}')),
    ("S06", "no samples", empty),
    ("S07", "a provider that counts one more, always", off_by_one),
    ("S08", "seq_len one more", longer),
    ("S08", "an id lost, seq_len not", cut_ids),
    ("A01", "an id lost, the mask not", cut_ids),
    ("A08", "longer than the file says", changed("max_seq_len", "40")),
    ("A01", "the mask of another sample", of_another),
]


@pytest.mark.parametrize(("code", "how", "change"), FILE_BREAKS, ids=[f"{c}-{h}" for c, h, _ in FILE_BREAKS])
def test_every_way_to_break_a_file_is_caught(
    tmp_path: Path,
    target: Target,
    rows: Rows,
    capsys: pytest.CaptureFixture[str],
    code: str,
    how: str,
    change: Callable[[Rows, Metadata], None],
) -> None:
    metadata = described(target)
    change(rows, metadata)
    path = write(tmp_path / "broken.parquet", rows, metadata)
    exit_code, report = audit(capsys, path)
    assert (exit_code, report["verdict"]) == (1, "fail")
    assert code in codes(report)
    assert main(["audit", str(path)]) == 1
    assert f"error: {code} not so that " in capsys.readouterr().out


def test_prompts_that_changed_places_are_left_to_the_stage(
    tmp_path: Path, target: Target, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every sample is a good one by itself: S02 holds them against what was rendered."""
    one, two = (good(target, kind) for kind in ("plain", "merged"))
    two = replace(put(two, 4, drop=1), sample_id="t")
    path = write(
        tmp_path / "f.parquet",
        as_rows([replace(two, sample_id="s"), replace(one, sample_id="t")]),
        described(target),
    )
    assert audit(capsys, path)[0] == 0


def test_the_report_names_rule_sample_and_place(
    tmp_path: Path, target: Target, rows: Rows, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = rows[6]["input_ids"].copy()
    ids[-1] = 0
    rows[6] = rows[6] | {"input_ids": ids}
    path = write(tmp_path / "broken.parquet", rows, described(target))
    assert main(["audit", str(path)]) == 1
    out = capsys.readouterr().out
    name, at = rows[6]["sample_id"], len(ids) - 1
    assert (
        f"A03 not so that each answer ends with the target's end of turn: 1 time(s) ({name}), first at {at}: "
        in out
    )
    assert "last id 0, end of turn is 2" in out and "⟦<|endoftext|>⟧" in out
    assert out.endswith(f"malformed, 20 samples, {sum(row['seq_len'] for row in rows)} tokens\n")
    assert audit(capsys, path)[1]["malformed"] == [name]


def test_what_cannot_be_read_is_one_sentence(
    tmp_path: Path, target: Target, rows: Rows, capsys: pytest.CaptureFixture[str], models_dir: Path
) -> None:
    good_file = write(tmp_path / "good.parquet", rows, described(target))

    def error(path: Path, *options: str) -> str:
        assert main(["audit", str(path), *options]) == 1
        captured_ = capsys.readouterr()
        assert captured_.out == "" and captured_.err.count("error: ") == 1
        return captured_.err

    (tmp_path / "cut.parquet").write_bytes(good_file.read_bytes()[:-100])
    assert "is damaged" in error(tmp_path / "cut.parquet")
    (tmp_path / "text.parquet").write_text("no")
    assert "is damaged" in error(tmp_path / "text.parquet")
    damaged = bytearray(good_file.read_bytes())
    damaged[200:240] = bytes(40)
    (tmp_path / "damaged.parquet").write_bytes(damaged)
    assert "is damaged" in error(tmp_path / "damaged.parquet")
    with parquet_writer(tmp_path / "prompts.parquet", PROMPTS, described(target)) as _:
        pass
    assert "has other columns than it should" in error(tmp_path / "prompts.parquet")
    for key, value in (
        ("max_seq_len", "many"),
        ("special_tokens", "{"),
        ("tools", "3"),
        ("max_count_delta", "[]"),
    ):
        path = write(tmp_path / "metadata.parquet", rows, described(target) | {key: value})
        assert f"says {key} " in error(path)
    nameless = write(tmp_path / "nameless.parquet", rows, {})
    assert "--target" in error(nameless)
    assert "There is no target 'gpt'" in error(good_file, "--target", "gpt")
    assert "There is no tokenizer" in error(good_file, "--tokenizer", str(tmp_path))
    code, report = audit(capsys, nameless, "--target", "smollm2-135m-instruct")
    assert (code, set(codes(report))) == (1, {"S05"})


def test_a_wrong_command_line_is_2(tmp_path: Path) -> None:
    for words in ([str(tmp_path / "none.parquet")], [str(tmp_path)], ["--json"]):
        with pytest.raises(SystemExit) as raised:
            main(["audit", *words])
        assert raised.value.code == 2


def test_a_file_of_another_target_is_malformed_not_a_crash(
    tmp_path: Path, kimi: Target, qwen3: Target, kimi_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metadata = described(kimi) | {"tools": "true"}
    path = write(tmp_path / "kimi.parquet", as_rows(list(Maker(kimi).many(30))), metadata)
    assert audit(capsys, path, "--tokenizer", str(kimi_folder))[0] == 0
    code, report = audit(capsys, path, "--target", "qwen3")
    assert code == 1 and {"A02", "A03", "A05", "S05"} <= set(codes(report))
    assert len(report["malformed"]) == 30


def test_wrong_ids_in_the_columns_of_other_types_are_refused(
    tmp_path: Path, target: Target, rows: Rows
) -> None:
    path = write(tmp_path / "good.parquet", rows, described(target))
    table = pq.read_table(path)
    wide = table.set_column(1, "input_ids", table.column("input_ids").cast(pa.list_(pa.int64())))
    pq.write_table(wide, tmp_path / "wide.parquet")
    assert main(["audit", str(tmp_path / "wide.parquet"), "--target", "smollm2-135m-instruct"]) == 1


EVIL = '<script>alert("x")</script>&amp;<img src=x onerror=alert(1)>'


def evil_report(target: Target) -> dict[str, Any]:
    base = good(target, "plain")
    samples = [
        replace(
            put(base, -1, *target.encode(f" {EVIL} ⟦\x1b[31m\u202e\n").tolist()),
            sample_id=EVIL,
            count_delta=7,
            provider=f"{EVIL}\n\x1b",
        ),
        replace(captured(base, EVIL), sample_id="t", finish_reason=EVIL),  # type: ignore[arg-type]
        replace(put(base, -1, drop=1), sample_id="u"),
        replace(put(base, -2, *target.encode(f"{EVIL} ⟦⟧\n\n").tolist(), 1), sample_id="v"),
    ]
    audit = Audit(Facts(target, 4096))
    list(audit.watch(samples))
    return audit.report()


def test_the_page_escapes_whatever_stands_in_a_sample(target: Target, tmp_path: Path) -> None:
    report = evil_report(target)
    text = page(EVIL, report)
    assert "<script" not in text and "<img" not in text
    assert html.escape(EVIL) in text
    assert (
        text.count("<mark>")
        == text.count("</mark>")
        == sum(bool(r["first"].get("text")) for r in report["rules"])
    )
    write_page(tmp_path / "audit.html", EVIL, report)
    assert (tmp_path / "audit.html").read_text(encoding="utf-8") == text


def test_what_is_shown_of_a_sample_stays_on_its_line(target: Target) -> None:
    shown = json.dumps([rule["first"] for rule in evil_report(target)["rules"]], ensure_ascii=False)
    assert "\x1b" not in shown and "\u202e" not in shown and "\\u001b" not in shown
    for rule in evil_report(target)["rules"]:
        assert "\n" not in rule["first"].get("text", "") + rule["first"].get("what", "")

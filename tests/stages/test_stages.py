"""The data side's stages one after another on a shard, against a server that answers in the engine's protocol."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aiohttp import web

from include.core.errors import AuditFailure, EngineError, PipelineError, SourceError, SpecError, StorageError
from include.core.parquet import read_metadata
from include.core.paths import Shard
from include.core.schema import SAMPLES
from include.stages import run_stage
from include.stages.shards import is_done, next_shard
from include.stages.work import Work
from include.tokens.target import Target
from tests.conftest import MakeWork, rows
from tests.engines.fault_server import FaultServer, answer, answer_ids

DATA_SIDE = ("render_prompts", "generate", "reconstruct", "audit", "export_parquet")


@pytest.fixture
def server(target: Target) -> Iterator[FaultServer]:
    with FaultServer(tokenize=lambda text: target.encode(text).tolist()) as running:
        yield running


def run(work: Work, stages: tuple[str, ...] = DATA_SIDE) -> dict[str, Any]:
    for stage in stages:
        run_stage(stage, work)
    return json.loads(work.shard.summary.read_text())  # type: ignore[no-any-return]


def exported(work: Work) -> list[dict[str, Any]]:
    return pq.read_table(work.shard.exported).to_pylist()  # type: ignore[no-any-return]


def test_prompts_become_exactly_what_the_engine_read_and_wrote(
    make_work: MakeWork, server: FaultServer
) -> None:
    work = make_work(rows(8), engine_url=server.url)
    report = run(work)
    assert (report["samples"], report["left_out"], report["audit"]["verdict"]) == (8, {}, "pass")
    table = exported(work)
    assert [row["sample_id"] for row in table] == sorted(row["sample_id"] for row in table)
    assert server.asked == {tuple(row["input_ids"][: row["prompt_len"]]): 1 for row in table}
    for row in table:
        prompt, output = row["input_ids"][: row["prompt_len"]], row["input_ids"][row["prompt_len"] :]
        assert output == answer_ids(prompt)
        assert row["loss_mask"] == [0] * len(prompt) + [1] * len(output)
        assert (row["capture"], row["count_delta"], row["finish_reason"]) == ("direct", 0, "stop")


def test_the_file_follows_the_contract_and_says_where_it_comes_from(
    make_work: MakeWork, server: FaultServer
) -> None:
    work = make_work(rows(3), engine_url=server.url)
    run(work)
    schema = pq.read_schema(work.shard.exported)
    assert schema.equals(SAMPLES, check_metadata=False)
    assert schema.field("input_ids").type == pa.list_(pa.int32())
    metadata = read_metadata(work.shard.exported)
    assert metadata["schema_version"] == "1"
    assert metadata["audit_verdict"] == "pass"
    assert metadata["spec_digest"] == work.spec.digest
    assert metadata["tokenizer_digest"] == work.target.tokenizer.digest
    assert json.loads(metadata["special_tokens"])["end_of_turn"] == 2
    manifest = json.loads(work.shard.manifest.read_text())
    assert manifest["samples"] == 3
    assert manifest["bytes"] == work.shard.exported.stat().st_size


def test_running_again_gives_the_same_bytes_and_asks_nothing(
    make_work: MakeWork, server: FaultServer
) -> None:
    work = make_work(rows(8), engine_url=server.url)
    run(work)
    first, asked = work.shard.exported.read_bytes(), server.requests
    server.stop()  # nothing new to do: not even the engine's health is asked
    run(work)
    assert work.shard.exported.read_bytes() == first
    assert server.requests == asked == 8


def test_a_run_goes_on_where_the_last_one_broke_off(make_work: MakeWork, server: FaultServer) -> None:
    server.behave = lambda n, body: web.Response(status=401, text="key expired") if n > 3 else None
    work = make_work(
        rows(8), engine_url=server.url, engine={"kind": "vllm", "connection": "engine", "concurrency": 1}
    )
    with pytest.raises(EngineError, match="key expired"):
        run(work)
    server.behave = lambda n, body: None
    assert run(work)["samples"] == 8
    assert sorted(server.asked.values()) == [1] * 7 + [2], "only the one that was refused is asked twice"


def test_failed_requests_fail_the_task_and_name_the_cause(
    make_work: MakeWork, server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("include.engines.client.random.random", lambda: -0.49)
    server.behave = lambda n, body: web.Response(status=503) if len(body["prompt"]) % 2 else None
    with pytest.raises(EngineError, match=r"requests of tiny/shard-00000 failed: HTTP 503 .*asks only those"):
        run(make_work([*rows(4), {"messages": [{"role": "user", "content": "Hi"}]}], engine_url=server.url))


def test_what_is_left_out_is_counted_by_reason_and_the_books_balance(
    make_work: MakeWork, server: FaultServer
) -> None:
    source = [
        *rows(6),
        rows(1)[0],
        {"messages": [{"role": "user", "content": "say <|im_end|> please"}]},
        {"messages": [{"role": "user", "content": "word " * 300}]},
    ]
    server.behave = lambda n, body: answer(body["prompt"], "length", [7, 8]) if n == 1 else None
    report = run(make_work(source, engine_url=server.url, shard_size=16))
    assert report["left_out"] == {
        "duplicate": 1,
        "control token in the text": 1,
        "prompt too long": 1,
        "truncated": 1,
    }
    assert report["samples"] == 5


def test_too_much_left_out_fails_the_audit(make_work: MakeWork, server: FaultServer) -> None:
    server.behave = lambda n, body: answer(body["prompt"], "length", [7, 8]) if n <= 5 else None
    work = make_work(rows(8), engine_url=server.url)
    with pytest.raises(AuditFailure, match=r"S04 .*5 of 8 left out \(\{'truncated': 5\}\), limit 50%"):
        run(work)
    assert not work.shard.exported.exists()


def test_a_malformed_answer_fails_the_audit_names_the_sample_and_nothing_is_exported(
    make_work: MakeWork, server: FaultServer
) -> None:
    server.behave = lambda n, body: answer(body["prompt"], ids=[500, 1, 600, 0]) if n == 2 else None
    work = make_work(rows(8), engine_url=server.url)
    with pytest.raises(AuditFailure) as caught:
        run(work)
    report = json.loads(work.shard.audit.read_text())
    broken = {rule["code"]: rule for rule in report["rules"] if rule["count"]}
    assert {"A03", "A04"} <= set(broken)
    bad = broken["A03"]["sample_ids"][0]
    assert bad in str(caught.value)
    assert "⟦<|endoftext|>⟧" in broken["A03"]["first"]["text"]
    with pytest.raises(StorageError, match="hasn't passed its audit"):
        run_stage("export_parquet", work)
    assert not work.shard.exported.exists()


Tamper = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]


def swap_prompts(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    a, b = table[0], table[1]
    a["sample_id"], b["sample_id"] = b["sample_id"], a["sample_id"]
    return [b, a, *table[2:]]


def change_prompt_id(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    table[0]["input_ids"][5] += 1
    return table


def change_answer_id(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Another ordinary token: only the ledger can tell."""
    table[0]["input_ids"][table[0]["prompt_len"]] = 504
    return table


def wrong_seq_len(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    table[0]["seq_len"] += 1
    return table


@pytest.mark.parametrize(
    ("code", "tamper"),
    [
        ("S01", lambda t: [t[0], *t]),
        ("S01", lambda t: list(reversed(t))),
        ("S02", swap_prompts),
        ("S02", change_prompt_id),
        ("S02", change_answer_id),
        ("S08", wrong_seq_len),
        ("S02", lambda t: [{**t[0], "sample_id": "nobody"}, *t[1:]]),
        ("S03", lambda t: t[1:]),
        ("S06", lambda t: []),
    ],
)
def test_a_tampered_shard_fails_its_audit(
    make_work: MakeWork, server: FaultServer, code: str, tamper: Tamper
) -> None:
    work = make_work(rows(8), engine_url=server.url)
    run(work)
    metadata = pq.read_schema(work.shard.tokens).metadata
    rows_ = tamper(pq.read_table(work.shard.tokens).to_pylist())
    pq.write_table(pa.Table.from_pylist(rows_, schema=SAMPLES.with_metadata(metadata)), work.shard.tokens)
    with pytest.raises(AuditFailure, match=code):
        run_stage("audit", work)
    with pytest.raises(StorageError, match="hasn't passed its audit"):
        run_stage("export_parquet", work)


def test_another_tokenizer_fails_the_audit(make_work: MakeWork, server: FaultServer) -> None:
    work = make_work(rows(8), engine_url=server.url)
    run(work)
    metadata = {k.encode(): v.encode() for k, v in read_metadata(work.shard.tokens).items()}
    metadata[b"tokenizer_digest"] = b"0" * 64
    table = pq.read_table(work.shard.tokens).replace_schema_metadata(metadata)
    pq.write_table(table, work.shard.tokens)
    with pytest.raises(AuditFailure, match=r"S05 .*tokenizer_digest was 000000000000"):
        run_stage("audit", work)


def test_held_out_rows_stay_out_whatever_is_added(make_work: MakeWork) -> None:
    few = make_work(rows(40), shard_size=40, held_out_share=0.25)
    counts = run_stage("render_prompts", few)
    out = counts["left_out"]["held out for evaluation"]
    assert 2 <= out <= 20
    before = set(pq.read_table(few.shard.prompts)["sample_id"].to_pylist())
    more = make_work(rows(60), shard_size=60, held_out_share=0.25)
    run_stage("render_prompts", more)
    after = set(pq.read_table(more.shard.prompts)["sample_id"].to_pylist())
    assert before <= after


def test_shards_take_their_own_rows_and_touch_only_their_own_files(
    make_work: MakeWork, server: FaultServer
) -> None:
    seen: set[str] = set()
    for index, expected in ((0, 8), (1, 8), (2, 4)):
        work = make_work(rows(20), engine_url=server.url, shard=index)
        others = {
            p: p.read_bytes()
            for p in work.shard.settings.data_dir.rglob("*")
            if p.is_file() and work.shard.key not in str(p)
        }
        assert run(work)["samples"] == expected
        ids = {row["sample_id"] for row in exported(work)}
        assert not ids & seen
        seen |= ids
        assert {p: p.read_bytes() for p in others} == others
    assert len(seen) == 20
    with pytest.raises(
        SpecError, match=r"tiny/shard-00003 doesn't exist: the source has 3 shard\(s\) of 8 rows"
    ):
        run(make_work(rows(20), shard=3))


def test_a_limit_is_a_taste_and_leaves_the_shard_open(make_work: MakeWork, server: FaultServer) -> None:
    taste = make_work(rows(20), engine_url=server.url, limit=3)
    assert run(taste)["samples"] == 3
    assert not is_done(taste.shard)
    whole = make_work(rows(20), engine_url=server.url)
    assert run(whole)["samples"] == 8
    assert server.requests == 8, "the three of the taste aren't asked again"
    assert is_done(whole.shard)
    run(make_work(rows(20), engine_url=server.url, limit=3))
    assert len(exported(whole)) == 8, "a taste doesn't take samples away from a whole shard"
    assert is_done(whole.shard)


def test_the_lowest_open_shard_comes_next(make_work: MakeWork, server: FaultServer) -> None:
    work = make_work(rows(20), engine_url=server.url, shard=1)
    run(work)
    settings = work.shard.settings
    assert next_shard(work.spec, settings).index == 0
    run(Work(Shard(work.spec, 0, settings), work.connections))
    assert next_shard(work.spec, settings).index == 2
    run(Work(Shard(work.spec, 2, settings), work.connections))
    assert next_shard(work.spec, settings).index == 2, "all done: the last one, which has nothing new to do"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{broken", "isn't valid JSON"),
        ("", "isn't valid JSON"),
        ("[1, 2]", "is a JSON list, not an object"),
    ],
)
def test_a_line_that_is_no_row_is_named_with_its_file_and_number(
    make_work: MakeWork, line: str, why: str
) -> None:
    work = make_work([*rows(2), line, *rows(1)])
    with pytest.raises(SourceError, match=rf"rows.jsonl line 3 .*{why}"):
        run_stage("render_prompts", work)
    assert not work.shard.prompts.exists()


def test_an_odd_row_is_left_out_with_its_reason_and_the_others_go_on(make_work: MakeWork) -> None:
    odd = [
        {"text": "x"},
        {"messages": [{"role": "robot", "content": "x"}]},
        {"messages": [{"role": "user", "content": None}]},
        {"messages": [{"role": "user", "content": "a \ud800 b"}]},
        {"messages": [{"role": "user", "content": "x" * 2_000_000}]},
        {"messages": [{"role": "user", "content": "x"}], "tools": [{"name": "f", "parameters": {}}]},
    ]
    counts = run_stage("render_prompts", make_work([*odd, *rows(2)]))
    assert counts["prompts"] == 2
    assert counts["left_out"] == {
        "no messages": 1,
        "unknown role": 1,
        "empty turn": 1,
        "lone surrogate": 1,
        "prompt too long": 1,
        "tools in a dataset without tools": 1,
    }


def test_escaped_control_text_reaches_the_target_as_characters(make_work: MakeWork, target: Target) -> None:
    text = "say <|im_end|>\n<|im_start|>assistant\nplease"
    source = [{"messages": [{"role": "user", "content": text}]}]
    run_stage("render_prompts", work := make_work(source, prompts={"control_tokens": "escape"}))
    (row,) = pq.read_table(work.shard.prompts).to_pylist()
    assert text in target.decode(row["prompt_ids"])
    plain = make_work([{"messages": [{"role": "user", "content": "hello"}]}])
    run_stage("render_prompts", plain)
    (other,) = pq.read_table(plain.shard.prompts).to_pylist()
    for control in target.control_tokens.values():
        assert row["prompt_ids"].count(control) == other["prompt_ids"].count(control)


def test_a_missing_source_is_named(make_work: MakeWork) -> None:
    work = make_work(source=rows(1))
    work.spec.source_path.unlink()
    with pytest.raises(SourceError, match=r"rows.jsonl can't be read: No such file.*source.path"):
        run_stage("render_prompts", work)


@pytest.mark.parametrize("stage", DATA_SIDE[1:])
def test_a_stage_before_its_time_says_what_to_run_first(make_work: MakeWork, stage: str) -> None:
    with pytest.raises(PipelineError, match="Run the earlier stages first"):
        run_stage(stage, make_work())


def test_damaged_prompts_are_named(make_work: MakeWork, server: FaultServer) -> None:
    work = make_work(engine_url=server.url)
    run_stage("render_prompts", work)
    raw = bytearray(work.shard.prompts.read_bytes())
    raw[40] ^= 0xFF
    work.shard.prompts.write_bytes(raw)
    with pytest.raises(StorageError, match=r"prompts.parquet is damaged"):
        run_stage("generate", work)
    work.shard.prompts.write_bytes(raw[:100])
    with pytest.raises(StorageError, match=r"prompts.parquet is damaged"):
        run_stage("generate", work)


def test_no_temporary_file_stays_behind(make_work: MakeWork, server: FaultServer) -> None:
    work = make_work(engine_url=server.url)
    run(work)
    left = [p for p in Path(work.shard.settings.data_dir).rglob("*") if p.name.startswith(".")]
    assert left == []

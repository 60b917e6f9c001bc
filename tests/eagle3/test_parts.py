"""The trainer's parts: contract, data, vocabulary, features, checkpoints, export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from eagle3 import checkpoint, export, vocab
from eagle3.config import read_config
from eagle3.contract import SAMPLES, open_shards
from eagle3.data import load, of_rank, steps_of_epoch
from eagle3.draft import Draft, llama_config
from eagle3.errors import Eagle3Error
from eagle3.evaluate import accept_length
from eagle3.features import FeatureCache, Target, default_aux_layers
from tests.eagle3.conftest import VOCAB, MakeShard, row, samples


def without(name: str) -> pa.Schema:
    return SAMPLES.remove(SAMPLES.get_field_index(name))


def with_type(name: str, kind: pa.DataType) -> pa.Schema:
    return SAMPLES.set(SAMPLES.get_field_index(name), pa.field(name, kind, nullable=False))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"schema": without("loss_mask")}, r"isn't of contract version 1: loss_mask differ"),
        ({"schema": with_type("input_ids", pa.list_(pa.int64()))}, r"contract version 1: input_ids differ"),
        ({"schema": SAMPLES.append(pa.field("text", pa.string()))}, r"contract version 1: text differ"),
        ({"schema_version": "2"}, "says schema_version 2, this code reads 1"),
        ({"audit_verdict": "fail"}, r"hasn't passed its audit \(audit_verdict fail\)"),
        ({"audit_verdict": None}, r"hasn't passed its audit \(audit_verdict None\)"),
        ({"rows": []}, "no rows"),
    ],
)
def test_a_shard_that_breaks_the_contract_is_refused(
    make_shard: MakeShard, options: dict[str, Any], says: str
) -> None:
    path = make_shard(**options)
    with pytest.raises(Eagle3Error, match=says) as caught:
        open_shards([path])
    assert str(path) in str(caught.value)


def test_shards_of_two_targets_are_refused(make_shard: MakeShard) -> None:
    a, b = make_shard(), make_shard(name="other.parquet", target="another")
    with pytest.raises(Eagle3Error, match=r"other.parquet has another target \(another\)"):
        open_shards([a, b])
    with pytest.raises(Eagle3Error, match="another tokenizer_digest"):
        open_shards([a, make_shard(name="third.parquet", tokenizer_digest="x")])


def test_a_missing_and_a_damaged_shard_are_named(make_shard: MakeShard, tmp_path: Path) -> None:
    with pytest.raises(Eagle3Error, match=r"none.parquet isn't there"):
        open_shards([tmp_path / "none.parquet"])
    path = make_shard()
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(Eagle3Error, match=r"shard.parquet can't be read"):
        open_shards([path])
    with pytest.raises(Eagle3Error, match="no shard to train on"):
        open_shards([])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"loss_mask": [0, 0, 0, 0]}, "tiny-0001 has a mask that is all zero"),
        ({"loss_mask": [0, 0, 1, 2]}, "tiny-0001 has mask entries other than 0 and 1"),
        ({"loss_mask": [0, 0, 1]}, "tiny-0001 has more ids than mask entries"),
        ({"seq_len": 5}, "tiny-0001 has another seq_len"),
        ({"input_ids": [1, VOCAB, 3, 4]}, f"tiny-0001 has ids outside the target's vocabulary of {VOCAB}"),
        ({"input_ids": [1, -1, 3, 4]}, f"tiny-0001 has ids outside the target's vocabulary of {VOCAB}"),
    ],
)
def test_a_malformed_sample_is_refused_with_its_shard(
    make_shard: MakeShard, change: dict[str, Any], says: str
) -> None:
    path = make_shard([row(0, [1, 2, 3, 4], [0, 0, 1, 1]), row(1, [1, 2, 3, 4], [0, 0, 1, 1]) | change])
    with pytest.raises(Eagle3Error, match=says) as caught:
        load(open_shards([path]), VOCAB, 10)
    assert str(path) in str(caught.value)


def test_long_samples_are_cut_where_labels_remain_and_counted(make_shard: MakeShard) -> None:
    rows = [
        row(0, [1, 2, 3, 4], [0, 0, 1, 1]),
        row(1, [1, 2, 3, 4, 5, 6, 7], [0, 0, 0, 1, 1, 1, 1]),
        row(2, [1] * 9, [0] * 7 + [1, 1]),
        row(3, [5, 6, 7], [1, 1, 0]),  # nothing predicts the first two tokens
    ]
    data = load(open_shards([make_shard(rows)]), VOCAB, 5)
    assert data.sample_ids == ("tiny-0000", "tiny-0001")
    assert (data.cut, data.left_out) == (2, 2)
    assert [x.tolist() for x in data.sample(1)] == [[1, 2, 3, 4, 5], [0, 0, 0, 1, 1]]
    assert (data.lengths, data.labels.tolist(), data.tokens, data.supervised) == ([4, 5], [2, 2], 9, 4)
    with pytest.raises(Eagle3Error, match=r"No sample is left to train on: max_seq_len 5 .* \(1 left out\)"):
        load(open_shards([make_shard([rows[2]])]), VOCAB, 5)


def test_the_data_digest_is_of_the_rows_not_of_the_file(make_shard: MakeShard) -> None:
    def digest(rows: list[dict[str, Any]], name: str) -> str:
        return load(open_shards([make_shard(rows, name=name)]), VOCAB, 99).digest

    rows = samples(5)
    assert digest(rows, "a.parquet") == digest(rows, "b.parquet")
    ids = [*rows[3]["input_ids"][:-1], 9]
    assert digest([*rows[:3], rows[3] | {"input_ids": ids}, rows[4]], "c.parquet") != digest(
        rows, "a.parquet"
    )


@settings(max_examples=100, deadline=None)
@given(
    lengths=st.lists(st.integers(3, 50), min_size=1, max_size=40),
    world=st.integers(1, 5),
    seed=st.integers(0, 99),
    epoch=st.integers(0, 3),
)
def test_every_rank_does_every_step_and_every_sample_is_seen_once(
    lengths: list[int], world: int, seed: int, epoch: int
) -> None:
    steps = steps_of_epoch(lengths, 64, seed, epoch)
    assert steps == steps_of_epoch(lengths, 64, seed, epoch)
    assert sorted(n for step in steps for n in step) == list(range(len(lengths)))
    for step in steps:
        assert len(step) == 1 or sum(lengths[n] for n in step) <= 64
        assert sorted(n for rank in range(world) for n in of_rank(step, rank, world)) == sorted(step)


def test_ranks_get_equally_many_samples_in_a_step() -> None:
    for step in steps_of_epoch([10] * 400, 160, 0, 0):
        assert len(of_rank(step, 0, 2)) == len(of_rank(step, 1, 2)) == 8


def test_epochs_are_shuffled_differently() -> None:
    lengths = [5] * 50
    assert steps_of_epoch(lengths, 20, 0, 0) != steps_of_epoch(lengths, 20, 0, 1)
    assert steps_of_epoch(lengths, 20, 0, 0) != steps_of_epoch(lengths, 20, 1, 0)


@settings(max_examples=100, deadline=None)
@given(counts=st.lists(st.integers(0, 5), min_size=8, max_size=60), data=st.data())
def test_the_draft_vocabulary_maps_both_ways(counts: list[int], data: st.DataObject) -> None:
    size = data.draw(st.integers(3, len(counts)))
    chosen = vocab.choose(torch.tensor(counts), size, [0, 1, len(counts) - 1])
    assert chosen.size == size
    ids = torch.arange(size) + chosen.d2t
    assert torch.equal(ids, chosen.ids)
    assert bool((ids.diff() > 0).all())
    assert int(chosen.t2d.sum()) == size
    assert torch.equal(chosen.t2d.nonzero().flatten(), ids)
    assert {0, 1, len(counts) - 1} <= set(ids.tolist()), "control tokens are always kept"
    left = [c for i, c in enumerate(counts) if i not in set(ids.tolist())]
    kept = [counts[i] for i in ids.tolist() if i not in (0, 1, len(counts) - 1)]
    assert not left or not kept or min(kept) >= max(left)


def test_only_supervised_tokens_are_counted_and_kimis_vocabulary_takes_no_time(make_shard: MakeShard) -> None:
    import time

    data = load(open_shards([make_shard([row(0, [5, 6, 6, 7], [0, 1, 1, 0])])]), VOCAB, 10)
    assert vocab.supervised_counts(data, 10).tolist() == [0, 0, 0, 0, 0, 0, 2, 0, 0, 0]
    many = torch.randint(0, 1000, (163_840,))
    began = time.perf_counter()
    chosen = vocab.choose(many, 32_000, [163_586])
    assert chosen.t2d[163_586]
    assert time.perf_counter() - began < 0.5
    with pytest.raises(Eagle3Error, match="smaller than the 3 control tokens"):
        vocab.choose(many, 2, [1, 2, 3])


def test_features_are_the_targets_own_and_kept_within_the_limit(target_folder: Path) -> None:
    target = Target(target_folder, None, torch.device("cpu"))
    assert target.aux_layers == default_aux_layers(7) == (2, 3, 4)
    long, short = torch.arange(20), torch.arange(7)
    for ids in (long, short):
        found = target.features(ids)
        out = target.model(input_ids=ids[None], output_hidden_states=True)
        expected = torch.cat([out.hidden_states[i] for i in target.aux_layers], -1)[0]
        torch.testing.assert_close(found.aux, expected)
        torch.testing.assert_close(target.head @ found.last[-1], out.logits[0, -1])
    cache = FeatureCache(target, limit_bytes=target.features(long).nbytes)
    first = [cache.get(0, long), cache.get(1, short)]
    assert cache.get(0, long) is first[0], "kept"
    again = cache.get(1, short)
    assert again is not first[1], "over the limit: computed again"
    assert torch.equal(again.aux, first[1].aux)


def test_layers_that_do_not_fit_and_a_missing_target_are_refused(target_folder: Path, tmp_path: Path) -> None:
    for layers in ([1, 2, 9], [2, 2, 3], [4, 2, 3], [1, 2]):
        with pytest.raises(Eagle3Error, match=r"aux_layers \(.*\) don't fit a target of 7 layers"):
            Target(target_folder, layers, torch.device("cpu"))
    with pytest.raises(Eagle3Error, match="There is no target model in"):
        Target(tmp_path, None, torch.device("cpu"))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(Eagle3Error, match="can't be loaded"):
        Target(tmp_path, None, torch.device("cpu"))


def test_only_whole_checkpoints_are_found(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path) is None
    for step in (1, 2, 3):
        checkpoint.save(tmp_path, step, {"done": step})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000002", "step-00000003"], (
        "old ones are pruned"
    )
    (tmp_path / "step-00000003" / "COMPLETE").unlink()
    (tmp_path / "step-00000009").mkdir()
    found = checkpoint.newest(tmp_path)
    assert found is not None
    assert found["done"] == 2


@pytest.fixture
def exported(target_folder: Path, tmp_path: Path) -> Path:
    target = Target(target_folder, [1, 3, 4], torch.device("cpu"))
    chosen = vocab.choose(torch.arange(VOCAB), 40, [0, 1, 2])
    draft = Draft(llama_config(target.config, chosen.size))
    draft.start_from(target.head[chosen.ids], target.final_norm, 0)
    export.write(tmp_path / "draft", draft, chosen, target.aux_layers, torch.bfloat16)
    return tmp_path / "draft"


def test_the_export_has_every_field_that_the_engines_read(exported: Path) -> None:
    config = json.loads((exported / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["draft_vocab_size"] == 40
    assert config["vocab_size"] == VOCAB
    assert config["rope_parameters"]["rope_theta"] == 10000.0
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 3, 4], "vLLM: layers that have run"
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 2, 3], (
        "SGLang: the last that has run"
    )
    weights = load_file(exported / "model.safetensors")
    assert weights["d2t"].dtype == torch.int64
    assert weights["t2d"].dtype == torch.bool
    assert weights["fc.weight"].dtype == torch.bfloat16
    assert "embed_tokens.weight" not in weights
    assert [p.name for p in exported.parent.iterdir()] == ["draft"], "nothing is left aside"


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("absolute d2t", "d2t doesn't give ascending target ids"),
        ("no d2t", "d2t is None"),
        ("t2d of others", "t2d and d2t name different tokens"),
        ("NaN", "norm.weight holds NaN"),
        ("shape", "fc.weight is"),
        ("extra", "embed_tokens.weight is"),
    ],
)
def test_a_draft_that_would_load_and_accept_nothing_is_refused(exported: Path, how: str, says: str) -> None:
    weights = load_file(exported / "model.safetensors")
    if how == "absolute d2t":
        weights["d2t"] = weights["d2t"] + torch.arange(40)
    elif how == "no d2t":
        del weights["d2t"]
    elif how == "t2d of others":
        weights["t2d"] = weights["t2d"].roll(1)
    elif how == "NaN":
        weights["norm.weight"][3] = float("nan")
    elif how == "shape":
        weights["fc.weight"] = weights["fc.weight"][:, :-1].contiguous()
    else:
        weights["embed_tokens.weight"] = torch.zeros(VOCAB, 32)
    save_file(weights, exported / "model.safetensors")
    with pytest.raises(Eagle3Error, match=says):
        export.validate(exported)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"colour": 1}, "unknown key 'colour'"),
        ({"epochs": "many"}, "'epochs' is 'many', not int"),
        ({"epochs": True}, "'epochs' is True, not int"),
        ({"lr": 0}, "'lr' must be more than 0"),
        ({"data": None}, "'data' is None"),
        ({"precision": "fp8"}, "'precision' must be bfloat16, float32 or null"),
    ],
)
def test_a_wrong_configuration_is_one_sentence(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"data": ["x"], "target_model": "t", "out": "o"} | change))
    with pytest.raises(Eagle3Error, match=says):
        read_config(path)
    path.write_text("{")
    with pytest.raises(Eagle3Error, match="isn't valid JSON"):
        read_config(path)


def test_the_accept_length_comes_from_the_engines_counters() -> None:
    counters = {
        "vllm:spec_decode_num_drafts_total": 100.0,
        "vllm:spec_decode_num_draft_tokens_total": 300.0,
        "vllm:spec_decode_num_accepted_tokens_total": 120.0,
        "vllm:spec_decode_num_accepted_tokens_per_pos_total@0": 80.0,
        "vllm:spec_decode_num_accepted_tokens_per_pos_total@1": 40.0,
        "vllm:spec_decode_num_accepted_tokens_per_pos_total@2": 0.0,
    }
    result = accept_length(counters)
    assert result["accept_length"] == 2.2
    assert result["accepted_per_position"] == [0.8, 0.4, 0.0]
    with pytest.raises(Eagle3Error, match="counted no drafts"):
        accept_length({})


def test_rows_of_the_fixture_are_sound(make_shard: MakeShard) -> None:
    assert open_shards([make_shard()]).rows == 12
    assert len(samples(5)) == 5
    assert row(0, [1, 2, 3], [0, 0, 1])["prompt_len"] == 2

"""A dataset's YAML: every mistake at once, and a version that changes only with what decides the samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from include.core.errors import SpecError
from include.core.paths import shard_index, shard_key
from include.core.profile import TARGETS, target_named
from include.core.spec import DATASETS, dataset_named, load_dataset
from tests.conftest import MakeSpec


@pytest.mark.parametrize("path", sorted(DATASETS.glob("*.yaml")), ids=lambda p: p.stem)
def test_every_dataset_that_is_shipped_is_sound(path: Path) -> None:
    spec = load_dataset(path)
    assert spec.name == path.stem
    assert spec.source_path.is_file()
    assert target_named(spec.target).name == spec.target


@pytest.mark.parametrize("path", sorted(TARGETS.glob("*.yaml")), ids=lambda p: p.stem)
def test_every_target_that_is_shipped_is_sound(path: Path) -> None:
    profile = target_named(path.stem)
    assert profile.name == path.stem
    assert not profile.template or (TARGETS / "templates" / profile.template).is_file()


def test_all_mistakes_are_reported_at_once(make_spec: MakeSpec) -> None:
    with pytest.raises(SpecError) as caught:
        make_spec(shard_size=0, sampling={"max_tokens": "many"}, colour="blue", engine={"kind": "tgi"})
    for part in (
        "5 mistake(s)",
        "shard_size",
        "sampling.max_tokens",
        "colour",
        "engine.kind",
        "engine.connection",
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [("a: [", "isn't valid YAML"), ("- a", "the file: "), ("", "the file: "), ("\x00", "isn't valid YAML")],
)
def test_a_file_that_is_no_spec_is_named(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(SpecError, match=r"x\.yaml") as caught:
        load_dataset(path)
    assert why in str(caught.value)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(SpecError, match=r"no dataset 'demos'. Known: .*demo"):
        dataset_named("demos")
    with pytest.raises(SpecError, match=r"no target 'gpt'. Known: .*smollm2"):
        target_named("gpt")


def test_the_version_changes_with_what_decides_the_samples_and_with_nothing_else(make_spec: MakeSpec) -> None:
    version = make_spec().version
    engine = {"kind": "vllm", "connection": "elsewhere", "concurrency": 7}
    assert make_spec(engine=engine, train={"connection": "gpu", "epochs": 3}).version == version
    limits = {"max_prompt_tokens": 256, "max_seq_len": 512}
    assert make_spec(limits=limits | {"max_left_out_share": 0.9}).version == version
    assert make_spec(limits=limits | {"max_prompt_tokens": 255}).version != version
    assert make_spec(sampling={"temperature": 0.5, "max_tokens": 32}).version != version
    assert make_spec(shard_size=9).version != version
    assert make_spec(prompts={"thinking": False}).version != version
    assert make_spec(prompts={"control_tokens": "escape"}).version != version


def test_a_shard_has_one_name() -> None:
    assert [shard_key(i) for i in (0, 7, 123456)] == ["shard-00000", "shard-00007", "shard-123456"]
    assert [shard_index(k) for k in ("shard-00000", "shard-123456")] == [0, 123456]
    for wrong in ("shard-7", "shard-000007", "7", "shard-00007/..", "shard-00007\n", "2020-01-01"):
        with pytest.raises(SpecError, match="is no shard"):
            shard_index(wrong)

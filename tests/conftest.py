"""Fixtures that several rooms share: the real small target, and datasets made for one test."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from include.core.connections import Connection
from include.core.paths import Settings, Shard
from include.core.profile import target_named
from include.core.spec import DatasetSpec, load_dataset
from local.places import ROOT, cache_folder

if TYPE_CHECKING:  # the training side's tests read this file too, in an environment without tokenizers
    from include.stages.work import Work
    from include.tokens.target import Target

SPEC: dict[str, Any] = {
    "name": "tiny",
    "target": "smollm2-135m-instruct",
    "source": {"path": "rows.jsonl", "adapter": "messages"},
    "shard_size": 8,
    "engine": {
        "kind": "vllm",
        "connection": "engine",
        "concurrency": 4,
        "patience_s": 2,
        "request_timeout_s": 20,
    },
    "sampling": {"temperature": 0.0, "max_tokens": 32},
    "limits": {"max_prompt_tokens": 256, "max_seq_len": 512, "max_left_out_share": 0.5},
    "train": {"connection": "gpu_host"},
}

MakeSpec = Callable[..., DatasetSpec]
MakeWork = Callable[..., "Work"]


def rows(count: int) -> list[dict[str, Any]]:
    """Simple one-turn rows, all different."""
    return [
        {"id": i, "messages": [{"role": "user", "content": f"What is {i} plus {i}?"}]} for i in range(count)
    ]


@pytest.fixture(scope="session")
def models_dir() -> Path:
    """The folder with SmolLM2-135M-Instruct, made by `make install`."""
    folder = Path(os.environ.get("EAGLE3_MODELS_DIR") or cache_folder() / "models")
    if not (folder / "SmolLM2-135M-Instruct" / "tokenizer.json").is_file():
        pytest.skip("EAGLE3_MODELS_DIR holds no SmolLM2-135M-Instruct: run `make install` and `make test`")
    return folder


SHARED = ROOT.parent / "shared" / "data"


def shared(path: str) -> Path:
    """A file of the third-party data beside the checkout; the test skips where it is missing."""
    found = SHARED / path
    if not found.exists():
        pytest.skip(f"the third-party test data isn't beside the checkout: shared/data/{path}")
    return found


@pytest.fixture(scope="session")
def kimi_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing but Kimi's tiktoken.model."""
    folder = tmp_path_factory.mktemp("kimi")
    (folder / "tiktoken.model").symlink_to(shared("kimi-k2/tiktoken.model"))
    return folder


@pytest.fixture(scope="session")
def kimi(kimi_folder: Path) -> Target:
    """Kimi-K2.5's real tokenizer with the template that the profile ships."""
    return _target("kimi-k2.5", kimi_folder)


def _target(name: str, folder: Path) -> Target:
    from include.tokens.target import load_target

    return load_target(target_named(name), folder)


def _model_target(models_dir: Path, name: str) -> Target:
    profile = target_named(name)
    folder = models_dir / profile.folder_name
    if not (folder / "tokenizer.json").is_file():
        pytest.skip(
            f"EAGLE3_MODELS_DIR holds no {profile.folder_name}: run `make install-test` (it needs npm)"
        )
    return _target(name, folder)


@pytest.fixture(scope="session")
def qwen3(models_dir: Path) -> Target:
    """Qwen3's real tokenizer and template."""
    return _model_target(models_dir, "qwen3")


@pytest.fixture(scope="session")
def deepseek_v3(models_dir: Path) -> Target:
    """DeepSeek-V3's real tokenizer and template."""
    return _model_target(models_dir, "deepseek-v3")


@pytest.fixture(scope="session")
def target(models_dir: Path) -> Target:
    """The real small target's tokenizer."""
    name = "smollm2-135m-instruct"
    return _target(name, models_dir / target_named(name).folder_name)


@pytest.fixture
def make_spec(tmp_path: Path) -> MakeSpec:
    """make_spec(rows, shard_size=…): a dataset of its own, as YAML and JSONL on disk."""

    def make(source: list[Any] | None = None, **changes: Any) -> DatasetSpec:
        folder = tmp_path / "datasets"
        folder.mkdir(exist_ok=True)
        lines = [
            row if isinstance(row, str) else json.dumps(row)
            for row in (rows(8) if source is None else source)
        ]
        (folder / "rows.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        path = folder / "tiny.yaml"
        path.write_text(yaml.safe_dump(SPEC | changes), encoding="utf-8")
        return load_dataset(path)

    return make


@pytest.fixture
def make_work(tmp_path: Path, models_dir: Path, make_spec: MakeSpec) -> MakeWork:
    """make_work(rows, engine_url=…, shard=0, limit=None, **spec changes): a shard to run stages on."""

    def make(
        source: list[Any] | None = None,
        *,
        engine_url: str = "http://127.0.0.1:9",
        shard: int = 0,
        limit: int | None = None,
        **changes: Any,
    ) -> Work:
        from include.stages.work import Work

        host, port = engine_url.removeprefix("http://").split(":")
        connection = Connection("engine", "http", host, int(port))
        settings = Settings(tmp_path / "data", models_dir)
        return Work(Shard(make_spec(source, **changes), shard, settings), lambda _: connection, limit)

    return make

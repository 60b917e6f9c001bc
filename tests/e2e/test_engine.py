"""Against the real vLLM: the ids in the Parquet file are the engine's own, and a wrong engine is refused."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest
import requests

from include.core.errors import EngineError
from include.stages import run_stage
from tests.conftest import MakeWork, rows

pytestmark = pytest.mark.engine

STAGES = ("render_prompts", "generate", "reconstruct", "audit", "export_parquet")


def test_the_exported_ids_are_what_the_engine_read_and_wrote(make_work: MakeWork, engine_url: str) -> None:
    work = make_work(rows(8), engine_url=engine_url, limits={"max_prompt_tokens": 256, "max_seq_len": 512})
    for stage in STAGES:
        run_stage(stage, work)
    table = pq.read_table(work.shard.exported).to_pylist()
    assert len(table) >= 4
    for row in table[:4]:
        prompt = row["input_ids"][: row["prompt_len"]]
        body = {"model": "SmolLM2-135M-Instruct", "prompt": prompt, "max_tokens": 32, "temperature": 0}
        answer = requests.post(
            f"{engine_url}/v1/completions",
            json=body | {"return_token_ids": True, "logprobs": 0, "prompt_logprobs": 0},
            timeout=60,
        ).json()["choices"][0]
        assert answer["prompt_token_ids"] == prompt, "the engine read the very ids"
        output = row["input_ids"][row["prompt_len"] :]
        assert output[-1] == work.target.end_of_turn
        # alone in the batch the engine's own rounding may turn a later token; the first ones can't differ
        assert answer["token_ids"][:3] == output[:3]


def test_a_wrong_model_name_is_refused_before_any_request(make_work: MakeWork, engine_url: str) -> None:
    work = make_work(rows(2), engine_url=engine_url, limits={"max_prompt_tokens": 256, "max_seq_len": 4096})
    run_stage("render_prompts", work)
    with pytest.raises(EngineError, match=r"takes 2048 tokens, the dataset up to 4096"):
        run_stage("generate", work)
    work.__dict__["profile"] = work.profile.model_copy(update={"served_as": "Kimi-K2.5"})
    with pytest.raises(EngineError, match=r"serves SmolLM2-135M-Instruct, not Kimi-K2.5"):
        run_stage("generate", work)
    assert work.shard.ledger.read_bytes() == b""

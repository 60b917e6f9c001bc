"""Measures a draft in the engine that will serve it: python -m eagle3.evaluate --config evaluate.json.

Standard library only; the engine runs in its own Python.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
import urllib.error
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3.errors import Eagle3Error, forget_stale_error, report_error
from eagle3.files import folder_digest, write_json
from eagle3.serving import Engine, vllm_server

_COUNTERS = "vllm:spec_decode_"
_AT_ONCE = 8


@dataclass(frozen=True)
class EvaluateConfig:
    """What is measured. `prompts` is JSONL of {"sample_id", "prompt_ids"}; lengths in tokens."""

    engine_python: str
    target_model: str
    draft: str
    prompts: str
    out: str
    max_tokens: int = 64
    num_speculative_tokens: int = 3
    max_model_len: int = 2048
    start_timeout_s: float = 600
    engine_args: list[str] = field(default_factory=list)
    engine_env: dict[str, str] = field(default_factory=dict)


def accept_length(counters: Mapping[str, float]) -> dict[str, Any]:
    """From vLLM's counters: accept length = 1 + accepted / drafts, tokens per verification, the bonus included."""
    drafts = counters.get(_COUNTERS + "num_drafts_total", 0.0)
    accepted = counters.get(_COUNTERS + "num_accepted_tokens_total", 0.0)
    if drafts <= 0:
        raise Eagle3Error(
            "The engine counted no drafts: it served without speculative decoding. Look at its log."
        )
    per_position = {
        int(name.rsplit("@", 1)[1]): value
        for name, value in counters.items()
        if "accepted_tokens_per_pos" in name
    }
    return {
        "accept_length": round(1 + accepted / drafts, 4),
        "drafts": int(drafts),
        "draft_tokens": int(counters.get(_COUNTERS + "num_draft_tokens_total", 0.0)),
        "accepted": int(accepted),
        "accepted_per_position": [round(per_position[p] / drafts, 4) for p in sorted(per_position)],
    }


def evaluate(config: EvaluateConfig) -> dict[str, Any]:
    """Starts the engine with the draft, asks the prompts greedily, reads its counters, stops it."""
    out, draft = Path(config.out), Path(config.draft)
    if not (draft / "config.json").is_file():
        raise Eagle3Error(f"There is no draft in {draft}. Train one first.")
    prompts = _prompts(Path(config.prompts))
    ahead = config.num_speculative_tokens
    print(
        f"measuring {draft} on {len(prompts)} held-out prompts, {ahead} draft tokens",
        flush=True,
    )
    speculative = {
        "model": str(draft),
        "method": "eagle3",
        "num_speculative_tokens": config.num_speculative_tokens,
    }
    args = ["--model", config.target_model, "--served-model-name", "target"]
    args += ["--max-model-len", str(config.max_model_len), "--speculative-config", json.dumps(speculative)]
    log = out.with_suffix(".engine.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    with vllm_server(
        config.engine_python, [*args, *config.engine_args], config.engine_env, log, config.start_timeout_s
    ) as engine:
        version = json.loads(engine.get("/version")).get("version", "?")
        before = engine.counters(_COUNTERS)
        started = time.monotonic()
        lengths = _ask_all(engine, prompts, config.max_tokens)
        seconds = time.monotonic() - started
        after = engine.counters(_COUNTERS)
    result = accept_length({name: value - before.get(name, 0.0) for name, value in after.items()}) | {
        "prompts": len(prompts),
        "output_tokens": sum(lengths),
        "seconds": round(seconds, 2),
        "tokens_per_s": round(sum(lengths) / seconds, 1),
        "num_speculative_tokens": ahead,
        "engine": f"vllm {version}",
        "draft": str(draft),
        "draft_digest": folder_digest(draft),
    }
    write_json(out, result)
    positions = " ".join(f"{share:.2f}" for share in result["accepted_per_position"])
    print(
        f"accept length {result['accept_length']:.3f} of at most {ahead + 1}: {result['drafts']} drafts, "
        f"{result['accepted']} tokens accepted, per position {positions}; {result['tokens_per_s']} tokens/s",
        flush=True,
    )
    return result


def _ask_all(engine: Engine, prompts: Sequence[list[int]], max_tokens: int) -> list[int]:
    """Output tokens of each prompt; when told to end it doesn't wait for answers, so that the engine is stopped."""
    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        return list(pool.map(lambda ids: _ask(engine, ids, max_tokens), prompts))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _ask(engine: Engine, prompt_ids: list[int], max_tokens: int) -> int:
    body = {
        "model": "target",
        "prompt": prompt_ids,
        "max_tokens": max_tokens,
        "temperature": 0,
        "return_token_ids": True,
    }
    try:
        return len(engine.post("/v1/completions", body)["choices"][0]["token_ids"])
    except urllib.error.HTTPError as error:
        said = error.read().decode(errors="replace")[:200]
        raise Eagle3Error(f"The engine answers HTTP {error.code} to a held-out prompt: {said}") from None
    except (OSError, KeyError, IndexError, ValueError) as error:
        raise Eagle3Error(
            f"The engine stopped answering ({type(error).__name__}: {error}). Look at its log."
        ) from None


def _prompts(path: Path) -> list[list[int]]:
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        prompts = [[int(i) for i in row["prompt_ids"]] for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Eagle3Error(f"The prompts in {path} can't be read ({type(error).__name__}: {error}).") from None
    if not prompts:
        raise Eagle3Error(f"{path} holds no prompts. Raise `held_out_share` of the dataset.")
    return prompts


def _config(path: Path) -> EvaluateConfig:
    try:
        return EvaluateConfig(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise Eagle3Error(f"The configuration {path} can't be used ({error}).") from None


def _terminate(signum: int, frame: object) -> None:
    raise SystemExit(128 + signum)  # so that the engine is stopped on the way out


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m eagle3.evaluate", description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    path: Path = parser.parse_args().config
    signal.signal(signal.SIGTERM, _terminate)
    forget_stale_error(path.parent)
    try:
        evaluate(_config(path))
    except Eagle3Error as error:
        report_error(error, path.parent)
        return 1
    except OSError as error:
        what = f"{error.filename or path.parent} can't be written or read ({error.strerror or error})."
        report_error(Eagle3Error(f"{what} Make room or fix its rights and start again."), path.parent)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

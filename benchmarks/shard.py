"""`make bench-shard`: a shard of 100,000 samples of 2,000 tokens through reconstruct and audit, in flat memory.

Prompts and ledger are made first (1.5 GB in a temporary folder); then each stage runs in its own process, whose
peak memory is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import yaml

from benchmarks.table import Table
from include.core.batched import batched
from include.core.connections import Connection
from include.core.parquet import parquet_writer
from include.core.paths import Settings, Shard
from include.core.records import GenerationRecord, Ids
from include.core.schema import PROMPTS
from include.core.spec import load_dataset
from include.engines.ledger import Ledger
from include.sources.jsonl import read_rows
from include.stages import run_stage
from include.stages.render import describe
from include.stages.turns import Requests
from include.stages.work import Work
from include.tokens.target import Target
from local.places import ROOT, cache_folder

PROMPTS_FILE = ROOT / "include" / "datasets" / "demo" / "prompts.jsonl"
LIMIT_MIB = 2048


def work_in(folder: Path) -> Work:
    """A dataset of Qwen3 without thoughts, whose shard lies below `folder`."""
    spec = {
        "name": "bench",
        "target": "qwen3",
        "source": {"path": "rows.jsonl"},
        "prompts": {"thinking": False},
        "shard_size": 1_000_000,
        "engine": {"kind": "vllm", "connection": "none"},
        "sampling": {"max_tokens": 4096},
        "limits": {"max_prompt_tokens": 1024, "max_seq_len": 8192},
        "train": {"connection": "none"},
    }
    path = folder / "bench.yaml"
    path.write_text(yaml.safe_dump(spec))
    shard = Shard(load_dataset(path), 0, Settings(folder / "data", cache_folder() / "models"))
    return Work(shard, lambda name: Connection(name, "http", "127.0.0.1", 9))


def prepare(work: Work, samples: int, tokens: int) -> None:
    """Prompts of an opening each, and a ledger of direct answers in words, `tokens` ids a sample."""
    target = work.target
    answers = _answers(target, tokens - 40)
    prompt = _prompt(target)
    with parquet_writer(work.shard.prompts, PROMPTS, describe(work)) as file:
        for number in range(samples):
            number_ids = target.encode(f"{number:012d}")
            ids = np.concatenate([prompt[:3], number_ids, prompt[3:]]).astype(np.int32)
            file.write(
                {
                    "sample_id": f"bench-{number:020d}-t0",
                    "prompt_ids": ids,
                    "source_row": "",
                    "conversation": None,
                }
            )
    with Ledger(work.shard.ledger) as ledger:
        for batch in batched(enumerate(Requests(work).rows()), 2000):
            ledger.append(
                GenerationRecord(
                    *(request.sample_id, request.digest, "answered", "", "stop"),
                    output_ids=answers[number % len(answers)],
                    prompt_tokens=None,
                    completion_tokens=len(answers[number % len(answers)]),
                    engine="vllm",
                    provider="bench",
                    model="bench",
                    attempts=1,
                    seconds=0.0,
                    at="",
                )
                for number, (_, request) in batch
            )


def _prompt(target: Target) -> Ids:
    opening = next(o for o in target.openings(thinking=False))
    start = target.tokenizer.encode_marked(["<|im_start|>user\n"])[0]
    return np.concatenate([start, opening.ids])


def _answers(target: Target, tokens: int) -> list[list[int]]:
    """A hundred different answers in the words of the demo's prompts."""
    words = [row["messages"][0]["content"] for _, row in read_rows(PROMPTS_FILE)]
    out = []
    for start in range(100):
        text = " ".join(words[(start * 5 + i) % len(words)] for i in range(tokens // 8))
        ids = target.encode(text)[:tokens].tolist()
        out.append([*ids, target.end_of_turn])
    return out


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--tokens", type=int, default=2_000)
    parser.add_argument("--stage", help="run this stage in the folder and print its peak memory")
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    if args.stage:
        started = time.perf_counter()
        counts = run_stage(args.stage, work_in(args.folder))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        seconds = time.perf_counter() - started
        print(json.dumps({"samples": counts["samples"], "seconds": seconds, "mib": peak}))
        return
    table = Table(
        f"a shard of {args.samples:,} samples of {args.tokens:,} tokens",
        ("seconds", "tokens/s", "peak MiB", f"of {LIMIT_MIB} MiB"),
    )
    with tempfile.TemporaryDirectory(prefix="bench-shard-") as name:
        prepare(work_in(Path(name)), args.samples, args.tokens)
        for stage in ("reconstruct", "audit"):
            command = [sys.executable, "-m", "benchmarks.shard", "--stage", stage, "--folder", name]
            done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=dict(os.environ))
            if done.returncode:
                sys.exit(done.stderr[-3000:])
            row = json.loads(done.stdout.strip().splitlines()[-1])
            assert row["samples"] == args.samples
            rate = args.samples * args.tokens / row["seconds"]
            share = row["mib"] / LIMIT_MIB
            table.add(stage, f"{row['seconds']:.0f}", f"{rate:,.0f}", f"{row['mib']:.0f}", f"{share:.2f}")
    print(table)


if __name__ == "__main__":
    main()

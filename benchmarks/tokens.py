"""`make bench-tokens`: rendering, reconstruction and audit, side by side with the peers, in one run.

Each figure is a ratio of two measurements on the same texts, one after the other. What a peer needs lies outside the
checkout (PEERS_DIR, made by the peers' own setup script); where it is missing, its line says so.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import tokenizers

from benchmarks.table import Table
from include.core.batched import batched
from include.core.profile import target_named
from include.core.records import Conversation, Ids, TextAnswer, TokenSample
from include.sources.adapters import to_conversation
from include.tokens.answers import reconstruct
from include.tokens.audit import Audit
from include.tokens.prompts import answer_positions, up_to
from include.tokens.rules import Facts
from include.tokens.samples import Turn, round_trips, samples_of
from include.tokens.target import Target, load_target
from local.places import ROOT, cache_folder

PEERS = Path(os.environ.get("PEERS_DIR") or ROOT.parent / "peers")
SCRIPTS = ROOT.parent / "shared" / "bench"
_BATCH = 256


def conversations(path: Path, copies: int = 1) -> Iterator[Conversation]:
    """The peers' synthetic chats as our records, read line by line."""
    for copy in range(copies):
        with path.open("rb") as lines:
            for number, line in enumerate(lines):
                yield to_conversation("bench", "messages", orjson.loads(line), f"{copy}:{number}")


def rendered(target: Target, chats: Iterator[Conversation]) -> Iterator[TokenSample]:
    """Every turn's prompt through the chat template, every answer as ids, samples with masks: what a shard of
    conversations goes through, the chats' own answers standing in for generated ones.
    """
    for batch in batched(chats, _BATCH):
        places = [(c, at) for c in batch for at in answer_positions(c) if at < len(c.messages)]
        prompts = target.render([up_to(c, at) for c, at in places], thinking=False)
        texts = [TextAnswer(content=c.messages[at].content) for c, at in places]
        made = reconstruct(texts, ["off"] * len(texts), target)
        turns: dict[str, list[Turn]] = {}
        for (c, at), prompt, one in zip(places, prompts, made, strict=True):
            turn = Turn(f"{at}", prompt, one.output_ids, "text", 0, True, "", "", "", "stop", c.source_row)
            turns.setdefault(c.source_row, []).append(turn)
        for conversation in turns.values():
            yield from samples_of(conversation)


def time_rendering(target: Target, path: Path, copies: int) -> dict[str, float]:
    """Conversations/s, tokens/s and peak memory of rendering all chats. One copy is read before the clock starts, as
    the peers' benchmark reads its rows; several are streamed from the file within the time.
    """
    chats_in: Iterator[Conversation] = conversations(path, copies)
    if copies == 1:
        chats_in = iter(list(chats_in))
    started, tokens, masked, rows = time.perf_counter(), 0, 0, 0
    for sample in rendered(target, chats_in):
        tokens += len(sample.input_ids)
        masked += int(np.count_nonzero(sample.loss_mask))
        rows += 1
    seconds = time.perf_counter() - started
    chats = copies * sum(1 for _ in path.open("rb"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "conv_per_s": chats / seconds,
        "tokens_per_s": tokens / seconds,
        "rows_out": rows,
        "mask_tokens": masked,
        "maxrss_mb": peak,
    }


def peer(*arguments: str) -> dict[str, Any] | None:
    """A line of the peers' own benchmark, or None where it isn't installed."""
    python = PEERS / "venv-specforge" / "bin" / "python"
    if not python.exists() or not (SCRIPTS / "bench_tokenize.py").exists():
        return None
    command = [str(python), str(SCRIPTS / "bench_tokenize.py"), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "PEERS_DIR": str(PEERS)}
    )
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def best(times: int, work: Callable[[], int]) -> float:
    """Tokens/s of the best of several runs."""
    rates = []
    for _ in range(times):
        started = time.perf_counter()
        tokens = work()
        rates.append(tokens / (time.perf_counter() - started))
    return max(rates)


def audited(target: Target, texts: Sequence[str], thinks: bool) -> int:
    """Reconstructs each text and audits the samples; how many tokens the answers have."""
    how = "in_prompt" if thinks else "off"
    prompt: Ids = target.openings(thinking=thinks)[0].ids

    def samples() -> Iterator[TokenSample]:
        number = 0
        for batch in batched(texts, _BATCH):
            answers = [TextAnswer(reasoning=" r" if thinks else "", content=text) for text in batch]
            made = reconstruct(answers, [how] * len(batch), target)  # type: ignore[list-item]
            for one, exact in zip(made, round_trips(made, target), strict=True):
                turn = Turn(
                    f"{number:09d}", prompt, one.output_ids, "text", 0, exact, "e", "p", "m", "stop", ""
                )
                number += 1
                yield from samples_of([turn])

    audit = Audit(Facts(target, 1 << 30))
    for _ in audit.watch(samples()):
        pass
    if audit.errors:
        raise SystemExit(f"the audit found {audit.errors[0]}")
    return audit.statistics.supervised_tokens


def bare_tokenizer(folder: Path) -> Callable[[Sequence[str]], int]:
    """Hugging Face's batched encoder as it is, on all cores; how many tokens it made."""
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return lambda texts: sum(
        len(e) for e in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=["ours"], help="one measurement in this process, printed as JSON")
    parser.add_argument("--copies", type=int, default=1)
    args = parser.parse_args()
    chats = PEERS / "data" / "convs.jsonl"
    qwen = cache_folder() / "models" / "Qwen3-8B"
    if not chats.exists() or not qwen.exists():
        sys.exit(f"bench-tokens needs {chats} (the peers' setup) and {qwen} (make install-test).")
    if args.only:
        print(json.dumps(time_rendering(load_target(target_named("qwen3"), qwen), chats, args.copies)))
        return
    table = Table(
        "rendering + tokenizing + masks, 5,000 chats, Qwen3", ("conv/s", "tokens/s", "MiB", "ratio")
    )
    ours = _self("--only", "ours")
    four = _self("--only", "ours", "--copies", "4")
    rows = {
        "ours: a prompt per turn, masks from the answers": ours,
        "ours, 20,000 chats, reading them included": four,
        "bare batched tokenizer, no masks": peer("floor"),
        "SpecForge, 2 processes": peer("specforge", "--num-proc", "2"),
    }
    for name, row in rows.items():
        table.add(
            name,
            *(
                (
                    f"{row['conv_per_s']:.0f}",
                    f"{row['tokens_per_s']:,.0f}",
                    f"{row['maxrss_mb']:.0f}",
                    f"{ours['conv_per_s'] / row['conv_per_s']:.2f}",
                )
                if row
                else ("not installed", "", "", "")
            ),
        )
    print(table)
    _reconstruction(load_target(target_named("qwen3"), qwen), qwen, chats)


def _reconstruction(target: Target, folder: Path, chats: Path) -> None:
    texts = [m.content for c in conversations(chats) for m in c.messages if m.role == "assistant"]
    bare = bare_tokenizer(folder)
    encode, ours = best(3, lambda: bare(texts)), best(3, lambda: audited(target, texts, thinks=False))
    table = Table(f"reconstruction + audit, {len(texts):,} answers, Qwen3", ("tokens/s", "ratio"))
    table.add("bare batched tokenizer, encode only", f"{encode:,.0f}", "1.00")
    table.add("ours: reconstruct, round trip, audit", f"{ours:,.0f}", f"{ours / encode:.2f}")
    kimi = ROOT.parent / "shared" / "data" / "kimi-k2"
    if (kimi / "tiktoken.model").exists():
        real = load_target(target_named("kimi-k2.5"), kimi)
        encode = best(3, lambda: sum(len(ids) for ids in real.tokenizer.encode(texts)))
        ours = best(3, lambda: audited(real, texts, thinks=True))
        table.add("Kimi: tiktoken on all cores, encode only", f"{encode:,.0f}", "1.00")
        table.add("Kimi: reconstruct, round trip, audit", f"{ours:,.0f}", f"{ours / encode:.2f}")
    print(table)


def _self(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.tokens", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


if __name__ == "__main__":
    main()

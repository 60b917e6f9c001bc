"""`make bench-text`: how exact are ids put together from text alone? Measured against those that a real vLLM returned.

Each prompt goes through the chat API at temperature 1.0 with `return_token_ids`: one answer carries the text, as any
provider gives it, and the truth. The text (with the token count of `usage`, and nothing else) is put together again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import orjson

from benchmarks.table import Table
from include.core.profile import target_named
from include.core.records import Conversation, Ids, Message, TextAnswer
from include.sources.jsonl import read_rows
from include.tokens.answers import Reconstruction, learn_offsets, reconstruct
from include.tokens.target import Target, load_target
from local.environments import VLLM_CPU
from local.places import MODEL, ROOT, cache_folder
from local.ports import free_port
from local.vllm_server import VllmServer

QUESTIONS = ROOT.parent / "shared" / "data" / "gsm8k" / "train.jsonl"
DEMO = ROOT / "include" / "datasets" / "demo" / "prompts.jsonl"
MAX_TOKENS, CONCURRENCY = 256, 64
Row = dict[str, Any]


def prompts(count: int) -> list[list[dict[str, str]]]:
    """Two thirds questions of GSM8K, one third the demo's prompts, which speak many languages."""
    if not QUESTIONS.exists():
        sys.exit(f"bench-text needs the questions of GSM8K in {QUESTIONS}.")
    demo = [row["messages"] for _, row in read_rows(DEMO, 0, count // 3)]
    questions = (row["question"] for _, row in read_rows(QUESTIONS, 0, count - len(demo)))
    return [[{"role": "user", "content": question}] for question in questions] + demo


async def ask(session: aiohttp.ClientSession, messages: list[dict[str, str]], more: Row) -> Row:
    """One answer as it came, with the messages. No seed: with one, vLLM 0.32 dies on the CPU ("CPU Generator does not
    use offset") as soon as a prompt is read in two parts.
    """
    body = {"model": MODEL, "messages": messages, "temperature": 1.0, "max_tokens": MAX_TOKENS}
    body |= {"return_token_ids": True} | more
    async with session.post("/v1/chat/completions", json=body) as response:
        if response.status != 200:
            sys.exit(f"the engine answers HTTP {response.status}: {await response.text()}")
        if not more.get("stream"):
            return {"messages": messages, "answer": await response.json()}
        return {"messages": messages, "chunks": [json.loads(c) async for c in _events(response)]}


async def _events(response: aiohttp.ClientResponse) -> Any:
    async for line in response.content:
        if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
            yield line.removeprefix(b"data: ")


async def collect(url: str, asked: Sequence[list[dict[str, str]]], file: Path, more: Row) -> None:
    """All answers into a file of JSON lines, at most CONCURRENCY at once."""
    slots = asyncio.Semaphore(CONCURRENCY)
    timeout = aiohttp.ClientTimeout(total=900)

    async def one(messages: list[dict[str, str]]) -> bytes:
        async with slots:
            return orjson.dumps(await ask(session, messages, more))

    async with aiohttp.ClientSession(url, timeout=timeout) as session:
        with file.open("wb") as out:
            for done in asyncio.as_completed([one(m) for m in asked]):
                out.write(await done + b"\n")


def read(row: Row) -> tuple[Ids, Ids, TextAnswer]:
    """(the prompt's true ids, the answer's true ids, what a provider of text would say of it)."""
    if "chunks" in row:
        return _streamed(row["chunks"])
    answer = row["answer"]
    (choice,) = answer["choices"]
    logprobs = (choice.get("logprobs") or {}).get("content") or ()
    said = TextAnswer(
        reasoning=choice["message"].get("reasoning") or "",
        content=choice["message"].get("content") or "",
        finish_reason=choice["finish_reason"],
        completion_tokens=answer["usage"]["completion_tokens"],
        provider="vllm",
        token_bytes=tuple(bytes(entry["bytes"]) for entry in logprobs),
    )
    return np.array(answer["prompt_token_ids"]), np.array(choice["token_ids"]), said


def _streamed(chunks: Sequence[Row]) -> tuple[Ids, Ids, TextAnswer]:
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    deltas = [("content", c["delta"]["content"]) for c in choices if c["delta"].get("content")]
    ids = [id_ for c in choices for id_ in c.get("token_ids") or ()]
    usage: Row = next((chunk["usage"] for chunk in chunks if chunk.get("usage")), {})
    said = TextAnswer(
        content="".join(text for _, text in deltas),
        finish_reason=next((c["finish_reason"] for c in choices if c.get("finish_reason")), "unknown"),
        completion_tokens=usage.get("completion_tokens"),
        provider="vllm",
        deltas=tuple(deltas),
    )
    prompt = next((chunk["prompt_token_ids"] for chunk in chunks if chunk.get("prompt_token_ids")), ())
    return np.array(prompt), np.array(ids), said


def measure(target: Target, rows: Sequence[Row]) -> Counter[str]:
    """What became of the answers; NOT flagged are those that differ although their count is the provider's."""
    counts: Counter[str] = Counter()
    answered = [read(row) for row in rows]
    for row, (prompt, _, _) in zip(rows, answered, strict=True):
        messages = tuple(Message(m["role"], m["content"]) for m in row["messages"])
        (ours,) = target.render([Conversation("", messages, "", "")])
        counts["prompts"] += 1
        counts["prompts equal"] += np.array_equal(ours, prompt)
    answers = [said for _, _, said in answered]
    opening = target.openings(thinking=True)[0].thinking
    first = reconstruct(answers, [opening] * len(answers), target)
    offsets = learn_offsets([("vllm", one.count_delta) for one in first if not one.left_out])
    made = reconstruct(answers, [opening] * len(answers), target, offsets)
    for (_, truth, _), one in zip(answered, made, strict=True):
        counts[_verdict(truth, one)] += 1
        if one.proven and not one.left_out:
            counts["seen token by token"] += 1
            counts["seen token by token, and exact"] += np.array_equal(truth, one.output_ids)
    return counts


def _verdict(truth: Ids, one: Reconstruction) -> str:
    if one.left_out:
        return f"left out: {one.left_out}"
    same = np.array_equal(truth, one.output_ids)
    if one.count_delta == 0:
        return "exact" if same else "differs, NOT flagged"
    return "exact, flagged all the same" if same else "differs, flagged"


RUNS: dict[str, tuple[str, Row, str]] = {
    "plain": ("text, top_p 1.0", {"top_p": 1.0}, "answers"),
    "nucleus": ("text, top_p 0.95", {"top_p": 0.95}, "answers"),
    "logprobs": ("logprobs", {"top_p": 1.0, "logprobs": True}, "few"),
    "stream": (
        "text and deltas",
        {"top_p": 1.0, "stream": True, "stream_options": {"include_usage": True}},
        "few",
    ),
}


def report(target: Target, folder: Path) -> None:
    """A table over all recorded runs, and the same for the questions of GSM8K alone."""
    recorded = {
        title: [orjson.loads(line) for line in (folder / f"{run}.jsonl").read_bytes().splitlines()]
        for run, (title, _, _) in RUNS.items()
        if (folder / f"{run}.jsonl").exists()
    }
    asked = {row["question"] for _, row in read_rows(QUESTIONS)}
    english = {
        title: [row for row in rows if row["messages"][-1]["content"] in asked]
        for title, rows in recorded.items()
    }
    print(_table(f"ids from text against the engine's own, {MODEL}", target, recorded))
    print(_table("the same, questions of GSM8K alone", target, english))


def _table(title: str, target: Target, runs: Mapping[str, Sequence[Row]]) -> Table:
    found = {name: measure(target, rows) for name, rows in runs.items()}
    table = Table(title, tuple(found))
    for line in sorted({key for counts in found.values() for key in counts}):
        table.add(line, *(f"{counts[line]}" for counts in found.values()))
    for verdict in ("exact", "differs, flagged", "differs, NOT flagged"):
        table.add(
            f"{verdict}, of the finished", *(_share(c, verdict, ("exact", "differs")) for c in found.values())
        )
    unflagged = ("exact", "differs, NOT")
    table.add("exact, of those whose count fits", *(_share(c, "exact", unflagged) for c in found.values()))
    return table


def _share(counts: Counter[str], verdict: str, of: tuple[str, ...]) -> str:
    whole = sum(n for key, n in counts.items() if key.startswith(of) and key != "exact, flagged all the same")
    return f"{counts[verdict] / max(whole, 1):.2%}"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--prompts", type=int, default=1400, help="how many for each of the two runs on text")
    parser.add_argument("--few", type=int, default=150, help="how many with logprobs and how many streamed")
    parser.add_argument(
        "--responses", type=Path, help="a folder for the raw answers; those that are there are used"
    )
    args = parser.parse_args()
    model = cache_folder() / "models" / MODEL
    target = load_target(target_named("smollm2-135m-instruct"), model)
    with tempfile.TemporaryDirectory(prefix="bench-text-") as name:
        folder = args.responses or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        missing = [run for run in RUNS if not (folder / f"{run}.jsonl").exists()]
        if missing:
            _record(model, Path(name), folder, missing, {"answers": args.prompts, "few": args.few})
        report(target, folder)


def _record(model: Path, work: Path, folder: Path, runs: Sequence[str], counts: dict[str, int]) -> None:
    server = VllmServer(
        python=VLLM_CPU.python(cache_folder()),
        model=model,
        port=free_port(),
        cache=cache_folder(),
        run_folder=work,
        log_folder=folder,
    )
    server.launch()
    try:
        server.wait()
        for run in runs:
            title, more, size = RUNS[run]
            print(f"{title}: {counts[size]} prompts", flush=True)
            aside = folder / f".{run}.part"
            asyncio.run(collect(server.address, prompts(counts[size]), aside, more))
            aside.replace(folder / f"{run}.jsonl")
    finally:
        server.stop()


if __name__ == "__main__":
    main()

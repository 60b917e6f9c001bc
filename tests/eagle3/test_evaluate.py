"""Evaluation against an engine that misbehaves in every way that the real one has; the real one is in tests/e2e."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

# stands in for the engine's Python: called as `python -m vllm… --host H --port P …`; a child of its own, as vLLM has
ENGINE = """#!{python}
import http.server, json, os, subprocess, sys, time
how = os.environ["HOW"]
child = subprocess.Popen(["sleep", "600"])
open(os.environ["PIDS"], "w").write(f"{{os.getpid()}} {{child.pid}}")
if how == "dies":
    print("INFO starting")
    print("ValueError: no such draft")
    child.kill()
    sys.exit(3)
if how == "hangs":
    time.sleep(600)
asked = 0


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def answer(self, body, code=200):
        self.send_response(code)
        self.end_headers()
        self.wfile.write(body.encode())

    def do_GET(self):
        drafts = 0 if how == "no drafts" else 10 + 4 * asked
        name = "vllm:spec_decode_num_"
        lines = [
            f'{{name}}drafts_total{{{{engine="0"}}}} {{drafts}}',
            f'{{name}}draft_tokens_total{{{{engine="0"}}}} {{3 * drafts}}',
            f'{{name}}accepted_tokens_total{{{{engine="0"}}}} {{7 + 2 * asked}}',
            f'{{name}}accepted_tokens_created{{{{engine="0"}}}} 1.7e9',
            f'{{name}}accepted_tokens_per_pos_total{{{{engine="0",position="0"}}}} {{7 + 2 * asked}}',
            f'{{name}}accepted_tokens_per_pos_total{{{{engine="0",position="1"}}}} 0',
        ]
        self.answer({{"/version": '{{"version": "9.9"}}', "/metrics": "\\n".join(lines)}}.get(self.path, "ok"))

    def do_POST(self):
        global asked
        self.rfile.read(int(self.headers["Content-Length"]))
        if how == "slow":
            time.sleep(600)
        if how == "refuses":
            return self.answer("prompt too long", 400)
        asked += 1
        self.answer(json.dumps({{"choices": [{{"token_ids": [1, 2, 3]}}]}}))


port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def start(folder: Path, how: str, **values: Any) -> subprocess.Popen[str]:
    engine, draft, prompts = folder / "engine", folder / "draft", folder / "prompts.jsonl"
    engine.write_text(ENGINE.format(python=sys.executable))
    engine.chmod(0o755)
    draft.mkdir()
    (draft / "config.json").write_text("{}")
    prompts.write_text(
        "".join(json.dumps({"sample_id": str(i), "prompt_ids": [i, 2]}) + "\n" for i in range(5))
    )
    config = {
        "engine_python": str(engine),
        "target_model": "t",
        "draft": str(draft),
        "prompts": str(prompts),
        "out": str(folder / "result.json"),
        "engine_env": {"HOW": how, "PIDS": str(folder / "pids")},
    }
    (folder / "config.json").write_text(json.dumps(config | values))
    command = [sys.executable, "-m", "eagle3.evaluate", "--config", str(folder / "config.json")]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def engine_lives(folder: Path) -> bool:
    """Whether the engine or its child still runs; zombies don't."""
    return any(
        Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
        for pid in (folder / "pids").read_text().split()
    )


def wait_until(condition: Any, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_counters_before_and_after_give_the_accept_length(tmp_path: Path) -> None:
    process = start(tmp_path, "works")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["accept_length"], result["drafts"], result["accepted"]) == (1.5, 20, 10)
    assert (result["accepted_per_position"], result["output_tokens"]) == ([0.5, 0.0], 15)
    assert result["engine"] == "vllm 9.9"
    assert "accept length 1.500 of at most 4" in out
    assert not engine_lives(tmp_path)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("dies", "The engine ended with 3 while it started. Its log .* ends: ValueError: no such draft"),
        ("hangs", "The engine wasn't up after 1 s"),
        ("no drafts", "The engine counted no drafts"),
        ("refuses", "HTTP 400 to a held-out prompt: prompt too long"),
    ],
)
def test_a_failure_is_one_sentence_and_the_engine_is_stopped(tmp_path: Path, how: str, says: str) -> None:
    (tmp_path / "error.json").write_text('{"error": "of the last run"}')
    process = start(tmp_path, how, **({"start_timeout_s": 1.0} if how == "hangs" else {}))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    last = err.splitlines()[-1]
    assert last.startswith("eagle3: error: ")
    sentence = json.loads((tmp_path / "error.json").read_text())["error"]
    assert last.endswith(sentence)
    assert re.search(says, sentence)
    assert not (tmp_path / "result.json").exists()
    assert not engine_lives(tmp_path)


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGKILL])
def test_the_engine_ends_with_the_evaluation_even_while_it_answers(
    tmp_path: Path, sig: signal.Signals
) -> None:
    process = start(tmp_path, "slow")
    wait_until((tmp_path / "pids").exists)
    time.sleep(2)  # so that prompts are on their way
    os.kill(process.pid, sig)
    process.wait(20)
    engine = int((tmp_path / "pids").read_text().split()[0])
    wait_until(lambda: not Path(f"/proc/{engine}").exists())
    if sig == signal.SIGTERM:
        assert not engine_lives(tmp_path)
    else:
        os.kill(int((tmp_path / "pids").read_text().split()[1]), signal.SIGKILL)

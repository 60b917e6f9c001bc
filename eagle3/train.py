"""Trains a draft: torchrun --nproc-per-node N -m eagle3.train --config train.json."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from eagle3 import export
from eagle3.config import TrainConfig, read_config
from eagle3.contract import open_shards
from eagle3.data import load
from eagle3.errors import Eagle3Error, forget_stale_error, report_error
from eagle3.features import Target, read_target_config
from eagle3.files import folder_digest, write_json
from eagle3.ranks import Ranks, join, leave
from eagle3.run import Run, run_digest

_ROOM_BYTES = 1 << 28


def train(config: TrainConfig, ranks: Ranks) -> None:
    """The whole run: trains, exports, and writes result.json last."""
    started = time.monotonic()
    out = Path(config.out)
    _require_writable(out)
    shards = open_shards([Path(p) for p in config.data])
    vocab_size = int(read_target_config(Path(config.target_model)).vocab_size)
    data = load(shards, vocab_size, config.max_seq_len)
    if _is_done(out, run_digest(config, data)):
        say(ranks, f"{out} is trained already with these very settings and data: nothing to do")
        return
    target = Target(Path(config.target_model), config.aux_layers, ranks.device)
    run = Run(config, ranks, data, target, shards.control_ids)
    say(ranks, _about(run))
    _go(run, out)
    if ranks.first:
        say(ranks, _finish(run, time.monotonic() - started))
    ranks.wait()


def say(ranks: Ranks, line: str) -> None:
    """A line of the log, from the first rank only."""
    if ranks.first:
        print(line, flush=True)


def _go(run: Run, out: Path) -> None:
    """All steps that are left, with their metrics, log lines and checkpoints."""
    config, steps = run.config, len(run.steps)
    metrics = _open_metrics(out, run.done) if run.ranks.first else None
    began, first_step, tokens = time.monotonic(), run.done, 0
    while run.done < steps:
        row = run.step()
        tokens += row["tokens"]
        seconds = time.monotonic() - began
        row["tokens_per_s"] = round(tokens / seconds, 1)
        if metrics:
            metrics.write(json.dumps(row) + "\n")
            metrics.flush()
        if run.done % config.log_every == 0 or run.done in (first_step + 1, steps):
            eta = (steps - run.done) * seconds / (run.done - first_step)
            say(run.ranks, _progress(row, steps, eta))
        if run.done % config.checkpoint_every == 0 or run.done == steps:
            run.save()
    if metrics:
        metrics.close()


def _finish(run: Run, seconds: float) -> str:
    """Exports the draft and writes result.json; returns the log's last line."""
    config, out = run.config, Path(run.config.out)
    draft = out / "draft"
    export.write(draft, run.draft, run.vocab, run.target.aux_layers, run.target.head.dtype)
    around = max(1, min(10, len(run.losses) // 5))
    result = {
        "digest": run.digest,
        "config_digest": config.digest,
        "data_digest": run.data.digest,
        "steps": run.done,
        "epochs": run.steps[-1][0] + 1,
        "first_loss": sum(run.losses[:around]) / around,
        "last_loss": sum(run.losses[-around:]) / around,
        "samples": len(run.data),
        "tokens": run.data.tokens,
        "supervised_tokens": run.data.supervised,
        "cut": run.data.cut,
        "left_out": run.data.left_out,
        "seconds": round(seconds, 1),
        "world_size": run.ranks.world_size,
        "precision": run.precision,
        "draft_vocab_coverage": round(run.coverage, 4),
        "draft": str(draft),
        "draft_digest": folder_digest(draft),
    }
    write_json(out / "result.json", result)
    losses = f"{result['first_loss']:.3f} → {result['last_loss']:.3f}"
    return f"done: {run.done} steps in {seconds:.0f} s, loss {losses}, draft in {draft}"


def _about(run: Run) -> str:
    data, config = run.data, run.config
    size = sum(p.numel() for p in run.parameters) / 1e6
    resumed = f", resumed after step {run.done}" if run.done else ""
    return (
        f"training on {len(config.data)} shard(s): {len(data)} samples, {data.tokens} tokens, "
        f"{data.supervised} supervised ({data.cut} cut, {data.left_out} left out); {len(run.steps)} steps on "
        f"{run.ranks.world_size} rank(s) in {run.precision}; draft of {size:.1f} M parameters, "
        f"aux layers {run.target.aux_layers}, draft vocabulary {run.vocab.size} of {run.vocab.vocab_size} "
        f"({run.coverage:.1%} of supervised tokens)"
        f"{resumed}"
    )


def _progress(row: dict[str, Any], steps: int, eta: float) -> str:
    accept = " ".join(f"{a:.2f}" for a in row["accept_per_step"])
    return (
        f"step {row['step']}/{steps}  loss {row['loss']:.3f}  accept {accept}  "
        f"simulated accept length {row['simulated_accept_length']:.2f}  lr {row['lr']:.1e}  "
        f"{row['tokens_per_s']:.0f} tokens/s  eta {int(eta // 60)}m{int(eta % 60):02d}s"
    )


def _is_done(out: Path, digest: str) -> bool:
    path = out / "result.json"
    if not path.exists() or not (out / "draft" / "model.safetensors").exists():
        return False
    return bool(json.loads(path.read_text(encoding="utf-8")).get("digest") == digest)


def _require_writable(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(out).free
    except OSError as error:
        raise Eagle3Error(
            f"{out} can't be written ({error.strerror}). Fix its rights or choose another `out`."
        ) from None
    if free < _ROOM_BYTES:
        raise Eagle3Error(f"{out} has {free >> 20} MiB free, too little for checkpoints. Make room.")


def _open_metrics(out: Path, done: int) -> Any:
    """metrics.jsonl for appending; rows after the step that is resumed from go."""
    path = out / "metrics.jsonl"
    rows = path.read_text(encoding="utf-8").splitlines()[:done] if path.exists() else []
    path.write_text("".join(row + "\n" for row in rows), encoding="utf-8")
    return path.open("a", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m eagle3.train", description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    path: Path = parser.parse_args(argv).config
    folder = path.parent
    try:
        forget_stale_error(folder)
        config = read_config(path)
        folder = Path(config.out)
        forget_stale_error(folder)
        train(config, join(config.threads))
    except Eagle3Error as error:
        report_error(error, folder)
    except torch.OutOfMemoryError:
        report_error(
            Eagle3Error(
                "The GPU's memory is full. Lower `batch_tokens` or `max_seq_len`, or `feature_cache_bytes`; "
                "the last checkpoint is kept."
            ),
            folder,
        )
    except OSError as error:
        report_error(
            Eagle3Error(
                f"{error.filename or folder} can't be written or read ({error.strerror or error}). "
                "Make room or fix its rights and start again: the last checkpoint is kept."
            ),
            folder,
        )
    else:
        return 0
    finally:
        leave()
    return 1


if __name__ == "__main__":
    sys.exit(main())

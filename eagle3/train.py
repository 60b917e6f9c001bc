"""Trains a draft: torchrun --nproc-per-node N -m eagle3.train --config train.json."""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from eagle3 import checkpoint, export, vocab
from eagle3.config import TrainConfig, read_config
from eagle3.contract import open_shards
from eagle3.data import Dataset, of_rank, pad, select, steps_of_epoch
from eagle3.draft import Draft, llama_config
from eagle3.errors import Eagle3Error, report_error
from eagle3.features import FeatureCache, Target
from eagle3.files import folder_digest, write_json
from eagle3.loss import Batch, Sums, training_time_test
from eagle3.ranks import Ranks, join, leave


class Training:
    """A run: everything that a step needs. The target is frozen; the draft's weights are float32."""

    def __init__(self, config: TrainConfig, ranks: Ranks) -> None:
        shards = open_shards([Path(p) for p in config.data])
        self.config, self.ranks = config, ranks
        self.target = Target(Path(config.target_model), config.aux_layers, ranks.device)
        vocab_size = int(self.target.config.vocab_size)
        self.data: Dataset = select(shards.samples(), vocab_size, config.max_seq_len)
        counts = vocab.supervised_counts(self.data.samples, vocab_size)
        self.vocab = vocab.choose(counts, config.draft_vocab_size, shards.control_ids)
        self.coverage = float(counts[self.vocab.ids].sum() / counts.sum())
        self.draft_ids = self.vocab.ids.to(ranks.device)
        self.draft = Draft(llama_config(self.target.config, self.vocab.size)).to(ranks.device)
        self.head = self.target.head[self.draft_ids].float()
        self.draft.start_from(self.head, self.target.final_norm.float(), config.seed)
        self.embedding = self.target.embedding.float()
        self.features = FeatureCache(self.target, config.feature_cache_bytes)
        self.parameters = list(self.draft.parameters())
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=config.lr, betas=(0.9, 0.95), weight_decay=config.weight_decay
        )
        lengths = [len(s.input_ids) for s in self.data.samples]
        self.steps = [
            step
            for epoch in range(config.epochs)
            for step in steps_of_epoch(lengths, config.batch_tokens, config.seed, epoch)
        ][: config.max_steps]
        self.done = 0
        self.losses: list[float] = []
        self._resume()

    def step(self) -> dict[str, Any]:
        """One optimizer step over all ranks; returns its metrics."""
        numbers = self.steps[self.done]
        mine = of_rank(numbers, self.ranks.rank, self.ranks.world_size)
        lr = self._set_lr()
        self.optimizer.zero_grad(set_to_none=True)
        total = self.ranks.sum(torch.tensor(float(self._labels(mine)), device=self.ranks.device))
        sums = self._forward(mine) if mine else None
        if sums is not None and total > 0:
            (sums.loss / total).backward()  # type: ignore[no-untyped-call]
        self.ranks.sum_gradients(self.parameters)
        counted = self.ranks.sum(self._counted(sums))
        loss = float(counted[0] / total) if total > 0 else 0.0
        norm = get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        if not math.isfinite(loss) or not torch.isfinite(norm):
            names = ", ".join(self.data.samples[n].sample_id for n in numbers[:20])
            raise Eagle3Error(f"The loss is {loss} at step {self.done + 1}. The batch held: {names}.")
        torch.nn.utils.clip_grads_with_norm_(self.parameters, self.config.clip, norm)
        self.optimizer.step()
        self.done += 1
        self.losses.append(loss)
        labels, hits, chained = counted[1:].view(3, -1)
        return {
            "step": self.done,
            "loss": loss,
            "accept_per_step": (hits / labels.clamp(min=1)).tolist(),
            "simulated_accept_length": 1 + float((chained / labels.clamp(min=1)).sum()),
            "lr": lr,
            "grad_norm": float(norm),
            "tokens": sum(len(self.data.samples[n].input_ids) for n in numbers),
            "supervised_tokens": int(total),
        }

    def save(self) -> None:
        """Writes a checkpoint (first rank only) and returns when it is on the disk."""
        if self.ranks.first:
            state = {
                "digest": self.config.digest,
                "done": self.done,
                "losses": self.losses,
                "draft": self.draft.state_dict(),
                "optimizer": self.optimizer.state_dict(),
            }
            checkpoint.save(Path(self.config.out) / "checkpoints", self.done, state)
        self.ranks.wait()

    def _resume(self) -> None:
        state = checkpoint.newest(Path(self.config.out) / "checkpoints")
        if state is None:
            return
        if state["digest"] != self.config.digest:
            raise Eagle3Error(
                f"{self.config.out} holds checkpoints of other settings or data. Choose another `out`, or remove them."
            )
        self.draft.load_state_dict(state["draft"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.done, self.losses = state["done"], state["losses"]

    def _labels(self, mine: Sequence[int]) -> int:
        return sum(sum(self.data.samples[n].loss_mask[2:]) for n in mine)

    def _forward(self, mine: Sequence[int]) -> Sums:
        samples = [self.data.samples[n] for n in mine]
        ids, mask = (x.to(self.ranks.device) for x in pad(samples))
        found = [self.features.get(n, s) for n, s in zip(mine, samples, strict=True)]
        aux, last = (_stack([getattr(f, name) for f in found], ids.shape[1]) for name in ("aux", "last"))
        return training_time_test(
            self.draft,
            Batch(ids, mask, aux.float(), last.float()),
            self.embedding,
            self.head,
            self.draft_ids,
            self.config.ttt_length,
            self.config.step_weight,
        )

    def _counted(self, sums: Sums | None) -> Tensor:
        """[1 + 3K]: loss, labels, hits, chained, of this rank."""
        if sums is None:
            return torch.zeros(1 + 3 * self.config.ttt_length, device=self.ranks.device)
        return torch.cat([sums.loss.detach().view(1), sums.labels, sums.hits, sums.chained])

    def _set_lr(self) -> float:
        """Linear warm-up, then cosine to a tenth."""
        warmup = max(1, round(self.config.warmup_ratio * len(self.steps)))
        if self.done < warmup:
            share = (self.done + 1) / warmup
        else:
            share = 0.55 + 0.45 * math.cos(math.pi * (self.done - warmup) / max(1, len(self.steps) - warmup))
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.lr * share
        return self.config.lr * share


def train(config: TrainConfig, ranks: Ranks) -> None:
    """The whole run: trains, exports, and writes result.json last."""
    out = Path(config.out)
    if _is_done(out, config):
        say(ranks, f"{out} is trained already with these very settings and data: nothing to do")
        return
    _require_writable(out)
    started = time.monotonic()
    run = Training(config, ranks)
    say(ranks, _about(run))
    metrics = _open_metrics(out, run.done) if ranks.first else None
    began, first_step, tokens = time.monotonic(), run.done, 0
    while run.done < len(run.steps):
        row = run.step()
        tokens += row["tokens"]
        seconds = time.monotonic() - began
        row["tokens_per_s"] = round(tokens / seconds, 1)
        if metrics:
            metrics.write(json.dumps(row) + "\n")
            metrics.flush()
        if run.done % config.log_every == 0 or run.done in (first_step + 1, len(run.steps)):
            eta = (len(run.steps) - run.done) * seconds / (run.done - first_step)
            say(ranks, _progress(row, len(run.steps), eta))
        if run.done % config.checkpoint_every == 0 or run.done == len(run.steps):
            run.save()
    if metrics:
        metrics.close()
        _finish(run, time.monotonic() - started)
    ranks.wait()


def say(ranks: Ranks, line: str) -> None:
    """A line of the log, from the first rank only."""
    if ranks.first:
        print(line, flush=True)


def _finish(run: Training, seconds: float) -> None:
    config, out = run.config, Path(run.config.out)
    draft = out / "draft"
    try:
        export.write(draft, run.draft, run.vocab, run.target.aux_layers, run.target.head.dtype)
        around = max(1, min(10, len(run.losses) // 5))
        result = {
            "config_digest": config.digest,
            "steps": run.done,
            "epochs": config.epochs,
            "first_loss": sum(run.losses[:around]) / around,
            "last_loss": sum(run.losses[-around:]) / around,
            "samples": len(run.data.samples),
            "tokens": run.data.tokens,
            "supervised_tokens": run.data.supervised,
            "cut": run.data.cut,
            "left_out": run.data.left_out,
            "seconds": round(seconds, 1),
            "world_size": run.ranks.world_size,
            "draft_vocab_coverage": round(run.coverage, 4),
            "draft": str(draft),
            "draft_digest": folder_digest(draft),
        }
        write_json(out / "result.json", result)
    except OSError as error:
        raise Eagle3Error(
            f"{draft} can't be written ({error.strerror}). The last checkpoint is kept."
        ) from None
    say(
        run.ranks,
        f"done: {run.done} steps in {seconds:.0f} s, loss {result['first_loss']:.3f} → {result['last_loss']:.3f}, "
        f"draft in {draft}",
    )


def _about(run: Training) -> str:
    data, config = run.data, run.config
    size = sum(p.numel() for p in run.parameters) / 1e6
    resumed = f", resumed after step {run.done}" if run.done else ""
    return (
        f"training on {len(config.data)} shard(s): {len(data.samples)} samples, {data.tokens} tokens, "
        f"{data.supervised} supervised ({data.cut} cut, {data.left_out} left out); {len(run.steps)} steps on "
        f"{run.ranks.world_size} rank(s); draft of {size:.1f} M parameters, aux layers {run.target.aux_layers}, "
        f"draft vocabulary {run.vocab.size} of {run.vocab.vocab_size} ({run.coverage:.1%} of supervised tokens)"
        f"{resumed}"
    )


def _progress(row: dict[str, Any], steps: int, eta: float) -> str:
    accept = " ".join(f"{a:.2f}" for a in row["accept_per_step"])
    return (
        f"step {row['step']}/{steps}  loss {row['loss']:.3f}  accept {accept}  "
        f"simulated accept length {row['simulated_accept_length']:.2f}  lr {row['lr']:.1e}  "
        f"{row['tokens_per_s']:.0f} tokens/s  eta {int(eta // 60)}m{int(eta % 60):02d}s"
    )


def _stack(rows: Sequence[Tensor], length: int) -> Tensor:
    """[T_i, C] each → [B, length, C], padded with zeros."""
    stacked = rows[0].new_zeros(len(rows), length, rows[0].shape[-1])
    for row, value in enumerate(rows):
        stacked[row, : value.shape[0]] = value
    return stacked


def _is_done(out: Path, config: TrainConfig) -> bool:
    path = out / "result.json"
    return (
        path.exists() and json.loads(path.read_text(encoding="utf-8")).get("config_digest") == config.digest
    )


def _require_writable(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(out).free
    except OSError as error:
        raise Eagle3Error(
            f"{out} can't be written ({error.strerror}). Fix its rights or choose another `out`."
        ) from None
    if free < 1 << 28:
        raise Eagle3Error(f"{out} has {free >> 20} MiB free, too little for checkpoints. Make room.")


def _open_metrics(out: Path, done: int) -> Any:
    """metrics.jsonl for appending; rows after the step that is resumed from go."""
    path = out / "metrics.jsonl"
    rows = path.read_text(encoding="utf-8").splitlines()[:done] if path.exists() else []
    path.write_text("".join(row + "\n" for row in rows), encoding="utf-8")
    return path.open("a", encoding="utf-8")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m eagle3.train", description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    path: Path = parser.parse_args().config
    folder = path.parent
    try:
        config = read_config(path)
        folder = Path(config.out)
        train(config, join(config.threads))
    except Eagle3Error as error:
        report_error(error, folder)
        return 1
    finally:
        leave()
    return 0


if __name__ == "__main__":
    sys.exit(main())

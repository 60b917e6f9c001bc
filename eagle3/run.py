"""A training run: target, draft, data and optimizer; one step at a time, and a checkpoint that continues it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from eagle3 import checkpoint, vocab
from eagle3.config import TrainConfig
from eagle3.data import Dataset, of_rank, steps_of_epoch
from eagle3.draft import Draft, llama_config
from eagle3.errors import Eagle3Error
from eagle3.features import FeatureCache, Target
from eagle3.loss import Batch, Sums, training_time_test
from eagle3.ranks import Ranks

_NAMED = 20


class Run:
    """Everything that a step needs. The target is frozen; the draft's weights are float32."""

    def __init__(
        self, config: TrainConfig, ranks: Ranks, data: Dataset, target: Target, control_ids: Sequence[int]
    ) -> None:
        self.config, self.ranks, self.data, self.target = config, ranks, data, target
        self.digest = run_digest(config, data)
        self.precision = config.precision or fast_precision(ranks.device)
        counts = vocab.supervised_counts(data, int(target.config.vocab_size))
        self.vocab = vocab.choose(counts, config.draft_vocab_size, control_ids)
        self.coverage = float(counts[self.vocab.ids].sum() / counts.sum())
        self.draft_ids = self.vocab.ids.to(ranks.device)
        self.head = target.head[self.draft_ids].float()
        self.draft = Draft(llama_config(target.config, self.vocab.size))
        # before it moves: the same seed gives the same start on every device
        self.draft.start_from(self.head.cpu(), target.final_norm.float().cpu(), config.seed)
        self.draft.to(ranks.device)
        self.features = FeatureCache(target, config.feature_cache_bytes)
        self.parameters = list(self.draft.parameters())
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=config.lr, betas=(0.9, 0.95), weight_decay=config.weight_decay
        )
        self.steps = [
            (epoch, step)
            for epoch in range(config.epochs)
            for step in steps_of_epoch(data.lengths, config.batch_tokens, config.seed, epoch)
        ][: config.max_steps]
        self.done = 0
        self.losses: list[float] = []
        self._resume()

    def step(self) -> dict[str, Any]:
        """One optimizer step over all ranks; returns its metrics."""
        epoch, numbers = self.steps[self.done]
        mine = of_rank(numbers, self.ranks.rank, self.ranks.world_size)
        supervised = int(self.data.labels[numbers].sum())
        lr = self.config.lr * share_of_lr(self.done, len(self.steps), self.config.warmup_ratio)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.zero_grad(set_to_none=True)
        sums = self._forward(mine) if mine else None
        if sums is not None:
            (sums.loss / supervised).backward()  # type: ignore[no-untyped-call]
        self.ranks.sum_gradients(self.parameters)
        counted = self.ranks.sum(self._counted(sums))
        loss = float(counted[0] / supervised)
        norm = get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        if not math.isfinite(loss) or not torch.isfinite(norm):
            names = ", ".join(self.data.sample_ids[n] for n in numbers[:_NAMED])
            raise Eagle3Error(
                f"The loss is {loss} and the gradient's norm {float(norm)} at step {self.done + 1}. "
                f"The batch held: {names}. Lower `lr`, or look at these samples; the last checkpoint is kept."
            )
        clip_grads_with_norm_(self.parameters, self.config.clip, norm)
        self.optimizer.step()
        self.done += 1
        self.losses.append(loss)
        labels, hits, chained = counted[1:].view(3, -1)
        return {
            "step": self.done,
            "epoch": epoch,
            "loss": loss,
            "accept_per_step": (hits / labels.clamp(min=1)).tolist(),
            "simulated_accept_length": 1 + float((chained / labels.clamp(min=1)).sum()),
            "lr": lr,
            "grad_norm": float(norm),
            "tokens": sum(self.data.lengths[n] for n in numbers),
            "supervised_tokens": supervised,
        }

    def save(self) -> None:
        """Writes a checkpoint (first rank only) and returns when it is on the disk."""
        if self.ranks.first:
            state = {
                "digest": self.digest,
                "done": self.done,
                "losses": self.losses,
                "draft": self.draft.state_dict(),
                "optimizer": self.optimizer.state_dict(),
            }
            checkpoint.save(Path(self.config.out) / "checkpoints", self.done, state)
        self.ranks.wait()

    def _resume(self) -> None:
        """Goes on from the newest whole checkpoint. Order and schedule follow from the step: nothing else is kept."""
        state = checkpoint.newest(Path(self.config.out) / "checkpoints")
        if state is None:
            return
        if state["digest"] != self.digest:
            raise Eagle3Error(
                f"{self.config.out} holds checkpoints of other settings or data. Choose another `out`, or remove them."
            )
        self.draft.load_state_dict(state["draft"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.done, self.losses = state["done"], state["losses"]

    def _forward(self, mine: Sequence[int]) -> Sums:
        """The training-time test of this rank's samples."""
        samples = [self.data.sample(n) for n in mine]
        found = [self.features.get(n, ids) for n, (ids, _) in zip(mine, samples, strict=True)]
        device = self.ranks.device
        batch = Batch(
            ids=torch.cat([ids for ids, _ in samples]).to(device),
            mask=torch.cat([mask for _, mask in samples]).to(device),
            aux=torch.cat([f.aux for f in found]).float(),
            last=torch.cat([f.last for f in found]).float(),
            lengths=[len(ids) for ids, _ in samples],
        )
        with torch.autocast(device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
            return training_time_test(
                self.draft,
                batch,
                self.target.embedding,
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


def fast_precision(device: torch.device) -> str:
    """bfloat16 where the hardware multiplies it, else float32. The weights and their updates are float32 in both."""
    has_bfloat16 = (
        torch.cuda.is_bf16_supported(including_emulation=False)
        if device.type == "cuda"
        else torch.cpu._is_avx512_bf16_supported()
    )
    return "bfloat16" if has_bfloat16 else "float32"


def run_digest(config: TrainConfig, data: Dataset) -> str:
    """SHA-256 in hex of what decides the draft: the settings, and the rows themselves rather than their paths."""
    return hashlib.sha256(f"{config.digest}\0{data.digest}".encode()).hexdigest()


def share_of_lr(done: int, steps: int, warmup_ratio: float) -> float:
    """Linear warm-up, then a cosine from 1 to a tenth."""
    warmup = max(1, round(warmup_ratio * steps))
    if done < warmup:
        return (done + 1) / warmup
    return 0.55 + 0.45 * math.cos(math.pi * (done - warmup) / max(1, steps - warmup))

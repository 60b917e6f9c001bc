"""The processes of a run: who this one is, and sums over all of them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Ranks:
    """This process's rank, how many there are, and its device."""

    rank: int
    world_size: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this process prints and writes."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The element-wise sum over all ranks, in place."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return values

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Adds every rank's gradients up, in one message; the loss is already divided by the global count."""
        if self.world_size == 1:
            return
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
        flat = self.sum(torch.cat([g.flatten() for g in grads]))
        for p, part, like in zip(
            parameters, torch.split(flat, [g.numel() for g in grads]), grads, strict=True
        ):
            p.grad = part.view_as(like)

    def wait(self) -> None:
        """Returns when every rank has come here."""
        if self.world_size > 1:
            dist.barrier()


def join(threads: int | None) -> Ranks:
    """Joins the group that torchrun describes in the environment: NCCL on GPUs, gloo on CPUs."""
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision("high")  # TF32: several times faster, exact enough for a draft
    torch.set_num_threads(threads or max(1, (os.cpu_count() or 1) // world_size))
    if world_size > 1 and not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return Ranks(rank, world_size, device)


def leave() -> None:
    """Leaves the group."""
    if dist.is_initialized():
        dist.destroy_process_group()

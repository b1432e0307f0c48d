"""Processes of one run: each puts its part of every batch through the trunk, and all see the whole batch's features."""

from __future__ import annotations

import atexit
import ctypes
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from zoo.errors import RecipeError

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # of mallopt, in <malloc.h>
_KEPT = 2**30


def keep_freed_memory() -> bool:
    """Let glibc keep up to 1 GiB of freed memory for the next step, and return whether it does.

    Otherwise every tensor above 100 kB is mapped, zeroed page by page and unmapped again: a fifth of a small network's
    training step on a CPU. Other C libraries lack the setting.
    """
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    options = {_MMAP_THRESHOLD: _KEPT, _TRIM_THRESHOLD: _KEPT, _TOP_PAD: _KEPT // 8}
    return all(set_option(option, value) for option, value in options.items())


@dataclass(frozen=True)
class Processes:
    """The processes of a run; `rank` is the number of this one, of `count`."""

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def part(self, size: int) -> slice:
        """Return this process's part of a batch of `size`.

        Raises:
            RecipeError: If the batch cannot be shared out evenly.
        """
        if size % self.count:
            raise RecipeError(
                f"batch.size ({size}) must be a multiple of the number of processes ({self.count}).",
                code="conflicting-settings",
            )
        share = size // self.count
        return slice(self.rank * share, (self.rank + 1) * share)

    def gather(self, part: Tensor) -> Tensor:
        """Return the parts [n, ...] of all processes as [count * n, ...], in the order of ranks, with gradients."""
        if self.count == 1:
            return part
        whole: Tensor = _Gather.apply(part, self.rank, self.count)
        return whole

    def average_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Replace every gradient by its mean over the processes, in one exchange per type of number."""
        if self.count == 1:
            return
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):
            alike = [gradient for gradient in gradients if gradient.dtype == dtype]
            flat = torch.cat([gradient.flatten() for gradient in alike])
            dist.all_reduce(flat)
            flat /= self.count
            for gradient, mean in zip(alike, flat.split([g.numel() for g in alike]), strict=True):
                gradient.copy_(mean.view_as(gradient))

    def same_everywhere(self, tensors: Iterable[Tensor]) -> None:
        """Give every process the first one's values."""
        if self.count > 1:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def agree(self, samples: np.ndarray, device: torch.device) -> np.ndarray:
        """Return the first process's choice of samples, int64 [b]."""
        if self.count == 1:
            return samples
        shared = torch.from_numpy(samples.copy()).to(device)
        dist.broadcast(shared, 0)
        return shared.cpu().numpy()

    def wait(self) -> None:
        """Wait for all processes."""
        if self.count > 1:
            dist.barrier()


class _Gather(torch.autograd.Function):
    """Concatenation of the parts of all processes.

    All processes compute the same loss L of the same gathered rows, so the gradient of a part is known here. It is
    multiplied by the number of processes, since gradients of weights are averaged over them afterwards, while L's
    gradient by the trunk's weights is the sum over the parts.
    """

    @staticmethod
    def forward(ctx: Any, part: Tensor, rank: int, count: int) -> Tensor:
        ctx.rank, ctx.count = rank, count
        parts = [torch.empty_like(part) for _ in range(count)]
        dist.all_gather(parts, part.contiguous())
        return torch.cat(parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient.chunk(ctx.count)[ctx.rank] * ctx.count, None, None


def connect(device: torch.device) -> tuple[Processes, torch.device]:
    """Join the processes that a launcher such as torchrun started, over NCCL on GPUs and Gloo elsewhere.

    Args:
        device: The device of a process without a launcher. With one, each process of a machine gets its own GPU.

    Returns:
        The processes, one without a launcher, and this process's device.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        if device.index is not None:
            torch.cuda.set_device(device)  # whose generator is part of the checkpoint
        return Processes(), device
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        atexit.register(dist.destroy_process_group)
    return Processes(dist.get_rank(), dist.get_world_size()), device

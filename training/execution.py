"""Computation of a run: its device and processes, its precision and memory format, and the fastest of these."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from training.distributed import Processes
from zoo.models.torch_runtime import fastest

MEMORY_FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
MEASURED_IMAGES = 8
"""Images of a batch that is measured for the fastest computation."""

MEASURED_STEPS = 2
"""Steps by which the time of a run is forecast."""


@dataclass(frozen=True)
class Execution:
    """The device, the processes and the compilation of a run, in which machines may differ for the same recipe."""

    device: torch.device
    processes: Processes = field(default_factory=Processes)
    compiled: bool = False

    def forked_generators(self) -> AbstractContextManager[None]:
        """Restore torch's generators, the device's too, when the block ends."""
        return torch.random.fork_rng([self.device] if self.device.type == "cuda" else [])


@dataclass(frozen=True)
class Computation:
    """The precision and the memory format in which a run computes; a resumed run keeps those that it began with."""

    precision: str
    memory_format: str = "channels_last"

    @property
    def layout(self) -> torch.memory_format:
        """Torch's name of the memory format."""
        return MEMORY_FORMATS[self.memory_format]


def fastest_computation(trunk: nn.Module, images: Tensor, device: torch.device) -> Computation:
    """Return the fastest computation of a trunk on this CPU under its present load, measured by a few passes.

    Args:
        trunk: The trunk; a copy is used.
        images: Its input, float [b, c, h, w].
        device: The CPU.
    """
    forms = {}
    for name, layout in MEMORY_FORMATS.items():
        measured = copy.deepcopy(trunk).to(memory_format=layout)
        batch = images.contiguous(memory_format=layout)
        for precision in ("fp32", "bf16") if has_bf16(device) else ("fp32",):
            forms[Computation(precision, name)] = partial(one_pass, measured.train(), batch, precision)
    return fastest(forms)


def step_seconds(features: Callable[[Tensor, nn.Module], Tensor], trunk: nn.Module, images: Tensor) -> float:
    """Return the seconds of a training step's passes through a trunk, forward and backward, measured by a few.

    Args:
        features: Returns the features of images by a trunk.
        trunk: The trunk; a copy is used.
        images: A batch, float [b, c, h, w].
    """
    measured = copy.deepcopy(trunk).train()
    started = 0.0
    for number in range(1 + MEASURED_STEPS):
        if number == 1:  # the first one allocates memory
            started = time.perf_counter()
        rows = features(images, measured)
        if rows.requires_grad:
            rows.square().mean().backward()
    if images.is_cuda:
        torch.cuda.synchronize(images.device)
    return (time.perf_counter() - started) / MEASURED_STEPS


def autocast(device: torch.device, precision: str) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")


def one_pass(trunk: nn.Module, images: Tensor, precision: str) -> None:
    """Put images through a trunk, forward and backward."""
    with autocast(images.device, precision):
        features = trunk(images)
    if features.requires_grad:
        features.float().square().mean().backward()


def stated_precision(precision: str, device: torch.device) -> str:
    """Return a recipe's precision if the device has it, else fp32; "auto" is bf16 here."""
    return "fp32" if precision == "fp32" or not has_bf16(device) else "bf16"


def has_bf16(device: torch.device) -> bool:
    """Return whether the device multiplies matrices in bfloat16 itself."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))

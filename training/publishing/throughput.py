"""How many images a second a backbone trains on, measured by a short run on the device."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from training.publishing.rows import Row
from training.recipe import Recipe
from training.run import has_bf16
from zoo.errors import UsageError
from zoo.network import create_trunk

SECONDS = 2.0


def given(values: Iterable[str], rows: Sequence[Row]) -> dict[str, float]:
    """Images/s by backbone from `--throughput`: one number for all, or BACKBONE=NUMBER. Raises `UsageError`."""
    backbones = list(dict.fromkeys(row.backbone for row in rows))
    found: dict[str, float] = {}
    for value in values:
        name, _, number = value.rpartition("=")
        try:
            rate = float(number)
        except ValueError:
            rate = 0.0
        if not 0 < rate < float("inf") or (name and name not in backbones):
            raise UsageError(
                f"--throughput {value}: expected images a second, as 800 or r50=800, for the backbones of the plan "
                f"({', '.join(backbones)})."
            )
        found |= {name: rate} if name else dict.fromkeys(backbones, rate)
    return found


def measured(
    rows: Sequence[Row], known: dict[str, float], device: torch.device, say: Callable[[str], None]
) -> dict[str, float]:
    """`known`, and the rates of the backbones that it lacks, measured. Raises `UsageError` for lack of memory."""
    rates = dict(known)
    for row in rows:
        if row.backbone not in rates:
            rates[row.backbone] = _attempt(row.recipes[0], device)
            say(f"{row.backbone}: {rates[row.backbone]:,.1f} images/s of training on {named(device)}")
    return rates


def named(device: torch.device) -> str:
    """The device as people call it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "this CPU (no GPU)"


def _attempt(recipe: Recipe, device: torch.device) -> float:
    try:
        return _measure(recipe, device)
    except (RuntimeError, MemoryError) as error:
        if not _is_memory(error):
            raise
    backbone, crop = recipe.backbone.name, recipe.preprocessing.crop
    images = min(recipe.batch.chunk or recipe.batch.size, _size(recipe, device))
    raise UsageError(
        f"{backbone}: a training step on {images} images of {crop} x {crop} pixels at a time does not fit into the "
        f"memory of {named(device)}. Free some, or say how fast it is instead: --throughput {backbone}=N (images a "
        "second)."
    )


def _size(recipe: Recipe, device: torch.device) -> int:
    """Images of a measured step; a CPU takes long for a whole batch, and is no faster by it."""
    return recipe.batch.size if device.type == "cuda" else min(recipe.batch.size, 8)


def _is_memory(error: BaseException) -> bool:
    """A GPU's lack of memory has a type of its own, a CPU's only a message."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "allocate memory" in str(error)


def _measure(recipe: Recipe, device: torch.device) -> float:
    """Whole steps of the trunk, forward and back with the optimiser's update, on noise; decoding is beside it."""
    how, backbone = recipe.preprocessing, recipe.backbone
    trunk = create_trunk(backbone.architecture, how.channels, backbone.args).to(device).train()
    optimizer = torch.optim.Adam(trunk.parameters(), 1e-9)
    size = _size(recipe, device)
    images = torch.randn(size, how.channels, how.crop, how.crop, device=device)
    bf16 = recipe.precision == "bf16" and has_bf16(device)

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            features = _through(trunk, images, recipe.batch.chunk)
        features.float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    step()  # the first one allocates
    started, steps = time.perf_counter(), 0
    while not steps or time.perf_counter() - started < SECONDS:
        step()
        steps += 1
    return size * steps / (time.perf_counter() - started)


def _through(trunk: nn.Module, images: Tensor, chunk: int) -> Tensor:
    """Features of the images, in parts that are computed once more for the gradient where the recipe says so."""
    if not chunk:
        features: Tensor = trunk(images)
        return features
    return torch.cat([checkpoint(trunk, part, use_reentrant=False) for part in images.split(chunk)])

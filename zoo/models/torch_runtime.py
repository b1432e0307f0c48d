"""Run a model folder with torch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from zoo.errors import UsageError
from zoo.models.card import Card
from zoo.models.network import PixelNetwork, load_network

Name = TypeVar("Name")

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

MEASURING_BATCH, MEASURED_IMAGES = 32, 8
"""The smallest batch at which the memory format is measured, since small jobs do not last, and how many of its images
are used."""


def open_model(
    folder: Path, card: Card, precision: str = "fp32", device: str | None = None
) -> tuple[Callable[[np.ndarray], np.ndarray], str]:
    """Open a model folder's network.

    Args:
        folder: The model folder.
        card: Its card.
        precision: A key of `DTYPES`; half precisions run under autocast.
        device: As in `choose_device`.

    Returns:
        A function from pixels uint8 [n, h, w, c] to embeddings float32 [n, dim], and the device it runs on.

    Raises:
        UsageError: `unknown-name`, or what `choose_device` raises.
        ModelFolderError: What `load_network` raises.
    """
    if precision not in DTYPES:
        raise UsageError(f"torch runs in {', '.join(DTYPES)}, not {precision!r}.", code="unknown-name")
    torch_device = choose_device(device)
    network = PixelNetwork(load_network(card, folder), card.preprocessing).eval().to(torch_device)
    return TorchForward(network, torch_device, precision), str(torch_device)


class TorchForward:
    """Function from pixels uint8 [n, h, w, c] to embeddings float32 [n, dim]; `network` is the one that it runs."""

    def __init__(self, pixel_network: PixelNetwork, device: torch.device, precision: str) -> None:
        self.network = pixel_network.network
        self._images, self._device = pixel_network.images, device
        self._forward = in_faster_format(self.network, device)
        self._dtype = DTYPES[precision]

    def __call__(self, pixels: np.ndarray) -> np.ndarray:
        with (
            torch.inference_mode(),
            torch.autocast(self._device.type, self._dtype, enabled=self._dtype != torch.float32),
        ):
            rows: np.ndarray = self._forward(self._images(_tensor(pixels).to(self._device))).float().cpu().numpy()
            return rows


def run_trunk(trunk: nn.Module, device: str | None = None) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function from normalised images float32 [n, c, h, w] to a trunk's pooled features float32 [n, f].

    Args:
        trunk: The trunk.
        device: As in `choose_device`.
    """
    torch_device = choose_device(device)
    forward = in_faster_format(trunk.eval().to(torch_device), torch_device)

    def run(images: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            features: np.ndarray = forward(_tensor(images).to(torch_device)).float().cpu().numpy()
            return features

    return run


def in_faster_format(module: nn.Module, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Return a function that runs a module on images [n, c, h, w] in the faster memory format.

    Which one that is depends on the network, on the processor and, by a factor of three, on what else the machine does.
    On a CPU it is measured on the first large batch; smaller ones before it run in torch's default format.

    Args:
        module: The module on the device.
        device: The device.
    """
    if device.type != "cpu":
        return module
    chosen: list[torch.memory_format] = []

    def run(images: Tensor) -> Tensor:
        if not chosen and len(images) >= MEASURING_BATCH:
            chosen.append(_faster_format(module, images[:MEASURED_IMAGES]))
        result: Tensor = module(images.contiguous(memory_format=chosen[0] if chosen else torch.contiguous_format))
        return result

    return run


def _faster_format(module: nn.Module, images: Tensor) -> torch.memory_format:
    forms = {form: images.contiguous(memory_format=form) for form in (torch.contiguous_format, torch.channels_last)}
    return fastest({form: lambda batch=batch: module(batch) for form, batch in forms.items()})  # type: ignore[misc]


def fastest(forms: Mapping[Name, Callable[[], object]], seconds: float = 1.0, rounds: int = 15) -> Name:
    """Return the name of the form with the least median time.

    The forms run in turn, so that all see the same load of the machine.

    Args:
        forms: The forms; each first runs once for its caches.
        seconds: The time after which no further round begins; at least two are run.
        rounds: The largest number of rounds: short forms need no full `seconds`.
    """
    for form in forms.values():
        form()
    times: dict[Name, list[float]] = {name: [] for name in forms}
    started = time.perf_counter()
    for number in range(rounds):
        if number >= 2 and time.perf_counter() - started >= seconds:
            break
        for name, form in forms.items():
            before = time.perf_counter()
            form()
            times[name].append(time.perf_counter() - before)
    return min(times, key=lambda name: statistics.median(times[name]))


def _tensor(pixels: np.ndarray) -> Tensor:
    """Return pixels as a tensor, copied if they are read-only: torch warns of such memory."""
    return torch.from_numpy(np.require(pixels, requirements="W"))


def choose_device(name: str | None = None) -> torch.device:
    """Return the torch device of a name; by default cuda if torch sees one, else cpu.

    Raises:
        UsageError: `unknown-name` for a name other than cpu, cuda and cuda:N, `device-unavailable` for a missing one.
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise UsageError(f"torch has no device {name!r}; use cpu, cuda or cuda:N.", code="unknown-name") from None
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"models run on cpu, cuda or cuda:N, not on {name!r}.", code="unknown-name")
    seen = torch.cuda.device_count() if device.type == "cuda" else 1
    if (device.index or 0) >= seen:
        raise UsageError(
            f"there is no device {name}: torch sees {seen} CUDA devices. Use device cpu.", code="device-unavailable"
        )
    return device

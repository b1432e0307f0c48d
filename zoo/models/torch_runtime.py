"""Run a model folder with torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from zoo.errors import UsageError
from zoo.models.card import Card
from zoo.models.network import Network, PixelNetwork, load_network

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def open_model(
    folder: Path, card: Card, precision: str = "fp32", device: str | None = None
) -> tuple[Callable[[np.ndarray], np.ndarray], str]:
    """A function from pixels uint8 [n, h, w, c] to embeddings float32 [n, dim], and the device it runs on."""
    if precision not in DTYPES:
        raise UsageError(f"torch runs in {', '.join(DTYPES)}, not {precision!r}.")
    chosen = choose_device(device)
    network = PixelNetwork(load_network(card, folder), card.preprocessing).eval().to(chosen)
    dtype = DTYPES[precision]

    def run(pixels: np.ndarray) -> np.ndarray:
        with torch.inference_mode(), torch.autocast(chosen.type, dtype, enabled=precision != "fp32"):
            out: np.ndarray = network(_tensor(pixels).to(chosen)).float().cpu().numpy()
            return out

    return run, str(chosen)


def _tensor(pixels: np.ndarray) -> torch.Tensor:
    """torch warns of memory that may not be written to, as a single image's."""
    return torch.from_numpy(np.require(pixels, requirements="W"))


def open_trunk(network: Network, card: Card, device: str | None = None) -> Callable[[np.ndarray], np.ndarray]:
    """A function from pixels uint8 [n, h, w, c] to the trunk's pooled features float32 [n, f], before any head."""
    chosen = choose_device(device)
    normalised = PixelNetwork(network, card.preprocessing).eval().to(chosen)

    def run(pixels: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            images = normalised.images(_tensor(pixels).to(chosen))
            out: np.ndarray = network.trunk(images).float().cpu().numpy()
            return out

    return run


def choose_device(name: str | None = None) -> torch.device:
    """The torch device of that name; by default cuda where torch sees one, else cpu."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise UsageError(f"torch knows no device {name!r}; use cpu, cuda or cuda:N.") from None
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"models run on cpu, cuda or cuda:N, not on {name!r}.")
    seen = torch.cuda.device_count() if device.type == "cuda" else 1
    if (device.index or 0) >= seen:
        raise UsageError(f"device {name} was asked for, but torch sees {seen} CUDA devices here. Use device cpu.")
    return device

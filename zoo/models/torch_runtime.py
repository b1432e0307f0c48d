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
    """Open a model folder's network.

    Args:
        folder: The model folder.
        card: Its card.
        precision: A key of `DTYPES`; half precisions run under autocast.
        device: As in `choose_device`.

    Returns:
        A function from pixels uint8 [n, h, w, c] to embeddings float32 [n, dim], and the device it runs on.

    Raises:
        UsageError: `unknown-precision`, or what `choose_device` raises.
        ModelFolderError: What `load_network` raises.
    """
    if precision not in DTYPES:
        raise UsageError(f"torch runs in {', '.join(DTYPES)}, not {precision!r}.", code="unknown-precision")
    torch_device = choose_device(device)
    network = PixelNetwork(load_network(card, folder), card.preprocessing).eval().to(torch_device)
    dtype = DTYPES[precision]

    def run(pixels: np.ndarray) -> np.ndarray:
        with torch.inference_mode(), torch.autocast(torch_device.type, dtype, enabled=precision != "fp32"):
            rows: np.ndarray = network(_tensor(pixels).to(torch_device)).float().cpu().numpy()
            return rows

    return run, str(torch_device)


def open_trunk(network: Network, card: Card, device: str | None = None) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function from pixels uint8 [n, h, w, c] to the trunk's pooled features float32 [n, f]."""
    torch_device = choose_device(device)
    normalised = PixelNetwork(network, card.preprocessing).eval().to(torch_device)

    def run(pixels: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            images = normalised.images(_tensor(pixels).to(torch_device))
            features: np.ndarray = network.trunk(images).float().cpu().numpy()
            return features

    return run


def _tensor(pixels: np.ndarray) -> torch.Tensor:
    """Return pixels as a tensor, copied if they are read-only: torch warns of such memory."""
    return torch.from_numpy(np.require(pixels, requirements="W"))


def choose_device(name: str | None = None) -> torch.device:
    """Return the torch device of a name; by default cuda if torch sees one, else cpu.

    Raises:
        UsageError: `unknown-device` for a name other than cpu, cuda and cuda:N, `no-such-device` for a missing one.
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise UsageError(f"torch has no device {name!r}; use cpu, cuda or cuda:N.", code="unknown-device") from None
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"models run on cpu, cuda or cuda:N, not on {name!r}.", code="unknown-device")
    seen = torch.cuda.device_count() if device.type == "cuda" else 1
    if (device.index or 0) >= seen:
        raise UsageError(
            f"there is no device {name}: torch sees {seen} CUDA devices. Use device cpu.", code="no-such-device"
        )
    return device

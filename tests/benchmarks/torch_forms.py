"""Forms of a model in torch: half precisions and compiled, which benchmarks measure on a GPU."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from zoo.models.load import Embedder, load

PRECISIONS = ("fp32", "fp16", "bf16")


def unavailable(device: str) -> str | None:
    """Return the reason for leaving out a device's rows, or None."""
    import torch

    gpu = torch.device(device).type == "cuda"
    return f"{device}: left out, torch sees no GPU" if gpu and not torch.cuda.is_available() else None


def torch_forms(folder: Path, device: str) -> dict[str, Embedder]:
    """Return the model that `zoo.load` gives in each precision, plain and compiled."""
    plain = {precision: load(folder, "torch", precision, device) for precision in PRECISIONS}
    named = {f"torch {precision} {device}": model for precision, model in plain.items()}
    return {**named, **{f"{name}, compiled": compiled(model) for name, model in named.items()}}


def compiled(model: Embedder) -> Embedder:
    """Return the model compiled by `torch.compile`."""
    import torch

    from zoo.models.network import PixelNetwork, load_network
    from zoo.models.torch_runtime import DTYPES

    device, dtype = torch.device(model.device), DTYPES[model.precision]
    network = PixelNetwork(load_network(model.card, model.folder), model.preprocessing).eval().to(device)
    fast = torch.compile(network)

    def run(pixels: np.ndarray) -> np.ndarray:
        with torch.inference_mode(), torch.autocast(device.type, dtype, enabled=model.precision != "fp32"):
            rows: np.ndarray = fast(torch.from_numpy(pixels).to(device)).float().cpu().numpy()
            return rows

    return dataclasses.replace(model, run=run)

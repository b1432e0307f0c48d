"""Scores of a network on the training classes that a run holds out."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from training.cached.maps import frozen_inputs
from training.cached.samples import CachedData, Samples
from training.checkpoint import check_embeddings
from zoo.data.preprocessing import Preprocessing
from zoo.evaluation import retrieval_metrics
from zoo.models.network import Network, PixelNetwork


def embed_pixels(
    network: Network,
    preprocessing: Preprocessing,
    pixels: np.ndarray,
    device: torch.device,
    maps: dict[str, Tensor] | None = None,
) -> np.ndarray:
    """Return the unit embeddings of pixels.

    Args:
        network: The network; its training mode is restored.
        preprocessing: The normalisation of the pixels.
        pixels: Uint8 [n, crop, crop, c].
        device: The device to compute on.
        maps: What frozen layers gave for the pixels (`training.cached.maps.frozen_inputs`).

    Returns:
        The embeddings, float32 [n, dim].
    """
    training = network.training
    model = PixelNetwork(network, preprocessing).eval().to(device)
    with torch.inference_mode():
        inputs, forward = frozen_inputs(model, pixels, device, maps)
        rows = [network.embed(forward(chunk)).float().cpu() for chunk in inputs]
    network.train(training)
    return torch.cat(rows).numpy()


def embed_cached(network: Network, features: np.ndarray, device: torch.device) -> np.ndarray:
    """Return unit embeddings float32 [n, dim] of pooled features float32 [n, f]."""
    with torch.inference_mode():
        rows = [network.embed(chunk.to(device)).cpu() for chunk in torch.from_numpy(features).split(4096)]
    return torch.cat(rows).numpy()


def embed_held_out(network: Network, data: Samples, preprocessing: Preprocessing, device: torch.device) -> np.ndarray:
    """Return a network's unit embeddings of the held-out images of `data.validation`, or of their features."""
    assert data.validation is not None
    inputs = data.validation[0]
    if isinstance(data, CachedData):
        return embed_cached(network, inputs, device)
    return embed_pixels(network, preprocessing, inputs, device, data.held_out_maps if data.maps else None)


def validation_scores(rows: np.ndarray, labels: np.ndarray, epoch: int) -> dict[str, float]:
    """Return R@1 and MAP@R of the embeddings of held-out training classes after an epoch.

    Raises:
        DivergedError: If the embeddings are not finite or have no direction.
    """
    check_embeddings(rows, f"the weights after epoch {epoch}")
    metrics = retrieval_metrics(rows, labels, k=(1,))
    return {name: metrics[name] for name in ("recall_at_1", "map_at_r")}

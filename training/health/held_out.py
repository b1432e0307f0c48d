"""Scores on the training classes that a run holds out: of a network, and of its trunk before training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
import torch
from torch import nn

from training.cached.maps import CachedMaps
from training.cached.samples import CachedData, CachedTrunk, Samples
from training.checkpoint import check_embeddings
from training.execution import Execution
from training.methods.base import Method
from training.recipe import Recipe
from zoo.evaluation import retrieval_metrics
from zoo.models.network import Network, PixelNetwork


class MonitoredRun(Protocol):
    """The part of a run that scores and indicators read.

    Attributes:
        recipe: Its recipe.
        data: Its samples.
        execution: Its device and processes.
        network: The network that learns.
        method: The method.
        maps: The cached maps of the frozen layers, if there are any.
        epoch: The number of finished epochs.
    """

    recipe: Recipe
    data: Samples
    execution: Execution
    network: Network
    method: Method
    maps: CachedMaps | None
    epoch: int


def embed_pixels(network: Network, recipe: Recipe, pixels: np.ndarray, device: torch.device) -> np.ndarray:
    """Return the unit embeddings of pixels.

    Args:
        network: The network; its training mode is restored.
        recipe: The recipe, for its preprocessing.
        pixels: Uint8 [n, crop, crop, c].
        device: The device to compute on.

    Returns:
        The embeddings, float32 [n, dim].
    """
    training = network.training
    model = PixelNetwork(network, recipe.preprocessing).eval().to(device)
    with torch.inference_mode():
        rows = [model(torch.from_numpy(chunk).to(device)).cpu() for chunk in _chunks(pixels, 256)]
    network.train(training)
    return torch.cat(rows).numpy()


def embed_cached(network: Network, features: np.ndarray, device: torch.device) -> np.ndarray:
    """Return unit embeddings float32 [n, dim] of pooled features float32 [n, f]."""
    with torch.inference_mode():
        rows = [network.embed(torch.from_numpy(chunk).to(device)).cpu() for chunk in _chunks(features, 4096)]
    return torch.cat(rows).numpy()


def validation_scores(run: MonitoredRun, network: Network) -> dict[str, float]:
    """Return R@1 and MAP@R of a network on the held-out training classes.

    Raises:
        DivergedError: If the embeddings are not finite or have no direction.
    """
    assert run.data.validation is not None
    inputs, labels = run.data.validation
    if isinstance(run.data, CachedData):
        rows = embed_cached(network, inputs, run.execution.device)
    else:
        rows = embed_pixels(network, run.recipe, inputs, run.execution.device)
    check_embeddings(rows, f"the weights after epoch {run.epoch}")
    metrics = retrieval_metrics(rows, labels, k=(1,))
    return {name: metrics[name] for name in ("recall_at_1", "map_at_r")}


def trunk_scores(run: MonitoredRun) -> dict[str, float]:
    """Return `validation_scores` of the trunk's pooled features; empty if the recipe holds out no classes."""
    if run.data.validation is None:
        return {}
    trunk = CachedTrunk(run.data.dim) if isinstance(run.data, CachedData) else run.network.trunk
    return validation_scores(run, Network(trunk, nn.ModuleDict()))


def _chunks(pixels: np.ndarray, size: int) -> Iterable[np.ndarray]:
    return (pixels[start : start + size] for start in range(0, len(pixels), size))

"""Small batches and index loops for the oracles of the losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from training.construction import construct
from training.functional import Triplets
from training.losses import LOSSES
from training.losses.base import MetricLoss

Naive = Callable[[np.ndarray, list[int]], float]
Oracle = Callable[[nn.Module, Tensor, list[int]], float]
"""Expected values as functions of the parameters. Losses that draw do so after torch.manual_seed(0)."""

LABELS = [0, 1, 0, 2, 1, 1, 3, 2, 1]
"""Classes with two, four, two and one sample, in mixed order."""
DIM = 5

BATCHES = {
    "one class": [0, 0, 0, 0],
    "no positive": [0, 1, 2, 3],
    "one positive pair": [0, 0, 1, 2],
    "a class of one": [0, 0, 0, 1],
    "two of each": [0, 1, 0, 1],
    "one sample": [2],
    "one pair alone": [1, 1],
}
ROWS = ("random", "duplicates", "zeros", "one zero", "flat", "opposite")


def batch(seed: int, labels: list[int], normalised: bool = True) -> tuple[Tensor, Tensor]:
    """Random embeddings float64 [n, DIM], unit rows where `normalised`, and labels int64 [n]."""
    rows = torch.randn(len(labels), DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return normalize(rows, dim=1) if normalised else rows, torch.tensor(labels)


def rows(kind: str, labels: list[int], unit: bool) -> Tensor:
    embeddings = batch(1, labels, unit)[0]
    if kind == "duplicates":
        return embeddings[:1].repeat(len(labels), 1)
    if kind == "zeros":
        return torch.zeros_like(embeddings)
    if kind == "one zero":
        embeddings[0] = 0
    if kind == "flat":
        return torch.full_like(embeddings, DIM**-0.5)
    if kind == "opposite":
        return embeddings[:1] * (-1.0) ** torch.arange(len(labels))[:, None]
    return embeddings


def create(name: str, classes: int = 4, seed: int = 0, **args: Any) -> MetricLoss:
    """The loss of that name in float64, with the constants of the recipes except for some."""
    torch.manual_seed(seed)
    loss: MetricLoss = construct(LOSSES, "loss", name, args, {"num_classes": classes, "embedding_size": DIM})
    return loss.double()


def normalised(name: str) -> bool:
    return create(name).normalize_embeddings


def positives(labels: list[int], a: int) -> list[int]:
    return [p for p in range(len(labels)) if p != a and labels[p] == labels[a]]


def negatives(labels: list[int], a: int) -> list[int]:
    return [n for n in range(len(labels)) if labels[n] != labels[a]]


def all_triplets(labels: list[int]) -> list[tuple[int, int, int]]:
    n = range(len(labels))
    return [(a, p, x) for a in n for p in positives(labels, a) for x in negatives(labels, a)]


def indices(triplets: list[tuple[int, int, int]]) -> Triplets:
    return Triplets(*torch.tensor(triplets, dtype=torch.int64).reshape(-1, 3).T)


def distance(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.sqrt(((x - y) ** 2).sum()))


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).sum(-1, keepdims=True))


def mean(values: list[float]) -> float:
    """0 of no values."""
    return sum(values) / max(1, len(values))


def above(values: list[float]) -> list[float]:
    return [max(0.0, value) for value in values]


def near(y: list[int]) -> list[tuple[int, int]]:
    return [(a, p) for a in range(len(y)) for p in positives(y, a)]


def far(y: list[int]) -> list[tuple[int, int]]:
    return [(a, n) for a in range(len(y)) for n in negatives(y, a)]


def nonzero(values: list[float]) -> float:
    """The mean of the terms above zero. What is less than rounding counts as zero."""
    return mean([value for value in values if value > 1e-7])


def of_pairs(naive: Naive) -> Oracle:
    return lambda loss, embeddings, y: naive(embeddings.numpy(), y)


def of_cosines(naive: Naive) -> Oracle:
    """naive: of the cosines of embeddings and class vectors, [b, classes]."""

    def oracle(loss: nn.Module, embeddings: Tensor, y: list[int]) -> float:
        (vectors,) = loss.parameters()
        return naive(embeddings.numpy() @ unit(vectors.detach().numpy()).T, y)

    return oracle

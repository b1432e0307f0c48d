"""Batches and naive loops that the miners' tests share."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

LABELS = [0, 0, 0, 1, 1, 2, 2, 2, 2, 3]


def rows(n: int, dim: int = 6, seed: int = 0, kind: str = "random") -> Tensor:
    """Unit rows [n, dim]; `equal`: n times the same; `zero`: all 0; `nan`: all NaN."""
    random = normalize(torch.randn(n, dim, generator=torch.Generator().manual_seed(seed)), dim=1)
    return {"random": random, "equal": random[:1].repeat(n, 1), "zero": torch.zeros(n, dim), "nan": random * torch.nan}[
        kind
    ]


def distance(embeddings: Tensor, i: int, j: int) -> float:
    e = embeddings.double().numpy()
    return float(np.sqrt(sum((x - y) ** 2 for x, y in zip(e[i], e[j], strict=True))))


def positives_of(labels: list[int], i: int) -> list[int]:
    return [j for j, label in enumerate(labels) if label == labels[i] and j != i]


def negatives_of(labels: list[int], i: int) -> list[int]:
    return [j for j, label in enumerate(labels) if label != labels[i]]


def complete(labels: list[int]) -> list[int]:
    """The samples with both a positive and a negative."""
    return [i for i in range(len(labels)) if positives_of(labels, i) and negatives_of(labels, i)]


def shares(drawn: Tensor, among: list[int]) -> None:
    """Assert that only these samples were drawn, and evenly, within five standard deviations."""
    counts = torch.bincount(drawn)
    assert set(counts.nonzero()[:, 0].tolist()) == set(among)
    share, n = 1 / len(among), len(drawn)
    np.testing.assert_allclose(counts[among] / n, share, atol=5 * (share * (1 - share) / n) ** 0.5 + 1e-9)

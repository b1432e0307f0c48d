"""Smooth-AP against loops, hand calculation and pytorch-metric-learning."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from pytorch_metric_learning import losses

from tests.training.losses.batches import LABELS, batch, mean, positives
from training.losses.smooth_ap import SmoothAPLoss


def sigmoid(x: float) -> float:
    return 0.5 + math.tanh(x / 2) / 2


def naive(s: np.ndarray, labels: list[int], temperature: float, query_counted: bool = False) -> float:
    """Equation 7, over the queries that have a positive."""
    terms = []
    for q in range(len(labels)):
        own = positives(labels, q) + ([q] if query_counted else [])
        others = [z for z in range(len(labels)) if query_counted or z != q]

        def rank(i: int, among: list[int], q: int = q) -> float:
            return 1 + sum(sigmoid((s[q, z] - s[q, i]) / temperature) for z in among if z != i)

        if positives(labels, q):
            terms.append(1 - mean([rank(i, own) / rank(i, others) for i in own]))
    return mean(terms)


@pytest.mark.parametrize("query_counted", [False, True])
@pytest.mark.parametrize("temperature", [0.01, 0.3])
@pytest.mark.parametrize("seed", range(3))
def test_equals_the_loop(seed: int, temperature: float, query_counted: bool) -> None:
    embeddings, y = batch(seed, LABELS)
    s = embeddings.numpy() @ embeddings.numpy().T
    actual = SmoothAPLoss(temperature, query_counted=query_counted)(embeddings, y).item()
    assert actual == pytest.approx(naive(s, LABELS, temperature, query_counted), abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_with_the_query_it_is_that_of_pytorch_metric_learning(seed: int) -> None:
    embeddings, y = batch(seed, [0, 0, 0, 1, 1, 1, 2, 2, 2])
    theirs = losses.SmoothAPLoss(temperature=0.05)(embeddings.float(), y).item()
    assert SmoothAPLoss(0.05)(embeddings, y).item() == pytest.approx(theirs, abs=1e-5)


def test_at_a_small_temperature_it_is_the_average_precision() -> None:
    """Query 0 at 0 degrees finds its positives at ranks 1 and 3: (1/1 + 2/3) / 2."""
    angles = torch.tensor([0.0, 10.0, 20.0, 30.0, 170.0]).deg2rad().double()
    rows = torch.stack([angles.cos(), angles.sin()], 1)
    labels = torch.tensor([0, 0, 1, 0, 2])
    # Query 1 finds 0 and 2 at equal similarity, then 3; query 3 finds 2, 1 and 0.
    expected = [(1 + 2 / 3) / 2, (1 / 1.5 + 2 / 3) / 2, (1 / 2 + 2 / 3) / 2]
    assert 1 - SmoothAPLoss(1e-4, query_counted=False)(rows, labels).item() == pytest.approx(mean(expected), abs=1e-9)

"""Histogram loss against loops and pytorch-metric-learning."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pytorch_metric_learning import losses

from tests.training.losses.batches import LABELS, batch, negatives, positives
from training.losses.histogram import HistogramLoss


def triangles(values: list[float], nodes: int) -> np.ndarray:
    """Each value's share of a node falls linearly to 0 at the next nodes."""
    step, at = 2 / (nodes - 1), np.linspace(-1, 1, nodes)
    return np.array([sum(max(0.0, 1 - abs(v - node) / step) for v in values) for node in at]) / len(values)


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")  # in pytorch-metric-learning
@pytest.mark.parametrize("nodes", [2, 11, 65])
@pytest.mark.parametrize("seed", range(3))
def test_equals_the_loop_and_pytorch_metric_learning(seed: int, nodes: int) -> None:
    labels = [0, 1, 0, 2, 1, 1, 3, 2, 1, 3]
    embeddings, y = batch(seed, labels)
    s = embeddings.numpy() @ embeddings.numpy().T
    near = triangles([s[a, p] for a in range(10) for p in positives(labels, a)], nodes)
    far = triangles([s[a, n] for a in range(10) for n in negatives(labels, a)], nodes)
    expected = sum(far[r] * near[q] for r in range(nodes) for q in range(r + 1))
    actual = HistogramLoss(nodes - 1)(embeddings, y).item()
    assert actual == pytest.approx(expected, abs=1e-12)
    # Theirs places the nodes in float32.
    assert actual == pytest.approx(losses.HistogramLoss(n_bins=nodes - 1)(embeddings, y).item(), abs=1e-6)


def test_a_class_with_one_sample_has_negative_pairs() -> None:
    embeddings, y = batch(3, LABELS)
    s = embeddings.numpy() @ embeddings.numpy().T
    near = triangles([s[a, p] for a in range(9) for p in positives(LABELS, a)], 65)
    far = triangles([s[a, n] for a in range(9) for n in negatives(LABELS, a)], 65)
    assert HistogramLoss(64)(embeddings, y).item() == pytest.approx(float(far @ near.cumsum()), abs=1e-12)


def test_separated_and_inverted_classes() -> None:
    rows = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]])
    assert HistogramLoss(64)(rows, torch.tensor([0, 0, 1, 1])).item() == 0
    # Every positive pair is opposite; half of the negative pairs coincide, half are opposite too.
    assert HistogramLoss(64)(rows, torch.tensor([0, 1, 0, 1])).item() == 1

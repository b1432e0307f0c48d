"""Triplet loss against loops and pytorch-metric-learning."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pytorch_metric_learning import distances, losses

from tests.training.losses.batches import LABELS, all_triplets, batch, distance, indices, mean
from training.losses.triplet import TripletMarginLoss


def naive(
    e: np.ndarray, triplets: list[tuple[int, int, int]], margin: float, squared: bool, active_only: bool
) -> float:
    power = 2 if squared else 1
    terms = [distance(e[a], e[p]) ** power - distance(e[a], e[n]) ** power + margin for a, p, n in triplets]
    return mean([max(0.0, x) for x in terms if x > 0 or not active_only])


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("active_only", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_over_all_triplets_equals_the_loop(seed: int, squared: bool, active_only: bool) -> None:
    embeddings, y = batch(seed, LABELS)
    loss = TripletMarginLoss(0.15, squared=squared, active_only=active_only)
    triplets = all_triplets(LABELS)
    expected = naive(embeddings.numpy(), triplets, 0.15, squared, active_only)
    assert loss(embeddings, y).item() == pytest.approx(expected, abs=1e-12)
    assert loss(embeddings, y, indices(triplets)).item() == pytest.approx(expected, abs=1e-12)
    few = triplets[::5]
    expected = naive(embeddings.numpy(), few, 0.15, squared, active_only)
    assert loss(embeddings, y, indices(few)).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("labels", [LABELS, [0, 0, 0, 0, 1], [0, 1] * 20, [k // 3 for k in range(40)]])
def test_equals_pytorch_metric_learning_in_value_and_gradient(labels: list[int], squared: bool) -> None:
    embeddings, y = batch(5, labels)
    reference = losses.TripletMarginLoss(0.2, distance=distances.LpDistance(power=2 if squared else 1))
    results = []
    for loss in (TripletMarginLoss(0.2, squared=squared), reference):
        rows = embeddings.clone().requires_grad_()
        value = loss(rows, y)
        # pytorch-metric-learning normalises once more: compare the gradients along the sphere.
        (gradient,) = torch.autograd.grad(value, rows)
        results.append((value, gradient - (gradient * embeddings).sum(1, keepdim=True) * embeddings))
    assert results[0][0].item() == pytest.approx(results[1][0].item(), abs=1e-9)
    assert torch.allclose(results[0][1], results[1][1], atol=1e-9)


def test_all_triplets_of_coinciding_rows() -> None:
    embeddings, _ = batch(6, [0, 1, 2])
    rows, labels = embeddings[[0, 1, 2, 0, 1, 2, 0, 1]], [0, 0, 0, 1, 1, 1, 2, 2]
    expected = naive(rows.numpy(), all_triplets(labels), 0.2, False, False)
    assert TripletMarginLoss(0.2, active_only=False)(rows, torch.tensor(labels)).item() == pytest.approx(
        expected, abs=1e-7
    )


def test_nothing_mined_is_a_loss_of_zero() -> None:
    embeddings, y = batch(1, [0, 1])
    assert TripletMarginLoss()(embeddings.requires_grad_(), y, indices([])).item() == 0

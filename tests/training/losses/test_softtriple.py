"""SoftTriple loss against loops and pytorch-metric-learning, and the published code's slips."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from pytorch_metric_learning import losses, regularizers

from tests.training.losses.batches import DIM, LABELS, batch, create, distance, mean, unit
from training.losses.softtriple import SoftTripleLoss


def trained(seed: int, centres: int = 3, **constants: float) -> SoftTripleLoss:
    torch.manual_seed(seed)
    return create("softtriple", seed=seed, centers_per_class=centres, **constants)


def naive(e: np.ndarray, w: np.ndarray, delta: float, gamma: float, scale: float, tau: float) -> float:
    k, classes, _ = w.shape
    terms = []
    for x, y in zip(e, LABELS, strict=True):
        s = np.zeros(classes)
        for c in range(classes):
            weights = [math.exp(x @ w[i, c] / gamma) for i in range(k)]
            s[c] = sum(weights[i] * (x @ w[i, c]) for i in range(k)) / sum(weights)
        s[y] -= delta
        terms.append(-math.log(math.exp(scale * s[y]) / sum(math.exp(scale * v) for v in s)))
    apart = sum(distance(w[i, c], w[j, c]) for c in range(classes) for j in range(k) for i in range(j))
    return mean(terms) + tau * apart / (classes * k * (k - 1))


@pytest.mark.parametrize("seed", range(3))
def test_equals_the_loop_and_pytorch_metric_learning(seed: int) -> None:
    embeddings, y = batch(seed, LABELS)
    loss = trained(seed, margin=0.1, gamma=0.2, la=5, tau=0.3)
    expected = naive(embeddings.numpy(), unit(loss.centres.detach().numpy()), 0.1, 0.2, 5, 0.3)
    assert loss(embeddings, y).item() == pytest.approx(expected, abs=1e-12)
    reference = losses.SoftTripleLoss(
        4,
        DIM,
        centers_per_class=3,
        la=5,
        gamma=0.2,
        margin=0.1,
        weight_regularizer=regularizers.SparseCentersRegularizer(4, 3),
        weight_reg_weight=0.3,
    )
    reference.fc.data = loss.centres.data.permute(2, 1, 0).reshape(DIM, 12)
    # The library has a small constant under the root.
    assert loss(embeddings, y).item() == pytest.approx(reference(embeddings, y).item(), abs=1e-5)


def test_a_class_is_as_near_as_its_nearest_centre_for_small_gamma() -> None:
    # The published code multiplies by gamma and takes the softmax over classes: neither has this limit.
    embeddings, y = batch(4, LABELS)
    loss = trained(4, gamma=1e-4, tau=0, margin=0, la=1)
    w = torch.nn.functional.normalize(loss.centres, dim=2)
    nearest = torch.einsum("bd,kcd->kbc", embeddings, w).amax(0)
    expected = torch.nn.functional.cross_entropy(nearest, y)
    assert loss(embeddings, y).item() == pytest.approx(expected.item(), abs=1e-9)


def test_the_length_of_a_centre_has_no_effect() -> None:
    # The published code normalises the dimensions over the centres.
    embeddings, y = batch(5, LABELS)
    loss = trained(5)
    before = loss(embeddings, y).item()
    loss.centres.data[1, 2] *= 7
    assert loss(embeddings, y).item() == pytest.approx(before, abs=1e-12)


def test_one_centre_is_a_softmax_with_margin() -> None:
    embeddings, y = batch(6, LABELS)
    loss = trained(6, centres=1, margin=0, la=3)
    w = torch.nn.functional.normalize(loss.centres[0], dim=1)
    expected = torch.nn.functional.cross_entropy(3 * embeddings @ w.T, y)
    assert loss(embeddings, y).item() == pytest.approx(expected.item(), abs=1e-12)

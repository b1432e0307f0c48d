"""Angular loss against loops and pytorch-metric-learning."""

from __future__ import annotations

import math

import numpy as np
import pytest
from pytorch_metric_learning import losses

from tests.training.losses.batches import LABELS, batch, create, mean, negatives, unit


def naive(e: np.ndarray, pairs: list[tuple[int, int]], candidates: list[list[int]], alpha: float) -> float:
    tan2, terms = math.tan(math.radians(alpha)) ** 2, []
    for (a, p), others in zip(pairs, candidates, strict=True):
        exponents = [4 * tan2 * (e[a] + e[p]) @ e[n] - 2 * (1 + tan2) * e[a] @ e[p] for n in others]
        terms.append(math.log(1 + sum(math.exp(x) for x in exponents)))
    return mean(terms)


@pytest.mark.parametrize("alpha", [30, 45])
@pytest.mark.parametrize("seed", range(3))
def test_one_pair_a_class_equals_the_loop(seed: int, alpha: float) -> None:
    embeddings, y = batch(seed, LABELS, normalised=False)
    e = embeddings.numpy()
    angular = naive(unit(e), [(0, 2), (1, 4), (3, 7)], [[4, 7], [2, 7], [2, 4]], alpha)
    length = mean([float(x @ x) for x in e])
    expected = create("npair", nu=0, pairs="first")(embeddings, y).item() + 3 * angular + 0.01 * length
    actual = create("angular", alpha=alpha, weight=3, nu=0.01, pairs="first")(embeddings, y).item()
    assert actual == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_every_sample_is_an_anchor_against_all_of_other_classes(seed: int) -> None:
    labels = [0, 1, 2, 1, 0, 3]
    embeddings, y = batch(seed, labels, normalised=False)
    e, pairs = embeddings.numpy(), [(0, 4), (1, 3), (3, 1), (4, 0)]
    angular = naive(unit(e), pairs, [negatives(labels, a) for a, _ in pairs], 45)
    expected = create("npair")(embeddings, y).item() + 2 * angular
    assert create("angular")(embeddings, y).item() == pytest.approx(expected, abs=1e-12)


def test_equals_pytorch_metric_learning() -> None:
    # It has the angular term alone, over all positive pairs: with two samples per class, ours. It does not normalise
    # the negatives: compare on unit embeddings.
    embeddings, y = batch(3, [0, 1, 2, 2, 0, 1])
    actual = create("angular", weight=1, nu=0, npair_weight=0)(embeddings, y)
    assert actual.item() == pytest.approx(losses.AngularLoss(alpha=45)(embeddings, y).item(), abs=1e-9)

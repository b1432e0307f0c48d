"""NT-Xent against loops and pytorch-metric-learning."""

from __future__ import annotations

import math

import pytest
from pytorch_metric_learning import losses

from tests.training.losses.batches import LABELS, batch, mean, negatives, positives
from training.losses.nt_xent import NTXentLoss
from training.losses.supcon import SupConLoss


@pytest.mark.parametrize("temperature", [0.1, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_equals_the_loop_and_pytorch_metric_learning(seed: int, temperature: float) -> None:
    embeddings, y = batch(seed, LABELS)
    near = (embeddings.numpy() @ embeddings.numpy().T / temperature).__array__()
    terms = []
    for a in range(9):
        others = sum(math.exp(near[a, n]) for n in negatives(LABELS, a))
        terms += [-math.log(math.exp(near[a, p]) / (math.exp(near[a, p]) + others)) for p in positives(LABELS, a)]
    actual = NTXentLoss(temperature)(embeddings, y).item()
    assert actual == pytest.approx(mean(terms), abs=1e-12)
    assert actual == pytest.approx(losses.NTXentLoss(temperature)(embeddings, y).item(), abs=1e-9)


def test_one_positive_equals_supcon() -> None:
    embeddings, y = batch(3, [0, 1, 2, 1, 0, 2])
    assert NTXentLoss(0.1)(embeddings, y).item() == pytest.approx(SupConLoss()(embeddings, y).item(), abs=1e-12)

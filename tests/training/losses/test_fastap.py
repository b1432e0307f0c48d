"""FastAP against loops and pytorch-metric-learning."""

from __future__ import annotations

import numpy as np
import pytest
from pytorch_metric_learning import losses

from tests.training.losses.batches import LABELS, batch, distance, mean, negatives, positives
from training.losses.fastap import FastAPLoss


@pytest.mark.parametrize("bins", [1, 10, 25])
@pytest.mark.parametrize("seed", range(3))
def test_equals_the_loop_and_pytorch_metric_learning(seed: int, bins: int) -> None:
    embeddings, y = batch(seed, LABELS)
    e, step, terms = embeddings.numpy(), 4 / bins, []
    for a in range(len(LABELS)):
        if not positives(LABELS, a):
            continue
        near, every = np.zeros(bins + 1), np.zeros(bins + 1)
        for x in positives(LABELS, a) + negatives(LABELS, a):
            shares = np.maximum(0, 1 - abs(distance(e[a], e[x]) ** 2 - np.linspace(0, 4, bins + 1)) / step)
            every += shares
            near += shares * (LABELS[x] == LABELS[a])
        result = [near[i] * near[: i + 1].sum() / every[: i + 1].sum() for i in range(bins + 1) if near[i] > 0]
        terms.append(1 - sum(result) / len(positives(LABELS, a)))
    actual = FastAPLoss(bins)(embeddings, y).item()
    assert actual == pytest.approx(mean(terms), abs=1e-12)
    assert actual == pytest.approx(losses.FastAPLoss(num_bins=bins)(embeddings, y).item(), abs=1e-9)

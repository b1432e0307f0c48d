"""Circle loss against loops and pytorch-metric-learning."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from pytorch_metric_learning import losses

from tests.training.losses.batches import LABELS, batch, mean, negatives, positives
from training.losses.circle import CircleLoss


def naive(s: np.ndarray, weights: np.ndarray, margin: float, gamma: float) -> float:
    """Return the loss of cosines s; the weights are functions of the cosines `weights`."""
    terms = []
    for a in range(len(LABELS)):
        if not positives(LABELS, a):
            continue
        pull = [
            math.exp(-gamma * max(0.0, 1 + margin - weights[a, p]) * (s[a, p] - 1 + margin))
            for p in positives(LABELS, a)
        ]
        push = [math.exp(gamma * max(0.0, weights[a, n] + margin) * (s[a, n] - margin)) for n in negatives(LABELS, a)]
        terms.append(math.log(1 + sum(pull) * sum(push)))
    return mean(terms)


@pytest.mark.parametrize(("margin", "gamma"), [(0.4, 80), (0.25, 5)])
@pytest.mark.parametrize("seed", range(3))
def test_equals_the_loop_and_pytorch_metric_learning(seed: int, margin: float, gamma: float) -> None:
    embeddings, y = batch(seed, LABELS)
    s = embeddings.numpy() @ embeddings.numpy().T
    actual = CircleLoss(margin, gamma)(embeddings, y).item()
    assert actual == pytest.approx(naive(s, s, margin, gamma), abs=1e-10)
    assert actual == pytest.approx(losses.CircleLoss(margin, gamma)(embeddings, y).item(), abs=1e-9)


def test_the_weights_pass_no_gradient() -> None:
    embeddings, y = batch(3, LABELS)
    rows = embeddings.clone().requires_grad_()
    loss = CircleLoss(0.25, 5)
    loss.normalize_embeddings = False
    loss(rows, y).backward()
    still = (embeddings @ embeddings.T).numpy()
    for i, k in ((0, 1), (4, 0), (6, 3)):
        step = torch.zeros_like(embeddings)
        step[i, k] = 1e-5
        up, down = ((moved @ moved.T).numpy() for moved in (embeddings + step, embeddings - step))
        slope = (naive(up, still, 0.25, 5) - naive(down, still, 0.25, 5)) / 2e-5
        assert rows.grad is not None
        assert rows.grad[i, k].item() == pytest.approx(slope, abs=1e-6)

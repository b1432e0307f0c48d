"""Contrastive loss against loops and pytorch-metric-learning."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pytorch_metric_learning import losses, reducers

from tests.training.losses.batches import LABELS, all_triplets, batch, distance, indices, mean, negatives, positives
from training.functional import Pairs
from training.losses.contrastive import ContrastiveLoss


def naive(
    e: np.ndarray, near: list[tuple[int, int]], far: list[tuple[int, int]], margins: tuple[float, float], active: bool
) -> float:
    above = [max(0.0, distance(e[a], e[p]) - margins[0]) for a, p in near]
    below = [max(0.0, margins[1] - distance(e[a], e[n])) for a, n in far]
    if active:
        above, below = [x for x in above if x > 0], [x for x in below if x > 0]
    return mean(above) + mean(below)


@pytest.mark.parametrize("active_only", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_equals_the_loop_and_pytorch_metric_learning(seed: int, active_only: bool) -> None:
    embeddings, y = batch(seed, LABELS)
    near = [(a, p) for a in range(9) for p in positives(LABELS, a)]
    far = [(a, n) for a in range(9) for n in negatives(LABELS, a)]
    actual = ContrastiveLoss(0.9, 1.3, active_only=active_only)(embeddings, y).item()
    assert actual == pytest.approx(naive(embeddings.numpy(), near, far, (0.9, 1.3), active_only), abs=1e-12)
    reducer = None if active_only else reducers.MeanReducer()
    reference = losses.ContrastiveLoss(pos_margin=0.9, neg_margin=1.3, reducer=reducer)
    assert actual == pytest.approx(reference(embeddings, y).item(), abs=1e-9)


@pytest.mark.parametrize("active_only", [False, True])
def test_over_triplets_and_over_pairs(active_only: bool) -> None:
    embeddings, y = batch(4, LABELS)
    triplets = all_triplets(LABELS)[::7]
    near, far = [(a, p) for a, p, _ in triplets], [(a, n) for a, _, n in triplets]
    loss = ContrastiveLoss(0.5, 1.2, active_only=active_only)
    expected = naive(embeddings.numpy(), near, far, (0.5, 1.2), active_only)
    assert loss(embeddings, y, indices(triplets)).item() == pytest.approx(expected, abs=1e-12)
    pairs = Pairs(*torch.tensor(near[:3]).T, *torch.tensor(far).T)
    expected = naive(embeddings.numpy(), near[:3], far, (0.5, 1.2), active_only)
    assert loss(embeddings, y, pairs).item() == pytest.approx(expected, abs=1e-12)


def test_by_hand() -> None:
    embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    # 0 and 1 are sqrt 2 apart; 2 is sqrt 0.8 from 0 and sqrt 0.4 from 1: [1 - sqrt .8]+ and [1 - sqrt .4]+.
    expected = 2**0.5 + ((1 - 0.8**0.5) + (1 - 0.4**0.5)) / 2
    assert ContrastiveLoss(active_only=False)(embeddings, torch.tensor([0, 0, 1])).item() == pytest.approx(
        expected, abs=1e-6
    )

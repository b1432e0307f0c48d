"""SNR losses against loops and pytorch-metric-learning."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pytorch_metric_learning import distances, losses, regularizers

from tests.training.losses.batches import LABELS, all_triplets, batch, indices, mean, negatives, positives
from training.functional import Pairs
from training.losses.snr import SignalToNoiseRatioContrastiveLoss, SNRTripletLoss


def snr(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.var(x - y) / np.var(x))


def off_centre(e: np.ndarray) -> float:
    return mean([abs(sum(row)) for row in e])


@pytest.mark.parametrize("active_only", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_triplet_form_equals_the_loop(seed: int, active_only: bool) -> None:
    embeddings, y = batch(seed, LABELS)
    e, loss = embeddings.numpy(), SNRTripletLoss(0.3, 0.01, active_only)
    for triplets in (all_triplets(LABELS), all_triplets(LABELS)[::4]):
        terms = [snr(e[a], e[p]) - snr(e[a], e[n]) + 0.3 for a, p, n in triplets]
        expected = mean([max(0.0, x) for x in terms if x > 0 or not active_only]) + 0.01 * off_centre(e)
        assert loss(embeddings, y, indices(triplets)).item() == pytest.approx(expected, abs=1e-12)
        if len(triplets) == len(all_triplets(LABELS)):
            assert loss(embeddings, y).item() == pytest.approx(expected, abs=1e-11)


@pytest.mark.parametrize("active_only", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_contrastive_form_equals_the_loop(seed: int, active_only: bool) -> None:
    embeddings, y = batch(seed, LABELS)
    e, loss = embeddings.numpy(), SignalToNoiseRatioContrastiveLoss(0.5, 1.9, nu=0.01, active_only=active_only)
    near = [(a, p) for a in range(9) for p in positives(LABELS, a)]
    far = [(a, n) for a in range(9) for n in negatives(LABELS, a)]
    for step in (1, 3):
        above = [snr(e[a], e[p]) - 0.5 for a, p in near[::step]]
        below = [1.9 - snr(e[a], e[n]) for a, n in far[::step]]
        expected = sum(mean([max(0.0, x) for x in xs if x > 0 or not active_only]) for xs in (above, below))
        pairs = Pairs(*torch.tensor(near[::step]).T, *torch.tensor(far[::step]).T)
        assert loss(embeddings, y, pairs).item() == pytest.approx(expected + 0.01 * off_centre(e), abs=1e-12)
        if step == 1:
            assert loss(embeddings, y).item() == pytest.approx(expected + 0.01 * off_centre(e), abs=1e-11)


def test_equal_pytorch_metric_learning() -> None:
    embeddings, y = batch(3, LABELS)
    centring = {"embedding_regularizer": regularizers.ZeroMeanRegularizer(), "embedding_reg_weight": 0.01}
    reference = losses.SignalToNoiseRatioContrastiveLoss(pos_margin=0.1, neg_margin=2, **centring)
    actual = SignalToNoiseRatioContrastiveLoss(0.1, 2, nu=0.01)
    assert actual(embeddings, y).item() == pytest.approx(reference(embeddings, y).item(), abs=1e-9)
    reference = losses.TripletMarginLoss(0.2, distance=distances.SNRDistance(), **centring)
    actual = SNRTripletLoss(0.2, 0.01, active_only=True)
    assert actual(embeddings, y).item() == pytest.approx(reference(embeddings, y).item(), abs=1e-9)


@pytest.mark.parametrize("mined", [True, False])
def test_nothing_active_is_zero_and_not_nan(mined: bool) -> None:
    # The published code divides by the number of active triplets.
    rows = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    triplets = indices([(0, 1, 2), (1, 0, 2)]) if mined else None
    assert SNRTripletLoss(nu=0, active_only=True)(rows, torch.tensor([0, 0, 1]), triplets).item() == 0

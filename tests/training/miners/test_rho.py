from __future__ import annotations

import pytest
import torch

from tests.training.miners.batches import LABELS, rows
from training.miners.hard import Hard
from training.miners.rho import Rho

EMBEDDINGS, Y = rows(len(LABELS)), torch.tensor(LABELS)


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("probability", [0.15, 0.35, 0.4])
def test_the_rate_of_exchange_and_its_form(probability: float, published: bool) -> None:
    torch.manual_seed(0)
    a, p, n = Hard()(EMBEDDINGS, Y)
    miner, exchanged, times = Rho(probability, Hard(), published), 0, 800
    for _ in range(times):
        anchors, positives, negatives = miner(EMBEDDINGS, Y)
        swapped = Y[anchors] == Y[negatives]
        assert torch.equal(anchors, a)
        assert torch.equal(negatives, torch.where(swapped, p, n))
        assert torch.equal(positives, torch.where(swapped, a, p) if published else p)
        exchanged += int(swapped.sum())
    tuples = times * len(a)
    assert exchanged / tuples == pytest.approx(probability, abs=5 * (probability * (1 - probability) / tuples) ** 0.5)


@pytest.mark.parametrize(("probability", "rate"), [(0, 0.0), (1, 1.0)])
def test_never_and_always(probability: float, rate: float) -> None:
    anchors, _, negatives = Rho(probability)(EMBEDDINGS, Y)
    assert (Y[anchors] == Y[negatives]).double().mean() == rate

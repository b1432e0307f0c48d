"""Supervised contrastive loss against loops and pytorch-metric-learning."""

from __future__ import annotations

import math

import pytest
from pytorch_metric_learning import losses

from tests.training.losses.batches import LABELS, batch, mean, positives
from training.losses.supcon import SupConLoss


@pytest.mark.parametrize("temperature", [0.1, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_equals_the_loop_and_pytorch_metric_learning(seed: int, temperature: float) -> None:
    embeddings, y = batch(seed, LABELS)
    logits = embeddings.numpy() @ embeddings.numpy().T / temperature
    terms = []
    for a in range(9):
        every = sum(math.exp(logits[a, x]) for x in range(9) if x != a)
        if positives(LABELS, a):
            terms.append(mean([-math.log(math.exp(logits[a, p]) / every) for p in positives(LABELS, a)]))
    actual = SupConLoss(temperature)(embeddings, y).item()
    assert actual == pytest.approx(mean(terms), abs=1e-12)
    assert actual == pytest.approx(losses.SupConLoss(temperature)(embeddings, y).item(), abs=1e-9)


def test_a_batch_of_one_class_has_intra_class_triplets() -> None:
    # pytorch-metric-learning gives 0 without negatives; the equation does not need them.
    embeddings, y = batch(3, [0, 0])
    assert SupConLoss()(embeddings, y).item() == pytest.approx(0, abs=1e-12)
    embeddings, y = batch(3, [0, 0, 0])
    assert SupConLoss()(embeddings, y).item() > math.log(2)

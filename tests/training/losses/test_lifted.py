"""Generalised lifted structure loss against loops and pytorch-metric-learning."""

from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning import distances, losses, regularizers

from tests.training.losses.batches import LABELS, batch, create, distance, mean, negatives, positives


@pytest.mark.parametrize("squared_norm", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_equals_the_loop(seed: int, squared_norm: bool) -> None:
    embeddings, y = batch(seed, LABELS, normalised=False)
    e, terms = embeddings.numpy(), []
    for a in range(len(LABELS)):
        if positives(LABELS, a):
            pulled = math.log(sum(math.exp(distance(e[a], e[p])) for p in positives(LABELS, a)))
            pushed = math.log(sum(math.exp(0.7 - distance(e[a], e[n])) for n in negatives(LABELS, a)))
            terms.append(max(0.0, pulled + pushed))
    lengths = [math.sqrt(sum(x * x)) ** (2 if squared_norm else 1) for x in e]
    actual = create("lifted", neg_margin=0.7, nu=0.01, squared_norm=squared_norm)(embeddings, y)
    assert actual.item() == pytest.approx(mean(terms) + 0.01 * mean(lengths), abs=1e-12)


@pytest.mark.parametrize("squared_norm", [True, False])
def test_equals_pytorch_metric_learning(squared_norm: bool) -> None:
    # Every class has two samples: pytorch-metric-learning also counts anchors without a positive.
    embeddings, y = batch(4, [0, 1, 1, 2, 0, 2, 2], normalised=False)
    reference = losses.GeneralizedLiftedStructureLoss(
        neg_margin=1,
        distance=distances.LpDistance(normalize_embeddings=False),
        embedding_regularizer=regularizers.LpRegularizer(power=2 if squared_norm else 1),
        embedding_reg_weight=0.005,
    )
    actual = create("lifted", squared_norm=squared_norm)
    assert actual(embeddings, y).item() == pytest.approx(reference(embeddings, y).item(), abs=1e-9)


def test_long_embeddings_do_not_overflow() -> None:
    embeddings, y = batch(5, LABELS, normalised=False)
    assert torch.isfinite(create("lifted")(1e4 * embeddings.float(), y))

"""Quadruplet loss against loops, and how its second negative is drawn."""

from __future__ import annotations

import pytest
import torch

from tests.training.losses.batches import LABELS, all_triplets, batch, distance, indices, mean, negatives
from training.functional import Quadruplets
from training.losses.quadruplet import QuadrupletLoss, add_second_negatives, draw_other_class

QUADRUPLETS = [
    (a, p, n, other) for a, p, n in all_triplets(LABELS) for other in negatives(LABELS, a) if LABELS[other] != LABELS[n]
]


@pytest.mark.parametrize("squared", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_equals_the_loop(seed: int, squared: bool) -> None:
    embeddings, y = batch(seed, LABELS)
    e, power = embeddings.numpy(), 2 if squared else 1
    chosen = QUADRUPLETS[seed::5]
    first = [distance(e[a], e[p]) ** power - distance(e[a], e[n]) ** power + 0.3 for a, p, n, _ in chosen]
    second = [distance(e[a], e[p]) ** power - distance(e[n], e[m]) ** power + 0.1 for a, p, n, m in chosen]
    expected = mean([max(0.0, x) for x in first]) + mean([max(0.0, x) for x in second])
    loss = QuadrupletLoss(0.3, 0.1, **({"squared": True} if squared else {}))
    actual = loss(embeddings, y, Quadruplets(*torch.tensor(chosen).T))
    assert actual.item() == pytest.approx(expected, abs=1e-12)


def test_the_second_negative_is_any_sample_of_a_third_class() -> None:
    y, triplets = torch.tensor(LABELS), indices(all_triplets(LABELS))
    torch.manual_seed(0)
    drawn = {tuple(row) for _ in range(100) for row in torch.stack(add_second_negatives(y, triplets), 1).tolist()}
    # The published rule, which only avoids the index n, would also give samples of the anchor's and of n's class.
    assert drawn == set(QUADRUPLETS)


def test_draws_are_even() -> None:
    labels = torch.tensor(LABELS)
    torch.manual_seed(0)
    drawn = draw_other_class(labels, torch.zeros(6000, dtype=torch.int64), torch.full((6000,), 2))
    counts = torch.bincount(drawn, minlength=9)
    assert counts.nonzero().squeeze(1).tolist() == [1, 4, 5, 6, 8]
    assert (counts[counts > 0] - 1200).abs().max() < 150


def test_without_a_third_class_only_the_first_term_remains() -> None:
    labels = [0, 0, 1, 1]
    embeddings, y = batch(0, labels)
    triplets = indices(all_triplets(labels))
    assert add_second_negatives(y, triplets).others.tolist() == [-1] * len(triplets.anchors)
    e = embeddings.numpy()
    first = [distance(e[a], e[p]) - distance(e[a], e[n]) + 0.2 for a, p, n in all_triplets(labels)]
    actual = QuadrupletLoss()(embeddings, y, triplets)
    assert actual.item() == pytest.approx(mean([max(0.0, x) for x in first]), abs=1e-12)


def test_without_tuples_every_positive_pair_gets_negatives() -> None:
    y = torch.tensor(LABELS)
    a, p, n, other = add_second_negatives(y, None)
    assert len(a) == 2 + 4 * 3 + 2
    assert (y[a] == y[p]).all()
    assert (a != p).all()
    assert (y[a] != y[n]).all()
    assert ((y[other] != y[a]) & (y[other] != y[n])).all()

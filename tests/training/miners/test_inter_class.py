from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.training.miners.batches import LABELS, distance, negatives_of, rows, shares
from training.miners.distance_weighted import DistanceWeightedMiner
from training.miners.inter_class import InterClassMiner

EMBEDDINGS, Y = rows(len(LABELS), seed=4), torch.tensor(LABELS)


def actual(miner: InterClassMiner, times: int = 125, labels: torch.Tensor = Y, copies: int = 20) -> torch.Tensor:
    """Triplets of the ten samples, int64 [3, 10 * copies * times].

    All are of different classes, so that copies of the batch, mined together, change no share of a sample.
    """
    torch.manual_seed(0)
    embeddings, labels = EMBEDDINGS.repeat(copies, 1), labels.repeat(copies)
    return torch.cat([torch.stack(miner(embeddings, labels)) for _ in range(times)], dim=1) % len(LABELS)


def test_positive_and_negative_are_drawn_by_distance() -> None:
    # Algorithm 1: x_i, x_j, x_k ~ 1 / q, by a loop over q(d) = d^(D-2) (1 - d^2/4)^((D-3)/2).
    drawn = actual(InterClassMiner(), 250)
    dim = EMBEDDINGS.shape[1]

    def weight(a: int, i: int) -> float:
        d = distance(EMBEDDINGS, a, i)
        clamped = max(d, 0.5)
        return 0.0 if d > 1.4 else 1 / (clamped ** (dim - 2) * (1 - clamped**2 / 4) ** ((dim - 3) / 2))

    for a in (0, 9):
        others = negatives_of(LABELS, a)
        weights = np.array([weight(a, i) if i in others else 0.0 for i in range(10)])
        share = torch.bincount(drawn[1, drawn[0] == a], minlength=10).numpy() / int((drawn[0] == a).sum())
        np.testing.assert_allclose(share, weights / weights.sum(), atol=0.03)


def test_a_random_positive_is_any_of_another_class_and_the_negative_is_drawn_by_distance() -> None:
    drawn = actual(InterClassMiner("random"))
    for a in (0, 9):
        of_anchor = drawn[:, drawn[0] == a]
        shares(of_anchor[1], negatives_of(LABELS, a))
        p = 3 if a == 0 else 6
        negatives = of_anchor[2, of_anchor[1] == p]
        remaining = torch.tensor([label not in (LABELS[a], LABELS[p]) for label in LABELS])
        weights = DistanceWeightedMiner().weights(EMBEDDINGS, remaining.expand(10, 10))[a].double()
        share = torch.bincount(negatives, minlength=10) / len(negatives)
        np.testing.assert_allclose(share, weights / weights.sum(), atol=0.12)
        assert set(negatives.tolist()) == set((weights > 1e-34).nonzero()[:, 0].tolist())


@pytest.mark.parametrize("negative", ["semihard", "random"])
def test_the_other_set_ups(negative: str) -> None:
    drawn = actual(InterClassMiner("nearest", negative, margin=0.3), 40)
    for a in range(len(LABELS)):
        p = min(negatives_of(LABELS, a), key=lambda j: distance(EMBEDDINGS, a, j))
        assert (drawn[1, drawn[0] == a] == p).all()
        d_ap = distance(EMBEDDINGS, a, p)
        remaining = [n for n in negatives_of(LABELS, a) if LABELS[n] != LABELS[p]]
        semihard = [n for n in remaining if d_ap < distance(EMBEDDINGS, a, n) < d_ap + 0.3]
        shares(drawn[2, drawn[0] == a], (semihard or remaining) if negative == "semihard" else remaining)


def test_without_constraints_any_three_samples_form_a_triplet() -> None:
    drawn = actual(InterClassMiner("random", "random"), 40, labels=torch.arange(10))
    of_anchor = drawn[:, drawn[0] == 0]
    shares(of_anchor[1], list(range(1, 10)))
    shares(of_anchor[2, of_anchor[1] == 5], [1, 2, 3, 4, 6, 7, 8, 9])

from __future__ import annotations

import numpy as np
import torch

from tests.training.miners.batches import LABELS, positives_of, rows, shares
from training.miners.distance_weighted import DistanceWeightedMiner
from training.miners.intra_class import IntraClassMiner

EMBEDDINGS, Y = rows(len(LABELS), seed=5), torch.tensor(LABELS)


def actual(miner: IntraClassMiner) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.cat([torch.stack(miner(EMBEDDINGS, Y)) for _ in range(2500)], dim=1)


def test_evenly() -> None:
    drawn = actual(IntraClassMiner(by_distance=False))
    assert set(drawn[0].tolist()) == {0, 1, 2, 5, 6, 7, 8}
    for a in (0, 5):
        of_anchor = drawn[:, drawn[0] == a]
        shares(of_anchor[1], positives_of(LABELS, a))
        p = positives_of(LABELS, a)[0]
        shares(of_anchor[2, of_anchor[1] == p], [j for j in positives_of(LABELS, a) if j != p])


def test_by_distance() -> None:
    drawn = actual(IntraClassMiner())
    negatives = drawn[2, (drawn[0] == 5) & (drawn[1] == 6)]
    others = torch.zeros(10, 10, dtype=torch.bool)
    others[5, [7, 8]] = True
    weights = DistanceWeightedMiner().weights(EMBEDDINGS, others)[5].double()
    share = torch.bincount(negatives, minlength=10) / len(negatives)
    np.testing.assert_allclose(share, weights / weights.sum(), atol=0.1)

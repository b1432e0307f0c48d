"""Semihard mining against a float64 loop and pytorch-metric-learning's set of all semihard triplets."""

from __future__ import annotations

import pytest
import torch
from pytorch_metric_learning import miners as pml_miners

from tests.training.miners.batches import LABELS, complete, distance, negatives_of, positives_of, rows, shares
from training.miners.semihard import SemihardMiner


@pytest.mark.parametrize(("seed", "margin"), [(0, 0.2), (1, 0.05), (2, 0.6)])
def test_negatives_are_drawn_evenly_from_the_semihard_ones(seed: int, margin: float) -> None:
    torch.manual_seed(0)
    embeddings, y, miner = rows(len(LABELS), seed=seed), torch.tensor(LABELS), SemihardMiner(margin)
    drawn = torch.cat([torch.stack(miner(embeddings, y)) for _ in range(1500)], dim=1)
    reference = pml_miners.TripletMarginMiner(margin=margin, type_of_triplets="semihard")(embeddings, y)
    published = set(zip(*(field.tolist() for field in reference), strict=True))
    for a in complete(LABELS):
        for p in positives_of(LABELS, a):
            negatives = negatives_of(LABELS, a)
            d_ap = distance(embeddings, a, p)
            semihard = [n for n in negatives if d_ap < distance(embeddings, a, n) < d_ap + margin]
            assert set(semihard) == {n for n in negatives if (a, p, n) in published}
            mined = drawn[2, (drawn[0] == a) & (drawn[1] == p)]
            shares(mined, semihard or negatives)
        shares(drawn[1, drawn[0] == a], positives_of(LABELS, a))

from __future__ import annotations

import torch

from tests.training.miners.batches import LABELS, complete, negatives_of, positives_of, rows, shares
from training.miners.random import RandomMiner


def test_positives_and_negatives_are_drawn_evenly() -> None:
    torch.manual_seed(0)
    drawn = [RandomMiner()(rows(len(LABELS)), torch.tensor(LABELS)) for _ in range(1500)]
    anchors, positives, negatives = (torch.stack(field, 1) for field in zip(*drawn, strict=True))
    for row, anchor in enumerate(complete(LABELS)):
        assert (anchors[row] == anchor).all()
        shares(positives[row], positives_of(LABELS, anchor))
        shares(negatives[row], negatives_of(LABELS, anchor))

from __future__ import annotations

import pytest
import torch
from pytorch_metric_learning import miners as pml_miners

from tests.training.miners.batches import LABELS, complete, distance, negatives_of, positives_of, rows
from training.miners.hard import BatchHardMiner


@pytest.mark.parametrize("seed", range(5))
def test_equals_the_naive_loop_and_pytorch_metric_learning(seed: int) -> None:
    embeddings, y = rows(len(LABELS), seed=seed), torch.tensor(LABELS)
    mined = [field.tolist() for field in BatchHardMiner()(embeddings, y)]
    expected = [
        (
            a,
            max(positives_of(LABELS, a), key=lambda p: distance(embeddings, a, p)),
            min(negatives_of(LABELS, a), key=lambda n: distance(embeddings, a, n)),
        )
        for a in complete(LABELS)
    ]
    assert list(zip(*mined, strict=True)) == expected
    reference = pml_miners.BatchHardMiner()(embeddings, y)
    assert mined == [field.tolist() for field in reference]

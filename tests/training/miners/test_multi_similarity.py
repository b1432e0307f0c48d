from __future__ import annotations

import pytest
import torch
from pytorch_metric_learning import miners as pml_miners
from torch import Tensor

from tests.training.miners.batches import LABELS, negatives_of, positives_of, rows
from training.miners.multi_similarity import MultiSimilarityMiner


def pairs(first: Tensor, second: Tensor) -> set[tuple[int, int]]:
    return set(zip(first.tolist(), second.tolist(), strict=True))


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("labels", [LABELS, [0, 1, 2, 3], [5, 5, 5]])
def test_equals_the_naive_loop_and_pytorch_metric_learning(seed: int, epsilon: float, labels: list[int]) -> None:
    embeddings, y = rows(len(labels), seed=seed), torch.tensor(labels)
    e = embeddings.double().numpy()
    kept_positives, kept_negatives = set(), set()
    for a in range(len(labels)):
        positives = {p: float(e[a] @ e[p]) for p in positives_of(labels, a)}
        negatives = {n: float(e[a] @ e[n]) for n in negatives_of(labels, a)}
        if positives and negatives:
            kept_positives |= {(a, p) for p, s in positives.items() if s < max(negatives.values()) + epsilon}
            kept_negatives |= {(a, n) for n, s in negatives.items() if s > min(positives.values()) - epsilon}
    mined = MultiSimilarityMiner(epsilon)(embeddings, y)
    assert (pairs(*mined[:2]), pairs(*mined[2:])) == (kept_positives, kept_negatives)
    assert len(mined[0]) + len(mined[2]) == len(kept_positives) + len(kept_negatives)
    reference = pml_miners.MultiSimilarityMiner(epsilon=epsilon)(embeddings, y)
    assert (pairs(*reference[:2]), pairs(*reference[2:])) == (kept_positives, kept_negatives)

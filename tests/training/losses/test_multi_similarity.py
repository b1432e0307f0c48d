"""Multi-similarity loss against loops and pytorch-metric-learning."""

from __future__ import annotations

import math

import pytest
import torch

from tests.training.losses.batches import LABELS, all_triplets, batch, create, indices, mean, negatives, positives
from training.functional import Pairs
from training.losses.multi_similarity import MultiSimilarityLoss


@pytest.mark.parametrize("kept_only", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_equals_the_loop_over_all_and_over_kept_pairs(seed: int, kept_only: bool) -> None:
    embeddings, y = batch(seed, LABELS)
    s = embeddings.numpy() @ embeddings.numpy().T
    every = (
        [(a, p) for a in range(9) for p in positives(LABELS, a)],
        [(a, n) for a in range(9) for n in negatives(LABELS, a)],
    )
    some = every[0][seed::3], every[1][seed::4]
    loss = MultiSimilarityLoss(1.5, 20, 0.4, kept_only=kept_only)
    for near, far in (every, some):
        terms = []
        for a in range(9):
            own, others = [s[a, p] for i, p in near if i == a], [s[a, n] for i, n in far if i == a]
            if (own and others) or not kept_only:
                pulled = math.log(1 + sum(math.exp(-1.5 * (v - 0.4)) for v in own)) / 1.5
                terms.append(pulled + math.log(1 + sum(math.exp(20 * (v - 0.4)) for v in others)) / 20)
        pairs = None if near is every[0] else Pairs(*torch.tensor(near).T, *torch.tensor(far).T)
        assert loss(embeddings, y, pairs).item() == pytest.approx(mean(terms), abs=1e-12)


def test_triplets_count_as_their_distinct_pairs() -> None:
    embeddings, y = batch(6, [0, 0, 1, 1])
    triplets = indices(all_triplets([0, 0, 1, 1]))
    loss = create("ms")
    assert loss(embeddings, y, triplets).item() == pytest.approx(loss(embeddings, y).item(), abs=1e-12)

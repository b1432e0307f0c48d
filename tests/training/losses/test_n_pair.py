"""N-pair loss against loops and pytorch-metric-learning."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from pytorch_metric_learning import distances, losses, regularizers

from tests.training.losses.batches import LABELS, batch, create, indices, mean, negatives
from training.batch import EmbeddingBatch
from training.losses.n_pair import choose_pairs


def naive(e: np.ndarray, pairs: list[tuple[int, int]], candidates: list[list[int]]) -> float:
    return mean(
        [
            math.log(1 + sum(math.exp(e[a] @ e[n] - e[a] @ e[p]) for n in others))
            for (a, p), others in zip(pairs, candidates, strict=True)
        ]
    )


@pytest.mark.parametrize("squared_norm", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_one_pair_a_class_equals_the_loop_and_pytorch_metric_learning(seed: int, squared_norm: bool) -> None:
    embeddings, y = batch(seed, LABELS, normalised=False)
    pairs = [(0, 2), (1, 4), (3, 7)]
    candidates = [[4, 7], [2, 7], [2, 4]]
    e = embeddings.numpy()
    length = mean([float(x @ x) ** (1 if squared_norm else 0.5) for x in e])
    actual = create("npair", nu=0.01, pairs="first", squared_norm=squared_norm)(embeddings, y).item()
    assert actual == pytest.approx(naive(e, pairs, candidates) + 0.01 * length, abs=1e-12)
    reference = losses.NPairsLoss(
        distance=distances.DotProductSimilarity(normalize_embeddings=False),
        embedding_regularizer=regularizers.LpRegularizer(power=2 if squared_norm else 1),
        embedding_reg_weight=0.01,
    )
    assert actual == pytest.approx(reference(embeddings, y).item(), abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_every_sample_is_an_anchor_against_all_of_other_classes(seed: int) -> None:
    # Revisiting, appendix A.1: "all negatives in the mini-batch". With at most two samples of a class the positive is
    # no choice.
    labels = [0, 1, 2, 1, 0, 3]
    embeddings, y = batch(seed, labels, normalised=False)
    e, pairs = embeddings.numpy(), [(0, 4), (1, 3), (3, 1), (4, 0)]
    expected = naive(e, pairs, [negatives(labels, a) for a, _ in pairs]) + 0.005 * mean([float(x @ x) for x in e])
    assert create("npair")(embeddings, y).item() == pytest.approx(expected, abs=1e-12)


def test_an_anchor_of_spc_2_has_110_negatives() -> None:
    pairs = choose_pairs(EmbeddingBatch(torch.zeros(112, 1), torch.arange(112) // 2), "random")
    assert pairs.anchors.tolist() == list(range(112))
    assert pairs.negative.sum(1).tolist() == [110] * 112


def test_the_positive_of_an_anchor_is_any_of_its_class() -> None:
    y = torch.tensor(LABELS)
    torch.manual_seed(0)
    drawn = set()
    for _ in range(50):
        pairs = choose_pairs(EmbeddingBatch(torch.zeros(9, 1), y), "random")
        drawn |= {(int(a), int(p)) for a, p in zip(pairs.anchors, pairs.positives, strict=True)}
    assert drawn == {(a, p) for a in range(9) for p in range(9) if a != p and LABELS[a] == LABELS[p]}


def test_triplets_of_one_pair_are_one_term_of_all_their_negatives() -> None:
    embeddings, y = batch(6, [0, 1, 2, 3, 4, 5], normalised=False)
    triplets = [(0, 1, 2), (0, 1, 4), (3, 2, 5), (0, 1, 5)]
    expected = naive(embeddings.numpy(), [(0, 1), (3, 2)], [[2, 4, 5], [5]])
    assert create("npair", nu=0)(embeddings, y, indices(triplets)).item() == pytest.approx(expected, abs=1e-12)
    none = create("npair", nu=0)(embeddings, y, indices([]))
    assert none.item() == 0


def test_long_embeddings_do_not_overflow() -> None:
    embeddings, y = batch(5, LABELS, normalised=False)
    assert torch.isfinite(create("npair")(1e4 * embeddings.float(), y))

"""Distance-weighted sampling against the formula in a float64 loop, its frequencies and pytorch-metric-learning."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning import miners as pml_miners
from pytorch_metric_learning.utils import loss_and_miner_utils
from torch import Tensor
from torch.nn.functional import normalize

from training.functional import negative_mask
from training.miners.distance_weighted import DistanceWeightedMiner


def rows(n: int, dim: int, seed: int = 0) -> Tensor:
    return normalize(torch.randn(n, dim, generator=torch.Generator().manual_seed(seed)), dim=1)


def naive_probabilities(e: np.ndarray, labels: list[int], i: int, cut: float | None) -> np.ndarray:
    """P(negative j | anchor i) from q(d) ~ d^(D-2) (1 - d^2/4)^((D-3)/2), evaluated as exact fractions of exp."""
    dim = e.shape[1]
    logs = {}
    for j, label in enumerate(labels):
        if label == labels[i]:
            continue
        d = max(float(np.linalg.norm(e[i] - e[j])), 0.5)
        if cut is None or d <= cut:
            logs[j] = -((dim - 2) * math.log(d) + (dim - 3) / 2 * math.log(1 - d * d / 4))
    out = np.zeros(len(labels))
    if not logs:
        return out
    top = max(logs.values())
    total = sum(math.exp(value - top) for value in logs.values())
    for j, value in logs.items():
        out[j] = math.exp(value - top) / total
    return out


@pytest.mark.parametrize("dim", [4, 64, 512])
@pytest.mark.parametrize("cut", [1.4, None])
def test_weights_follow_the_density(dim: int, cut: float | None) -> None:
    labels = [0, 0, 1, 1, 2, 2, 3, 3]
    embeddings = rows(8, dim)
    embeddings[1] = normalize(embeddings[2] + 0.2 * embeddings[1], dim=0)  # a near negative pair: the clamp at 0.5
    negatives = negative_mask(torch.tensor(labels))
    weights = DistanceWeightedMiner(nonzero_loss_cutoff=cut).weights(embeddings, negatives).double().numpy()
    for i in range(8):
        expected = naive_probabilities(embeddings.double().numpy(), labels, i, cut)
        if expected.any():
            np.testing.assert_allclose(weights[i] / weights[i].sum(), expected, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("dim", [4, 16, 64])
def test_weights_are_those_of_pytorch_metric_learning(dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    labels, embeddings = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]), rows(8, dim).double()
    embeddings[1] = normalize(embeddings[2] + 0.2 * embeddings[1], dim=0)

    def weights_alone(*_: object, weights: Tensor, **__: object) -> tuple[Tensor, ...]:
        result.append(weights)
        return tuple(torch.zeros(3, 1, dtype=torch.int64))

    result: list[Tensor] = []
    monkeypatch.setattr(loss_and_miner_utils, "get_random_triplet_indices", weights_alone)
    pml_miners.DistanceWeightedMiner()(embeddings, labels)
    actual = DistanceWeightedMiner().weights(embeddings, negative_mask(labels)).double()
    drawn = result[0].isfinite().all(1)  # without a negative before the cut, theirs is 0 / 0
    assert drawn.sum() > 3
    torch.testing.assert_close((actual / actual.sum(1, keepdim=True))[drawn], result[0][drawn], atol=1e-3, rtol=1e-3)


def test_negatives_are_drawn_as_often_as_their_weights_say() -> None:
    torch.manual_seed(0)
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    embeddings, miner = rows(6, 4, seed=3), DistanceWeightedMiner()
    drawn = torch.zeros(6)
    for _ in range(25):  # times ten copies of the batch, mined together: each negative has as many
        anchors, _, negatives = miner(embeddings.repeat(10, 1), labels.repeat(10))
        drawn += torch.bincount(negatives[anchors % 6 == 0] % 6, minlength=6)
    assert drawn.sum() > 4000
    expected = naive_probabilities(embeddings.double().numpy(), labels.tolist(), 0, 1.4)
    np.testing.assert_allclose(drawn.numpy() / drawn.sum().item(), expected, atol=0.03)


def test_every_positive_pair_is_mined_once() -> None:
    labels = torch.tensor([0, 0, 0, 1, 1, 2])
    anchors, positives, negatives = DistanceWeightedMiner()(rows(6, 8), labels)
    pairs = sorted(zip(anchors.tolist(), positives.tolist(), strict=True))
    assert pairs == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1), (3, 4), (4, 3)]
    assert (labels[anchors] != labels[negatives]).all()


def test_beyond_the_cut_negatives_are_drawn_evenly() -> None:
    embeddings = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [-1.0, 0.0, 0.0], [-0.9, 0.435, 0.0]])
    weights = DistanceWeightedMiner().weights(normalize(embeddings, dim=1), negative_mask(torch.tensor([0, 0, 1, 2])))
    assert weights[0].tolist() == pytest.approx([0, 0, 1, 1], abs=1e-34)


def test_large_dimensions_do_not_overflow() -> None:
    weights = DistanceWeightedMiner().weights(rows(64, 2048), negative_mask(torch.arange(32).repeat_interleave(2)))
    assert torch.isfinite(weights).all()
    assert (weights.amax(1) == 1).all()


@settings(max_examples=60)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.sampled_from(["random", "equal", "zero"]))
def test_any_batch_gives_valid_triplets(labels: list[int], kind: str) -> None:
    embeddings = rows(len(labels), 6)
    if kind != "random":
        embeddings = embeddings[:1].repeat(len(labels), 1) * (kind == "equal")
    y = torch.tensor(labels)
    anchors, positives, negatives = DistanceWeightedMiner()(embeddings, y)
    assert (y[anchors] == y[positives]).all()
    assert (anchors != positives).all()
    assert (y[anchors] != y[negatives]).all()
    several = len(set(labels)) > 1
    assert len(anchors) == several * sum(labels.count(label) - 1 for label in labels)


def test_without_a_lower_cutoff_equal_rows_are_drawn() -> None:
    embeddings, y = torch.ones(6, 4), torch.tensor([0, 0, 1, 1, 2, 2])
    anchors, _, negatives = DistanceWeightedMiner(cutoff=0)(embeddings, y)
    assert len(anchors) == 6
    assert (y[anchors] != y[negatives]).all()

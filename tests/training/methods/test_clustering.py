"""Clusters, standardisation and the momentum copy, against naive loops and hand calculations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score
from torch import nn

from tests.raising import raises
from training.methods.clustering import Momentum, cluster, standardise
from zoo.errors import RecipeError


def blobs(k: int, size: int, dim: int, far: float) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    labels = torch.arange(k).repeat(size)
    return far * torch.randn(k, dim)[labels] + torch.randn(k * size, dim), labels


def test_separated_blobs_are_found() -> None:
    points, labels = blobs(k=7, size=30, dim=5, far=100)
    assert adjusted_rand_score(labels, cluster(points, 7, seed=1)) == 1


def test_the_seed_decides_and_an_offset_changes_nothing() -> None:
    points, _ = blobs(k=6, size=30, dim=5, far=4)
    clusters = cluster(points, 6, seed=4)
    assert torch.equal(clusters, cluster(points, 6, seed=4))
    assert adjusted_rand_score(clusters, cluster(points.double() + 1000, 6, seed=4)) == 1
    assert not torch.equal(clusters, cluster(points, 6, seed=5))


def test_as_many_clusters_as_points_and_a_single_one() -> None:
    points = torch.randn(8, 2)
    assert sorted(cluster(points, 8, seed=0).tolist()) == list(range(8))
    assert cluster(points, 1, seed=0).tolist() == [0] * 8


def test_standardised_features_equal_the_loop() -> None:
    rng = np.random.default_rng(1)
    features, labels = rng.normal(3, 2, size=(20, 3)), rng.integers(0, 4, 20)
    expected = np.array(
        [
            [
                (x - np.mean(features[labels == c, i]))
                / np.sqrt(np.mean((features[labels == c, i] - np.mean(features[labels == c, i])) ** 2))
                for i, x in enumerate(row)
            ]
            for row, c in zip(features, labels, strict=True)
        ]
    )
    np.testing.assert_allclose(standardise(torch.tensor(features), torch.tensor(labels)), expected)


def test_constant_features_become_zero() -> None:
    features = torch.tensor([[0.1, 1.0], [0.1, 2.0], [0.1, 6.0], [7.0, 8.0]])
    result = standardise(features, torch.tensor([2, 2, 2, 5]))
    assert result[:, 0].tolist() == [0] * 4
    assert result[3].tolist() == [0, 0]
    assert result[:3, 1].sum().item() == pytest.approx(0, abs=1e-6)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))


def test_the_average_follows_by_hand() -> None:
    live = nn.Linear(1, 1)
    nn.init.constant_(live.weight, 1.0)
    slow = Momentum(live, 0.9)
    nn.init.constant_(live.weight, 2.0)
    slow.update()
    assert slow.average.weight.item() == pytest.approx(1.1)
    slow.update()
    assert slow.average.weight.item() == pytest.approx(0.9 * 1.1 + 0.1 * 2)


def test_running_statistics_are_copied() -> None:
    live = network()
    slow = Momentum(live, 0.9)
    live(torch.randn(8, 3))
    slow.update()
    for mine, theirs in zip(slow.average.buffers(), live.buffers(), strict=True):
        assert torch.equal(mine, theirs)


def test_it_stays_in_evaluation_mode_and_learns_nothing() -> None:
    slow = Momentum(network(), 0.9)
    nn.ModuleList([slow]).train()
    assert not any(module.training for module in slow.modules())
    assert not any(parameter.requires_grad for parameter in slow.parameters())
    rows = torch.randn(8, 3)
    before = {name: value.clone() for name, value in slow.state_dict().items()}
    assert torch.allclose(slow.average(rows)[:2], slow.average(rows[:2]))
    assert all(torch.equal(value, before[name]) for name, value in slow.state_dict().items())


def test_the_live_network_is_not_registered() -> None:
    live = network()
    slow = Momentum(live, 0.9)
    assert not {id(p) for p in live.parameters()} & {id(p) for p in slow.parameters()}
    assert all(name.startswith("average.") for name in slow.state_dict())


@pytest.mark.parametrize("momentum", [-0.1, 1.0])
def test_impossible_momentum_is_refused(momentum: float) -> None:
    with raises(RecipeError, "invalid-value"):
        Momentum(network(), momentum)

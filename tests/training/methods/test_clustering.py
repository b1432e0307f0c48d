"""k-means, standardisation and the momentum copy, against scikit-learn, naive loops and hand calculations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score
from torch import nn

from tests.raising import raises
from training.methods.clustering import (
    Momentum,
    assign_nearest,
    cluster_means,
    fill_empty_clusters,
    k_means,
    seed_centres,
    standardise,
)
from zoo.errors import RecipeError


def inertia(points: np.ndarray, labels: np.ndarray) -> float:
    """Return the sum of squared distances to the means of the clusters."""
    return sum(
        float(((points[labels == c] - points[labels == c].mean(0)) ** 2).sum()) for c in np.unique(labels).tolist()
    )


def blobs(k: int, size: int, dim: int, far: float) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    labels = torch.arange(k).repeat(size)
    return far * torch.randn(k, dim)[labels] + torch.randn(k * size, dim), labels


def test_separated_blobs_are_found() -> None:
    points, labels = blobs(k=7, size=30, dim=5, far=100)
    assert adjusted_rand_score(labels, k_means(points, 7, seed=1)) == 1


def test_clusters_are_as_tight_as_those_of_sklearn() -> None:
    points = torch.randn(400, 6, generator=torch.Generator().manual_seed(0))
    ours = [inertia(points.numpy(), k_means(points, 12, seed=seed).numpy()) for seed in range(5)]
    theirs = [
        KMeans(12, n_init=1, init="k-means++", algorithm="lloyd", random_state=seed).fit(points.numpy()).inertia_
        for seed in range(5)
    ]
    assert np.mean(ours) == pytest.approx(np.mean(theirs), rel=0.03)


def test_ends_where_sklearn_ends_from_the_same_start() -> None:
    points = torch.randn(300, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    start = points[seed_centres(points - points.mean(0), 8, seed=3)].numpy()
    theirs = KMeans(8, init=start, n_init=1, algorithm="lloyd", tol=0, max_iter=100).fit_predict(points.numpy())
    assert adjusted_rand_score(theirs, k_means(points, 8, seed=3)) == 1


def test_chunks_and_offsets_change_nothing_and_the_seed_decides() -> None:
    points = torch.randn(200, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    labels = k_means(points, 6, seed=4)
    assert torch.equal(labels, k_means(points, 6, seed=4))
    assert torch.equal(labels, k_means(points, 6, seed=4, chunk=7))
    assert torch.equal(labels, k_means(points + 1000, 6, seed=4))
    assert not torch.equal(labels, k_means(points, 6, seed=5))


@pytest.mark.parametrize("points", [torch.zeros(9, 2), torch.ones(9, 2).index_fill(0, torch.tensor([3]), 5)])
def test_every_cluster_has_a_member_even_of_equal_points(points: torch.Tensor) -> None:
    assert k_means(points, 6, seed=0).unique().tolist() == list(range(6))


def test_as_many_clusters_as_points_and_a_single_one() -> None:
    points = torch.randn(8, 2)
    assert sorted(k_means(points, 8, seed=0).tolist()) == list(range(8))
    assert k_means(points, 1, seed=0).tolist() == [0] * 8


@pytest.mark.parametrize("k", [0, 4])
def test_impossible_numbers_of_groups_are_refused(k: int) -> None:
    with raises(RecipeError, "invalid-value"):
        k_means(torch.randn(3, 2), k, seed=0)


def test_starts_are_drawn_by_squared_distance() -> None:
    """After one of two points near 0, the point at 3 and the point at 1 are drawn 9 to 1."""
    points = torch.tensor([[0.0], [1.0], [3.0]])
    pairs = [seed_centres(points, 2, seed).tolist() for seed in range(600)]
    second = [b for a, b in pairs if a == 0]
    assert second.count(0) == 0
    assert second.count(2) / len(second) == pytest.approx(0.9, abs=0.06)


def test_assignment_and_means_equal_the_loop() -> None:
    rng = np.random.default_rng(0)
    points, centres = rng.normal(size=(30, 4)), rng.normal(size=(5, 4))
    squared = np.array([[sum((x - c) ** 2) for c in centres] for x in points])
    labels, distances = assign_nearest(torch.tensor(points), torch.tensor(centres), chunk=4)
    assert labels.tolist() == squared.argmin(1).tolist()
    np.testing.assert_allclose(distances, squared.min(1))
    found = cluster_means(torch.tensor(points), labels, 5, chunk=4)
    for c in labels.unique().tolist():
        np.testing.assert_allclose(found[c], points[labels.numpy() == c].mean(0))


def test_empty_clusters_take_the_farthest_that_leave_none_empty() -> None:
    labels = fill_empty_clusters(torch.tensor([0, 0, 0, 1]), torch.tensor([1.0, 5.0, 3.0, 9.0]), 4)
    # the point at 9 is alone in its cluster
    assert labels.tolist() == [0, 2, 3, 1]


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

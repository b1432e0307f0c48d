from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans

from tests.raising import raises
from zoo.errors import EvaluationError
from zoo.evaluation import gpu
from zoo.evaluation.clustering import nmi
from zoo.evaluation.kmeans import k_means, lloyd


def blobs(seed, centres, per_centre, dim=8, noise=0.3):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(centres), per_centre)
    return (rng.normal(size=(centres, dim))[labels] + noise * rng.normal(size=(len(labels), dim))).astype(
        np.float32
    ), labels


def inertia(points, labels):
    points = points.astype(np.float64)
    return sum(((points[labels == c] - points[labels == c].mean(axis=0)) ** 2).sum() for c in np.unique(labels))


@pytest.mark.parametrize("noise", [0.3, 1.0])
def test_lloyd_agrees_with_scikit_learn_from_the_same_start(noise):
    points, _ = blobs(0, 6, 40, noise=noise)
    start = points[::40]
    ours, theirs = lloyd(points, start), KMeans(6, init=start, n_init=1, max_iter=100, tol=0).fit(points)
    np.testing.assert_array_equal(ours.labels, theirs.labels_)
    np.testing.assert_allclose(ours.centres, theirs.cluster_centers_, atol=1e-5)
    assert ours.inertia == pytest.approx(theirs.inertia_, rel=1e-5)


def test_lloyd_agrees_with_scikit_learn_where_few_of_many_centres_still_move():
    points, _ = blobs(7, 60, 25, noise=1.0)
    start = points[::25]
    ours, theirs = lloyd(points, start), KMeans(60, init=start, n_init=1, max_iter=100, tol=0).fit(points)
    np.testing.assert_array_equal(ours.labels, theirs.labels_)


@pytest.mark.parametrize(("noise", "tolerance"), [(0.1, 1e-5), (0.5, 0.02), (3.0, 0.02)])
def test_inertia_is_that_of_scikit_learn(noise, tolerance):
    points, _ = blobs(1, 12, 30, noise=noise)
    theirs = KMeans(12, n_init=10, random_state=0).fit(points).inertia_
    assert k_means(points, 12, restarts=10).inertia <= theirs * (1 + tolerance)


def test_separate_blobs_are_found():
    points, labels = blobs(2, 20, 15, noise=0.02)
    assert nmi(labels, k_means(points, 20).labels) == pytest.approx(1)


def test_many_clusters_start_in_rounds_as_well_as_one_by_one(monkeypatch):
    points, _ = blobs(6, 150, 6, noise=0.5)
    in_rounds = k_means(points, 150, restarts=3).inertia
    monkeypatch.setattr("zoo.evaluation.kmeans.GREEDY_LIMIT", 150)
    assert in_rounds <= k_means(points, 150, restarts=3).inertia * 1.1
    assert k_means(np.repeat(points[:40], 3, axis=0), 100).labels.max() == 99  # more clusters than distinct points


def test_the_seed_decides_and_more_restarts_are_never_worse():
    points, _ = blobs(3, 10, 20, noise=2.0)
    first, again = k_means(points, 10, seed=4, restarts=1), k_means(points, 10, seed=4, restarts=1)
    np.testing.assert_array_equal(first.labels, again.labels)
    assert first.inertia == again.inertia
    assert k_means(points, 10, seed=4, restarts=6).inertia <= first.inertia
    assert len({k_means(points, 10, seed, restarts=1).inertia for seed in range(5)}) > 1


def test_a_far_common_offset_does_not_matter():
    points, labels = blobs(4, 5, 30, noise=0.05)
    assert nmi(labels, k_means(points + 1000, 5).labels) == pytest.approx(1)


def test_chunks_do_not_change_the_clusters(monkeypatch):
    points, _ = blobs(5, 7, 20, noise=1.0)
    expected = k_means(points, 7)
    for size in ("CHUNK_BYTES", "TABLE_BYTES"):
        monkeypatch.setattr(f"zoo.evaluation.kmeans.{size}", 4 * 7 * 9)
    np.testing.assert_array_equal(k_means(points, 7).labels, expected.labels)


@pytest.mark.parametrize("products", [2**27, 64 * 90])
def test_a_device_gives_the_clusters_of_numpy(monkeypatch, products):
    """The code for a GPU runs on the CPU."""
    points, _ = blobs(8, 90, 15, noise=0.6)
    expected = k_means(points, 90)
    monkeypatch.setattr(gpu, "device", lambda: "cpu")
    monkeypatch.setattr(gpu, "to_device", sent := mock.Mock(wraps=gpu.to_device))
    monkeypatch.setattr(gpu, "_KMEANS_PRODUCTS", products)
    clusters = k_means(points, 90)
    np.testing.assert_array_equal(clusters.labels, expected.labels)
    np.testing.assert_allclose(clusters.centres, expected.centres, atol=1e-6)
    assert sent.call_count > 3, "the points once, and centres again and again"


def test_without_room_for_the_centres_they_are_found_by_numpy(monkeypatch):
    points, _ = blobs(8, 90, 15, noise=0.6)
    expected = k_means(points, 90)
    monkeypatch.setattr(gpu, "device", lambda: "cpu")

    def full(self, *args):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(gpu.GpuPoints, "nearest", full)
    np.testing.assert_array_equal(k_means(points, 90).labels, expected.labels)


def test_a_device_with_little_room_takes_fewer_points_at_a_time(monkeypatch):
    points, _ = blobs(9, 20, 60)
    centres = points[::60]
    on_device, sizes, most = gpu.GpuPoints(points, "cpu"), [], 500
    whole = torch.Tensor.max

    def crowded(self, dim):
        sizes.append(len(self))
        if sizes[-1] > most:
            raise torch.OutOfMemoryError
        return whole(self, dim)

    monkeypatch.setattr(torch.Tensor, "max", crowded)
    labels, nearness = on_device.nearest(centres)
    assert sizes[-1] <= most < sizes[0] == 1200
    exact = points.astype(np.float64) @ centres.T - (centres.astype(np.float64) ** 2).sum(axis=1) / 2
    np.testing.assert_array_equal(labels, exact.argmax(axis=1))
    np.testing.assert_allclose(nearness, exact.max(axis=1), atol=1e-4)
    some = np.arange(0, 1200, 7)
    np.testing.assert_array_equal(on_device.nearest(centres, some)[0], exact.argmax(axis=1)[some])
    most = 0
    with pytest.raises(torch.OutOfMemoryError):
        on_device.nearest(centres)


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 30), st.data())
def test_properties(seed, n, data):
    k = data.draw(st.integers(1, n))
    rng = np.random.default_rng(seed)
    points = rng.integers(0, 4, size=(n, 2)).astype(np.float32)  # full of duplicates
    clusters = k_means(points, k, seed)
    assert clusters.labels.shape == (n,)
    assert set(clusters.labels) == set(range(k))  # no cluster is empty, even with fewer distinct points
    assert clusters.inertia == pytest.approx(inertia(points, clusters.labels), abs=1e-4)
    for c in range(k):
        np.testing.assert_allclose(clusters.centres[c], points[clusters.labels == c].mean(axis=0), atol=1e-5)


def test_as_many_clusters_as_points_and_one_cluster():
    points, _ = blobs(6, 4, 5)
    assert k_means(points, 20).inertia == 0
    assert k_means(points, 1).inertia == pytest.approx(inertia(points, np.zeros(20)), rel=1e-5)


@pytest.mark.parametrize(
    ("arguments", "code", "value"),
    [
        ((np.eye(3), 4), "invalid-clusters", "4"),
        ((np.eye(3), 0), "invalid-clusters", "0"),
        ((np.zeros((0, 2)), 1), "invalid-clusters", "0 points"),
        (([[1, np.nan]], 1), "not-finite", "row 0 of points"),
        ((np.eye(3), 2, 0, 0), "invalid-iterations", "0 and 100"),
        ((np.eye(3), 2, 0, 1, 0), "invalid-iterations", "1 and 0"),
    ],
)
def test_invalid_arguments_are_refused(arguments, code, value):
    with raises(EvaluationError, code) as caught:
        k_means(*arguments)
    assert value in str(caught.value)

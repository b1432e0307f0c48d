"""DDM and FRD: their distances against scipy in float64, and that the best of the candidates is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm
from scipy.stats import wasserstein_distance
from torch import Tensor

from tests.training.samplers.toy_samplers import sampler, unit_rows
from training.samplers.distribution_matching import DistributionMatching, frechet, wasserstein


def batches(seed: int) -> tuple[Tensor, Tensor]:
    """A pool and four candidates, the first two of which are squeezed into a corner of the sphere."""
    pool, candidates = unit_rows(60, 6, seed), unit_rows(48, 6, seed + 100).reshape(4, 12, 6)
    candidates[:2] += np.array([[[1.5, 0, 0, 0, 0, 0]], [[0, 0, 0.5, 0, 0, 0]]], np.float32)
    candidates /= np.linalg.norm(candidates, axis=2, keepdims=True)
    return torch.from_numpy(pool), torch.from_numpy(candidates)


def distances(rows: np.ndarray) -> np.ndarray:
    return np.array([np.linalg.norm(rows[i] - rows[j]) for i in range(len(rows)) for j in range(i)])


@pytest.mark.parametrize("seed", range(3))
def test_wasserstein_distance_between_histograms_of_distances(seed: int) -> None:
    pool, candidates = batches(seed)
    binned = [np.floor(distances(rows.double().numpy()) * 100) / 100 for rows in (pool, *candidates)]
    expected = [wasserstein_distance(binned[0], other) for other in binned[1:]]
    np.testing.assert_allclose(wasserstein(pool, candidates), expected, atol=2e-4)
    exact = [wasserstein_distance(distances(pool.numpy()), distances(rows.numpy())) for rows in candidates]
    np.testing.assert_allclose(wasserstein(pool, candidates), exact, atol=0.01)


@pytest.mark.parametrize("seed", range(3))
def test_frechet_distance_between_gaussians(seed: int) -> None:
    pool, candidates = batches(seed)
    expected = []
    for rows in candidates:
        a, b = pool.double().numpy(), rows.double().numpy()
        s, t = np.cov(a.T), np.cov(b.T)
        cross = np.trace(sqrtm(s @ t).real)
        expected.append(np.sum((a.mean(0) - b.mean(0)) ** 2) + np.trace(s) + np.trace(t) - 2 * cross)
    np.testing.assert_allclose(frechet(pool, candidates), expected, atol=1e-5)


@pytest.mark.parametrize("mismatch", [wasserstein, frechet])
def test_a_batch_like_the_pool_is_nearest(mismatch: Callable[[Tensor, Tensor], Tensor]) -> None:
    pool, candidates = batches(0)
    same = torch.cat([candidates, pool[:12][None]])
    whole = pool[None]
    assert mismatch(pool, same).argmin() in (2, 3, 4)
    assert mismatch(pool, whole).item() == pytest.approx(0, abs=1e-5)
    assert mismatch(pool, torch.zeros(1, 12, 6)).isfinite().all()


def test_the_best_candidate_is_taken() -> None:
    labels = np.repeat(np.arange(20), 5)
    seen: list[Tensor] = []

    class Spy(DistributionMatching):
        def mismatch(self, pool: Tensor, batches: Tensor) -> Tensor:
            assert pool.shape == (64, 8)
            seen.append(batches)
            return frechet(pool, batches)

    batch_sampler = Spy(labels, 12, 3, 8, pool=64, candidates=7)
    batch_sampler.memory[:] = unit_rows(100, 8)
    for batch in batch_sampler.epoch(0, 4):
        assert seen[-1].shape == (7, 12, 8)
        assert any(np.array_equal(batch_sampler.memory[batch], rows) for rows in seen[-1])
    expected: Any = sampler("frd", labels, 12, 3, pool=64, candidates=7)
    assert [b.tolist() for b in expected.epoch(0, 4)] == [b.tolist() for b in batch_sampler.epoch(0, 4)]

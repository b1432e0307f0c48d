"""Whitening: against scikit-learn, by definition, and for features that do not determine it."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from sklearn.decomposition import PCA

from tests.raising import raises
from zoo.errors import UsageError
from zoo.models.whitening import BLOCK, fit_whitening


def correlated(count: int = 200, width: int = 12, seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=(count, width)) * np.linspace(3, 0.1, width) @ draw.normal(size=(width, width))
    return (rows + draw.normal(size=width)).astype(np.float32)


@pytest.mark.parametrize("dim", [None, 12, 5, 1])
def test_whitening_equals_scikit_learns_up_to_signs(dim: int | None) -> None:
    rows = correlated()
    weight, bias = fit_whitening(rows, dim)
    expected = PCA(n_components=dim, whiten=True, svd_solver="full").fit_transform(rows.astype(np.float64))
    got = rows @ weight.T + bias
    signs = np.sign((got * expected).sum(0))
    np.testing.assert_allclose(got * signs, expected, atol=2e-4)


@pytest.mark.parametrize("count", [BLOCK, BLOCK + 1, 3 * BLOCK - 5])
def test_blocks_of_rows_far_from_zero_give_one_result(count: int) -> None:
    rows = correlated(count, 6) + 1000
    weight, bias = fit_whitening(rows, 6)
    white = rows.astype(np.float64) @ weight.T.astype(np.float64) + bias
    np.testing.assert_allclose(np.cov(white.T), np.eye(6), atol=1e-3)
    expected = PCA(whiten=True, svd_solver="full").fit(rows.astype(np.float64))
    np.testing.assert_allclose(1 / np.linalg.norm(weight, axis=1) ** 2, expected.explained_variance_, rtol=1e-5)


def test_memory_does_not_grow_with_the_rows() -> None:
    rows = correlated(20 * BLOCK, 32)
    tracemalloc.start()
    fit_whitening(rows, 32)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * BLOCK * 32 * 8  # one copy of all rows in float64 is five times as much


def test_the_mean_is_zero_and_the_covariance_one() -> None:
    weight, bias = fit_whitening(correlated(), 8)
    white = (correlated().astype(np.float64) @ weight.T.astype(np.float64)) + bias
    np.testing.assert_allclose(white.mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(np.cov(white.T), np.eye(8), atol=1e-3)


def test_two_rows_vary_along_the_line_between_them() -> None:
    weight, bias = fit_whitening(np.array([[0, 0], [3, 4]], np.float32), 1)
    # The distance is 5, so the rows are 2.5 from the mean; n - 1 = 1 degree of freedom: variance 12.5.
    np.testing.assert_allclose(np.abs(weight[0]), np.array([0.6, 0.8]) / np.sqrt(12.5), rtol=1e-6)
    np.testing.assert_allclose(weight @ [1.5, 2.0] + bias, 0, atol=1e-6)


@pytest.mark.parametrize(
    ("rows", "dim", "code", "values"),
    [
        (correlated(), 13, "invalid-value", ["12", "13"]),
        (correlated(), 0, "invalid-value", ["12", "0"]),
        (correlated(6), 6, "too-few-samples", ["6 images", "5 directions"]),
        (correlated(6), None, "too-few-samples", ["--dim"]),
        (np.ones((9, 3), np.float32), 1, "too-few-samples", ["9 images", "0 directions"]),
        (np.empty((0, 3), np.float32), 1, "too-few-samples", ["0 images", "0 directions"]),
        (correlated(1), 1, "too-few-samples", ["1 image ", "0 directions"]),
        (np.repeat(correlated(50, 2), 2, axis=1), 3, "too-few-samples", ["2 directions"]),
        (np.full((5, 2), np.nan, np.float32), 1, "not-finite", []),
    ],
)
def test_features_that_do_not_determine_the_directions_are_refused(
    rows: np.ndarray, dim: int | None, code: str, values: list[str]
) -> None:
    with raises(UsageError, code) as caught:
        fit_whitening(rows, dim)
    assert all(value in str(caught.value) for value in values)


def test_shrinking_adds_a_share_of_the_mean_variance() -> None:
    """Scores along each direction have the variance v / (v + share * mean), with numpy's own covariance."""
    rows = correlated()
    weight, bias = fit_whitening(rows, 8, shrink=0.5)
    variances = np.linalg.eigvalsh(np.cov(rows.astype(np.float64).T))[::-1]
    scores = rows @ weight.T + bias
    np.testing.assert_allclose(
        np.cov(scores.T), np.diag(variances / (variances + variances.mean() / 2))[:8, :8], atol=2e-3
    )
    with raises(UsageError, "invalid-value"):
        fit_whitening(rows, 8, shrink=-1)

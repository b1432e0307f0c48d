"""Replicator dynamics against an example worked by hand, loops in float64, NumPy and its own theorem."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from training.functional import correlations, refine_logs, similarities

# Two anchors of different classes, and a sample that is four times as similar to the first.
W = torch.tensor([[0, 0.8, 0], [0.8, 0, 0.2], [0, 0.2, 0]], dtype=torch.float64)
X = torch.tensor([[1, 0], [0.5, 0.5], [0, 1]], dtype=torch.float64)


def refine(x: Tensor, w: Tensor, steps: int) -> Tensor:
    return refine_logs(x.log(), w, steps).exp()


def consistency(x: Tensor, w: Tensor) -> Tensor:
    """Return sum_ij w_ij x_i . x_j, which no step lowers if W is symmetric and not negative (Baum and Eagon 1967)."""
    return (w * (x @ x.T)).sum()


def naive(x: np.ndarray, w: np.ndarray, steps: int) -> np.ndarray:
    n, classes = x.shape
    for _ in range(steps):
        new = np.zeros_like(x)
        for i in range(n):
            for c in range(classes):
                new[i, c] = x[i, c] * max(sum(w[i, j] * x[j, c] for j in range(n)), 1e-12)
            new[i] = new[i] / new[i].sum()
        x = new
    return x


def test_three_nodes_by_hand() -> None:
    # The middle row's support is (0.8, 0.2): (0.4, 0.1) / 0.5. Then (0.64, 0.04) / 0.68. The anchors stay.
    assert torch.allclose(refine(X, W, 1), torch.tensor([[1, 0], [0.8, 0.2], [0, 1]], dtype=torch.float64))
    assert torch.allclose(refine(X, W, 2)[1], torch.tensor([16 / 17, 1 / 17], dtype=torch.float64))
    assert torch.equal(refine(X, W, 0), X)
    # 2 (0.8 * 0.5 + 0.2 * 0.5), then 2 (0.8 * 0.8 + 0.2 * 0.2).
    assert consistency(X, W).item() == pytest.approx(1.0)
    assert consistency(refine(X, W, 1), W).item() == pytest.approx(1.36)


def test_equals_the_loop() -> None:
    draw = np.random.default_rng(0)
    w = draw.random((6, 6)) * (draw.random((6, 6)) < 0.6)
    x = draw.dirichlet(np.ones(4), 6)
    np.testing.assert_allclose(refine(torch.tensor(x), torch.tensor(w), 3), naive(x, w, 3), rtol=1e-12)


@settings(max_examples=60)
@given(st.integers(1, 7), st.integers(1, 4), st.integers(0, 2**31), st.floats(0, 1))
def test_no_step_lowers_the_consistency(n: int, classes: int, seed: int, share: float) -> None:
    draw = np.random.default_rng(seed)
    w = draw.random((n, n)) * (draw.random((n, n)) < share)
    w, x = torch.tensor(w + w.T), torch.tensor(draw.dirichlet(np.full(classes, 0.3), n))
    for _ in range(6):
        after = refine(x, w, 1)
        assert torch.allclose(after.sum(1), torch.ones(n, dtype=torch.float64))
        assert consistency(after, w) >= consistency(x, w) - 1e-9
        x = after


def test_a_row_without_support_keeps_its_assignment() -> None:
    x = torch.tensor([[1, 0], [0.3, 0.7], [0, 1]], dtype=torch.float64)
    logs = x.log().requires_grad_()
    refined = refine_logs(logs, torch.zeros(3, 3, dtype=torch.float64), 3).exp()
    assert torch.allclose(refined, x, atol=1e-15)
    refined[:, 0].sum().backward()
    assert torch.isfinite(logs.grad).all()
    # A row whose neighbours have other classes does not have support.
    w = torch.ones(2, 2, dtype=torch.float64) - torch.eye(2, dtype=torch.float64)
    assert torch.equal(refine(x[::2], w, 2), x[::2])


def test_logarithms_hold_probabilities_that_underflow() -> None:
    # Support of e^-100 is less than the least that counts.
    logs = torch.tensor([[0.0, -100.0], [0.0, -100.0]])
    w = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    assert refine_logs(logs, w, 1)[0, 1].item() == pytest.approx(-100 + math.log(1e-12), rel=1e-6)
    assert torch.isfinite(refine_logs(logs, w, 50)).all()


def test_gradients() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(4, 3, generator=draw, dtype=torch.float64).softmax(1).requires_grad_()
    w = torch.rand(4, 4, generator=draw, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, w: refine(x, w, 2), (x, w))


def test_correlations_equal_numpy() -> None:
    features = torch.randn(7, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = np.corrcoef(features.numpy())
    np.testing.assert_allclose(correlations(features), expected, atol=1e-12)
    np.testing.assert_allclose(similarities(features), np.where(np.eye(7) > 0, 0, np.maximum(expected, 0)), atol=1e-12)
    np.testing.assert_allclose(
        similarities(features, "shift", zero_diagonal=False), expected - expected.min(), atol=1e-12
    )


def test_shifting_keeps_positive_correlations() -> None:
    features = torch.tensor([[0.0, 1, 2], [0, 1, 2.5]])
    assert torch.equal(similarities(features, "shift"), similarities(features, "clamp"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, -7.7, 1e4])
def test_constant_rows_have_no_correlation(value: float, dtype: torch.dtype) -> None:
    features = torch.randn(3, 1000, generator=torch.Generator().manual_seed(0)).to(dtype)
    features[1:] = value
    features.requires_grad_()
    correlated = correlations(features)
    assert torch.allclose(correlated, torch.tensor([[1.0, 0, 0], [0, 0, 0], [0, 0, 0]], dtype=dtype))
    (gradient,) = torch.autograd.grad(correlated.sum(), features)
    assert torch.isfinite(gradient).all()

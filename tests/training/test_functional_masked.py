"""Masked reductions against loops."""

from __future__ import annotations

import math

import pytest
import torch

from training import functional

VALUES = torch.tensor([[1.0, 700.0, -3.0], [800.0, 799.0, 0.0], [5.0, 6.0, 7.0]], dtype=torch.float64)
MASK = torch.tensor([[True, False, True], [True, True, False], [False, False, False]])


def test_logsumexp() -> None:
    assert functional.masked_logsumexp(VALUES, MASK).tolist() == [
        pytest.approx(math.log(math.exp(1) + math.exp(-3))),
        pytest.approx(800 + math.log(1 + math.exp(-1))),
        -math.inf,
    ]
    assert torch.equal(functional.masked_logsumexp(VALUES, MASK, dim=0), functional.masked_logsumexp(VALUES.T, MASK.T))
    assert (
        functional.masked_logsumexp(torch.zeros(2, 0), torch.zeros(2, 0, dtype=torch.bool)).tolist() == [-math.inf] * 2
    )


def test_logsumexp_gradient() -> None:
    values = VALUES.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda v: functional.masked_logsumexp(v, MASK)[:2], values)
    (gradient,) = torch.autograd.grad(
        torch.nn.functional.softplus(functional.masked_logsumexp(values, MASK)).sum(), values
    )
    assert (gradient[~MASK] == 0).all()


def test_mean() -> None:
    assert functional.masked_mean(torch.tensor([1.0, torch.inf, 3.0]), torch.tensor([True, False, True])).item() == 2
    assert functional.masked_mean(torch.ones(2), torch.zeros(2, dtype=torch.bool)).item() == 0

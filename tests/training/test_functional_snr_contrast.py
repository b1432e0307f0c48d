"""The fused SNR loss and its gradient against the plain definition with autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from training.functional import pair_contrast, snr_contrast, with_transpose

LABELS = torch.tensor([0, 1, 0, 2, 1, 0, 3, 2])


def plain(rows: Tensor, near: float, far: float, active_only: bool) -> Tensor:
    """Return the loss by its definition, pair by pair; a row without variance has distance 0 to all others."""
    above, below = [rows.sum() * 0], [rows.sum() * 0]
    for i, anchor in enumerate(rows):
        for j, other in enumerate(rows):
            power = anchor.var(correction=0)
            distance = (anchor - other).var(correction=0) / power if power > 1e-12 else rows.sum() * 0
            if i != j and LABELS[i] == LABELS[j]:
                above.append(torch.relu(distance - near))
            elif i != j:
                below.append(torch.relu(far - distance))
    return sum(_mean(terms[1:], active_only) for terms in (above, below))  # type: ignore[return-value]


def _mean(terms: list[Tensor], active_only: bool) -> Tensor:
    return sum(terms) / max(1, sum(bool(term > 0) or not active_only for term in terms))  # type: ignore[return-value]


@pytest.mark.parametrize("active_only", [False, True])
@pytest.mark.parametrize(("near", "far"), [(0.0, 1.0), (0.5, 1.9), (1.7, 2.4), (9.0, -1.0)])
def test_value_and_gradient_are_those_of_the_definition(near: float, far: float, active_only: bool) -> None:
    rows = torch.randn(8, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    rows[3] = 0.25
    rows.requires_grad_()
    (fused, _), written = snr_contrast(rows, LABELS, near, far, 0.0, active_only), plain(rows, near, far, active_only)
    assert fused.item() == pytest.approx(written.item(), abs=1e-12)
    (ours,), (theirs,) = (torch.autograd.grad(3 * value, rows) for value in (fused, written))
    assert torch.allclose(ours, theirs, atol=1e-12)


@pytest.mark.parametrize("labels", [torch.zeros(4), torch.arange(4), torch.zeros(1)])
def test_without_positives_or_negatives_a_mean_is_zero(labels: Tensor) -> None:
    rows = torch.randn(len(labels), 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    value, _ = snr_contrast(rows, labels.long(), 9.0, -1.0, 0.0, active_only=True)
    assert value.item() == 0
    assert (torch.autograd.grad(value, rows)[0] == 0).all()


@pytest.mark.parametrize("active_only", [False, True])
def test_gradient_of_the_contrast_of_any_values(active_only: bool) -> None:
    values = torch.randn(8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: pair_contrast(v, LABELS, 0.1, 0.7, active_only)[0], values)


@pytest.mark.parametrize("size", [1, 3, 70])
def test_a_matrix_and_its_transpose_leave_the_matrix_alone(size: int) -> None:
    matrix = torch.arange(size * size, dtype=torch.float32).reshape(size, size)
    before = matrix.clone()
    assert torch.equal(with_transpose(matrix), before + before.T)
    assert torch.equal(matrix, before)

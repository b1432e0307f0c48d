"""Products, distances and masked reductions, against cdist, loops and finite differences."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from training import functional
from training.batch import EmbeddingBatch
from training.functional import Triplets, distances, pair_distances, positive_mask, positive_pairs

ROWS = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
FIRST, SECOND = torch.tensor([0, 3, 3, 5]), torch.tensor([1, 2, 4, 0])


def test_values() -> None:
    expected = torch.cdist(ROWS, ROWS, compute_mode="donot_use_mm_for_euclid_dist")
    assert torch.allclose(distances(ROWS), expected, atol=1e-7)
    assert torch.allclose(pair_distances(ROWS, FIRST, SECOND), expected[FIRST, SECOND], atol=1e-12)


def test_gradients_of_uneven_weights() -> None:
    weights = torch.randn(6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def weighted(rows: Tensor) -> Tensor:
        return (distances(rows) * weights).sum()

    assert torch.autograd.gradcheck(weighted, ROWS.clone().requires_grad_())


def test_gradients_of_pairs() -> None:
    assert torch.autograd.gradcheck(lambda rows: pair_distances(rows, FIRST, SECOND), ROWS.clone().requires_grad_())


def test_equal_rows_have_no_gradient() -> None:
    rows = torch.ones(3, 4, requires_grad=True)
    for value in (distances(rows), pair_distances(rows, torch.tensor([0, 1]), torch.tensor([1, 1]))):
        assert value.sum().item() == 0
        (gradient,) = torch.autograd.grad(value.sum(), rows)
        assert (gradient == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [3, 128, 512])
def test_equal_rows_have_distance_0(dtype: torch.dtype, dim: int) -> None:
    generator = torch.Generator().manual_seed(dim)
    lengths = 10 ** torch.linspace(-3, 3, 64)[:, None]
    rows = torch.nn.functional.normalize(torch.randn(64, dim, generator=generator)).mul(lengths).to(dtype)
    found = distances(torch.cat([rows, rows]))
    assert not found[:64, 64:].diagonal().any()
    # Rows a hundredth of their length apart are distinguished, short ones beside long ones too.
    near = distances(torch.cat([rows, rows * 1.01]))[:64, 64:].diagonal()
    assert torch.allclose(near, lengths[:, 0].to(dtype) * 0.01, rtol=0.03)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_near_rows_differ_in_half_precision(dtype: torch.dtype) -> None:
    near = torch.tensor([[1.0, 0.0], [0.97, 0.25]], dtype=dtype)
    assert distances(near)[0, 1].item() == pytest.approx(0.25, rel=0.15)


def test_values_that_are_not_finite_stay_visible() -> None:
    for number in (torch.inf, torch.nan, 1e30):  # whose square is infinite
        found = distances(torch.tensor([[number, 0.0], [number, 0.0], [0.0, 1.0]]))
        assert not torch.isfinite(found[0, 1])
        assert not torch.isfinite(found[0, 2])


def test_distances_of_triplets_are_those_of_their_pairs() -> None:
    third = torch.tensor([2, 3, 1, 4])

    def both(rows: Tensor) -> Tensor:
        return torch.stack(
            EmbeddingBatch(rows, torch.zeros(len(rows))).triplet_distances(Triplets(FIRST, SECOND, third))
        )

    expected = torch.stack([pair_distances(ROWS, FIRST, SECOND), pair_distances(ROWS, FIRST, third)])
    assert torch.allclose(both(ROWS), expected, atol=1e-12)
    rows, weights = ROWS.clone().requires_grad_(), torch.randn(2, 4, dtype=torch.float64)
    (ours,) = torch.autograd.grad((both(rows) * weights).sum(), rows)
    apart = (pair_distances(rows, FIRST, SECOND) * weights[0] + pair_distances(rows, FIRST, third) * weights[1]).sum()
    assert torch.allclose(
        ours, torch.autograd.grad(apart, rows)[0], atol=1e-12
    )  # SECOND and third meet at 3: distance 0


@pytest.mark.parametrize("labels", [[0, 0, 1, 1, 0], [5], [3, 1, 2], [7, 7, 7], [2, 9, 2, 9, 4, 2], []])
def test_positive_pairs_are_the_entries_of_the_mask(labels: list[int]) -> None:
    y = torch.tensor(labels, dtype=torch.int64)
    anchors, positives = positive_pairs(y)
    expected = positive_mask(y).nonzero().tolist()
    assert sorted(zip(anchors.tolist(), positives.tolist(), strict=True)) == [(i, j) for i, j in expected]


def test_many_pairs_are_taken_in_pieces() -> None:
    generator = torch.Generator().manual_seed(2)
    i, j = torch.randint(6, (2, 600), generator=generator)
    weights = torch.randn(600, generator=generator, dtype=torch.float64)
    rows = ROWS.clone().requires_grad_()
    (ours,) = torch.autograd.grad((pair_distances(rows, i, j) * weights).sum(), rows)
    expected = torch.zeros(6, 4, dtype=torch.float64)
    for a, b, weight in zip(i.tolist(), j.tolist(), weights.tolist(), strict=True):
        if a != b:
            direction = (ROWS[a] - ROWS[b]) / torch.linalg.vector_norm(ROWS[a] - ROWS[b])
            expected[a] += weight * direction
            expected[b] -= weight * direction
    assert torch.allclose(ours, expected, atol=1e-11)


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

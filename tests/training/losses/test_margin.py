"""Margin loss against a double loop in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from tests.training.losses.batches import above, all_triplets, create, distance, far, near, nonzero, of_pairs
from training.functional import Triplets
from training.losses.margin import MarginLoss


def batch(seed: int, labels: list[int], dim: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(len(labels), dim, generator=generator, dtype=torch.float64)
    return normalize(rows, dim=1), torch.tensor(labels)


def naive(
    e: np.ndarray, labels: list[int], beta: np.ndarray, margin: float, triplets: list[tuple[int, int, int]]
) -> float:
    total, active = 0.0, 0
    for a, p, n in triplets:
        d_ap = sum((x - y) ** 2 for x, y in zip(e[a], e[p], strict=True)) ** 0.5
        d_an = sum((x - y) ** 2 for x, y in zip(e[a], e[n], strict=True)) ** 0.5
        for term in (d_ap - beta[labels[a]] + margin, beta[labels[a]] - d_an + margin):
            if term > 0:
                total, active = total + term, active + 1
    return total / max(active, 1)


def margin(e: np.ndarray, y: list[int]) -> float:
    terms = above([distance(e[a], e[p]) - 1 for a, p in near(y)] + [1.4 - distance(e[a], e[n]) for a, n in far(y)])
    return sum(terms) / max(1, sum(term > 0 for term in terms))


def margin_by_triplets(e: np.ndarray, y: list[int]) -> float:
    close = [distance(e[a], e[p]) - 1 for a, p, _ in all_triplets(y)]
    return nonzero(close + [1.4 - distance(e[a], e[n]) for a, _, n in all_triplets(y)])


ORACLES = {
    "margin": (create("margin"), of_pairs(margin)),
    "margin, by_triplets": (create("margin", by_triplets=True), of_pairs(margin_by_triplets)),
}
"""Losses and their values by a loop, which `test_degenerate_batches.py` compares on batches of every kind."""


@pytest.mark.parametrize("seed", range(5))
def test_equals_the_naive_loop_over_triplets(seed: int) -> None:
    labels = [0, 0, 1, 1, 2, 2, 2]
    embeddings, y = batch(seed, labels)
    triplets = [(a, p, n) for a in range(7) for p in range(7) for n in range(7)]
    triplets = [(a, p, n) for a, p, n in triplets if a != p and labels[a] == labels[p] != labels[n]]
    loss = create("margin", 3, margin=0.3, beta=1.1)
    loss.beta.data = torch.tensor([0.9, 1.2, 1.4], dtype=torch.float64)
    actual = loss(embeddings, y, Triplets(*torch.tensor(triplets).T))
    assert actual.item() == pytest.approx(
        naive(embeddings.numpy(), labels, loss.beta.detach().numpy(), 0.3, triplets), abs=1e-12
    )


def test_all_pairs_by_hand() -> None:
    # Three points of the plane: 0 degrees and 90 degrees of class 0, 180 degrees of class 1.
    embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    loss = create("margin", 2)(embeddings, torch.tensor([0, 0, 1]))
    # Positive pairs (twice): sqrt 2 - 1.0. Negative pairs: 0-2 at distance 2 inactive, 1-2 at sqrt 2: 1.4 - sqrt 2 < 0.
    assert loss.item() == pytest.approx(2**0.5 - 1.0, abs=1e-6)


def test_gradients() -> None:
    embeddings, y = batch(0, [0, 0, 1, 1, 2])
    embeddings.requires_grad_()
    loss = create("margin", 3)
    assert torch.autograd.gradcheck(
        lambda e, beta: _with_beta(loss, e, y, beta), (embeddings, loss.beta.detach().requires_grad_())
    )


def _with_beta(loss: MarginLoss, embeddings: Tensor, y: Tensor, beta: Tensor) -> Tensor:
    return torch.func.functional_call(loss, {"beta": beta}, (embeddings, y))


def test_nothing_mined_is_a_loss_of_zero() -> None:
    embeddings, y = batch(1, [0, 1])
    none = torch.empty(0, dtype=torch.int64)
    embeddings.requires_grad_()
    value = create("margin", 2)(embeddings, y, Triplets(none, none, none))
    value.backward()
    assert value.item() == 0


def test_the_order_of_the_batch_does_not_matter() -> None:
    embeddings, y = batch(2, [0, 0, 1, 1, 2, 2])
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    loss = create("margin", 3)
    assert loss(embeddings[order], y[order]).item() == pytest.approx(loss(embeddings, y).item(), abs=1e-12)

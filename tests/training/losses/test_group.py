"""Group loss against a loop in float64 and values worked by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.raising import raises
from tests.training.losses.batches import DIM, LABELS, batch, mean
from training.functional import refine_logs
from training.losses.group import GroupLoss, choose_anchors
from zoo.errors import RecipeError


def create(classes: int = 4, dim: int = DIM, **args: Any) -> GroupLoss:
    torch.manual_seed(0)
    return GroupLoss(classes, dim, **args).double()


def refined_rows(loss: GroupLoss, features: np.ndarray, labels: list[int], fixed: list[bool], steps: int) -> np.ndarray:
    """The refined assignments; W clamped, its diagonal 0."""
    weight, bias = (p.detach().numpy() for p in (loss.classifier.weight, loss.classifier.bias))
    n, classes = len(labels), len(bias)
    x = np.exp((features @ weight.T + bias) / loss.temperature)
    x /= x.sum(1, keepdims=True)
    for i in range(n):
        if fixed[i]:
            x[i] = np.eye(classes)[labels[i]]
    w = np.maximum(np.corrcoef(features), 0)
    np.fill_diagonal(w, 0)
    for _ in range(steps):
        new = x.copy()
        for i in range(n):
            row = [x[i, c] * max(sum(w[i, j] * x[j, c] for j in range(n)), 1e-12) for c in range(classes)]
            new[i] = [value / sum(row) for value in row]
        x = new
    return x


def naive(loss: GroupLoss, features: np.ndarray, labels: list[int], fixed: list[bool], steps: int) -> list[float]:
    """-log of the refined own probability of each sample that is not an anchor."""
    x = refined_rows(loss, features, labels, fixed, steps)
    return [-math.log(x[i, label]) for i, label in enumerate(labels) if not fixed[i]]


@pytest.mark.parametrize(("seed", "steps", "anchors"), [(0, 1, 1), (1, 3, 1), (2, 2, 3), (3, 4, 0)])
def test_equals_the_loop(seed: int, steps: int, anchors: int) -> None:
    features, y = batch(seed, LABELS, normalised=False)
    loss = create(steps=steps, anchors=anchors, temperature=2.0)
    torch.manual_seed(seed)
    fixed = choose_anchors(y, anchors).tolist()
    torch.manual_seed(seed)
    assert loss(features, y).item() == pytest.approx(
        mean(naive(loss, features.numpy(), LABELS, fixed, steps)), abs=1e-12
    )


def test_by_hand() -> None:
    # Pearson's correlations: 1 and 2 have 1/2, 2 and 3 have 1/2, 1 and 3 have -1/2, which counts as 0.
    features = torch.tensor([[2, -1, -1], [1, 1, -2], [-1, 2, -1]], dtype=torch.float64)
    loss = create(2, 3, anchors=1, steps=1)
    torch.nn.init.zeros_(loss.classifier.weight)
    torch.nn.init.zeros_(loss.classifier.bias)
    # Two samples of class 0, one of which is the anchor, and one of class 1, which cannot be: priors of 1/2 each. Where
    # the middle one is the anchor, both others have the support (1/2, 0), and 0 counts as 1e-12: -log 1 and -log 2e-12.
    # Else the middle one has (1/2 * 1 + 1/2 * 1/2, 1/2 * 1/2) = (3/4, 1/4), and the last one (1/4, 1/4).
    other = (-math.log(3 / 4) - math.log(1 / 2)) / 2
    values = {round(loss(features, torch.tensor([0, 0, 1])).item(), 9) for _ in range(30)}
    assert values == {round(-math.log(2e-12) / 2, 9), round(other, 9)}


def test_the_published_form() -> None:
    features, y = batch(0, LABELS, normalised=False)
    loss = create(published=True)
    torch.manual_seed(1)
    fixed = choose_anchors(y, 2)
    torch.manual_seed(1)
    actual = loss(features, y)
    logits = loss.classifier(features)
    rows = torch.where(fixed[:, None], torch.eye(4, dtype=torch.float64)[y], (logits / 24).softmax(1))
    refined = refine_logs(rows.log(), torch.tensor(np.maximum(np.corrcoef(features), 0)), 1).exp()
    expected = -refined[range(9), y].log().mean() + cross_entropy(logits, y)
    assert actual.item() == pytest.approx(expected.item(), abs=1e-12)
    # Explicit arguments hold over the published ones.
    assert (create(published=True, steps=3).steps, create(published=True, zero_diagonal=True).zero_diagonal) == (
        3,
        True,
    )


def test_classification_is_plain_cross_entropy() -> None:
    features, y = batch(0, LABELS, normalised=False)
    loss = create()
    assert loss.classification(features, y).item() == pytest.approx(
        cross_entropy(loss.classifier(features), y).item(), abs=1e-12
    )


@pytest.mark.parametrize("args", [{}, {"criterion": "kl"}, {"similarity": "shift"}])
def test_sparse_classes_equal_the_dense_loss_without_the_mass_of_the_others(args: dict[str, Any]) -> None:
    features, y = batch(0, [2, 5, 2, 5, 7, 2, 7, 5], normalised=False)
    sparse, dense = create(9, sparse_classes=True, steps=3, **args), create(9, steps=3, **args)
    dense.load_state_dict(sparse.state_dict())
    absent = [c for c in range(9) if c not in (2, 5, 7)]
    with torch.no_grad():
        dense.classifier.bias[absent] = -1e6  # the other classes' priors are then exactly 0
    torch.manual_seed(3)
    expected = dense(features, y)
    torch.manual_seed(3)
    assert sparse(features, y).item() == pytest.approx(expected.item(), abs=1e-12)


def test_sparse_classes_give_other_classes_no_gradient() -> None:
    features, y = batch(0, [2, 2, 3, 3, 3], normalised=False)
    loss = create(6, sparse_classes=True, anchors=1)
    loss(features, y).backward()
    assert loss.classifier.weight.grad is not None
    assert loss.classifier.weight.grad.abs().sum(1).nonzero()[:, 0].tolist() == [2, 3]


@pytest.mark.parametrize(("seed", "anchors"), [(0, 0), (1, 1), (2, 2)])
def test_kl_equals_the_loop_over_pairs_of_a_class(seed: int, anchors: int) -> None:
    """Eq. 10: the divergence between the refined rows of samples of the same class."""
    features, y = batch(seed, LABELS, normalised=False)
    loss = create(criterion="kl", steps=2, temperature=2.0, anchors=anchors)
    torch.manual_seed(seed)
    fixed = choose_anchors(y, anchors).tolist()
    torch.manual_seed(seed)
    actual = loss(features, y)
    x = refined_rows(loss, features.numpy(), LABELS, fixed, 2)
    terms = [
        sum(p * math.log(p / q) for p, q in zip(x[i], x[j], strict=True) if p > 0)
        for i in range(9)
        for j in range(9)
        if i != j and LABELS[i] == LABELS[j] and not fixed[j]
    ]
    assert len(terms) == {0: 16, 1: 11, 2: 8}[anchors]
    assert actual.item() == pytest.approx(mean(terms), abs=1e-12)
    assert actual > 0


def test_kl_depends_on_the_labels_without_anchors_and_vanishes_for_equal_samples() -> None:
    features, y = batch(0, LABELS, normalised=False)
    loss = create(criterion="kl", anchors=0)
    assert loss(features, y).item() != pytest.approx(loss(features, y.roll(1)).item(), rel=1e-3)
    assert loss(features[y], y).item() == pytest.approx(0, abs=1e-12)  # one row a class
    assert loss(features[:3], torch.tensor([0, 1, 2])).item() == 0  # no pair


def test_anchors_are_drawn_again_and_every_class_keeps_another_sample() -> None:
    labels = torch.tensor([0, 1, 1, 2, 2, 2, 3, 3, 3, 3])
    torch.manual_seed(0)
    drawn = torch.stack([choose_anchors(labels, 2) for _ in range(2000)])
    for label, expected in enumerate([0, 1, 2, 2]):
        own = drawn[:, labels == label]
        assert (own.sum(1) == expected).all()
        share = expected / own.shape[1]
        assert torch.allclose(own.float().mean(0), torch.full((own.shape[1],), share), atol=0.06)
    assert not choose_anchors(labels, 0).any()


@pytest.mark.parametrize("args", [{}, {"published": True}, {"criterion": "kl"}, {"sparse_classes": True}])
def test_without_anchors_the_order_of_the_batch_does_not_matter(args: dict[str, Any]) -> None:
    features, y = batch(2, LABELS, normalised=False)
    loss = create(anchors=0, temperature=2.0, **args)
    order = torch.tensor([3, 0, 8, 7, 5, 1, 6, 4, 2])
    torch.manual_seed(0)
    before = loss(features, y).item()
    torch.manual_seed(1)  # nothing that is drawn counts
    assert loss(features[order], y[order]).item() == pytest.approx(before, abs=1e-12)


VARIANTS: list[dict[str, Any]] = [
    {"published": True},
    {"criterion": "kl"},
    {"similarity": "shift"},
    {"sparse_classes": True},
    {"temperature": 0.1, "steps": 20},
    {"anchors": 0},
]


@pytest.mark.parametrize("args", VARIANTS)
def test_every_variant_is_finite_on_any_batch(args: dict[str, Any]) -> None:
    loss = create(**args).float()
    for labels in ([1, 1, 1, 1], [0, 1, 2, 3], [0, 0, 1, 1], [2]):
        random = torch.randn(len(labels), DIM, generator=torch.Generator().manual_seed(0))
        for kind, features in {
            "random": random,
            "equal": random[:1].repeat(len(labels), 1),
            "constant": torch.full_like(random, 1 / 3),
            "zero": torch.zeros_like(random),
            "far": 1e3 * random,
        }.items():
            features.requires_grad_()
            value = loss(features, torch.tensor(labels))
            gradients = torch.autograd.grad(value, [features, *loss.parameters()], materialize_grads=True)
            assert torch.isfinite(value), (kind, labels)
            assert all(torch.isfinite(gradient).all() for gradient in gradients), (kind, labels)


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ({"temperature": 0}, "invalid-value"),
        ({"anchors": -1}, "invalid-value"),
        ({"steps": -1}, "invalid-value"),
        ({"similarity": "cosine"}, "unknown-name"),
        ({"criterion": "mse"}, "unknown-name"),
    ],
)
def test_impossible_constants_are_rejected(args: dict[str, Any], code: str) -> None:
    with raises(RecipeError, code):
        create(**args)

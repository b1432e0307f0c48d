"""Properties of every transfer, and the three against naive loops in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from tests.raising import raises
from training.methods import TRANSFERS, transfers
from training.methods.transfers import (
    EmbeddingRegression,
    RelationalDistillation,
    SimilarityDistillation,
    needs_same_dim,
)
from zoo.errors import RecipeError


def unit(n: int, dim: int, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(n, dim, dtype=torch.float64, generator=draw), dim=1)


def length(row: np.ndarray) -> float:
    return math.sqrt(sum(x * x for x in row))


def huber(x: float) -> float:
    return x * x / 2 if abs(x) <= 1 else abs(x) - 0.5


def naive_distances(student: np.ndarray, teacher: np.ndarray, published: bool) -> float:
    pairs = [(i, j) for i in range(len(student)) for j in range(len(student)) if published or i != j]

    def relative(rows: np.ndarray) -> list[float]:
        result = [length(rows[i] - rows[j]) for i, j in pairs]
        counted = [d for d in result if d > 0] if published else result
        mean = sum(counted) / len(counted)
        return [d / mean for d in result]

    terms = [huber(t - s) for t, s in zip(relative(teacher), relative(student), strict=True)]
    return sum(terms) / len(terms)


def naive_angles(student: np.ndarray, teacher: np.ndarray, published: bool) -> float:
    def cosine(rows: np.ndarray, i: int, j: int, k: int) -> float:
        a, b = rows[i] - rows[j], rows[k] - rows[j]
        if length(a) == 0 or length(b) == 0:
            return 0.0
        return float(sum(a * b)) / (length(a) * length(b))

    n = len(student)
    triplets = [(i, j, k) for i in range(n) for j in range(n) for k in range(n)]
    if not published:
        triplets = [triplet for triplet in triplets if len(set(triplet)) == 3]
    terms = [huber(cosine(teacher, *triplet) - cosine(student, *triplet)) for triplet in triplets]
    return sum(terms) / len(terms)


def naive_similarity(student: np.ndarray, teacher: np.ndarray, temperature: float) -> float:
    def shares(rows: np.ndarray, i: int) -> list[float]:
        powers = [math.exp(sum(rows[i] * other) / temperature) for other in rows]
        return [power / sum(powers) for power in powers]

    total = 0.0
    for i in range(len(student)):
        total += sum(t * math.log(t / s) for t, s in zip(shares(teacher, i), shares(student, i), strict=True))
    return temperature**2 * total / len(student)


def test_regression_equals_the_loop_and_one_minus_the_cosine() -> None:
    student, teacher = unit(6, 5), unit(6, 5, 1)
    value = EmbeddingRegression()(student, teacher).item()
    s, t = student.numpy(), teacher.numpy()
    assert value == pytest.approx(sum(length(a - b) ** 2 / 2 for a, b in zip(s, t, strict=True)) / 6)
    assert value == pytest.approx(1 - np.mean([sum(a * b) for a, b in zip(s, t, strict=True)]))


@pytest.mark.parametrize("published", [False, True])
def test_relations_equal_the_loops(published: bool) -> None:
    student, teacher = unit(7, 4), unit(7, 9, 1)
    s, t = student.numpy(), teacher.numpy()
    parts = naive_distances(s, t, published), naive_angles(s, t, published)
    for weights in ((1.0, 0.0), (0.0, 1.0), (1.0, 2.0), (25.0, 50.0)):
        value = RelationalDistillation(*weights, published)(student, teacher).item()
        # Distances come from one product of matrices, which rounds by more than differences do.
        assert value == pytest.approx(weights[0] * parts[0] + weights[1] * parts[1], rel=1e-6)
    assert RelationalDistillation(published=published)(student, teacher).item() == pytest.approx(
        parts[0] + 2 * parts[1], rel=1e-6
    )


def test_relations_by_hand() -> None:
    """Compare a right angle with legs of 1 with three points on a line, the middle one last."""
    corner = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    line = torch.tensor([[0.0], [2.0], [1.0]], dtype=torch.float64)
    mean_corner, mean_line = (2 + math.sqrt(2)) / 3, 4 / 3
    pairs = [
        1 / mean_corner - 2 / mean_line,
        1 / mean_corner - 1 / mean_line,
        math.sqrt(2) / mean_corner - 1 / mean_line,
    ]
    assert RelationalDistillation(1, 0)(line, corner).item() == pytest.approx(sum(d * d / 2 for d in pairs) / 3)
    half = math.sqrt(0.5)  # the cosine of 45 degrees, beside 1, 1 and -1
    angles = [0 - 1, half - 1, half + 1]
    expected = (0.5 + (half - 1) ** 2 / 2 + (half + 1 - 0.5)) / 3
    assert expected == pytest.approx(sum(huber(angle) for angle in angles) / 3)
    assert RelationalDistillation(0, 1)(line, corner).item() == pytest.approx(expected)


def test_parts_of_a_batch_do_not_change_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    student, teacher = unit(11, 5).requires_grad_(), unit(11, 8, 1)
    loss = RelationalDistillation()
    whole = torch.autograd.grad(loss(student, teacher), student)[0]
    value = loss(student, teacher).item()
    monkeypatch.setattr(transfers, "MAX_ENTRIES", 3 * 11 * 11)
    assert loss(student, teacher).item() == pytest.approx(value, rel=1e-12)
    torch.testing.assert_close(torch.autograd.grad(loss(student, teacher), student)[0], whole)


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_similarity_equals_the_loop(temperature: float) -> None:
    student, teacher = unit(6, 4), unit(6, 9, 1)
    value = SimilarityDistillation(temperature)(student, teacher).item()
    assert value == pytest.approx(naive_similarity(student.numpy(), teacher.numpy(), temperature))


@pytest.mark.parametrize("name", TRANSFERS)
def test_a_student_that_equals_its_teacher_has_nothing_to_learn(name: str) -> None:
    rows = unit(8, 6).requires_grad_()
    value = TRANSFERS[name]()(rows, rows)
    assert value.item() == pytest.approx(0, abs=1e-12)
    assert torch.autograd.grad(value, rows)[0].abs().max().item() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("name", [name for name in TRANSFERS if not needs_same_dim(name)])
def test_relations_do_not_see_a_rotation(name: str) -> None:
    student, teacher = unit(8, 6), unit(8, 5, 1)
    turn = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))).Q
    loss = TRANSFERS[name]()
    assert loss(student @ turn, teacher).item() == pytest.approx(loss(student, teacher).item(), rel=1e-6)


@pytest.mark.parametrize("name", TRANSFERS)
def test_the_gradient_is_numerical_and_the_teacher_has_no_gradient(name: str) -> None:
    student, teacher = unit(5, 4).requires_grad_(), unit(5, 4, 1).requires_grad_()
    loss = TRANSFERS[name]()
    assert torch.autograd.gradcheck(lambda rows: loss(rows, teacher.detach()), student, atol=1e-5)
    loss(student, teacher).backward()
    assert teacher.grad is None


@pytest.mark.parametrize("name", TRANSFERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_degenerate_batches_have_finite_values_and_gradients(name: str, dtype: torch.dtype) -> None:
    loss = TRANSFERS[name]()
    for n in (1, 2, 3, 5):
        plain = unit(n, 4)
        equal = plain[:1].repeat(n, 1)
        twice = torch.cat([plain, plain])
        almost = normalize(equal + 1e-9 * unit(n, 4, 2), dim=1)
        for student, teacher in (
            (plain, unit(n, 4, 1)),
            (equal, plain),
            (plain, equal),
            (equal, equal),
            (almost, plain),
            (torch.zeros_like(plain), plain),
            (twice, unit(2 * n, 4, 1)),
            (-plain, plain),
        ):
            rows = student.to(dtype).requires_grad_()
            value = loss(rows, teacher.to(dtype))
            assert value.shape == ()
            gradient = torch.autograd.grad(value, rows)[0]
            assert torch.isfinite(value)
            assert torch.isfinite(gradient).all()
            assert gradient.abs().max() < 1e4


@pytest.mark.parametrize(
    ("kind", "args"),
    [
        (RelationalDistillation, {"distance": -1}),
        (RelationalDistillation, {"distance": 0, "angle": 0}),
        (SimilarityDistillation, {"temperature": 0}),
    ],
)
def test_numbers_out_of_range_are_rejected(kind: type, args: dict[str, Any]) -> None:
    with raises(RecipeError, "invalid-value"):
        kind(**args)

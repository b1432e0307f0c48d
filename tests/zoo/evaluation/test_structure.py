from __future__ import annotations

import math
from unittest import mock

import numpy as np
import pytest
import torch

from tests.raising import raises
from zoo.errors import EvaluationError
from zoo.evaluation import gpu
from zoo.evaluation.structure import alignment, spectral_decay, spectral_decay_by_class, structure_metrics, uniformity


def naive(rows: np.ndarray, drop: int = 0) -> float:
    """KL(U || S) in single steps; the singular values are the roots of the eigenvalues of R^T R."""
    n, d = rows.shape
    gram = [[sum(rows[i, a] * rows[i, b] for i in range(n)) for b in range(d)] for a in range(d)]
    values = sorted((math.sqrt(max(v, 0.0)) for v in np.linalg.eigvalsh(np.array(gram))), reverse=True)[
        drop : min(n, d)
    ]
    total, divergence = sum(values), 0.0
    for value in values:
        uniform, share = 1 / len(values), value / total
        divergence += uniform * math.log(uniform / share)
    return divergence


def test_by_hand():
    """Singular values 3 and 1, so S = (3/4, 1/4) and KL = (log(2/3) + log 2) / 2 = log(4/3) / 2."""
    assert spectral_decay([[3, 0], [0, 1]]) == pytest.approx(math.log(4 / 3) / 2, rel=1e-12)
    # The same with both rows twice: every singular value grows by the root of 2.
    assert spectral_decay([[3, 0], [0, 1], [3, 0], [0, 1]]) == pytest.approx(math.log(4 / 3) / 2, rel=1e-12)


@pytest.mark.parametrize("shape", [(40, 7), (60, 2), (5, 5), (4, 5)])
def test_agrees_with_single_steps(shape):
    rows = np.random.default_rng(0).normal(0.3, 1, shape).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    assert spectral_decay(rows) == pytest.approx(naive(rows.astype(np.float64)), rel=1e-6)


def test_neither_scale_nor_order_nor_rotation_matter_but_the_mean_does():
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(50, 4))
    turn = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    expected = spectral_decay(rows)
    for same in (7 * rows, rows[::-1], rows @ turn):
        assert spectral_decay(same) == pytest.approx(expected, rel=1e-5)
    assert spectral_decay(rows + 5) > 2 * expected  # uncentred: a common offset is one strong direction


def test_all_directions_alike_is_zero_and_an_unused_one_is_large_but_finite():
    assert spectral_decay(np.eye(6)) == pytest.approx(0, abs=1e-12)
    assert spectral_decay([[1, 2, 3]]) == pytest.approx(0, abs=1e-12)  # one row has one singular value
    assert 10 < spectral_decay(np.tile([[0.6, 0.8]], (30, 1))) < 50


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        (np.zeros((3, 2)), "too-few-samples"),
        (np.zeros((0, 2)), "too-few-samples"),
        ([[1.0, np.nan]], "not-finite"),
        ([1.0, 2.0], "invalid-embedding"),
    ],
)
def test_rows_without_a_spectrum_are_refused(rows, code):
    with raises(EvaluationError, code):
        spectral_decay(rows)


def test_the_largest_singular_values_are_dropped():
    assert spectral_decay(np.diag([9.0, 3.0, 1.0]), drop=1) == pytest.approx(math.log(4 / 3) / 2, rel=1e-12)
    assert spectral_decay(np.diag([9.0, 3.0, 1.0]), drop=2) == 0
    rows = np.random.default_rng(2).normal(0.5, 1, (30, 6))
    for drop in range(6):
        expected = naive(rows.astype(np.float32).astype(np.float64), drop)
        assert spectral_decay(rows, drop) == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert spectral_decay(rows, 1) < spectral_decay(rows)  # the common offset was the strongest
    assert spectral_decay(np.tile([[0.6, 0.8, 0]], (30, 1)), drop=1) == 0  # nothing is left but rounding


@pytest.mark.parametrize("drop", [-1, 2, 5])
def test_no_singular_value_left_is_refused(drop):
    with raises(EvaluationError, "invalid-value") as caught:
        spectral_decay([[1, 2, 3], [3, 2, 1]], drop)
    assert f"drop is {drop}" in str(caught.value)


def test_decay_by_class_is_the_mean_over_classes_of_two_and_more():
    rng = np.random.default_rng(3)
    labels = rng.permutation(np.repeat([0, 1, 2, 3], (9, 1, 4, 2)))
    rows = rng.normal(size=(16, 5)).astype(np.float32)
    expected = np.mean([naive(rows[labels == c].T.astype(np.float64)) for c in (0, 2, 3)])
    assert spectral_decay_by_class(rows, labels) == pytest.approx(expected, rel=1e-5)
    with raises(EvaluationError, "too-few-samples"):
        spectral_decay_by_class(np.eye(3), [0, 1, 2])


def test_the_largest_values_of_each_class_may_be_left_out():
    rng = np.random.default_rng(5)
    labels = np.array([0, 0, 0, 0, 1, 1, 2, 2, 2])
    rows = rng.normal(size=(9, 5)).astype(np.float32)
    expected = np.mean([naive(rows[labels == c].T.astype(np.float64), drop=2) for c in (0, 2)])
    assert spectral_decay_by_class(rows, labels, drop=2) == pytest.approx(expected, rel=1e-4)
    with raises(EvaluationError, "too-few-samples") as caught:
        spectral_decay_by_class(rows, labels, drop=4)
    assert "5 samples" in str(caught.value)


def test_all_measures_of_rows_of_any_length():
    rng = np.random.default_rng(4)
    labels = np.repeat(np.arange(5), 6)
    unit = rng.normal(size=(30, 8))
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    scores = structure_metrics(unit * rng.uniform(0.5, 2, (30, 1)), labels)
    assert scores == pytest.approx(structure_metrics(unit, labels), rel=1e-4)
    assert scores["spectral_decay"] == pytest.approx(spectral_decay(unit), rel=1e-5)
    assert scores["spectral_decay_drop_1"] == pytest.approx(spectral_decay(unit, 1), rel=1e-5)
    assert scores["spectral_decay_by_class"] == pytest.approx(spectral_decay_by_class(unit, labels), rel=1e-5)
    assert scores["intra_inter_ratio"] == scores["intra_class_distance"] / scores["inter_class_distance"]
    assert scores["alignment"] == pytest.approx(alignment(unit, labels), rel=1e-5)
    assert scores["uniformity"] == pytest.approx(uniformity(unit), rel=1e-5)
    # Classes of one size: alignment is the mean squared distance, twice the cosine distance.
    assert scores["alignment"] == pytest.approx(2 * scores["intra_class_cosine_distance"])


def test_a_collapsed_embedding_has_finite_measures():
    scores = structure_metrics(np.tile([[0.6, 0.8]], (20, 1)), np.repeat([0, 1], 10))
    assert all(math.isfinite(value) for value in scores.values())


def test_a_device_gives_what_numpy_does(monkeypatch):
    """The code for a GPU runs on the CPU, and falls back to NumPy without enough memory."""
    rows = np.random.default_rng(4).normal(size=(1100, 12)) * np.arange(1, 13)
    expected = spectral_decay(rows), uniformity(rows)
    monkeypatch.setattr(gpu, "device", lambda: "cpu")
    monkeypatch.setattr(gpu, "to_device", sent := mock.Mock(wraps=gpu.to_device))
    monkeypatch.setattr(gpu, "_PAIR_PRODUCTS", 400 * 1100)
    assert (spectral_decay(rows), uniformity(rows)) == pytest.approx(expected, rel=1e-5)
    assert sent.call_count == 2
    sent.side_effect = torch.OutOfMemoryError
    assert (spectral_decay(rows), uniformity(rows)) == expected


def test_one_dimension_has_no_structure():
    with raises(EvaluationError, "too-few-samples"):
        structure_metrics([[1.0], [2.0], [-1.0], [3.0]], [0, 0, 1, 1])

"""Measures of factors, against hand calculations and scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from tests.raising import raises
from zoo.errors import EvaluationError
from zoo.evaluation.structure import neighbours_across_classes, order_within_classes


def test_neighbours_of_other_classes_by_hand() -> None:
    # On a circle, in degrees: class 0 at 0 and 10, class 1 at 20 and 180, class 2 at 190.
    angles = np.radians([0, 10, 20, 180, 190])
    rows = np.stack([np.cos(angles), np.sin(angles)], 1)
    labels = np.array([0, 0, 1, 1, 2])
    colour = np.array([7, 7, 7, 5, 5])
    # Nearest of another class: 0 -> 20 (7), 10 -> 20 (7), 20 -> 10 (7), 180 -> 190 (5), 190 -> 180 (5).
    scores = neighbours_across_classes(rows, labels, colour)
    assert scores["precision"] == 1.0
    # Shares among samples of other classes: 1/3, 1/3, 2/3, 1/3, 1/4.
    assert scores["chance"] == pytest.approx((1 / 3 + 1 / 3 + 2 / 3 + 1 / 3 + 1 / 4) / 5)
    assert neighbours_across_classes(rows, labels, np.array([1, 2, 3, 4, 5]))["precision"] == 0.0


def test_neighbours_against_a_loop() -> None:
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(60, 5))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    labels, values = draw.integers(0, 6, 60), draw.integers(0, 3, 60)
    hits = []
    for i in range(60):
        best = max((j for j in range(60) if labels[j] != labels[i]), key=lambda j: rows[i] @ rows[j])
        hits.append(values[best] == values[i])
    assert neighbours_across_classes(rows, labels, values)["precision"] == pytest.approx(np.mean(hits))


def test_order_within_classes_is_spearman_s() -> None:
    draw = np.random.default_rng(1)
    rows, measure = draw.normal(size=(30, 4)), draw.integers(0, 4, 30).astype(np.float32)
    labels = np.arange(30) % 3
    expected = []
    for label in range(3):
        chosen = np.flatnonzero(labels == label)
        pairs = [(i, j) for a, i in enumerate(chosen) for j in chosen[a + 1 :]]
        distances = [np.linalg.norm(rows[i] - rows[j]) for i, j in pairs]
        expected.append(spearmanr(distances, [abs(measure[i] - measure[j]) for i, j in pairs]).statistic)
    assert order_within_classes(rows, labels, measure) == pytest.approx(np.mean(expected))
    line = np.stack([measure, 0 * measure], 1)
    assert order_within_classes(line, labels, measure) == pytest.approx(1)
    assert order_within_classes(rows, labels, 0 * measure) == 0


def test_too_few_classes_or_samples_are_refused() -> None:
    rows = np.eye(3)
    with raises(EvaluationError, "too-few-classes"):
        neighbours_across_classes(rows, np.zeros(3, int), np.arange(3))
    with raises(EvaluationError, "too-few-samples"):
        order_within_classes(rows, np.array([0, 0, 1]), np.arange(3))

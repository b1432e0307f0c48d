from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import pdist

from tests.raising import raises
from zoo.errors import EvaluationError
from zoo.evaluation.structure import (
    density_ratio,
    inter_class_cosine_distance,
    inter_class_distance,
    intra_class_cosine_distance,
    intra_class_distance,
)

WITHIN = (intra_class_distance, intra_class_cosine_distance)
BETWEEN = (inter_class_distance, inter_class_cosine_distance)


def clustered(seed, sizes, dim=6):
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    return (rng.normal(size=(len(sizes), dim))[labels] + rng.normal(size=(len(labels), dim))).astype(np.float32), labels


def test_by_hand():
    rows, labels = [[3, 4], [3, 0], [0, 0.5], [-3, 0], [0, 4]], ["a", "a", "b", "b", "alone"]
    b = math.sqrt(9.25)
    assert intra_class_distance(rows, labels) == pytest.approx((4 + b) / 2)
    means = [(3, 2), (-1.5, 0.25), (0, 4)]
    assert inter_class_distance(rows, labels) == pytest.approx(sum(math.dist(*p) for p in combinations(means, 2)) / 3)
    # Cosines within: 3/5 and 0.
    assert intra_class_cosine_distance(rows, labels) == pytest.approx((2 / 5 + 1) / 2)


@pytest.mark.parametrize("sizes", [(4, 1, 7, 2), (5,) * 6])
def test_agrees_with_scipy(sizes):
    rows, labels = clustered(0, sizes)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    several = [c for c, size in enumerate(sizes) if size > 1]
    means, unit_means = (np.array([r[labels == c].mean(axis=0) for c in range(len(sizes))]) for r in (rows, unit))
    expected = [
        np.mean([pdist(rows[labels == c]).mean() for c in several]),
        pdist(means).mean(),
        np.mean([pdist(rows[labels == c], "cosine").mean() for c in several]),
        pdist(unit_means, "cosine").mean(),
    ]
    scores = [
        measure(rows, labels)
        for measure in (
            intra_class_distance,
            inter_class_distance,
            intra_class_cosine_distance,
            inter_class_cosine_distance,
        )
    ]
    assert scores == pytest.approx(expected, rel=1e-5)


def test_chunks_do_not_change_the_distances(monkeypatch):
    rows, labels = clustered(1, (9, 4, 6))
    expected = intra_class_distance(rows, labels)
    monkeypatch.setattr("zoo.evaluation.structure.CHUNK_BYTES", 8 * 9 * 2)
    assert intra_class_distance(rows, labels) == pytest.approx(expected, rel=1e-12)


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.lists(st.integers(2, 5), min_size=2, max_size=5))
def test_properties(seed, sizes):
    rows, labels = clustered(seed, sizes)
    turn = np.linalg.qr(np.random.default_rng(seed).normal(size=(6, 6)))[0]
    for measure in (*WITHIN, *BETWEEN):
        value = measure(rows, labels)
        assert value >= 0
        assert measure(rows @ turn, [f"c{c}" for c in labels]) == pytest.approx(value, rel=1e-4, abs=1e-6)
        scale = 3 if measure in (intra_class_distance, inter_class_distance) else 1
        assert measure(3 * rows, labels) == pytest.approx(scale * value, rel=1e-4, abs=1e-6)


def test_classes_in_one_point_each_and_all_in_one():
    labels = np.repeat(np.arange(4), 5)
    for measure in WITHIN:
        assert measure(np.eye(4)[labels], labels) == pytest.approx(0, abs=1e-12)
    assert inter_class_distance(np.eye(4)[labels], labels) == pytest.approx(math.sqrt(2))
    assert inter_class_cosine_distance(np.eye(4)[labels], labels) == pytest.approx(1)
    point = np.tile([[0.6, 0.8]], (20, 1))
    assert [measure(point, labels) for measure in (*WITHIN, *BETWEEN)] == pytest.approx([0] * 4, abs=1e-12)
    assert density_ratio(0.0, 0.0) == 0
    assert density_ratio(1.0, 0.0) == 2**23


def test_a_class_whose_mean_is_zero_has_no_direction_and_the_cosine_zero():
    rows, labels = [[1, 0], [-1, 0], [0, 1], [0, 1]], [0, 0, 1, 1]
    assert inter_class_cosine_distance(rows, labels) == 1
    assert inter_class_distance(rows, labels) == 1


def test_trap_classes_of_one_are_left_out_within_but_have_a_mean():
    rows, labels = clustered(2, (4, 3))
    more, more_labels = np.vstack([rows, rows[:1] + 50]), np.append(labels, 7)
    for measure in WITHIN:
        assert measure(more, more_labels) == pytest.approx(measure(rows, labels))
    assert inter_class_distance(more, more_labels) > 10 * inter_class_distance(rows, labels)


@pytest.mark.parametrize("measure", [*WITHIN, *BETWEEN])
@pytest.mark.parametrize(
    ("rows", "labels", "code", "value"),
    [
        (np.diag([1, np.nan]), [0, 0], "not-finite", "row 1 of embeddings"),
        (np.eye(3), [0, 0], "invalid-labels", "3"),
    ],
)
def test_invalid_input_is_refused(measure, rows, labels, code, value):
    with raises(EvaluationError, code) as caught:
        measure(rows, labels)
    assert value in str(caught.value)


def test_too_few_samples_or_classes_are_refused():
    for within, between in zip(WITHIN, BETWEEN, strict=True):
        with raises(EvaluationError, "too-few-samples"):
            within(np.eye(3), [0, 1, 2])
        with raises(EvaluationError, "too-few-samples"):
            within(np.zeros((0, 3)), [])
        with raises(EvaluationError, "too-few-classes"):
            between(np.eye(3), [0, 0, 0])
        with raises(EvaluationError, "too-few-classes"):
            between(np.zeros((0, 3)), [])

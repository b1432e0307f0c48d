from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score
from sklearn.metrics.cluster import expected_mutual_information, pair_confusion_matrix

from tests.raising import raises
from zoo.errors import EvaluationError
from zoo.evaluation.clustering import _contingency, _expected_information, ami, nmi, pair_f1

partitions = st.integers(1, 40).flatmap(
    lambda n: st.tuples(*[st.lists(st.integers(0, 6), min_size=n, max_size=n) for _ in range(2)])
)


def test_by_hand():
    """Two classes of two; one cluster holds three. I = 3/4 log 4/3 + ..., of cells 2, 1 and 1 of 4."""
    labels, clusters = [0, 0, 1, 1], [0, 0, 0, 1]
    information = 2 / 4 * math.log(2 * 4 / (2 * 3)) + 1 / 4 * math.log(4 / (2 * 3)) + 1 / 4 * math.log(4 / 2)
    entropies = math.log(2), -(3 / 4 * math.log(3 / 4) + 1 / 4 * math.log(1 / 4))
    assert nmi(labels, clusters) == pytest.approx(2 * information / sum(entropies))
    # Pairs in one cluster: 3, one of them of one class; of one class: 2.
    assert pair_f1(labels, clusters) == pytest.approx(2 * (1 / 3) * (1 / 2) / (1 / 3 + 1 / 2))


def naive_f1(labels, clusters):
    pairs = list(combinations(range(len(labels)), 2))
    same = [(labels[i] == labels[j], clusters[i] == clusters[j]) for i, j in pairs]
    hits = sum(a and b for a, b in same)
    if not hits:
        return 0.0
    precision, recall = hits / sum(b for _, b in same), hits / sum(a for a, _ in same)
    return 2 * precision * recall / (precision + recall)


@settings(max_examples=25)
@given(partitions)
def test_agrees_with_scikit_learn(case):
    labels, clusters = case
    assert nmi(labels, clusters) == pytest.approx(normalized_mutual_info_score(labels, clusters), abs=1e-9)
    table = _contingency(labels, clusters)
    dense = np.zeros((len(table.rows), len(table.columns)), np.int64)
    dense[table.row, table.column] = table.counts
    expected = expected_mutual_information(dense, len(labels))
    assert _expected_information(table) == pytest.approx(expected, abs=1e-9)
    (_, fp), (fn, tp) = pair_confusion_matrix(labels, clusters)
    assume(tp + fp + fn)
    assert pair_f1(labels, clusters) == pytest.approx(2 * tp / (2 * tp + fp + fn))
    assert pair_f1(labels, clusters) == pytest.approx(naive_f1(labels, clusters))


@pytest.mark.parametrize(("n", "classes", "clusters"), [(500, 10, 10), (3000, 200, 150), (400, 2, 90)])
def test_adjusted_information_agrees_with_scikit_learn(n, classes, clusters):
    rng = np.random.default_rng(n)
    labels = rng.integers(classes, size=n)
    guess = np.where(rng.random(n) < 0.4, labels % clusters, rng.integers(clusters, size=n))
    assert ami(labels, guess) == pytest.approx(adjusted_mutual_info_score(labels, guess), abs=1e-9)


@settings(max_examples=25)
@given(partitions)
def test_properties(case):
    labels, clusters = map(np.array, case)
    for score in (nmi, ami, pair_f1):
        value = score(labels, clusters)
        assert value <= 1 + 1e-9
        assert score(clusters, labels) == pytest.approx(value, abs=1e-9)
        assert score(-labels, [f"c{c}" for c in clusters]) == pytest.approx(value, abs=1e-9)
        assert score(labels, labels) == pytest.approx(1)
    assert min(nmi(labels, clusters), pair_f1(labels, clusters)) >= 0


def test_partitions_that_leave_no_choice():
    assert nmi([0, 0], [1, 1]) == ami([0, 0], [1, 1]) == pair_f1([0, 0], [1, 1]) == 1
    assert nmi([0, 1], [3, 4]) == ami([0, 1], [3, 4]) == pair_f1([0, 1], [3, 4]) == 1
    assert nmi([0, 1, 2], [0, 0, 0]) == pair_f1([0, 1, 2], [0, 0, 0]) == 0


@pytest.mark.parametrize(
    ("labels", "clusters", "code", "value"),
    [([], [], "too-few-samples", ""), ([0, 1], [0], "invalid-labels", "2"), ([0.5], [1], "invalid-labels", "float64")],
)
def test_invalid_input_is_refused(labels, clusters, code, value):
    for score in (nmi, ami, pair_f1):
        with raises(EvaluationError, code) as caught:
            score(labels, clusters)
        assert value in str(caught.value)

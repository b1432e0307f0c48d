from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.raising import raises
from zoo.errors import EvaluationError
from zoo.evaluation import per_query, retrieval_metrics

with warnings.catch_warnings():
    # pytorch-metric-learning imports faiss, whose SWIG types have no __module__.
    warnings.filterwarnings(
        "ignore", message="builtin type .* has no __module__ attribute", category=DeprecationWarning
    )
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator


def oracle(embeddings, labels, ks, queries=None, query_labels=None):
    """The definitions as loops in double precision: METHODS' P(i), rel(i), the query left out by index."""
    own = queries is None
    queries, query_labels = (embeddings, labels) if own else (queries, query_labels)
    sums: dict[str, list[float]] = {}
    for q, (query, label) in enumerate(zip(queries, query_labels, strict=True)):
        others = [i for i in range(len(embeddings)) if not (own and i == q)]
        relatives = sum(labels[i] == label for i in others)
        if relatives == 0:
            continue

        def cosine(i, query=query):
            a, b = np.float64(query), np.float64(embeddings[i])
            return float(a @ b / np.sqrt(a @ a) / np.sqrt(b @ b))

        ranked = sorted(others, key=lambda i: (-cosine(i), i))
        rel = [float(labels[i] == label) for i in ranked]
        scores = {f"recall_at_{k}": float(any(rel[:k])) for k in ks}
        scores["precision_at_1"] = rel[0]
        scores["r_precision"] = sum(rel[:relatives]) / relatives
        scores["map_at_r"] = sum(sum(rel[: i + 1]) / (i + 1) * rel[i] for i in range(relatives)) / relatives
        for name, score in scores.items():
            sums.setdefault(name, []).append(score)
    return {name: sum(scores) / len(scores) for name, scores in sums.items()}


def clustered(seed, sizes, dim=16, noise=1.0):
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    centres = rng.normal(size=(len(sizes), dim))
    return (centres[labels] + noise * rng.normal(size=(len(labels), dim))).astype(np.float32), labels


@pytest.mark.parametrize("sizes", [(5,) * 8, (1, 2, 3, 17, 1, 9), (2, 2)])
def test_agrees_with_the_definitions(sizes):
    embeddings, labels = clustered(sum(sizes), sizes)
    k = (1, 2, 3)
    assert retrieval_metrics(embeddings, labels, k) == pytest.approx(oracle(embeddings, labels, k), abs=1e-12)


def test_agrees_with_the_definitions_for_queries_and_a_gallery():
    embeddings, labels = clustered(1, (4, 9, 1, 6, 3))
    gallery, queries = np.arange(len(labels)) % 2 == 0, np.arange(len(labels)) % 2 == 1
    args = embeddings[gallery], labels[gallery], (1, 4, 10), embeddings[queries], labels[queries]
    assert retrieval_metrics(*args) == pytest.approx(oracle(*args), abs=1e-12)


@pytest.mark.parametrize(("sizes", "dim"), [((20,) * 15, 32), (tuple(range(2, 30)), 8)])
def test_agrees_with_pytorch_metric_learning(sizes, dim):
    embeddings, labels = clustered(7, sizes, dim)
    names = {
        "precision_at_1": "precision_at_1",
        "r_precision": "r_precision",
        "mean_average_precision_at_r": "map_at_r",
    }
    calculator = AccuracyCalculator(include=tuple(names), k="max_bin_count")
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    theirs = calculator.get_accuracy(unit, labels)
    ours = retrieval_metrics(embeddings, labels)
    assert {names[key]: value for key, value in theirs.items()} == pytest.approx(
        {name: ours[name] for name in names.values()}, abs=1e-6
    )


def test_by_hand():
    # Angles on a circle; the neighbours of each: 0 -> 10 (b), 25 (a), 60 (a); and so on.
    angles, labels = np.radians([0, 10, 25, 60, 100]), ["a", "b", "a", "a", "b"]
    measured = per_query(np.stack([np.cos(angles), np.sin(angles)], axis=1), labels, (1, 2))
    # Nearest first: 0: b a a b; 10: a a a b; 25: b a a b; 60: a b b a; 100: a a b a.
    assert measured.values["recall_at_1"].tolist() == [0, 0, 0, 1, 0]
    assert measured.values["recall_at_2"].tolist() == [1, 0, 1, 1, 0]
    assert measured.values["r_precision"].tolist() == [1 / 2, 0, 1 / 2, 1 / 2, 0]
    assert measured.values["map_at_r"].tolist() == [1 / 4, 0, 1 / 4, 1 / 2, 0]


def test_a_perfect_embedding_scores_one():
    # With the query counted among its relatives this would be 0.8 (METHODS, section 7).
    labels = np.repeat(np.arange(7), 5)
    assert set(retrieval_metrics(np.eye(7)[labels], labels).values()) == {1.0}


def test_an_opposite_embedding_scores_zero():
    angles = np.radians([0, 180, 1, 181])
    scores = retrieval_metrics(np.stack([np.cos(angles), np.sin(angles)], axis=1), [0, 0, 1, 1], k=(1, 2))
    assert set(scores.values()) == {0.0}


def test_a_duplicate_of_the_query_does_not_stand_in_for_it():
    # Rows 0 and 1 are equal, of different classes: leaving out rank 0 would remove row 0 from the list of query 1.
    rows = np.array([[1, 0], [1, 0], [0.6, 0.8], [0.6, 0.8]])
    measured = per_query(rows, [0, 1, 0, 1], k=(1,))
    assert measured.values["precision_at_1"].tolist() == [0, 0, 0, 0]
    assert per_query(rows, [0, 0, 1, 1], k=(1,)).values["precision_at_1"].tolist() == [1, 1, 1, 1]


def test_ties_are_ordered_by_row():
    rows = np.ones((4, 3))
    assert per_query(rows, [0, 1, 0, 1], k=(1,)).values["precision_at_1"].tolist() == [0, 0, 1, 0]


def test_classes_of_one_are_left_out_and_counted():
    embeddings, labels = clustered(3, (1, 4, 1, 3, 1))
    measured = per_query(embeddings, labels)
    sizes = np.bincount(labels)
    assert measured.without_relatives == 3
    np.testing.assert_array_equal(measured.rows, np.flatnonzero(sizes[labels] > 1))
    np.testing.assert_array_equal(measured.classes, labels[measured.rows])
    assert all(len(values) == 7 for values in measured.values.values())
    # They stay in the gallery as distractors.
    assert measured.means() == pytest.approx(oracle(embeddings, labels, (1, 2, 4, 8)), abs=1e-12)


def test_labels_may_be_strings_and_lengths_do_not_matter():
    embeddings, labels = clustered(4, (3, 5, 4))
    scaled = embeddings * np.linspace(0.01, 100, len(labels))[:, None]
    names = [f"class {label}" for label in labels]
    expected = retrieval_metrics(embeddings, labels)
    assert retrieval_metrics(scaled, names) == pytest.approx(expected)
    assert retrieval_metrics(scaled, np.array(names, dtype=object)) == pytest.approx(expected)


def test_chunks_do_not_change_the_metrics(monkeypatch):
    embeddings, labels = clustered(5, (3, 8, 1, 5))
    expected = retrieval_metrics(embeddings, labels)
    monkeypatch.setattr("zoo.evaluation.knn.CHUNK_BYTES", 4 * len(labels) * 3)
    assert retrieval_metrics(embeddings, labels) == expected


labelled_rows = st.tuples(st.integers(0, 2**32), st.lists(st.integers(1, 6), min_size=2, max_size=6), st.floats(0.1, 3))


@settings(max_examples=60)
@given(labelled_rows)
def test_properties(case):
    seed, sizes, noise = case
    assume(sum(sizes) > 4 and max(sizes) > 1)
    embeddings, labels = clustered(seed, sizes, 6, noise)
    k = tuple(range(1, len(labels)))
    scores = retrieval_metrics(embeddings, labels, k)
    recalls = [scores[f"recall_at_{K}"] for K in k]
    assert recalls == sorted(recalls)
    assert recalls[-1] == 1
    assert recalls[0] == scores["precision_at_1"]
    assert 0 <= scores["map_at_r"] <= scores["r_precision"] <= 1
    order = np.random.default_rng(seed).permutation(len(labels))
    assert retrieval_metrics(embeddings[order], labels[order], k) == pytest.approx(scores, abs=1e-12)
    assert retrieval_metrics(embeddings, -labels, k) == scores


ROWS, LABELS = np.eye(4), [0, 0, 1, 1]


def spoilt(value):
    rows = np.ones((4, 4))
    rows[2:, 1] = value
    return rows


@pytest.mark.parametrize(
    ("args", "code", "value"),
    [
        ((spoilt(np.nan), LABELS), "not-finite", "2 of 4 rows"),
        ((spoilt(np.inf), LABELS), "not-finite", "row 2 of embeddings"),
        ((np.eye(4) - np.diag([0, 0, 0, 1]), LABELS), "invalid-embedding", "row 3 of embeddings"),
        ((ROWS, [0, 0, 1]), "invalid-labels", "[3]"),
        ((ROWS, [[0, 0, 1, 1]]), "invalid-labels", "[1, 4]"),
        ((ROWS, [0.0, 0.0, 1.0, np.nan]), "invalid-labels", "float64"),
        ((ROWS, [0, 1, 2, 3]), "too-few-samples", ""),
        ((ROWS, LABELS, (1, 4)), "too-few-samples", "recall_at_4"),
        ((ROWS, LABELS, (0,)), "invalid-value", "not 0"),
        ((ROWS, LABELS, (1, 1.5)), "invalid-value", "1.5"),
        ((ROWS, LABELS, ("1",)), "invalid-value", "'1'"),
        ((ROWS, LABELS, (True,)), "invalid-value", "True"),
        ((ROWS, LABELS, 1), "invalid-value", "be 1."),
        ((ROWS, LABELS, "12"), "invalid-value", "'12'"),
        ((ROWS, LABELS, None), "invalid-value", "None"),
        ((ROWS[:0], []), "too-few-samples", ""),
        ((ROWS[:0], np.array([], str)), "too-few-samples", ""),
        ((ROWS, ["a", "a", "b", "b"], (1,), ROWS[:0], []), "too-few-samples", ""),
        ((ROWS, []), "invalid-labels", "[0]"),
        ((ROWS[:1], [0]), "too-few-samples", ""),
        ((ROWS, LABELS, (1,), ROWS), "missing-value", ""),
        ((ROWS, LABELS, (1,), None, LABELS), "missing-value", ""),
        ((ROWS, LABELS, (1,), ROWS, ["0", "0", "1", "1"]), "invalid-labels", "int64"),
        ((ROWS, LABELS, (1,), ROWS, [5, 6, 7, 8]), "too-few-samples", ""),
        ((ROWS, LABELS, (1,), ROWS[:, :3], LABELS), "invalid-embedding", "row 3 of queries"),
        ((ROWS, LABELS, (1,), ROWS[:3, :3], [0, 0, 1]), "invalid-embedding", "3 dimensions"),
        ((ROWS, LABELS, (5,), ROWS, LABELS), "too-few-samples", "recall_at_5"),
    ],
)
def test_invalid_input_is_refused(args, code, value):
    with raises(EvaluationError, code) as caught:
        retrieval_metrics(*args)
    assert value in str(caught.value)


def test_every_k_is_measured_however_it_is_listed():
    expected = retrieval_metrics(ROWS + 1, LABELS, (1, 2))
    for k in ([1, 2], np.array([1, 2]), (number for number in (1, 2))):
        assert retrieval_metrics(ROWS + 1, LABELS, k) == expected

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score

from tests.raising import raises
from zoo.errors import EvaluationError
from zoo.evaluation import gpu, retrieval_metrics
from zoo.evaluation.inputs import retrieval_inputs
from zoo.evaluation.retrieval import ranking_metrics, ranking_per_query, relative_ranks

with warnings.catch_warnings():
    # pytorch-metric-learning imports faiss, whose SWIG types have no __module__.
    warnings.filterwarnings(
        "ignore", message="builtin type .* has no __module__ attribute", category=DeprecationWarning
    )
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator


def clustered(seed, sizes, dim=8, noise=1.0):
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    centres = rng.normal(size=(len(sizes), dim))
    return (centres[labels] + noise * rng.normal(size=(len(labels), dim))).astype(np.float32), labels


def oracle(embeddings, labels, k, queries=None, query_labels=None):
    """Every metric as a loop over the ranked list, in double precision; the query left out by index."""
    own = queries is None
    queries, query_labels = (embeddings, labels) if own else (queries, query_labels)
    rows, by_class = [], {}
    for q, (query, label) in enumerate(zip(queries, query_labels, strict=True)):
        others = [i for i in range(len(embeddings)) if not (own and i == q)]
        relatives = sum(labels[i] == label for i in others)
        if not relatives:
            continue

        def cosine(i, query=query):
            a, b = np.float64(query), np.float64(embeddings[i])
            return float(a @ b / np.sqrt(a @ a) / np.sqrt(b @ b))

        rel = [labels[i] == label for i in sorted(others, key=lambda i: (-cosine(i), i))]
        terms = [rel[i] * sum(rel[: i + 1]) / (i + 1) for i in range(len(rel))]
        scores = {"mrr": 1 / (rel.index(True) + 1), "map": sum(terms) / relatives}
        scores[f"map_at_{k}"] = sum(terms[:k]) / relatives
        if own:
            scores["map_at_r_query_counted"] = sum(terms[: relatives + 1]) / (relatives + 1)
            scores[f"map_at_{k}_query_counted"] = sum(terms[:k]) / (relatives + 1)
        samples = relatives + own
        by_class.setdefault(label, []).append(sum(rel[:samples]) / samples)
        rows.append(scores)
    means = {name: np.mean([row[name] for row in rows]) for name in rows[0]}
    return {**means, "map_by_class": np.mean([np.mean(values) for values in by_class.values()])}


@pytest.mark.parametrize("sizes", [(5,) * 8, (1, 2, 3, 17, 1, 9), (2, 2)])
def test_agrees_with_the_definitions(sizes):
    embeddings, labels = clustered(sum(sizes), sizes)
    for k in (1, 3, 1000):
        expected = oracle(embeddings, labels, k)
        assert ranking_metrics(embeddings, labels, k=k) == pytest.approx(expected, abs=1e-12)


def test_agrees_with_the_definitions_for_queries_and_a_gallery():
    embeddings, labels = clustered(1, (4, 9, 1, 6, 3))
    gallery, queries = np.arange(len(labels)) % 2 == 0, np.arange(len(labels)) % 2 == 1
    args = embeddings[gallery], labels[gallery], embeddings[queries], labels[queries]
    measured = ranking_metrics(*args, k=4)
    assert measured == pytest.approx(oracle(*args[:2], 4, *args[2:]), abs=1e-12)
    assert measured.keys() == {"mrr", "map", "map_at_4", "map_by_class"}


@pytest.mark.parametrize("products", [2**26, 40])
@pytest.mark.parametrize("few", [0, 32])
def test_where_and_how_ranks_are_counted_does_not_change_them(monkeypatch, products, few):
    """By sorting and by counting, and as on a GPU, in chunks of one query, too; many of the rows are equal."""
    rng = np.random.default_rng(6)
    few_rows = rng.normal(size=(9, 3))
    rows, labels = few_rows[rng.integers(9, size=40)], rng.integers(0, 9, 40)
    queries, query_labels = rng.normal(size=(11, 3)), rng.integers(0, 9, 11)
    expected = oracle(rows, labels, 5), oracle(rows, labels, 5, queries, query_labels)
    monkeypatch.setattr("zoo.evaluation.retrieval._COUNT_LIMIT", few)
    assert ranking_metrics(rows, labels, k=5) == pytest.approx(expected[0], abs=1e-12)
    assert ranking_metrics(rows, labels, queries, query_labels, k=5) == pytest.approx(expected[1], abs=1e-12)
    monkeypatch.setattr(gpu, "device", lambda: "cpu")
    monkeypatch.setattr(gpu, "MIN_ROWS", 1)
    monkeypatch.setattr(gpu, "_RANK_PRODUCTS", products)
    monkeypatch.setattr("zoo.evaluation.retrieval._cpu_ranks", None)  # so it is there that they are counted
    assert ranking_metrics(rows, labels, k=5) == pytest.approx(expected[0], abs=1e-12)
    assert ranking_metrics(rows, labels, queries, query_labels, k=5) == pytest.approx(expected[1], abs=1e-12)


def test_map_agrees_with_scikit_learn():
    embeddings, labels = clustered(2, (3, 12, 7, 5))
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    scores = []
    for q in range(len(labels)):
        others = np.arange(len(labels)) != q
        scores.append(average_precision_score(labels[others] == labels[q], unit[others] @ unit[q]))
    assert ranking_metrics(embeddings, labels)["map"] == pytest.approx(np.mean(scores), abs=1e-6)


@pytest.mark.parametrize("sizes", [(20,) * 6, (2, 9, 5, 14)])
def test_agrees_with_pytorch_metric_learning(sizes):
    embeddings, labels = clustered(8, sizes)
    calculator = AccuracyCalculator(include=("mean_reciprocal_rank", "mean_average_precision"), k=len(labels) - 1)
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    theirs, ours = calculator.get_accuracy(unit, labels), ranking_metrics(embeddings, labels)
    assert ours["mrr"] == pytest.approx(theirs["mean_reciprocal_rank"], abs=1e-6)
    assert ours["map"] == pytest.approx(theirs["mean_average_precision"], abs=1e-6)


def test_by_hand():
    # Nearest first: 0: b a a b; 10: a a a b; 25: b a a b; 60: a b b a; 100: a a b a.
    angles, labels = np.radians([0, 10, 25, 60, 100]), ["a", "b", "a", "a", "b"]
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    assert [list(ranks) for ranks in relative_ranks(retrieval_inputs(rows, labels))] == [
        [2, 3],
        [4],
        [2, 3],
        [1, 4],
        [3],
    ]
    measured = ranking_per_query(rows, labels, k=3).values
    assert measured["mrr"] == pytest.approx([1 / 2, 1 / 4, 1 / 2, 1, 1 / 3])
    assert measured["map"] == pytest.approx([7 / 12, 1 / 4, 7 / 12, 3 / 4, 1 / 3])
    assert measured["map_at_3"] == pytest.approx([7 / 12, 0, 7 / 12, 1 / 2, 1 / 3])
    assert measured["map_at_r_query_counted"] == pytest.approx([7 / 18, 0, 7 / 18, 1 / 3, 0])
    # Revisiting, appendix A.3: precision at the 3 samples of a and the 2 of b, averaged over the classes.
    assert measured["map_by_class"] == pytest.approx([2 / 3, 0, 2 / 3, 1 / 3, 0])
    assert ranking_metrics(rows, labels)["map_by_class"] == pytest.approx((5 / 9 + 0) / 2)


def test_trap_the_query_counted_among_its_relatives_scores_a_perfect_embedding_below_one():
    labels = np.repeat(np.arange(7), 5)
    scores = ranking_metrics(np.eye(7)[labels], labels)
    assert {name: scores[name] for name in ("mrr", "map", "map_at_1000")} == {"mrr": 1, "map": 1, "map_at_1000": 1}
    assert scores["map_at_r_query_counted"] == pytest.approx(0.8)
    assert scores["map_at_1000_query_counted"] == pytest.approx(0.8)


def test_trap_the_query_is_left_out_by_index_not_by_rank():
    # Rows 0 and 1 are equal, of different classes; leaving out rank 0 would drop row 0 from the list of query 1.
    rows = np.array([[1, 0], [1, 0], [0.6, 0.8], [0.6, 0.8]])
    assert [list(ranks) for ranks in relative_ranks(retrieval_inputs(rows, [0, 1, 0, 1]))] == [[2], [3], [2], [3]]


def test_trap_ties_are_ordered_by_row():
    assert [list(ranks) for ranks in relative_ranks(retrieval_inputs(np.ones((4, 3)), [0, 1, 0, 1]))] == [
        [2],
        [3],
        [1],
        [2],
    ]


def test_trap_classes_of_one_are_left_out_and_counted():
    embeddings, labels = clustered(3, (1, 4, 1, 3, 1))
    measured = ranking_per_query(embeddings, labels)
    assert measured.without_relatives == 3
    np.testing.assert_array_equal(measured.rows, np.flatnonzero(np.bincount(labels)[labels] > 1))
    assert all(len(values) == 7 for values in measured.values.values())


def test_chunks_and_memory_maps_do_not_change_the_metrics(monkeypatch, tmp_path):
    embeddings, labels = clustered(5, (3, 8, 1, 5))
    expected = ranking_metrics(embeddings, labels)
    np.save(tmp_path / "rows.npy", embeddings)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    monkeypatch.setattr("zoo.evaluation.retrieval.CHUNK_BYTES", 4 * len(labels) * 3)
    monkeypatch.setattr("zoo.evaluation.retrieval._BLOCK_NUMBERS", 8 * 4)
    assert ranking_metrics(mapped, labels) == pytest.approx(expected, abs=1e-12)


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.lists(st.integers(1, 6), min_size=2, max_size=5), st.sampled_from([0.0, 0.3, 2.0]))
def test_properties(seed, sizes, noise):
    assume(max(sizes) > 1)
    embeddings, labels = clustered(seed, sizes, 4, noise)  # without noise all of a class are equal: nothing but ties
    scores, at_r = ranking_metrics(embeddings, labels, k=5), retrieval_metrics(embeddings, labels, k=(1,))
    assert 0 < scores["map"] <= 1
    assert scores["map"] >= max(scores["map_at_5"], at_r["map_at_r"]) - 1e-12
    assert scores["mrr"] >= at_r["recall_at_1"] - 1e-12
    assert at_r["map_at_r"] / 2 - 1e-12 <= scores["map_at_r_query_counted"] < 1
    assert ranking_metrics(embeddings, labels, k=len(labels))["map"] == pytest.approx(scores["map"])
    # The two ways of finding neighbours agree: MAP@R from the ranks.
    ranked = [
        (np.arange(1, len(ranks) + 1) / ranks)[ranks <= len(ranks)].sum() / len(ranks)
        for ranks in relative_ranks(retrieval_inputs(embeddings, labels))
    ]
    assert np.mean(ranked) == pytest.approx(at_r["map_at_r"], abs=1e-12)


@pytest.mark.parametrize(
    ("args", "code", "value"),
    [
        (([[1, 0], [np.nan, 1]], [0, 0]), "not-finite", "row 1 of embeddings"),
        (([[1, 0], [0, 0]], [0, 0]), "invalid-embedding", "row 1 of embeddings"),
        ((np.eye(3), [0, 0]), "invalid-labels", "3"),
        ((np.eye(3), [0, 1, 2]), "too-few-samples", ""),
        ((np.eye(3), [0, 0, 0], np.eye(3)), "missing-value", ""),
        ((np.eye(3), [0, 0, 0], None, None, 0), "invalid-value", "0"),
        ((np.eye(3), [0, 0, 0], None, None, 2.5), "invalid-value", "2.5"),
        ((np.eye(3), [0, 0, 0], None, None, "3"), "invalid-value", "'3'"),
        ((np.eye(0, 3), []), "too-few-samples", ""),
    ],
)
def test_invalid_input_is_refused(args, code, value):
    with raises(EvaluationError, code) as caught:
        ranking_metrics(*args)
    assert value in str(caught.value)


@pytest.mark.parametrize("pair", [(np.uint64, np.int64), (np.int64, np.uint64), (np.uint8, np.int64), (bool, np.int64)])
def test_labels_of_any_two_integer_types_are_compared_as_whole_numbers(pair):
    """Two classes, 2^53 and 2^53 + 1, would be one as floats."""
    large = 2**53 if np.dtype(pair[0]).itemsize == 8 else 0
    gallery, queries = (np.array([large, large + 1], pair[0]), np.array([large + 1, large], pair[1]))
    metrics = retrieval_metrics(np.eye(2), gallery, k=(1,), queries=np.eye(2), query_labels=queries)
    assert metrics["recall_at_1"] == 0
    swapped = retrieval_metrics(np.eye(2), gallery, k=(1,), queries=np.eye(2)[::-1], query_labels=queries)
    assert swapped["recall_at_1"] == 1

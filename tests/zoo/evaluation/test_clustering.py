from __future__ import annotations

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score

from tests.raising import raises
from zoo.errors import EvaluationError
from zoo.evaluation import retrieval_metrics
from zoo.evaluation.clustering import clustering_metrics, f1_neighbours, k_means, nmi, random_nmi


def clustered(seed, sizes, dim=16, noise=1.0):
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    centres = rng.normal(size=(len(sizes), dim))
    return (centres[labels] + noise * rng.normal(size=(len(labels), dim))).astype(np.float32), labels


def naive_f1(embeddings, labels, k):
    """Precision and recall of the first k neighbours, query by query, in double precision."""
    rows = embeddings.astype(np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    scores = []
    for q in range(len(rows)):
        others = [i for i in range(len(rows)) if i != q]
        relatives = sum(labels[i] == labels[q] for i in others)
        if not relatives:
            continue
        hits = sum(labels[i] == labels[q] for i in sorted(others, key=lambda i: (-(rows[q] @ rows[i]), i))[:k])
        precision, recall = hits / k, hits / relatives
        scores.append(2 * precision * recall / (precision + recall) if hits else 0.0)
    return np.mean(scores)


def test_agrees_with_scikit_learn_on_the_same_clusters():
    embeddings, labels = clustered(0, (20,) * 10)
    clusters = k_means(embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True), 10, 0)
    scores = clustering_metrics(embeddings, labels)
    assert scores["nmi"] == pytest.approx(normalized_mutual_info_score(labels, clusters), abs=1e-9)
    assert scores["ami"] == pytest.approx(adjusted_mutual_info_score(labels, clusters), abs=1e-9)
    assert scores["nmi_random"] < scores["ami"] < scores["nmi"] < 1


def inertia(rows, clusters):
    return sum(((rows[clusters == c] - rows[clusters == c].mean(axis=0)) ** 2).sum() for c in np.unique(clusters))


@pytest.mark.slow
@pytest.mark.parametrize(("classes", "noise", "looser"), [(12, 0.1, 0.001), (12, 3.0, 0.03), (150, 0.5, 0.1)])
def test_clusters_are_about_as_tight_as_those_of_scikit_learn(classes, noise, looser):
    rows, _ = clustered(1, (20,) * classes, noise=noise)
    clusters = k_means(rows, classes, 0, restarts=10)
    theirs = KMeans(classes, n_init=10, random_state=0).fit(rows).inertia_
    assert inertia(rows, clusters) <= theirs * (1 + looser)
    np.testing.assert_array_equal(k_means(rows, classes, 0, restarts=10), clusters)


def test_separate_groups_are_found_wherever_they_are():
    rows, labels = clustered(2, (15,) * 20, noise=0.02)
    for offset in (0, 100):
        assert nmi(labels, k_means(rows + np.float32(offset), 20, 2**40)) == pytest.approx(1)


def test_a_perfect_embedding_scores_one():
    labels = np.repeat(np.arange(7), 5)
    scores = clustering_metrics(np.eye(7)[labels], labels)
    random = scores.pop("nmi_random")
    assert scores == pytest.approx({"nmi": 1, "ami": 1, "f1_clusters": 1, "f1_neighbours": 1})
    assert random < 0.8


@pytest.mark.parametrize("sizes", [(5,) * 6, (1, 2, 9, 4, 1)])
def test_f1_over_neighbours_agrees_with_single_steps(sizes):
    embeddings, labels = clustered(1, sizes)
    relatives = np.bincount(labels)[labels] - 1
    for k in (1, 2, len(labels) - 1):
        assert f1_neighbours(embeddings, labels, k) == pytest.approx(naive_f1(embeddings, labels, k))
    usual = round(relatives[relatives > 0].mean())
    assert f1_neighbours(embeddings, labels) == pytest.approx(naive_f1(embeddings, labels, usual))


def test_f1_over_neighbours_of_classes_of_one_size_is_r_precision():
    embeddings, labels = clustered(2, (6,) * 5)
    assert f1_neighbours(embeddings, labels) == pytest.approx(retrieval_metrics(embeddings, labels)["r_precision"])


def test_trap_nmi_clusters_with_the_classes_of_the_split_that_is_evaluated(monkeypatch):
    numbers = []

    def spy(points, k, *rest, **named):
        numbers.append(k)
        return k_means(points, k, *rest, **named)

    monkeypatch.setattr("zoo.evaluation.clustering.k_means", spy)
    embeddings, labels = clustered(3, (4,) * 6)
    clustering_metrics(embeddings, labels + 100)  # the second half of a data set, numbered from 100
    assert numbers == [6, 6]


def test_trap_nmi_of_random_embeddings_rises_with_the_number_of_classes():
    few, many = np.repeat(np.arange(4), 60), np.repeat(np.arange(60), 4)
    assert random_nmi(few, 8) < 0.1 < 0.5 < random_nmi(many, 8)
    rows = np.random.default_rng(5).normal(size=(240, 8))
    scores = clustering_metrics(rows, many)
    # An embedding that knows nothing has the same nmi, and an ami of about 0.
    assert scores["nmi"] == pytest.approx(scores["nmi_random"], abs=0.03)
    assert abs(scores["ami"]) < 0.05


def test_the_seed_decides_and_neither_lengths_nor_names_matter():
    embeddings, labels = clustered(4, (5, 8, 3))
    expected = clustering_metrics(embeddings, labels, seed=3)
    assert clustering_metrics(embeddings, labels, seed=3) == expected
    scaled = embeddings * np.linspace(0.5, 2, len(labels))[:, None]
    assert clustering_metrics(scaled, [f"c{c}" for c in labels], seed=3) == pytest.approx(expected, abs=1e-9)
    noise, classes = np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 10
    assert len({clustering_metrics(noise, classes, seed, restarts=1)["nmi"] for seed in range(5)}) > 1


def test_almost_as_many_classes_as_samples():
    rows = np.eye(9)[[0, *range(9)]]
    assert clustering_metrics(rows, [0, *range(9)])["nmi"] == pytest.approx(1)


def test_trap_classes_of_one_are_clustered_but_ask_for_no_neighbours():
    embeddings, labels = clustered(6, (1, 4, 1, 3))
    assert clustering_metrics(embeddings, labels)["f1_neighbours"] == pytest.approx(naive_f1(embeddings, labels, 3))


@pytest.mark.parametrize(
    ("rows", "labels", "code", "value"),
    [
        (np.eye(3), [0, 0, 0], "too-few-classes", ""),
        (np.eye(3), [0, 1, 2], "too-few-samples", ""),
        (np.eye(3), [0, 1], "invalid-labels", "3"),
        (np.diag([1.0, 1.0, np.nan]), [0, 0, 1], "not-finite", "row 2 of embeddings"),
        (np.diag([1.0, 0.0, 1.0]), [0, 0, 1], "invalid-embedding", "row 1 of embeddings"),
    ],
)
def test_invalid_input_is_refused(rows, labels, code, value):
    with raises(EvaluationError, code) as caught:
        clustering_metrics(rows, labels)
    assert value in str(caught.value)


@pytest.mark.parametrize("k", [0, 3])
def test_a_k_that_the_gallery_cannot_fill_is_refused(k):
    with pytest.raises(EvaluationError) as caught:
        f1_neighbours(np.eye(3), [0, 0, 1], k)
    assert caught.value.code == ("invalid-value" if k == 0 else "too-few-samples")

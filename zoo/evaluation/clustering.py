"""NMI, AMI, F1.

How alike two partitions of the same samples are: mutual information, normalised or adjusted, and F1 over pairs.

What k-means makes of an embedding, compared with the classes, and F1 in both published readings.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from zoo.errors import EvaluationError
from zoo.evaluation.inputs import class_codes, retrieval_inputs, unit_rows
from zoo.evaluation.kmeans import RESTARTS, k_means
from zoo.evaluation.knn import neighbour_chunks


def nmi(labels: Any, clusters: Any) -> float:
    """Normalised mutual information I / ((H(labels) + H(clusters)) / 2), from 0 to 1.

    labels, clusters: n integers or strings each. Where both are one part only, it is 1. It rises with the number of
    parts even where they have nothing in common: beside it belongs its value for random embeddings. Manning et al.
    2008, Introduction to Information Retrieval, section 16.3. Raises `EvaluationError` for none, or unequal many.
    """
    table = _contingency(labels, clusters)
    entropy = (_entropy(table.rows) + _entropy(table.columns)) / 2
    return float(np.clip(_mutual_information(table) / entropy, 0, 1)) if entropy else 1.0


def ami(labels: Any, clusters: Any) -> float:
    """Mutual information adjusted for chance: (I - E[I]) / (mean entropy - E[I]); near 0 for random clusters.

    E[I] is over all partitions with the same sizes (Vinh et al. 2010, Information Theoretic Measures for Clusterings
    Comparison; normalised by the mean). Where no other value is possible, it is 1. Arguments and errors
    as of `nmi`.
    """
    table = _contingency(labels, clusters)
    chance = _expected_information(table)
    room = (_entropy(table.rows) + _entropy(table.columns)) / 2 - chance
    return float(min(1.0, (_mutual_information(table) - chance) / room)) if room > 1e-12 else 1.0


def pair_f1(labels: Any, clusters: Any) -> float:
    """F1 over pairs of samples: precision and recall of "same cluster" as a guess of "same label", from 0 to 1.

    Manning et al. 2008, section 16.3; so in the code of Revisiting, DiVA and before them. Where neither holds a pair,
    it is 1. Arguments and errors as of `nmi`.
    """
    table = _contingency(labels, clusters)
    guessed_and_true = _pair_count(table.columns) + _pair_count(table.rows)
    return 2 * _pair_count(table.counts) / guessed_and_true if guessed_and_true else 1.0


class _Contingency(NamedTuple):
    """How many samples share label and cluster, where any do: counts [m] at (row, column); the sums of either."""

    counts: np.ndarray
    row: np.ndarray
    column: np.ndarray
    rows: np.ndarray
    columns: np.ndarray


def _contingency(labels: Any, clusters: Any) -> _Contingency:
    n = len(labels)
    if not n:
        raise EvaluationError("there is nothing to compare: the partitions have no samples.")
    a, b = class_codes(labels, n)[0], class_codes(clusters, n)[0]
    cells, counts = np.unique(a * (b.max() + 1) + b, return_counts=True)
    row, column = np.divmod(cells, b.max() + 1)
    return _Contingency(counts, row, column, np.bincount(a), np.bincount(b))


def _entropy(sizes: np.ndarray) -> float:
    shares = sizes / sizes.sum()
    return float(-(shares * np.log(shares)).sum())


def _mutual_information(table: _Contingency) -> float:
    n = table.rows.sum()
    expected = table.rows[table.row] / n * table.columns[table.column]
    return float((table.counts / n * np.log(table.counts / expected)).sum())


def _expected_information(table: _Contingency) -> float:
    """E[I]: each count is hypergeometric, given the sizes; parts of one size count once, times their number."""
    n = int(table.rows.sum())
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])
    total = 0.0
    for a, many_a in zip(*np.unique(table.rows, return_counts=True), strict=True):
        for b, many_b in zip(*np.unique(table.columns, return_counts=True), strict=True):
            total += many_a * many_b * _expected_cell(int(a), int(b), n, log_factorial)
    return total


def _expected_cell(a: int, b: int, n: int, log_factorial: np.ndarray) -> float:
    count = np.arange(max(1, a + b - n), min(a, b) + 1)
    f = log_factorial
    ways = f[a] + f[b] + f[n - a] + f[n - b] - f[n] - f[count] - f[a - count] - f[b - count] - f[n - a - b + count]
    return float((count / n * np.log(count / a * n / b) * np.exp(ways)).sum())


def _pair_count(sizes: np.ndarray) -> int:
    return int((sizes * (sizes - 1) // 2).sum())


def clustering_metrics(embeddings: Any, labels: Any, seed: int = 0, restarts: int = RESTARTS) -> dict[str, float]:
    """Unit rows clustered by k-means into as many clusters as THESE labels hold classes, against the classes.

    embeddings: [n, d]; labels: n integers or strings; seed and restarts: of `k_means`. All rows are clustered, those
    of classes of one sample too.

        nmi             normalised mutual information (mean of the entropies)
        nmi_random      the same of random embeddings of the same shape: what nmi is to be compared with
        ami             mutual information adjusted for chance
        f1_clusters     F1 over pairs in one cluster (the code of Revisiting)
        f1_neighbours   F1 over nearest neighbours (its paper); see the function of that name

    Raises `EvaluationError` for what `retrieval_metrics` refuses, and for fewer than two classes.
    """
    rows = unit_rows(embeddings)
    classes = class_codes(labels, len(rows))[0]
    number = _class_count(classes)
    clusters = k_means(rows, number, seed, restarts).labels
    return {
        "nmi": nmi(classes, clusters),
        "nmi_random": random_nmi(classes, rows.shape[1], seed),
        "ami": ami(classes, clusters),
        "f1_clusters": pair_f1(classes, clusters),
        "f1_neighbours": f1_neighbours(rows, classes),
    }


def random_nmi(labels: Any, dim: int, seed: int = 0) -> float:
    """NMI of embeddings that know nothing: directions drawn uniformly on the sphere of `dim` dimensions.

    One short run of k-means is enough: its clusters are independent of the labels in any case. Raises
    `EvaluationError` as `clustering_metrics`.
    """
    classes = class_codes(labels, len(labels))[0]
    # Not the seed of k_means itself: its start is not to follow the numbers that made the rows.
    rows = np.random.default_rng([seed, 1]).standard_normal((len(classes), dim), np.float32)
    return nmi(classes, k_means(unit_rows(rows), _class_count(classes), seed, restarts=1, iterations=10).labels)


def f1_neighbours(embeddings: Any, labels: Any, k: int | None = None) -> float:
    """Mean over queries of F1 = 2 P R / (P + R), with the precision P and recall R of the first k neighbours.

    With h relatives among them and r in all, F1 = 2 h / (k + r). k is one number for all queries, as in recall at K.
    Revisiting does not print its k; the default is the mean number of relatives, rounded, so that a perfect embedding
    of classes of one size scores 1 (and F1 is then the R-precision). Queries without a relative are left out.

    Raises `EvaluationError` as `retrieval_metrics` does, and for a k below 1 or beyond the other rows.
    """
    search = retrieval_inputs(embeddings, labels)
    asks = search.relatives > 0
    k = max(1, round(float(search.relatives[asks].mean()))) if k is None else k
    chunks = neighbour_chunks(search.gallery, search.gallery, k, exclude_self=True)
    hits = [(search.codes[found] == search.codes[rows, None]).sum(axis=1) for rows, _, found in chunks]
    return float((2 * np.concatenate(hits) / (k + search.relatives))[asks].mean())


def _class_count(classes: np.ndarray) -> int:
    """The number of classes. Raises `EvaluationError` for fewer than two."""
    number = len(np.unique(classes))
    if number < 2:
        raise EvaluationError("clusters are compared with classes, and there are fewer than two classes.")
    return number

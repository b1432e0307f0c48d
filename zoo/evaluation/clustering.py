"""Clustering metrics: NMI, AMI and F1 of k-means clusters, and F1 of nearest neighbours."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from zoo.errors import EvaluationError, missing
from zoo.evaluation.inputs import class_codes, retrieval_inputs, unit_rows
from zoo.evaluation.knn import neighbour_chunks

RESTARTS = 3
ITERATIONS = 100


def clustering_metrics(embeddings: Any, labels: Any, seed: int = 0, restarts: int = RESTARTS) -> dict[str, float]:
    """Cluster the unit rows by k-means, into as many clusters as `labels` has classes, and compare with the classes.

    Args:
        embeddings: [n, d]. All rows are clustered, including classes of one sample.
        labels: n integers or strings.
        seed: Seed of `k_means`.
        restarts: Number of runs of `k_means`, of which the best one counts.

    Returns:
        Nmi             normalised mutual information (mean of the entropies)
        nmi_random      NMI of random embeddings of the same shape, for comparison with nmi
        ami             mutual information adjusted for chance
        f1_clusters     F1 over pairs in one cluster (the code of Revisiting)
        f1_neighbours   F1 over nearest neighbours (its paper); see the function of that name.

    Raises:
        EvaluationError: As `retrieval_metrics`, and for fewer than two classes.
        MissingDependencyError: Without FAISS.
    """
    rows = unit_rows(embeddings)
    classes = class_codes(labels, len(rows))[0]
    clusters = k_means(rows, _class_count(classes), seed, restarts)
    return {
        "nmi": nmi(classes, clusters),
        "nmi_random": random_nmi(classes, rows.shape[1], seed),
        "ami": ami(classes, clusters),
        "f1_clusters": pair_f1(classes, clusters),
        "f1_neighbours": f1_neighbours(rows, classes),
    }


def k_means(
    rows: np.ndarray,
    k: int,
    seed: int,
    restarts: int = RESTARTS,
    iterations: int = ITERATIONS,
    gpu: bool = True,
) -> np.ndarray:
    """Return the cluster of each row, int64 [n], by FAISS's k-means; on one machine a seed gives the same clusters.

    The best of several runs from starts by k-means++ (Arthur and Vassilvitskii 2007).

    Args:
        rows: Float32 [n, d].
        k: The number of clusters, from 1 to n.
        seed: Seed of the starts.
        restarts: The number of runs.
        iterations: The largest number of iterations of a run.
        gpu: Use all GPUs that FAISS sees.

    Raises:
        MissingDependencyError: Without FAISS.
    """
    try:
        import faiss
    except ModuleNotFoundError:
        raise missing("faiss", "cpu") from None
    rows = np.asarray(rows)  # FAISS takes no subclass, such as rows that are read within a memory limit
    kmeans = faiss.Kmeans(
        rows.shape[1],
        k,
        niter=iterations,
        nredo=restarts,
        seed=seed % 2**31,
        init_method=faiss.ClusteringInitMethod_KMEANS_PLUS_PLUS,
        min_points_per_centroid=1,
        max_points_per_centroid=len(rows),  # FAISS would cluster a sample of larger sets
        gpu=gpu and faiss.get_num_gpus() > 0,
    )
    kmeans.train(rows)
    clusters: np.ndarray = kmeans.index.search(rows, 1)[1][:, 0]
    return clusters


def nmi(labels: Any, clusters: Any) -> float:
    """Return the normalised mutual information I / ((H(labels) + H(clusters)) / 2), from 0 to 1.

    It is 1 where both partitions have a single part. It rises with the number of parts even where the partitions are
    unrelated, so report the value of random embeddings with it (`random_nmi`). Manning et al. 2008, Introduction to
    Information Retrieval, section 16.3.

    Args:
        labels: n integers or strings.
        clusters: n integers or strings.

    Raises:
        EvaluationError: If there are no samples, or the lengths differ.
    """
    table = _contingency(labels, clusters)
    entropy = (_entropy(table.rows) + _entropy(table.columns)) / 2
    return float(np.clip(_mutual_information(table) / entropy, 0, 1)) if entropy else 1.0


def ami(labels: Any, clusters: Any) -> float:
    """Return the mutual information adjusted for chance: (I - E[I]) / (mean entropy - E[I]).

    It is near 0 for random clusters, and 1 where no other value is possible. E[I] is over all partitions of the same
    sizes (Vinh et al. 2010, Information Theoretic Measures for Clusterings Comparison; normalised by the mean).
    Arguments and errors are those of `nmi`.
    """
    table = _contingency(labels, clusters)
    chance = _expected_information(table)
    range_ = (_entropy(table.rows) + _entropy(table.columns)) / 2 - chance
    return float(min(1.0, (_mutual_information(table) - chance) / range_)) if range_ > 1e-12 else 1.0


def pair_f1(labels: Any, clusters: Any) -> float:
    """Return F1 over pairs of samples, with "same cluster" as the prediction of "same label", from 0 to 1.

    Manning et al. 2008, section 16.3; the code of Revisiting and DiVA uses it. It is 1 where neither partition has a
    pair. Arguments and errors are those of `nmi`.
    """
    table = _contingency(labels, clusters)
    predicted_and_true = _pair_count(table.columns) + _pair_count(table.rows)
    return 2 * _pair_count(table.counts) / predicted_and_true if predicted_and_true else 1.0


def random_nmi(labels: Any, dim: int, seed: int = 0) -> float:
    """Return the NMI of embeddings without information: directions drawn uniformly on the sphere in `dim` dimensions.

    One short run of k-means is enough, because its clusters are independent of the labels in any case.

    Raises:
        EvaluationError: As `clustering_metrics`.
    """
    classes = class_codes(labels, len(labels))[0]
    # The seed differs from the seed of k_means: its start must not follow the numbers that made the rows.
    rows = np.random.default_rng([seed, 1]).standard_normal((len(classes), dim), np.float32)
    return nmi(classes, k_means(unit_rows(rows), _class_count(classes), seed, restarts=1, iterations=10))


def f1_neighbours(embeddings: Any, labels: Any, k: int | None = None) -> float:
    """Return the mean over queries of F1 = 2 P R / (P + R), with precision P and recall R of the first k neighbours.

    With h relatives among the neighbours and r in all, F1 = 2 h / (k + r). Queries without a relative are left out.

    Args:
        embeddings: [n, d].
        labels: n integers or strings.
        k: One number of neighbours for all queries. Revisiting does not print its k; the default is the mean number of
            relatives, rounded, so that a perfect embedding of classes of one size scores 1 (F1 is then R-precision).

    Raises:
        EvaluationError: As `retrieval_metrics`, and for a k below 1 or above the number of other rows.
    """
    inputs = retrieval_inputs(embeddings, labels)
    measured = inputs.relatives > 0
    k = max(1, round(float(inputs.relatives[measured].mean()))) if k is None else k
    chunks = neighbour_chunks(inputs.gallery, inputs.gallery, k, exclude_self=True)
    hits = [(inputs.codes[indices] == inputs.codes[rows, None]).sum(axis=1) for rows, _, indices in chunks]
    return float((2 * np.concatenate(hits) / (k + inputs.relatives))[measured].mean())


def _class_count(classes: np.ndarray) -> int:
    number = len(np.unique(classes))
    if number < 2:
        raise EvaluationError(
            f"clusters are compared with at least two classes; the labels have {number}.", code="too-few-classes"
        )
    return number


class _Contingency(NamedTuple):
    """Contingency table of two partitions: its non-zero `counts` [m] at (`row`, `column`), and the marginal sums."""

    counts: np.ndarray
    row: np.ndarray
    column: np.ndarray
    rows: np.ndarray
    columns: np.ndarray


def _contingency(labels: Any, clusters: Any) -> _Contingency:
    n = len(labels)
    if not n:
        raise EvaluationError("the partitions have no samples to compare.", code="too-few-samples")
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
    """Return E[I]. Each count is hypergeometric, given the sizes; parts of one size are computed once and weighted."""
    n = int(table.rows.sum())
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])
    total = 0.0
    for a, weight_a in zip(*np.unique(table.rows, return_counts=True), strict=True):
        for b, weight_b in zip(*np.unique(table.columns, return_counts=True), strict=True):
            total += weight_a * weight_b * _expected_cell(int(a), int(b), n, log_factorial)
    return total


def _expected_cell(a: int, b: int, n: int, log_factorial: np.ndarray) -> float:
    count = np.arange(max(1, a + b - n), min(a, b) + 1)
    f = log_factorial
    ways = f[a] + f[b] + f[n - a] + f[n - b] - f[n] - f[count] - f[a - count] - f[b - count] - f[n - a - b + count]
    return float((count / n * np.log(count / a * n / b) * np.exp(ways)).sum())


def _pair_count(sizes: np.ndarray) -> int:
    return int((sizes * (sizes - 1) // 2).sum())

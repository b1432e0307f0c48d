"""What k-means makes of an embedding, compared with the classes, and F1 in both published readings."""

from __future__ import annotations

from typing import Any

import numpy as np

from zoo.errors import EvaluationError
from zoo.evaluation.inputs import class_codes, search_of, unit_rows
from zoo.evaluation.kmeans import RESTARTS, k_means
from zoo.evaluation.neighbours import neighbour_chunks
from zoo.evaluation.partitions import ami, nmi, pair_f1


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
    number = _several(classes)
    clusters = k_means(rows, number, seed, restarts).labels
    return {
        "nmi": nmi(classes, clusters),
        "nmi_random": nmi_of_random(classes, rows.shape[1], seed),
        "ami": ami(classes, clusters),
        "f1_clusters": pair_f1(classes, clusters),
        "f1_neighbours": f1_neighbours(rows, classes),
    }


def nmi_of_random(labels: Any, dim: int, seed: int = 0) -> float:
    """NMI of embeddings that know nothing: directions drawn uniformly on the sphere of `dim` dimensions.

    One short run of k-means is enough: its clusters are independent of the labels in any case. Raises
    `EvaluationError` as `clustering_metrics`.
    """
    classes = class_codes(labels, len(labels))[0]
    # Not the seed of k_means itself: its start is not to follow the numbers that made the rows.
    rows = np.random.default_rng([seed, 1]).standard_normal((len(classes), dim), np.float32)
    return nmi(classes, k_means(unit_rows(rows), _several(classes), seed, restarts=1, iterations=10).labels)


def f1_neighbours(embeddings: Any, labels: Any, k: int | None = None) -> float:
    """Mean over queries of F1 = 2 P R / (P + R), with the precision P and recall R of the first k neighbours.

    With h relatives among them and r in all, F1 = 2 h / (k + r). k is one number for all queries, as in recall at K.
    Revisiting does not print its k; the default is the mean number of relatives, rounded, so that a perfect embedding
    of classes of one size scores 1 (and F1 is then the R-precision). Queries without a relative are left out.

    Raises `EvaluationError` as `retrieval_metrics` does, and for a k below 1 or beyond the other rows.
    """
    search = search_of(embeddings, labels)
    asks = search.relatives > 0
    k = max(1, round(float(search.relatives[asks].mean()))) if k is None else k
    chunks = neighbour_chunks(search.gallery, search.gallery, k, exclude_self=True)
    hits = [(search.codes[found] == search.codes[rows, None]).sum(axis=1) for rows, _, found in chunks]
    return float((2 * np.concatenate(hits) / (k + search.relatives))[asks].mean())


def _several(classes: np.ndarray) -> int:
    """The number of classes. Raises `EvaluationError` for fewer than two."""
    number = len(np.unique(classes))
    if number < 2:
        raise EvaluationError("clusters are compared with classes, and there are fewer than two classes.")
    return number

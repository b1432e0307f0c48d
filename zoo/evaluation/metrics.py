"""Retrieval metrics by exact cosine search: recall at K, precision at 1, R-precision and MAP@R."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zoo.errors import EvaluationError
from zoo.evaluation.inputs import Search, search_of
from zoo.evaluation.neighbours import as_depth, neighbour_chunks

DEFAULT_K = (1, 2, 4, 8)


@dataclass(frozen=True)
class PerQuery:
    """Each metric of each query that has a relative, before any mean is taken.

    values: metric -> float64 [m]; rows: int64 [m], the queries' row numbers; classes: int64 [m], a number for each
    query's class; without_relatives: how many queries were left out because the gallery holds none of their class.
    """

    values: dict[str, np.ndarray]
    rows: np.ndarray
    classes: np.ndarray
    without_relatives: int

    def means(self) -> dict[str, float]:
        return {name: float(values.mean()) for name, values in self.values.items()}


def retrieval_metrics(
    embeddings: Any,
    labels: Any,
    k: Sequence[int] = DEFAULT_K,
    queries: Any = None,
    query_labels: Any = None,
) -> dict[str, float]:
    """Mean retrieval metrics over the queries, as fractions: recall_at_K, precision_at_1, r_precision and map_at_r.

    embeddings: the gallery, [n, d]; labels: n integers or strings. Without `queries` each row searches all others and
    is left out of its own neighbours by index; with `queries` [q, d] and `query_labels` the whole gallery is searched.
    Similarity is the cosine: rows are scaled to unit length here. Equal similarities are ordered by row.

    With R the number of relatives (gallery rows of the query's class, the query itself aside), P(i) the precision of
    the first i neighbours and rel(i) whether the i-th is a relative:

        recall_at_K   1 where one of the first K neighbours is a relative, else 0
        r_precision   P(R)
        map_at_r      1/R sum_{i <= R} P(i) rel(i)        (Musgrave et al. 2020, A Metric Learning Reality Check, 3.2)

    Queries without a relative are left out of the means. Raises `EvaluationError` when none has one, for NaN,
    infinite or zero rows (naming the first), labels that do not fit, and a K that is no whole number or that the
    gallery cannot fill.
    """
    return per_query(embeddings, labels, k, queries, query_labels).means()


def per_query(
    embeddings: Any,
    labels: Any,
    k: Sequence[int] = DEFAULT_K,
    queries: Any = None,
    query_labels: Any = None,
) -> PerQuery:
    """`retrieval_metrics` before the means are taken; the same arguments and errors."""
    search = search_of(embeddings, labels, queries, query_labels)
    depths = depths_of(k)
    _check_available(depths, len(search.gallery) - search.leave_one_out)
    depth = max(1, *depths, int(search.relatives.max()))
    pieces = [
        measure_hits(search.codes[found] == search.query_codes[rows, None], search.relatives[rows], depths)
        for rows, _, found in neighbour_chunks(search.queries, search.gallery, depth, search.leave_one_out, exact=False)
    ]
    values = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    return per_query_of(values, search)


def per_query_of(values: dict[str, np.ndarray], search: Search) -> PerQuery:
    """The values [m] of the m queries that have relatives, in their order."""
    measured = np.flatnonzero(search.relatives)
    return PerQuery(values, measured, search.query_codes[measured], len(search.relatives) - len(measured))


def measure_hits(hits: np.ndarray, relatives: np.ndarray, k: Sequence[int]) -> dict[str, np.ndarray]:
    """The metrics of the queries that have relatives, float64 [m] each, from what a search has found.

    hits: bool [c, depth], whether each neighbour is a relative, nearest first; relatives: int64 [c], how many there
    are to find, none of them more than depth. As `retrieval_metrics` defines them, whatever index has searched.
    """
    hits, relatives = hits[relatives > 0], relatives[relatives > 0]
    rank = np.arange(1, hits.shape[1] + 1)
    within = hits & (rank <= relatives[:, None])
    precision = np.cumsum(within, axis=1) / rank
    return {
        **{f"recall_at_{K}": hits[:, :K].any(axis=1).astype(np.float64) for K in k},
        "precision_at_1": hits[:, 0].astype(np.float64),
        "r_precision": within.sum(axis=1) / relatives,
        "map_at_r": (precision * within).sum(axis=1) / relatives,
    }


def depths_of(k: Any) -> tuple[int, ...]:
    """Every K of recall_at_K. Raises `EvaluationError` for what lists no whole numbers of at least 1."""
    try:
        given = None if isinstance(k, str | bytes) else tuple(k)
    except TypeError:
        given = None
    if given is None:
        raise EvaluationError(f"k must list every K of recall_at_K, as (1, 2, 4, 8), not be {k!r}.")
    return tuple(as_depth(depth, "every K of recall_at_K") for depth in given)


def _check_available(depths: Sequence[int], available: int) -> None:
    for depth in depths:
        if depth > available:
            raise EvaluationError(
                f"recall_at_{depth} needs {depth} neighbours, but a query has only {available}; leave it out of k."
            )

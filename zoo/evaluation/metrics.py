"""Retrieval metrics by exact cosine search: recall at K, precision at 1, R-precision and MAP@R."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zoo.errors import EvaluationError
from zoo.evaluation.neighbours import as_rows, neighbour_chunks, row_norms

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
    infinite or zero rows (naming the first), labels that do not fit, and a K that the gallery cannot fill.
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
    if (queries is None) != (query_labels is None):
        raise EvaluationError("queries and query_labels belong together; give both or neither.")
    leave_one_out = queries is None
    gallery = _unit_rows(embeddings, "embeddings")
    searched = gallery if leave_one_out else _unit_rows(queries, "queries")
    codes, query_codes = _codes(labels, len(gallery), query_labels, len(searched))
    relatives = _relatives(codes, query_codes, leave_one_out)
    depth = max(*_check_k(k, len(gallery) - leave_one_out), int(relatives.max()))
    pieces = [
        _measure(codes[found] == query_codes[rows, None], relatives[rows], k)
        for rows, _, found in neighbour_chunks(searched, gallery, depth, exclude_self=leave_one_out)
    ]
    values = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    measured = np.flatnonzero(relatives)
    return PerQuery(values, measured, query_codes[measured], len(relatives) - len(measured))


def _measure(hits: np.ndarray, relatives: np.ndarray, k: Sequence[int]) -> dict[str, np.ndarray]:
    """The metrics of the queries that have relatives, from whether each neighbour is one: hits bool [c, depth]."""
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


def _unit_rows(values: Any, name: str) -> np.ndarray:
    rows = as_rows(values, name)
    norms = row_norms(rows)
    if not norms.all():
        raise EvaluationError(f"row {int(norms.argmin())} of {name} is all zero and has no direction; drop it.")
    unit: np.ndarray = np.divide(rows, norms[:, None], out=np.empty_like(rows), dtype=np.float64, casting="same_kind")
    return unit


def _codes(labels: Any, n: int, query_labels: Any, q: int) -> tuple[np.ndarray, np.ndarray]:
    """One number for each class, int64 [n] for the gallery and [q] for the queries."""
    gallery = _as_labels(labels, n, "labels")
    if query_labels is None:
        codes = np.unique(gallery, return_inverse=True)[1]
        return codes, codes
    asked = _as_labels(query_labels, q, "query_labels")
    if (gallery.dtype.kind == "U") != (asked.dtype.kind == "U"):
        raise EvaluationError(
            f"labels are {gallery.dtype} and query_labels {asked.dtype}; both must be integers or both strings."
        )
    codes = np.unique(np.concatenate([gallery, asked]), return_inverse=True)[1]
    return codes[:n], codes[n:]


def _as_labels(labels: Any, n: int, name: str) -> np.ndarray:
    values = np.asarray(labels)
    if values.dtype == object and all(isinstance(value, str) for value in values.flat):
        values = values.astype(str)
    if values.dtype.kind not in "iubU":
        raise EvaluationError(f"{name} must be integers or strings, not {values.dtype}.")
    if values.shape != (n,):
        raise EvaluationError(f"{name} must be one for each of the {n} rows, not of shape {list(values.shape)}.")
    return values


def _relatives(codes: np.ndarray, query_codes: np.ndarray, leave_one_out: bool) -> np.ndarray:
    """How many gallery rows share each query's class, the query itself aside: int64 [q]."""
    if len(codes) == 0 or len(query_codes) == 0:
        raise EvaluationError("there is nothing to measure: the embeddings or the queries have no rows.")
    sizes = np.bincount(codes, minlength=int(query_codes.max()) + 1)
    relatives: np.ndarray = sizes[query_codes] - int(leave_one_out)
    if not relatives.any():
        raise EvaluationError(
            "no query has a relative in the gallery; retrieval is measured where a class has at least two samples."
        )
    return relatives


def _check_k(k: Sequence[int], available: int) -> tuple[int, ...]:
    for depth in k:
        if depth < 1:
            raise EvaluationError(f"recall_at_{depth} makes no sense; K must be at least 1.")
        if depth > available:
            raise EvaluationError(
                f"recall_at_{depth} needs {depth} neighbours, but a query has only {available}; leave it out of k."
            )
    return 1, *k

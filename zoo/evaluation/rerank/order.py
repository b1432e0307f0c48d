"""Order of neighbours by a re-ranking method, and the methods by name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from zoo.errors import unknown
from zoo.evaluation.knn import nearest_neighbours
from zoo.evaluation.rerank.scores import NEIGHBOURS, augmented, diffused, expanded, k_reciprocal

NONE, EXPANSION, AUGMENTATION, DIFFUSION, RECIPROCAL = "none", "expansion", "augmentation", "diffusion", "reciprocal"
CANDIDATES = 200
"""Candidates of a query; rows behind them keep their order. Query expansion searches the whole gallery again."""

SCORES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    AUGMENTATION: augmented,
    DIFFUSION: diffused,
    RECIPROCAL: lambda query, candidates: 1 - k_reciprocal(query, candidates),
}
"""Methods that order candidates: scores [m] of a unit query [d] and candidates [m, d], the nearest first."""
METHODS = (NONE, EXPANSION, *SCORES)


def check_method(name: str) -> str:
    """Return the name of a re-ranking method.

    Raises:
        UsageError: If the name is unknown.
    """
    if name not in METHODS:
        raise unknown("re-ranking", name, METHODS)
    return name


def reranked(
    method: str, queries: np.ndarray, gallery: np.ndarray, indices: np.ndarray, own: np.ndarray | None = None
) -> np.ndarray:
    """Return the neighbours of queries in their new order, int64 [c, depth].

    Args:
        method: A name of `METHODS`.
        queries: Unit rows [c, d].
        gallery: Unit rows [n, d].
        indices: Gallery rows of each query's neighbours, the nearest first, int64 [c, depth].
        own: The gallery row that each query is, int64 [c], which is not among its neighbours; None: none is.
    """
    if method == NONE:
        return indices
    if method == EXPANSION:
        return _search_expanded(queries, gallery, indices, own)
    result = indices.copy()
    for row, (query, near) in enumerate(zip(queries, indices[:, :CANDIDATES], strict=True)):
        scores = SCORES[method](query, gallery[near])
        result[row, : len(near)] = near[np.argsort(-scores, kind="stable")]
    return result


def _search_expanded(
    queries: np.ndarray, gallery: np.ndarray, indices: np.ndarray, own: np.ndarray | None
) -> np.ndarray:
    """Return the neighbours of the expanded queries, int64 [c, depth]."""
    depth = indices.shape[1]
    wider = [expanded(query, gallery[near[:NEIGHBOURS]]) for query, near in zip(queries, indices, strict=True)]
    _, found = nearest_neighbours(np.stack(wider), gallery, depth + (own is not None))
    if own is None:
        return found
    # Where a query is not among the neighbours, the last one is left out instead of it.
    mine = found == own[:, None]
    mine[~mine.any(axis=1), -1] = True
    return found[~mine].reshape(-1, depth)

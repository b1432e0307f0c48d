"""k-means on NumPy alone; on one machine the same seed gives the same clusters."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from zoo.errors import EvaluationError
from zoo.evaluation.neighbours import as_rows

RESTARTS = 3
ITERATIONS = 100
CHUNK_BYTES = 64 * 2**20
"""How large one chunk's table of distances, points x centres, may be."""


class Clusters(NamedTuple):
    """labels: int64 [n], 0 to k - 1, each taken; centres: float32 [k, d], the clusters' means; inertia: the sum of
    the points' squared distances to the centres of their clusters."""

    labels: np.ndarray
    centres: np.ndarray
    inertia: float


def k_means(points: Any, k: int, seed: int = 0, restarts: int = RESTARTS, iterations: int = ITERATIONS) -> Clusters:
    """The clusters of least inertia of several runs: points float [n, d], k clusters, none of them empty.

    Each run is Lloyd's algorithm from a greedy k-means++ start (Arthur and Vassilvitskii 2007), until no label changes
    or `iterations` are done. A cluster that runs empty takes the point farthest from its centre. Distances are
    Euclidean; time is about iterations x n x k x d a run, memory beside one copy of the points n + chunk x k.

    Raises `EvaluationError` for points that are not 2-D and finite, unless 1 <= k <= n, and for no restart.
    """
    rows = as_rows(points, "points")
    if not 1 <= k <= len(rows):
        raise EvaluationError(f"{len(rows)} points cannot make {k} clusters; choose from 1 to {len(rows)}.")
    if restarts < 1 or iterations < 1:
        raise EvaluationError(f"k-means needs a run and an iteration, not {restarts} and {iterations}.")
    middle = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
    rows = rows - middle  # distances from products are exact only near the origin
    rng = np.random.default_rng(seed)
    runs = (lloyd(rows, rows[_spread(rows, k, rng)], iterations) for _ in range(restarts))
    best = min(runs, key=lambda run: run.inertia)
    return best._replace(centres=best.centres + middle)


def lloyd(points: np.ndarray, centres: np.ndarray, iterations: int = ITERATIONS) -> Clusters:
    """Lloyd's algorithm from given centres float32 [k, d]: assign each point to its nearest, move these, repeat."""
    labels, moved = _assign(points, centres), centres
    for _ in range(iterations):
        moved = _means(points, labels, len(centres))
        last, labels = labels, _assign(points, moved)
        if np.array_equal(labels, last):
            break
    centres = _means(points, labels, len(centres))
    return Clusters(labels, centres, float(_distances(points, centres, labels).sum()))


def _spread(points: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
    """Greedy k-means++: rows int64 [k]. Of a few drawn by their squared distance to the nearest row so far, the one
    that lowers the sum of these distances most is taken (Arthur and Vassilvitskii 2007, section 7)."""
    lengths = np.einsum("ij,ij->i", points, points)
    nearest = np.full(len(points), np.inf, np.float32)
    chosen, drawn = np.empty(k, np.int64), rng.integers(len(points), size=1)
    for place in range(k):
        apart = (lengths - 2 * points[drawn] @ points.T + lengths[drawn, None]).clip(min=0)
        apart[np.arange(len(drawn)), drawn] = 0
        np.minimum(apart, nearest, out=apart)
        best = apart.sum(axis=1, dtype=np.float64).argmin()
        chosen[place], nearest = drawn[best], apart[best]
        ends = np.cumsum(nearest, dtype=np.float64)
        drawn = np.searchsorted(ends, rng.random(2 + int(math.log(k))) * ends[-1], side="right")
        drawn = drawn.clip(max=len(points) - 1)
    return chosen


def _assign(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Each point's nearest centre, int64 [n]; then every centre that is nearest to none takes a point."""
    sizes = np.einsum("ij,ij->i", centres, centres)
    # |x|^2 is the same for all centres.
    nearest = [(sizes - 2 * points[part] @ centres.T).argmin(axis=1) for part in _chunks(len(points), len(centres))]
    return _filled(np.concatenate(nearest), points, centres)


def _filled(labels: np.ndarray, points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """The labels, but each empty cluster gets the farthest point that is not its cluster's only one."""
    sizes = np.bincount(labels, minlength=len(centres))
    if sizes.all():
        return labels
    distances = _distances(points, centres, labels)
    for empty in np.flatnonzero(sizes == 0):
        farthest = np.where(sizes[labels] > 1, distances, -1).argmax()
        sizes[labels[farthest]] -= 1
        labels[farthest], sizes[empty], distances[farthest] = empty, 1, 0
    return labels


def _means(points: np.ndarray, labels: np.ndarray, k: int) -> np.ndarray:
    sums = np.zeros((k, points.shape[1]))
    for part in _chunks(len(points), points.shape[1]):
        order = np.argsort(labels[part], kind="stable")
        present, starts = np.unique(labels[part][order], return_index=True)
        sums[present] += np.add.reduceat(points[part][order], starts, axis=0, dtype=np.float64)
    means: np.ndarray = (sums / np.bincount(labels, minlength=k)[:, None]).astype(np.float32)
    return means


def _distances(points: np.ndarray, centres: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Squared distances to the points' own centres, float64 [n]."""
    pieces = []
    for part in _chunks(len(points), points.shape[1]):
        apart = points[part] - centres[labels[part]]
        pieces.append(np.einsum("ij,ij->i", apart, apart, dtype=np.float64))
    return np.concatenate(pieces)


def _chunks(n: int, width: int) -> Iterator[slice]:
    """Slices of n rows of `width` float32 numbers."""
    step = max(1, CHUNK_BYTES // (4 * width))
    return (slice(start, start + step) for start in range(0, n, step))

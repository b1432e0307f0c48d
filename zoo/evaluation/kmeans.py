"""k-means; on one machine the same seed gives the same clusters.

On NumPy alone, but where torch is loaded anyway and sees a GPU: there the nearest centres are found on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from zoo.errors import EvaluationError
from zoo.evaluation.gpu import MIN_ROWS, points_on_gpu, try_on_gpu
from zoo.evaluation.knn import as_rows
from zoo.evaluation.matmul import Buffer

RESTARTS = 3
ITERATIONS = 100
GREEDY_LIMIT = 64
"""Up to how many clusters the first centres are chosen one by one."""
CHUNK_BYTES = 8 * 2**20
"""How large one chunk of points in double precision may be."""
TABLE_BYTES = 2**19
"""How large one chunk's table of distances, points x centres, may be: as much as stays in a core's cache."""


class Clusters(NamedTuple):
    """labels: int64 [n], 0 to k - 1, each taken; centres: float32 [k, d], the clusters' means; inertia: the sum of
    the points' squared distances to the centres of their clusters."""

    labels: np.ndarray
    centres: np.ndarray
    inertia: float


class CentreSearch(Protocol):
    """Of some points: those of them that are chosen, int64 [m], or all; each one's nearest centre, int64 [m], and its
    nearness to it, float32 [m]: (|x|^2 - |x - c|^2) / 2 = x c - |c|^2 / 2."""

    def __call__(self, centres: np.ndarray, chosen: np.ndarray | None = None, /) -> tuple[np.ndarray, np.ndarray]: ...


def k_means(points: Any, k: int, seed: int = 0, restarts: int = RESTARTS, iterations: int = ITERATIONS) -> Clusters:
    """The clusters of least inertia of several runs: points float [n, d], k clusters, none of them empty.

    Each run is Lloyd's algorithm until no label changes or `iterations` are done. Up to `GREEDY` clusters start by
    greedy k-means++ (Arthur and Vassilvitskii 2007), more of them from points that are drawn by the same squared
    distances, but in rounds, as in k-means|| (Bahmani et al. 2012, Scalable K-Means++): one by one they would take
    longer than all that follows. A cluster that runs empty takes the point farthest from its centre. Distances are
    Euclidean; time is about iterations x n x k x d a run, memory beside one copy of the points n + chunk x k.

    Raises `EvaluationError` for points that are not 2-D and finite, unless 1 <= k <= n, and for no restart.
    """
    rows = as_rows(points, "points")
    if not 1 <= k <= len(rows):
        raise EvaluationError(f"{len(rows)} points cannot make {k} clusters; choose from 1 to {len(rows)}.")
    if restarts < 1 or iterations < 1:
        raise EvaluationError(f"k-means needs a run and an iteration, not {restarts} and {iterations}.")
    middle = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
    whole = np.ones((len(rows), rows.shape[1] + 1), np.float32)
    rows = np.subtract(rows, middle, out=whole[:, :-1])  # distances from products are exact only near the origin
    rng = np.random.default_rng(seed)
    nearest = centre_search(whole)
    spread = _greedy_start if k <= GREEDY_LIMIT else partial(_start_in_rounds, nearest_of=nearest)
    runs = (lloyd(rows, rows[spread(rows, k, rng)], iterations, nearest) for _ in range(restarts))
    best = min(runs, key=lambda run: run.inertia)
    return best._replace(centres=best.centres + middle)


def lloyd(
    points: np.ndarray, centres: np.ndarray, iterations: int = ITERATIONS, nearest_of: CentreSearch | None = None
) -> Clusters:
    """Lloyd's algorithm from given centres float32 [k, d]: assign each point to its nearest, move these, repeat.

    nearest_of: `nearest_to` the points and a last column of 1, where it is at hand.
    """
    nearest_of = nearest_of or centre_search(np.column_stack([points, np.ones(len(points), np.float32)]))
    labels, nearest = _assign(points, centres, nearest_of)
    k = len(centres)
    sums = _sums(points, labels, k)
    for _ in range(iterations):
        last, before, centres = labels, centres, _means(sums, labels)
        moved = (centres != before).any(axis=1)
        labels, nearest = _reassign(points, centres, moved, last, nearest, nearest_of)
        changed = np.flatnonzero(labels != last)
        if not len(changed):
            break
        # In double precision the others need not be summed again.
        others = points[changed]
        sums += _sums(others, labels[changed], k)
        sums -= _sums(others, last[changed], k)
    centres = _means(sums, labels)
    return Clusters(labels, centres, _inertia(points, centres, sums, labels))


def _greedy_start(points: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
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


def _start_in_rounds(points: np.ndarray, k: int, rng: np.random.Generator, nearest_of: CentreSearch) -> np.ndarray:
    """Rows int64 [k], drawn by their squared distances to the rows of earlier rounds, without replacement.

    Each round adds half to the rows, so no distance is much out of date. A point of weight w whose exponential
    variate divided by w is among the m smallest is one of m drawn so (Efraimidis and Spirakis 2006).
    """
    lengths = np.einsum("ij,ij->i", points, points)
    nearest = np.full(len(points), np.inf, np.float32)
    chosen = rng.integers(len(points), size=1)
    drawn = chosen
    while len(chosen) < k:
        near = nearest_of(points[drawn])[1]
        np.minimum(nearest, (lengths - 2 * near).clip(min=0), out=nearest)
        nearest[drawn] = 0
        with np.errstate(divide="ignore"):
            keys = rng.exponential(size=len(points)) / nearest
        more = min(1 + len(chosen) // 2, k - len(chosen))
        drawn = np.argpartition(keys, more - 1)[:more]
        chosen = np.concatenate([chosen, drawn])
    return chosen


def centre_search(whole: np.ndarray) -> CentreSearch:
    """How the nearest centres are found of the points in whole float32 [n, d + 1], where they are followed by a 1: on a
    GPU where there is one with room for it."""
    here = partial(_nearest_centres, whole)
    there = points_on_gpu(whole[:, :-1]) if len(whole) >= MIN_ROWS else None
    if there is None:
        return here

    def either(centres: np.ndarray, chosen: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        found = try_on_gpu(lambda _: there.nearest(centres, chosen))
        return here(centres, chosen) if found is None else found

    return either


def _assign(points: np.ndarray, centres: np.ndarray, nearest_of: CentreSearch) -> tuple[np.ndarray, np.ndarray]:
    """What is nearest, but every centre that is nearest to none takes a point."""
    labels, nearest = nearest_of(centres)
    return _fill_empty(labels, nearest, points, centres)


def _reassign(
    points: np.ndarray,
    centres: np.ndarray,
    moved: np.ndarray,
    labels: np.ndarray,
    nearest: np.ndarray,
    nearest_of: CentreSearch,
) -> tuple[np.ndarray, np.ndarray]:
    """`_assign` after only the `moved` centres, bool [k]: a point whose own stays need look at no other that does."""
    if 2 * np.count_nonzero(moved) > len(centres):
        return _assign(points, centres, nearest_of)
    again = moved[labels] | np.isneginf(nearest)  # or the point was given to an empty cluster
    left, stays, names = np.flatnonzero(again), np.flatnonzero(~again), np.flatnonzero(moved)
    labels, nearest = labels.copy(), nearest.copy()
    labels[left], nearest[left] = nearest_of(centres, left)
    if len(names):
        other, near = nearest_of(centres[names], stays)
        closer = near > nearest[stays]
        labels[stays[closer]], nearest[stays[closer]] = names[other[closer]], near[closer]
    return _fill_empty(labels, nearest, points, centres)


def _nearest_centres(
    whole: np.ndarray, centres: np.ndarray, chosen: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """As `Nearest`, chunk by chunk. The points' 1 and the centres' -|c|^2 / 2 are factors like all others, so that
    nothing has to be taken from the products."""
    rows = whole if chosen is None else whole[chosen]
    labels, nearest = np.empty(len(rows), np.int64), np.empty(len(rows), np.float32)
    factors = np.column_stack([centres, np.einsum("ij,ij->i", centres, centres) / -2]).T
    memory = Buffer(np.float32)
    for part in _chunks(len(rows), len(centres), TABLE_BYTES):
        near = np.matmul(rows[part], factors, out=memory.of(len(rows[part]), len(centres)))
        near.argmax(axis=1, out=labels[part])
        nearest[part] = near[np.arange(len(near)), labels[part]]
    return labels, nearest


def _fill_empty(
    labels: np.ndarray, nearest: np.ndarray, points: np.ndarray, centres: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The same, but each empty cluster gets the farthest point that is not its cluster's only one."""
    sizes = np.bincount(labels, minlength=len(centres))
    if sizes.all():
        return labels, nearest
    distances = _distances(points, centres, labels)
    for empty in np.flatnonzero(sizes == 0):
        farthest = np.where(sizes[labels] > 1, distances, -1).argmax()
        sizes[labels[farthest]] -= 1
        labels[farthest], nearest[farthest], sizes[empty], distances[farthest] = empty, -np.inf, 1, 0
    return labels, nearest


def _means(sums: np.ndarray, labels: np.ndarray) -> np.ndarray:
    means: np.ndarray = (sums / np.bincount(labels, minlength=len(sums))[:, None]).astype(np.float32)
    return means


def _sums(points: np.ndarray, labels: np.ndarray, k: int) -> np.ndarray:
    """The sum of each cluster's points, float64 [k, d]."""
    sums = np.zeros((k, points.shape[1]))
    for part in _chunks(len(points), 8 * points.shape[1]):
        order = np.argsort(labels[part], kind="stable")
        present, starts = np.unique(labels[part][order], return_index=True)
        sums[present] += np.add.reduceat(points[part][order].astype(np.float64), starts, axis=0)
    return sums


def _inertia(points: np.ndarray, centres: np.ndarray, sums: np.ndarray, labels: np.ndarray) -> float:
    """The sum of |x - c|^2, which is |x|^2 - 2 x c + |c|^2, in double precision."""
    parts = (points[part].astype(np.float64) for part in _chunks(*points.shape))
    lengths = sum(float(np.vdot(part, part)) for part in parts)
    wide, sizes = centres.astype(np.float64), np.bincount(labels, minlength=len(centres))
    return max(0.0, lengths - 2 * float(np.vdot(wide, sums)) + float(sizes @ np.einsum("ij,ij->i", wide, wide)))


def _distances(points: np.ndarray, centres: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Squared distances to the points' own centres, float64 [n]."""
    pieces = []
    for part in _chunks(len(points), points.shape[1]):
        apart = points[part] - centres[labels[part]]
        pieces.append(np.einsum("ij,ij->i", apart, apart, dtype=np.float64))
    return np.concatenate(pieces)


def _chunks(n: int, width: int, size: int = CHUNK_BYTES) -> Iterator[slice]:
    """Slices of n rows of `width` float32 numbers, of `size` bytes at most."""
    step = max(1, size // (4 * width))
    return (slice(start, start + step) for start in range(0, n, step))

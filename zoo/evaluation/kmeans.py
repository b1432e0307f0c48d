"""k-means clustering; on one machine the same seed gives the same clusters.

It runs on NumPy; where torch is loaded already and sees a GPU, the GPU finds the nearest centres.
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
"""The largest number of clusters whose first centres are chosen one by one."""
CHUNK_BYTES = 8 * 2**20
"""The largest size of a chunk of points in double precision."""
TABLE_BYTES = 2**19
"""The largest size of a chunk's table of distances, points x centres: it should stay in a core's cache."""


class Clusters(NamedTuple):
    """Result of k-means.

    labels: Int64 [n], 0 to k - 1; no cluster is empty.
    centres: The means of the clusters, float32 [k, d].
    inertia: The sum of the points' squared distances to the centres of their clusters.
    """

    labels: np.ndarray
    centres: np.ndarray
    inertia: float


class CentreSearch(Protocol):
    """Search for the nearest centres of fixed points: all of them, or those of the rows `subset`, int64 [m].

    It returns for each point the nearest centre, int64 [m], and the nearness to it, float32 [m]:
    (|x|^2 - |x - c|^2) / 2 = x c - |c|^2 / 2.
    """

    def __call__(self, centres: np.ndarray, subset: np.ndarray | None = None, /) -> tuple[np.ndarray, np.ndarray]: ...


def k_means(points: Any, k: int, seed: int = 0, restarts: int = RESTARTS, iterations: int = ITERATIONS) -> Clusters:
    """Return the clusters of least inertia of several runs; no cluster is empty.

    Each run is Lloyd's algorithm until no label changes or `iterations` are done. Up to `GREEDY_LIMIT` clusters start
    by greedy k-means++ (Arthur and Vassilvitskii 2007). More clusters start from points that are drawn by the same
    squared distances, but in rounds, as in k-means|| (Bahmani et al. 2012, Scalable K-Means++): one by one, this would
    take longer than all the rest. An empty cluster takes the point that is farthest from its centre. Distances are
    Euclidean. Time is about iterations x n x k x d per run, memory n + chunk x k besides a copy of the points.

    Args:
        points: Float [n, d].
        k: The number of clusters.
        seed: Seed of the first centres.
        restarts: The number of runs.
        iterations: The largest number of iterations of a run.

    Raises:
        EvaluationError: If the points are not 2-D and finite, k is not in 1 to n, or there is no run or iteration.
    """
    rows = as_rows(points, "points")
    if not 1 <= k <= len(rows):
        raise EvaluationError(
            f"{len(rows)} points cannot make {k} clusters; choose from 1 to {len(rows)}.", code="invalid-clusters"
        )
    if restarts < 1 or iterations < 1:
        raise EvaluationError(
            f"k-means needs at least one run and one iteration, not {restarts} and {iterations}.",
            code="invalid-iterations",
        )
    middle = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
    extended = np.ones((len(rows), rows.shape[1] + 1), np.float32)
    rows = np.subtract(rows, middle, out=extended[:, :-1])  # distances from products are exact only near the origin
    rng = np.random.default_rng(seed)
    nearest = centre_search(extended)
    start = _greedy_start if k <= GREEDY_LIMIT else partial(_start_in_rounds, nearest_of=nearest)
    runs = (lloyd(rows, rows[start(rows, k, rng)], iterations, nearest) for _ in range(restarts))
    best = min(runs, key=lambda run: run.inertia)
    return best._replace(centres=best.centres + middle)


def lloyd(
    points: np.ndarray, centres: np.ndarray, iterations: int = ITERATIONS, nearest_of: CentreSearch | None = None
) -> Clusters:
    """Run Lloyd's algorithm from given centres: assign each point to its nearest centre, move the centres, repeat.

    Args:
        points: Float32 [n, d].
        centres: Float32 [k, d].
        iterations: The largest number of iterations.
        nearest_of: The `centre_search` of the points with a last column of 1, if it exists already.
    """
    nearest_of = nearest_of or centre_search(np.column_stack([points, np.ones(len(points), np.float32)]))
    labels, nearness = _assign(points, centres, nearest_of)
    k = len(centres)
    sums = _sums(points, labels, k)
    for _ in range(iterations):
        last, before, centres = labels, centres, _means(sums, labels)
        moved = (centres != before).any(axis=1)
        labels, nearness = _reassign(points, centres, moved, last, nearness, nearest_of)
        changed = np.flatnonzero(labels != last)
        if not len(changed):
            break
        # Sums in double precision can be updated; the points that stay need not be summed again.
        rows = points[changed]
        sums += _sums(rows, labels[changed], k)
        sums -= _sums(rows, last[changed], k)
    centres = _means(sums, labels)
    return Clusters(labels, centres, _inertia(points, centres, sums, labels))


def centre_search(extended: np.ndarray) -> CentreSearch:
    """Return the search for the nearest centres of points, float32 [n, d + 1] with a last column of 1.

    It runs on a GPU if there is one with enough memory.
    """
    on_cpu = partial(_nearest_centres, extended)
    on_gpu = points_on_gpu(extended[:, :-1]) if len(extended) >= MIN_ROWS else None
    if on_gpu is None:
        return on_cpu

    def search(centres: np.ndarray, subset: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        nearest = try_on_gpu(lambda _: on_gpu.nearest(centres, subset))
        return on_cpu(centres, subset) if nearest is None else nearest

    return search


def _greedy_start(points: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
    """Return rows int64 [k] by greedy k-means++ (Arthur and Vassilvitskii 2007, section 7).

    A few rows are drawn by their squared distance to the nearest row so far; the one that lowers the sum of these
    distances most is taken.
    """
    lengths = np.einsum("ij,ij->i", points, points)
    nearest = np.full(len(points), np.inf, np.float32)
    centre_rows, drawn = np.empty(k, np.int64), rng.integers(len(points), size=1)
    for index in range(k):
        distances = (lengths - 2 * points[drawn] @ points.T + lengths[drawn, None]).clip(min=0)
        distances[np.arange(len(drawn)), drawn] = 0
        np.minimum(distances, nearest, out=distances)
        best = distances.sum(axis=1, dtype=np.float64).argmin()
        centre_rows[index], nearest = drawn[best], distances[best]
        ends = np.cumsum(nearest, dtype=np.float64)
        drawn = np.searchsorted(ends, rng.random(2 + int(math.log(k))) * ends[-1], side="right")
        drawn = drawn.clip(max=len(points) - 1)
    return centre_rows


def _start_in_rounds(points: np.ndarray, k: int, rng: np.random.Generator, nearest_of: CentreSearch) -> np.ndarray:
    """Return rows int64 [k], drawn by their squared distances to the rows of earlier rounds, without replacement.

    Each round adds half as many rows as there are, so no distance is much out of date. Taking the m points with the
    smallest ratio of an exponential variate to their weight draws m points in this way (Efraimidis and Spirakis 2006).
    """
    lengths = np.einsum("ij,ij->i", points, points)
    nearest = np.full(len(points), np.inf, np.float32)
    centre_rows = rng.integers(len(points), size=1)
    drawn = centre_rows
    while len(centre_rows) < k:
        nearness = nearest_of(points[drawn])[1]
        np.minimum(nearest, (lengths - 2 * nearness).clip(min=0), out=nearest)
        nearest[drawn] = 0
        with np.errstate(divide="ignore"):
            keys = rng.exponential(size=len(points)) / nearest
        more = min(1 + len(centre_rows) // 2, k - len(centre_rows))
        drawn = np.argpartition(keys, more - 1)[:more]
        centre_rows = np.concatenate([centre_rows, drawn])
    return centre_rows


def _assign(points: np.ndarray, centres: np.ndarray, nearest_of: CentreSearch) -> tuple[np.ndarray, np.ndarray]:
    """Return each point's nearest centre and nearness; a centre without points takes one."""
    labels, nearness = nearest_of(centres)
    return _fill_empty(labels, nearness, points, centres)


def _reassign(
    points: np.ndarray,
    centres: np.ndarray,
    moved: np.ndarray,
    labels: np.ndarray,
    nearness: np.ndarray,
    nearest_of: CentreSearch,
) -> tuple[np.ndarray, np.ndarray]:
    """Return `_assign` after only the `moved` centres, bool [k], have changed.

    A point whose own centre stays is compared with the moved centres only.
    """
    if 2 * np.count_nonzero(moved) > len(centres):
        return _assign(points, centres, nearest_of)
    again = moved[labels] | np.isneginf(nearness)  # or the point was given to an empty cluster
    left, stays, names = np.flatnonzero(again), np.flatnonzero(~again), np.flatnonzero(moved)
    labels, nearness = labels.copy(), nearness.copy()
    labels[left], nearness[left] = nearest_of(centres, left)
    if len(names):
        other, other_nearness = nearest_of(centres[names], stays)
        closer = other_nearness > nearness[stays]
        labels[stays[closer]], nearness[stays[closer]] = names[other[closer]], other_nearness[closer]
    return _fill_empty(labels, nearness, points, centres)


def _nearest_centres(
    extended: np.ndarray, centres: np.ndarray, subset: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Search as `CentreSearch`, chunk by chunk.

    The points' 1 and the centres' -|c|^2 / 2 are factors like all others, so that nothing is subtracted afterwards.
    """
    rows = extended if subset is None else extended[subset]
    labels, nearness = np.empty(len(rows), np.int64), np.empty(len(rows), np.float32)
    factors = np.column_stack([centres, np.einsum("ij,ij->i", centres, centres) / -2]).T
    buffer = Buffer(np.float32)
    for part in _chunks(len(rows), len(centres), TABLE_BYTES):
        table = np.matmul(rows[part], factors, out=buffer.matrix(len(rows[part]), len(centres)))
        table.argmax(axis=1, out=labels[part])
        nearness[part] = table[np.arange(len(table)), labels[part]]
    return labels, nearness


def _fill_empty(
    labels: np.ndarray, nearness: np.ndarray, points: np.ndarray, centres: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Give each empty cluster the farthest point that is not its cluster's only one."""
    sizes = np.bincount(labels, minlength=len(centres))
    if sizes.all():
        return labels, nearness
    distances = _distances(points, centres, labels)
    for empty in np.flatnonzero(sizes == 0):
        farthest = np.where(sizes[labels] > 1, distances, -1).argmax()
        sizes[labels[farthest]] -= 1
        labels[farthest], nearness[farthest], sizes[empty], distances[farthest] = empty, -np.inf, 1, 0
    return labels, nearness


def _means(sums: np.ndarray, labels: np.ndarray) -> np.ndarray:
    means: np.ndarray = (sums / np.bincount(labels, minlength=len(sums))[:, None]).astype(np.float32)
    return means


def _sums(points: np.ndarray, labels: np.ndarray, k: int) -> np.ndarray:
    """Return the sum of each cluster's points, float64 [k, d]."""
    sums = np.zeros((k, points.shape[1]))
    for part in _chunks(len(points), 8 * points.shape[1]):
        order = np.argsort(labels[part], kind="stable")
        present, starts = np.unique(labels[part][order], return_index=True)
        sums[present] += np.add.reduceat(points[part][order].astype(np.float64), starts, axis=0)
    return sums


def _inertia(points: np.ndarray, centres: np.ndarray, sums: np.ndarray, labels: np.ndarray) -> float:
    """Return the sum of |x - c|^2 = |x|^2 - 2 x c + |c|^2 in double precision."""
    parts = (points[part].astype(np.float64) for part in _chunks(*points.shape))
    lengths = sum(float(np.vdot(part, part)) for part in parts)
    wide, sizes = centres.astype(np.float64), np.bincount(labels, minlength=len(centres))
    return max(0.0, lengths - 2 * float(np.vdot(wide, sums)) + float(sizes @ np.einsum("ij,ij->i", wide, wide)))


def _distances(points: np.ndarray, centres: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the squared distances to the points' own centres, float64 [n]."""
    pieces = []
    for part in _chunks(len(points), points.shape[1]):
        offsets = points[part] - centres[labels[part]]
        pieces.append(np.einsum("ij,ij->i", offsets, offsets, dtype=np.float64))
    return np.concatenate(pieces)


def _chunks(n: int, width: int, size: int = CHUNK_BYTES) -> Iterator[slice]:
    """Yield slices of n rows of `width` float32 numbers, with at most `size` bytes each."""
    step = max(1, size // (4 * width))
    return (slice(start, start + step) for start in range(0, n, step))

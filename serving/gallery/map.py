"""Two-dimensional map of a gallery: near points have near embeddings."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from serving.gallery.gallery import VectorGallery
from zoo.evaluation.knn import nearest_neighbours

MOST = 3000
"""Largest number of points: more would hide one another on a screen."""

_FEWEST = 12
"""Fewer points have too few neighbours to be arranged by them."""

_NEAR = 10
"""Neighbours that each point is pulled towards."""

_PUSHED_BY = 100
"""Points, drawn in each step, that push all others away."""

_STEPS = 400
_EARLY_STEPS = 120
"""The first steps, in which the pull is `_EXAGGERATION` times as strong, so that groups form before they spread."""

_EXAGGERATION = 12


class Atlas:
    """The last map of a gallery, drawn again after the gallery has changed. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: tuple[tuple[str, int], dict[str, Any]] | None = None

    def map_of(self, gallery: VectorGallery) -> dict[str, Any]:
        """Return the map, as `draw` returns it."""
        key = gallery.address, gallery.store.change()
        with self._lock:  # requests that come in the meantime wait for this map instead of drawing their own
            if self._held is None or self._held[0] != key:
                self._held = key, draw(gallery)
            return self._held[1]


def draw(gallery: VectorGallery, most: int = MOST) -> dict[str, Any]:
    """Draw a map of a sample of the items; the sample and the map are the same while the gallery does not change.

    Returns:
        "total": the number of items in the gallery; "explained": the shares of the variance in the first two principal
        components, from which the map starts; "points": "id", "x", "y", "label" of each item. x and y are on one
        scale, and the largest absolute value is 1.
    """
    sampled = {item.id: item for item in gallery.store.sample(most, seed=0)}
    present, vectors = gallery.store.embeddings(sorted(sampled))
    start, explained = principal_plane(vectors)
    places = neighbour_plane(vectors, start)
    places = np.round(places / max(float(np.abs(places).max(initial=0)), 1e-12), 4)
    points = [
        {"id": item_id, "x": x, "y": y, "label": sampled[item_id].label}
        for item_id, (x, y) in zip(present, places.tolist(), strict=True)
    ]
    return {"total": gallery.store.count(), "explained": explained, "points": points}


def neighbour_plane(vectors: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Move points of a plane so that near vectors are near points (t-SNE; van der Maaten and Hinton, JMLR 2008).

    Each row is equally close to its `_NEAR` nearest rows. Each step estimates the repulsion from `_PUSHED_BY` random
    points, so that it takes linear time: about a second for 3,000 rows.

    Args:
        vectors: Unit rows, [n, d].
        start: First places of the points, [n, 2], for example the principal components.

    Returns:
        Places, float64 [n, 2]; `start` for fewer than `_FEWEST` rows, or if all its places are equal.
    """
    n, spread = len(start), float(np.abs(start).max(initial=0))
    if n < _FEWEST or spread < 1e-9:
        return start
    near = min(_NEAR, n // 3)
    rng = np.random.default_rng(0)
    ends = nearest_neighbours(vectors, vectors, near, exclude_self=True)[1].ravel()
    begins = np.repeat(np.arange(n), near)
    places, velocity = 0.01 * start / spread, np.zeros((n, 2))
    rate = max(4 * n / _EXAGGERATION, 50)
    for step in range(_STEPS):
        early = step < _EARLY_STEPS
        pushing = places if n <= _PUSHED_BY else places[rng.choice(n, _PUSHED_BY, replace=False)]
        force = (_EXAGGERATION if early else 1) * _pull(places, begins, ends) - _push(places, pushing)
        velocity = (0.5 if early else 0.8) * velocity - rate * force
        places = places + velocity
        places -= places.mean(axis=0)
    return places


def _pull(places: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return the attraction along the edges from rows `begins` to rows `ends`, [n, 2]."""
    across = places[begins] - places[ends]
    across /= (1 + (across**2).sum(axis=1))[:, None] * 2 * len(begins)
    sums = [np.bincount(begins, one, len(places)) - np.bincount(ends, one, len(places)) for one in across.T]
    return np.stack(sums, axis=1)


def _push(places: np.ndarray, pushing: np.ndarray) -> np.ndarray:
    """Return the repulsion from the points `pushing` [m, 2], [n, 2]."""
    squares = (places**2).sum(axis=1)[:, None] + (pushing**2).sum(axis=1) - 2 * places @ pushing.T
    weights = 1 / (1 + np.maximum(squares, 0))
    total = weights.sum()
    weights **= 2
    return (places * weights.sum(axis=1)[:, None] - weights @ pushing) / total


def principal_plane(vectors: np.ndarray) -> tuple[np.ndarray, list[float]]:
    """Return the first two principal components of rows, and the share of the variance in each.

    The sign of a component is the one that makes its largest weight positive.

    Args:
        vectors: Rows, [n, d].

    Returns:
        Places, float64 [n, 2], and two shares from 0 to 1.
    """
    centred = vectors.astype(np.float64)
    centred -= centred.mean(axis=0) if len(centred) else 0
    if len(centred) < centred.shape[1]:  # much faster for few items of many dimensions
        axes = np.linalg.svd(centred, full_matrices=False)[2][:2].T
    else:
        axes = np.linalg.eigh(centred.T @ centred)[1][:, :-3:-1]  # ascending
    axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])])
    places = np.zeros((len(centred), 2))
    places[:, : axes.shape[1]] = centred @ axes
    total = max(float((centred**2).sum()), 1e-12)
    return places, [round(max(float(one), 0) / total, 4) for one in (places**2).sum(axis=0)]

"""A map: the gallery as points of a plane, near one another where their embeddings are."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from serving.gallery import Gallery

MOST = 3000
"""More points than that hide one another on a screen."""


class Atlas:
    """The last map of a gallery, drawn anew once the gallery has changed. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: tuple[tuple[str, int], dict[str, Any]] | None = None

    def map_of(self, gallery: Gallery) -> dict[str, Any]:
        """What `draw` gives."""
        key = str(gallery.path), gallery.change()
        with self._lock:  # those who come meanwhile wait for the one map instead of drawing their own
            if self._held is None or self._held[0] != key:
                self._held = key, draw(gallery)
            return self._held[1]


def draw(gallery: Gallery, most: int = MOST) -> dict[str, Any]:
    """Up to `most` items on their first two principal components.

    {"total": items of the gallery, "explained": the parts of the variance that x and y hold, "points": [{"id", "x",
    "y", "label"}]}, x and y from -1 to 1 on one scale. The sample is the same as long as the gallery is.
    """
    sampled = {item.id: item for item in gallery.sample(most, seed=0)}
    present, vectors = gallery.embeddings(sorted(sampled))
    places, explained = principal_plane(vectors)
    places = np.round(places / max(float(np.abs(places).max(initial=0)), 1e-12), 4)
    points = [
        {"id": item_id, "x": x, "y": y, "label": sampled[item_id].label}
        for item_id, (x, y) in zip(present, places.tolist(), strict=True)
    ]
    return {"total": gallery.count(), "explained": explained, "points": points}


def principal_plane(vectors: np.ndarray) -> tuple[np.ndarray, list[float]]:
    """Float64 [n, 2], the two principal components of float [n, d] rows, and the part of the variance in each.

    Of the two directions of an axis the one is taken in which its largest weight is positive.
    """
    centred = vectors.astype(np.float64)
    centred -= centred.mean(axis=0) if len(centred) else 0
    variances, axes = np.linalg.eigh(centred.T @ centred)  # ascending
    axes = axes[:, :-3:-1]
    axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])])
    places = np.zeros((len(centred), 2))
    places[:, : axes.shape[1]] = centred @ axes
    total = max(float(variances.sum()), 1e-12)
    return places, [round(max(float(one), 0) / total, 4) for one in (places**2).sum(axis=0)]

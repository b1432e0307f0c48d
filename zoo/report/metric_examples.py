"""What each metric sees: embeddings that are clustered well, less so and hardly, and single rankings, measured alike.

R@1 asks for one relative beside each query, NMI and F1 ask which cluster a point falls into; neither sees how far
apart clusters lie. R-precision and MAP@R do (Musgrave et al. 2020, A Metric Learning Reality Check, proposes them for
that). The points are made here: no paper's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zoo.evaluation import clustering_metrics, retrieval_metrics
from zoo.evaluation.metrics import measure_hits

CLASSES, EACH = 8, 30
SHARES = {"well clustered": 0.3, "less so": 0.75, "hardly": 0.94}
"""Of its sector of the plane, how much each class fills; above a half, a query at a class's edge has strangers nearer
than its farthest relatives."""

METRICS = {
    "recall_at_1": "R@1",
    "nmi": "NMI",
    "f1_clusters": "F1",
    "r_precision": "R-precision",
    "map_at_r": "MAP@R",
}
"""By key of `zoo.evaluation`: as people write them. F1 is of the clusters that NMI is of."""
RANKED = {name: METRICS[name] for name in ("recall_at_1", "r_precision", "map_at_r")}

RELATIVES = 10
RANKINGS = {
    "only the 1st": (1,),
    "the 1st and the 10th": (1, 10),
    "the 1st and the 2nd": (1, 2),
    "all ten": tuple(range(1, RELATIVES + 1)),
}
"""At which ranks of the first ten a query with ten relatives finds them."""


@dataclass(frozen=True)
class Embedded:
    """points: float64 [n, 2]; labels: int64 [n]; share: as in SHARES; metrics: those of METRICS."""

    name: str
    share: float
    points: np.ndarray
    labels: np.ndarray
    metrics: dict[str, float]


@dataclass(frozen=True)
class Ranked:
    """found: the ranks of the relatives that are found, from 1; metrics: those of RANKED."""

    name: str
    found: tuple[int, ...]
    metrics: dict[str, float]


def embeddings(seed: int = 0) -> list[Embedded]:
    """One embedding for each of SHARES, from the same draws, measured as any embedding is."""
    return [_embedded(name, share, seed) for name, share in SHARES.items()]


def rankings() -> list[Ranked]:
    return [Ranked(name, found, scores_of(found)) for name, found in RANKINGS.items()]


def scores_of(found: Sequence[int], relatives: int = RELATIVES) -> dict[str, float]:
    """The scores of one query that has so many relatives and finds those at the ranks `found` among as many results."""
    hits = np.isin(np.arange(1, relatives + 1), found)
    measured = measure_hits(hits[None], np.array([relatives]), k=(1,))
    return {name: float(measured[name][0]) for name in RANKED}


def sectors(share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """CLASSES times EACH points of the plane, float64 [n, 2], and their classes, int64 [n].

    Each class has a sector, of which it fills the middle `share`, a point a step, shaken by half a step at most.
    Similarity is the cosine, so that only directions count; a point's distance from the centre, .75 to 1.25, is there
    to be looked at. Between two classes there is always a wider gap than between neighbours of one.
    """
    draw = np.random.default_rng(seed)
    steps = (np.arange(EACH) + draw.uniform(0.25, 0.75, (CLASSES, EACH))) / EACH
    angles = 2 * np.pi / CLASSES * (np.arange(CLASSES)[:, None] + 0.5 + share * (steps - 0.5))
    radii = draw.uniform(0.75, 1.25, angles.shape)
    points = np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=-1)
    return points.reshape(-1, 2), np.repeat(np.arange(CLASSES), EACH)


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _embedded(name: str, share: float, seed: int) -> Embedded:
    points, labels = sectors(share, seed)
    found = {**retrieval_metrics(points, labels, k=(1,)), **clustering_metrics(points, labels)}
    return Embedded(name, share, points, labels, {key: found[key] for key in METRICS})

"""Confidence intervals for means over queries, by resampling classes."""

from __future__ import annotations

import numpy as np

from zoo.errors import EvaluationError

CONFIDENCE = 0.95
REPLICATES = 1000


def bootstrap_intervals(
    values: dict[str, np.ndarray],
    classes: np.ndarray,
    confidence: float = CONFIDENCE,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> dict[str, tuple[float, float]]:
    """Percentile bootstrap interval of each metric's mean over queries, with whole classes as the units drawn.

    values: metric -> [m], one number a query; classes: integers [m], the queries' classes.

    A score on unseen classes is to say something of further classes, and the queries of one class rise and fall
    together: drawing single queries would give intervals that are too narrow (cluster bootstrap: Davison & Hinkley
    1997, Bootstrap Methods and their Application, section 3.8). Each replicate draws as many classes as there are,
    with replacement, and takes the mean over all their queries. The embeddings are kept: the classes drawn twice do
    not become each other's relatives. With few classes (below about 20) percentile intervals are somewhat too narrow.
    The order of the rows and the classes' numbers play no part.

    Raises `EvaluationError` with fewer than two classes: nothing is known then of how classes differ.
    """
    number, codes = np.unique(classes, return_inverse=True)
    if len(number) < 2:
        raise EvaluationError("an interval over classes needs at least two classes.")
    table = np.stack([np.ones(len(codes)), *values.values()])
    # [classes, 1 + metrics]: each class's number of queries and its sum of every metric.
    totals = np.stack([np.bincount(codes, row, minlength=len(number)) for row in table], axis=1)
    # In the order of these, so that what a seed draws does not depend on how classes are called and in which order
    # they come; a further metric moves only classes that are alike in all before it.
    totals = totals[np.lexsort(totals.T[::-1])]
    drawn = _resampled_sums(totals, replicates, np.random.default_rng(seed))
    tails = (1 - confidence) / 2
    low, high = np.quantile(drawn[:, 1:] / drawn[:, :1], (tails, 1 - tails), axis=0)
    return {name: (float(a), float(b)) for name, a, b in zip(values, low, high, strict=True)}


def _resampled_sums(totals: np.ndarray, replicates: int, rng: np.random.Generator) -> np.ndarray:
    """The sums of `totals` [classes, columns] over as many rows drawn with replacement: [replicates, columns]."""
    n = len(totals)
    drawn = [np.bincount(rng.integers(n, size=n), minlength=n) @ totals for _ in range(replicates)]
    return np.stack(drawn)

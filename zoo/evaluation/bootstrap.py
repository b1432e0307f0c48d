"""Confidence intervals of means over queries, by resampling whole classes."""

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
    """Return the percentile bootstrap interval of each metric's mean over queries, drawing whole classes.

    A score on unseen classes is meant to hold for further classes, and the queries of one class rise and fall
    together: drawing single queries would give intervals that are too narrow (cluster bootstrap: Davison & Hinkley
    1997, Bootstrap Methods and their Application, section 3.8). Each replicate draws as many classes as exist, with
    replacement, and takes the mean over all their queries. The embeddings stay fixed: a class that is drawn twice does
    not become its own relative. With fewer than about 20 classes, percentile intervals are somewhat too narrow.

    Args:
        values: Metric -> float [m], one value per query.
        classes: Integers [m], the class of each query. Neither its numbers nor the order of the rows matter.
        confidence: The share of the distribution that the interval covers.
        replicates: The number of bootstrap replicates.
        seed: Seed of the draws.

    Returns:
        Metric -> (low, high).

    Raises:
        EvaluationError: If there are fewer than two classes, which do not show how classes differ.
    """
    number, codes = np.unique(classes, return_inverse=True)
    if len(number) < 2:
        raise EvaluationError("an interval over classes needs at least two classes.", code="too-few-classes")
    sizes = np.bincount(codes, minlength=len(number)).astype(float)
    # [classes, 2 * metrics]: each class's number of queries and its sum of a metric.
    totals = np.concatenate([_sorted_totals(sizes, np.bincount(codes, row, len(number))) for row in values.values()], 1)
    sums = _resampled_sums(totals, replicates, np.random.default_rng(seed))
    tail = (1 - confidence) / 2
    low, high = np.quantile(sums[:, 1::2] / sums[:, ::2], (tail, 1 - tail), axis=0)
    return {name: (float(a), float(b)) for name, a, b in zip(values, low, high, strict=True)}


def _sorted_totals(sizes: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Return the sizes and sums of classes [classes, 2], sorted by them.

    The draws of a seed then depend neither on the names nor on the order of the classes, and the interval of a metric
    does not depend on the others that are measured with it.
    """
    order = np.lexsort((sums, sizes))
    return np.stack([sizes[order], sums[order]], axis=1)


def _resampled_sums(totals: np.ndarray, replicates: int, rng: np.random.Generator) -> np.ndarray:
    """Return the sums of `totals` [classes, columns] over rows drawn with replacement: [replicates, columns]."""
    n = len(totals)
    return np.stack([np.bincount(rng.integers(n, size=n), minlength=n) @ totals for _ in range(replicates)])

"""Confidence intervals of means over queries, by resampling whole classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zoo.errors import EvaluationError

CONFIDENCE = 0.95
REPLICATES = 1000

QUERIES = "queries"
"""Key of the numbers of queries in `class_scores`."""


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
    return dict(zip(values, _intervals(totals, confidence, replicates, seed), strict=True))


def class_scores(values: Mapping[str, np.ndarray], names: Any, metrics: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """Return the number of queries of each class (`QUERIES`) and the mean of each metric, by the order of the names.

    Args:
        values: Metric -> float [m], one value per query.
        names: m names of the queries' classes.
        metrics: Those of the metrics to take.
    """
    codes = np.unique(names, return_inverse=True)[1]
    queries = np.bincount(codes)
    means = {metric: tuple((np.bincount(codes, values[metric]) / queries).tolist()) for metric in metrics}
    return {QUERIES: tuple(queries.tolist()), **means}


def paired_class_interval(
    first: Mapping[str, Sequence[float]], second: Mapping[str, Sequence[float]], metric: str
) -> tuple[float, float]:
    """Return the interval of the mean of `first` less `second`, `class_scores` of the same queries: classes are drawn.

    It is that of `bootstrap_intervals` for the differences of the single queries.

    Raises:
        EvaluationError: If the classes have other numbers of queries, or there are fewer than two.
    """
    queries = np.array(first[QUERIES], np.float64)
    if not np.array_equal(queries, second[QUERIES]):
        raise EvaluationError("the two scores are not of the same queries.")
    if len(queries) < 2:
        raise EvaluationError("an interval over classes needs at least two classes.", code="too-few-classes")
    changes = queries * (np.array(first[metric]) - np.array(second[metric]))
    return _intervals(_sorted_totals(queries, changes), CONFIDENCE, REPLICATES, seed=0)[0]


def _intervals(totals: np.ndarray, confidence: float, replicates: int, seed: int) -> list[tuple[float, float]]:
    """Return the interval of each metric; totals [classes, 2 * metrics], as of `_sorted_totals`."""
    sums = _resampled_sums(totals, replicates, np.random.default_rng(seed))
    tail = (1 - confidence) / 2
    low, high = np.quantile(sums[:, 1::2] / sums[:, ::2], (tail, 1 - tail), axis=0)
    return list(zip(low.tolist(), high.tolist(), strict=True))


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

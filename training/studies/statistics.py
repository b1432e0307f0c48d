"""Statistics over seeds and classes: means with intervals, paired differences, verdicts on claims, correlations."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from training.studies.study import METRIC_GROUPS, NUMERIC_FACTORS, Claim
from zoo.errors import EvaluationError
from zoo.evaluation.bootstrap import QUERIES, paired_class_interval
from zoo.models.results import read_class_scores

HOLDS, FAILS, UNDECIDED = "holds", "does not", "undecided"
"""The verdicts on a claim."""

Seeds = Mapping[int, float]
"""A value for each seed."""

Values = dict[str, dict[int, float]]
"""Value of a measure by the arm's label and the seed."""

Bounds = tuple[float, float]
"""The lowest and the highest possible value."""

UNBOUNDED: Bounds = (-math.inf, math.inf)
CORRELATION: Bounds = (-1.0, 1.0)


@dataclass(frozen=True)
class Summary:
    """Mean of n values, their sample standard deviation, and the 95 % Student-t interval of the mean.

    The interval is cut to the values that are possible (`interval_over_seeds`). A single value has neither a deviation
    nor an interval (None). `spread_over_classes` widens the interval.
    """

    n: int
    mean: float
    sd: float | None
    interval: tuple[float, float] | None

    @property
    def half(self) -> float | None:
        """Return the longer of the distances from the mean to the ends of the interval; None without one.

        It is half of the interval's width where neither the cut at a bound nor classes make the sides unequal.
        """
        return None if self.interval is None else max(self.interval[1] - self.mean, self.mean - self.interval[0])


def interval_over_seeds(values: Sequence[float], bounds: Bounds = UNBOUNDED) -> tuple[float, float]:
    """Return the 95 % interval of the mean of two or more values by Student's t, to three decimals as tables print it.

    Student's t knows no bounds, and with two seeds its interval is 12.7 standard errors wide on each side. The part
    that no mean can reach is cut off, which takes nothing from the coverage.

    Args:
        values: A value for each seed.
        bounds: The possible values, as `metric_bounds` or `difference_bounds` give them.
    """
    from scipy import stats

    n, mean = len(values), statistics.fmean(values)
    half = round(float(stats.t.ppf(0.975, n - 1)), 3) * statistics.stdev(values) / n**0.5
    return max(mean - half, bounds[0]), min(mean + half, bounds[1])


def metric_bounds(metric: str) -> Bounds:
    """Return the lowest and the highest possible value of a metric of a study or of `zoo.evaluation`."""
    if metric in METRIC_GROUPS["structure"]:  # distances, divergences and logarithms
        return UNBOUNDED
    if metric in ("ami", *(f"factor_{name}" for name in NUMERIC_FACTORS)):  # adjusted for chance; a correlation
        return CORRELATION
    return 0.0, 1.0


def difference_bounds(metric: str) -> Bounds:
    """Return the lowest and the highest possible difference of two values of a metric."""
    low, high = metric_bounds(metric)
    return low - high, high - low


def pearson(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return Pearson's correlation of two sequences of one length, without pairs that are not finite.

    Returns:
        The correlation; None below three pairs, and where one side does not vary.
    """
    pairs = np.array([a, b], dtype=np.float64)
    pairs = pairs[:, np.isfinite(pairs).all(axis=0)]
    if pairs.shape[1] < 3 or (pairs.min(axis=1) == pairs.max(axis=1)).any():
        return None
    return float(np.corrcoef(pairs[0], pairs[1])[0, 1])


def correlation_triangle(columns: Mapping[str, Sequence[float]]) -> list[list[float | None]]:
    """Return the correlations of each column with all columns before it."""
    names = list(columns)
    return [[pearson(columns[other], columns[name]) for other in names[:i]] for i, name in enumerate(names)]


def summarise(values: Sequence[float], bounds: Bounds = UNBOUNDED) -> Summary:
    """Return the summary of one or more values within bounds."""
    several = len(values) > 1
    return Summary(
        len(values),
        statistics.fmean(values),
        statistics.stdev(values) if several else None,
        interval_over_seeds(values, bounds) if several else None,
    )


def paired_difference(ours: Seeds, theirs: Seeds, metric: str) -> Summary | None:
    """Return ours minus theirs of a metric over the seeds that both have; None without a common seed.

    Runs of one seed share their start and the classes held out, so that the interval of their differences is mostly
    narrower than that of the difference of the means.
    """
    common = sorted(ours.keys() & theirs.keys())
    differences = [ours[seed] - theirs[seed] for seed in common]
    return summarise(differences, difference_bounds(metric)) if common else None


def class_interval(
    own: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]], metric: str
) -> tuple[float, float] | None:
    """Return the 95 % interval over classes of the mean of measurements less the mean of others.

    Classes are drawn with replacement, the same for both (`paired_class_interval`).

    Args:
        own: Measurements, as in results.json, of the same queries.
        others: Those to subtract; with none of them the interval is that of the mean of `own`.
        metric: The metric.

    Returns:
        None unless all measurements have scores by class of the same queries, of at least two classes.
    """
    mean = _mean_class_scores(own, metric)
    other = _mean_class_scores(others, metric) if others else mean and {**mean, metric: (0.0,) * len(mean[metric])}
    if mean is None or other is None:
        return None
    try:
        return paired_class_interval(mean, other, metric)
    except EvaluationError:
        return None


def _mean_class_scores(measurements: Sequence[Mapping[str, Any]], metric: str) -> dict[str, tuple[float, ...]] | None:
    """Return the mean over measurements of each class's scores; None unless all are of the same queries."""
    scores = [read_class_scores(measurement) or {} for measurement in measurements]
    if not scores or any(metric not in one or one.get(QUERIES) != scores[0][QUERIES] for one in scores):
        return None
    mean = tuple(map(statistics.fmean, zip(*(one[metric] for one in scores), strict=True)))
    return {QUERIES: scores[0][QUERIES], metric: mean}


def spread_over_classes(summary: Summary, over_classes: tuple[float, float] | None, bounds: Bounds) -> Summary:
    """Widen the interval of a summary over seeds by the choice of classes.

    Seeds and classes are two independent samples, so that the squares of the halves of their intervals add up. The
    scatter of single scores is in both, which makes the sum a little too wide.

    Args:
        summary: The summary over seeds; without an interval it stays unchanged.
        over_classes: The interval of the same mean over classes; None leaves the summary unchanged.
        bounds: The possible values.
    """
    if summary.interval is None or summary.half is None or over_classes is None:
        return summary
    low = math.hypot(summary.half, max(0.0, summary.mean - over_classes[0]))
    high = math.hypot(summary.half, max(0.0, over_classes[1] - summary.mean))
    return replace(summary, interval=(max(summary.mean - low, bounds[0]), min(summary.mean + high, bounds[1])))


def judge_claim(claim: Claim, difference: Summary | None) -> str:
    """Return the verdict of a difference on a claim.

    Args:
        claim: The claim.
        difference: The arm `better` minus the arm `than`.

    Returns:
        `HOLDS` if the whole interval is on the claimed side of 0, or inside +-`within`; `FAILS` if all of it is on the
        other side, or outside; otherwise `UNDECIDED`. Undecided, too, are fewer than two common seeds, and an interval
        that is wider, end to end, than the difference, unless all of it is inside +-`within`.
    """
    if claim.within is None:
        return sided_verdict(difference, claim.lower)
    if difference is None or difference.interval is None or difference.half is None:
        return UNDECIDED
    low, high = difference.interval
    if -claim.within <= low and high <= claim.within:
        return HOLDS
    if 2 * difference.half > abs(difference.mean):
        return UNDECIDED
    return FAILS if low > claim.within or high < -claim.within else UNDECIDED


def sided_verdict(value: Summary | None, lower: bool = False) -> str:
    """Return the verdict on the claim that a mean is above 0, or below it (`lower`)."""
    if value is None or value.interval is None or value.half is None:
        return UNDECIDED
    low, high = value.interval
    if 2 * value.half > abs(value.mean):
        return UNDECIDED
    if lower:
        low, high = -high, -low
    return HOLDS if low > 0 else FAILS if high < 0 else UNDECIDED


def p_value(difference: Summary | None) -> float | None:
    """Return the two-sided p-value of a paired t-test against no difference; None below two seeds."""
    from scipy import stats

    if difference is None or difference.sd is None:
        return None
    if difference.sd == 0:
        return 1.0 if difference.mean == 0 else 0.0
    t = abs(difference.mean) / (difference.sd / difference.n**0.5)
    return float(2 * stats.t.sf(t, difference.n - 1))


def adjust_holm(values: Sequence[float | None]) -> list[float | None]:
    """Return p-values adjusted for multiple tests (Holm 1979, A simple sequentially rejective multiple test procedure).

    Those below 0.05 hold together with an error of 5 % for the whole family. None stays None, and is not counted.
    """
    ascending = sorted((value, index) for index, value in enumerate(values) if value is not None)
    adjusted: list[float | None] = [None] * len(values)
    highest = 0.0
    for rank, (value, index) in enumerate(ascending):
        highest = max(highest, min(1.0, (len(ascending) - rank) * value))
        adjusted[index] = highest
    return adjusted

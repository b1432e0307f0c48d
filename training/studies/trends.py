"""Trends of a measure along the axis of a study: slopes, rank correlations and their verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from training.studies.plan import Plan
from training.studies.statistics import FAILS, HOLDS, Values
from training.studies.study import Trend
from zoo.evaluation.statistics import SIGNED, UNDECIDED, WORSE, Estimate, estimate, judge, pearson

MIN_ARMS = 3
"""Fewest arms of a trend; a line through two always fits."""


@dataclass(frozen=True)
class TrendEstimate:
    """A trend over the measured arms, and its verdict.

    Attributes:
        trend: The trend that the study claims.
        selection: How the measured epochs were selected.
        arms: The number of measured arms.
        slope: By least squares, in units of the measure per unit of the axis, over the seeds that all arms have; None
            for fewer than `MIN_ARMS` arms or a single place.
        spearman: The rank correlation, over the same seeds.
        over_arms: The 95 % interval of the slope over arms (`_interval_over_arms`).
        left_out: The least and the greatest mean slope if any one arm is left out; None if too few arms remain.
        verdict: Whether the trend holds; undecided, too, if the interval over arms contains 0, or leaving out one arm
            changes the sign (`judge_trends`).
        p: Of no slope, adjusted by Holm for all trends of the report.
    """

    trend: Trend
    selection: str
    arms: int
    slope: Estimate | None
    spearman: Estimate | None
    over_arms: tuple[float, float] | None
    left_out: tuple[float, float] | None
    verdict: str = UNDECIDED
    p: float | None = None


def estimate_trend(plan: Plan, selection: str, trend: Trend, values: Values) -> TrendEstimate:
    """Return a trend over the measured arms of a study, which `judge_trends` decides.

    Args:
        plan: The plan of the study, whose arms have places on its axis.
        selection: How the measured epochs were selected.
        trend: The trend that the study claims.
        values: The values of the trend's measure.
    """
    places = {arm.label: arm.x for arm in plan.study.arms if arm.x is not None and arm.label in values}
    slopes = slopes_of(places, values)
    fewer = [slopes_of({k: x for k, x in places.items() if k != label}, values) for label in places]
    means = [float(np.mean(arm_slopes)) for arm_slopes in fewer if arm_slopes]
    slope = estimate(slopes) if slopes else None
    spearmans = spearmans_of(places, values) if slopes else []
    left_out = (min(means), max(means)) if means else None
    over_arms = _interval_over_arms(places, values) if slopes else None
    return TrendEstimate(
        trend,
        selection,
        len(places),
        slope,
        estimate(spearmans, bounds=SIGNED) if spearmans else None,
        over_arms,
        left_out,
    )


def judge_trends(trends: Sequence[TrendEstimate]) -> list[TrendEstimate]:
    """Return the trends of a report, which are one family, with their verdicts."""
    verdicts = judge([trend.slope for trend in trends], [None] * len(trends))
    return [
        replace(trend, p=verdict.p, verdict=_trend_verdict(trend, verdict.word))
        for trend, verdict in zip(trends, verdicts, strict=True)
    ]


def _trend_verdict(trend: TrendEstimate, word: str) -> str:
    sign_changes = any(bounds and bounds[0] <= 0 <= bounds[1] for bounds in (trend.over_arms, trend.left_out))
    if word == UNDECIDED or sign_changes:
        return UNDECIDED
    return HOLDS if (word == WORSE) == trend.trend.lower else FAILS


def slopes_of(places: Mapping[str, float], values: Values) -> list[float]:
    """Return the least-squares slope of each seed that all arms have.

    Args:
        places: Label -> place on the axis.
        values: The values of a measure.

    Returns:
        Nothing for fewer than `MIN_ARMS` arms or a single place.
    """
    if len(places) < MIN_ARMS or len(set(places.values())) < 2:
        return []
    x = np.array(list(places.values()))
    x = x - x.mean()
    return [float(x @ line / (x @ x)) for line in _seed_values(places, values)]


def _interval_over_arms(places: Mapping[str, float], values: Values) -> tuple[float, float]:
    """Return the 95 % interval of the slope of the arms' means by linear regression, as if arms were drawn at random.

    Args:
        places: Label -> place on the axis, of `MIN_ARMS` arms or more in several places.
        values: The values of a measure.
    """
    from scipy import stats

    means = np.mean(list(_seed_values(places, values)), axis=0)
    line = stats.linregress(list(places.values()), means)
    half = float(stats.t.ppf(0.975, len(places) - 2) * line.stderr)
    return float(line.slope) - half, float(line.slope) + half


def spearmans_of(places: Mapping[str, float], values: Values) -> list[float]:
    """Return Spearman's correlation of each seed that all arms have, except seeds in which all arms are equal.

    Equal places and equal values share their mean rank.
    """
    from scipy.stats import rankdata

    ranks = list(rankdata(list(places.values())))
    correlations = (pearson(ranks, list(rankdata(line))) for line in _seed_values(places, values))
    return [value for value in correlations if value is not None]


def _seed_values(places: Mapping[str, float], values: Values) -> list[np.ndarray]:
    """Return the arms' values, float64 [m], of each seed that all of them have."""
    seeds = set.intersection(*(set(values[label]) for label in places))
    return [np.array([values[label][seed] for label in places]) for seed in sorted(seeds)]

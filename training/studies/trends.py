"""How a measure goes with the arms' places on the study's axis: a line through all arms, seed by seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from training.studies.plan import Plan
from training.studies.results import Values
from training.studies.statistics import UNDECIDED, Summary, pearson, sided, summary
from training.studies.study import Measure, Trend

FEWEST = 3
"""So many arms at least make a trend: a line goes through any two."""


@dataclass(frozen=True)
class Found:
    """A trend over the arms that are measured, and the verdict: `sided` on its slope, but undecided where one arm left
    out turns the slope's sign.

    slope: by least squares, in units of the measure over those of the axis; spearman: the rank correlation; both over
    the seeds that all these arms have, None below `FEWEST` arms or on one place. left_out: the least and the greatest
    mean slope where any one arm is left out, None where one fewer are too few.
    """

    trend: Trend
    selection: str
    arms: int
    slope: Summary | None
    spearman: Summary | None
    left_out: tuple[float, float] | None
    verdict: str


def trends_of(plan: Plan, selection: str, tables: Mapping[Measure, Values]) -> list[Found]:
    return [_found(plan, selection, trend, tables[trend.measure]) for trend in plan.study.trends]


def _found(plan: Plan, selection: str, trend: Trend, values: Values) -> Found:
    places = {arm.label: arm.x for arm in plan.study.arms if arm.x is not None and arm.label in values}
    slopes = slopes_of(places, values)
    fewer = [slopes_of({k: x for k, x in places.items() if k != label}, values) for label in places]
    means = [float(np.mean(each)) for each in fewer if each]
    slope = summary(slopes) if slopes else None
    ranks = spearmans_of(places, values) if slopes else []
    left_out = (min(means), max(means)) if means else None
    turned = left_out is not None and left_out[0] < 0 < left_out[1]
    return Found(
        trend,
        selection,
        len(places),
        slope,
        summary(ranks) if ranks else None,
        left_out,
        UNDECIDED if turned else sided(slope, trend.lower),
    )


def slopes_of(places: Mapping[str, float], values: Values) -> list[float]:
    """The slope of each seed that all arms have, by least squares; none where the arms are too few or on one place."""
    if len(places) < FEWEST or len(set(places.values())) < 2:
        return []
    x = np.array(list(places.values()))
    x = x - x.mean()
    return [float(x @ line / (x @ x)) for line in _lines(places, values)]


def spearmans_of(places: Mapping[str, float], values: Values) -> list[float]:
    """Spearman's correlation of each such seed, equal places and values sharing their mean rank; without those seeds in
    which all arms are equal."""
    from scipy.stats import rankdata

    ranks = list(rankdata(list(places.values())))
    found = (pearson(ranks, list(rankdata(line))) for line in _lines(places, values))
    return [value for value in found if value is not None]


def _lines(places: Mapping[str, float], values: Values) -> list[np.ndarray]:
    """The arms' values float64 [m] of each seed that all of them have."""
    seeds = set.intersection(*(set(values[label]) for label in places))
    return [np.array([values[label][seed] for label in places]) for seed in sorted(seeds)]

"""What several seeds say: means with intervals, paired differences, verdicts on claims, correlations."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from training.studies.study import Claim
from zoo.comparison.compare import interval_over_seeds

HOLDS, FAILS, UNDECIDED = "holds", "does not", "undecided"

Seeds = Mapping[int, float]
"""A value for each seed."""


@dataclass(frozen=True)
class Summary:
    """n values: their mean, standard deviation (as of a sample) and 95 % Student-t interval of the mean, both None for
    a single value."""

    n: int
    mean: float
    sd: float | None
    interval: tuple[float, float] | None


def summary(values: Sequence[float]) -> Summary:
    """Of one value or more."""
    several = len(values) > 1
    return Summary(
        len(values),
        statistics.fmean(values),
        statistics.stdev(values) if several else None,
        interval_over_seeds(values) if several else None,
    )


def paired(ours: Seeds, others: Seeds) -> Summary | None:
    """Ours minus others over the seeds that both have; None where there is no such seed.

    Runs of one seed share their start and the classes held out, so that the interval of their differences is mostly
    narrower than that of the difference of the means.
    """
    common = sorted(ours.keys() & others.keys())
    return summary([ours[seed] - others[seed] for seed in common]) if common else None


def verdict(claim: Claim, difference: Summary | None) -> str:
    """What the interval of the difference (better minus than) says of the claim.

    "holds": all of the interval lies on the claimed side of 0, or inside +-`within`. "does not": all of it lies on the
    other side, or outside. "undecided": neither; or there are fewer than two common seeds; or the interval, end to end,
    is wider than the difference, which then is not measured well enough to speak of. That the difference is small
    (inside +-`within`) is judged by the interval against the margin alone.
    """
    if claim.within is None:
        return sided(difference, claim.lower)
    if difference is None or difference.interval is None:
        return UNDECIDED
    low, high = difference.interval
    if -claim.within <= low and high <= claim.within:
        return HOLDS
    if high - low > abs(difference.mean):
        return UNDECIDED
    return FAILS if low > claim.within or high < -claim.within else UNDECIDED


def sided(found: Summary | None, lower: bool = False) -> str:
    """`verdict` on that a mean lies above 0, or below it (`lower`)."""
    if found is None or found.interval is None:
        return UNDECIDED
    low, high = found.interval
    if high - low > abs(found.mean):
        return UNDECIDED
    if lower:
        low, high = -high, -low
    return HOLDS if low > 0 else FAILS if high < 0 else UNDECIDED


def p_value(difference: Summary | None) -> float | None:
    """Of a paired t-test against no difference, two-sided; None below two seeds."""
    from scipy import stats

    if difference is None or difference.sd is None:
        return None
    if difference.sd == 0:
        return 1.0 if difference.mean == 0 else 0.0
    t = abs(difference.mean) / (difference.sd / difference.n**0.5)
    return float(2 * stats.t.sf(t, difference.n - 1))


def holm(values: Sequence[float | None]) -> list[float | None]:
    """p-values adjusted for being one of many (Holm 1979, A simple sequentially rejective multiple test procedure):
    those below 0.05 hold together with an error of 5 % for the whole family. None stays None, and counts for nothing.
    """
    known = sorted((value, place) for place, value in enumerate(values) if value is not None)
    adjusted: list[float | None] = [None] * len(values)
    highest = 0.0
    for rank, (value, place) in enumerate(known):
        highest = max(highest, min(1.0, (len(known) - rank) * value))
        adjusted[place] = highest
    return adjusted

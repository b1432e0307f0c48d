"""Scores of arms and their differences, paired by seed and class, and the verdicts on claims about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from training.studies.study import GAP, METRIC_GROUPS, NUMERIC_FACTORS, Claim, Measure
from zoo.evaluation.statistics import (
    BETTER,
    EQUIVALENT,
    SHARE,
    SIGNED,
    UNBOUNDED,
    UNDECIDED,
    WORSE,
    Bounds,
    Estimate,
    ScoresByClass,
    Verdict,
    class_table,
    estimate,
    subtract,
)
from zoo.models.results import read_class_scores

HOLDS, FAILS = "holds", "does not"
"""The verdicts on a claim or a trend, besides "undecided"."""

HIGHER, LOWER = "higher", "lower"
"""The words for "better" and "worse" on a measure of which more is neither: spectral decay, distances, gaps."""

Values = dict[str, dict[int, float]]
"""Value of a measure by the arm's label and the seed."""

Measured = Mapping[int, Mapping[str, Any]]
"""A measurement for each seed, as in results.json."""

NOTHING: Measured = MappingProxyType({})


def metric_bounds(metric: str) -> Bounds:
    """Return the lowest and the highest possible value of a metric of a study or of `zoo.evaluation`."""
    if metric in METRIC_GROUPS["structure"]:  # distances, divergences and logarithms
        return UNBOUNDED
    if metric in ("ami", *(f"factor_{name}" for name in NUMERIC_FACTORS)):  # adjusted for chance; a correlation
        return SIGNED
    return SHARE


def difference_bounds(metric: str) -> Bounds:
    """Return the lowest and the highest possible difference of two values of a metric."""
    low, high = metric_bounds(metric)
    return low - high, high - low


def word_for(measure: Measure, verdict: Verdict) -> Verdict:
    """Return a verdict on a measure's difference in words that fit the measure."""
    if measure.split != GAP and metric_bounds(measure.metric) != UNBOUNDED:
        return verdict
    return replace(verdict, word={BETTER: HIGHER, WORSE: LOWER}.get(verdict.word, verdict.word))


def estimate_score(
    values: Mapping[int, float], bounds: Bounds, metric: str = "", measured: Measured = NOTHING
) -> Estimate:
    """Return the mean over seeds, with its interval over classes too where all measurements have scores by class.

    A single seed has no interval: a study is about arms, not about single networks.
    """
    seeds = sorted(values)
    return estimate([values[seed] for seed in seeds], _table(seeds, metric, measured), bounds)


def paired_difference(
    ours: Mapping[int, float],
    theirs: Mapping[int, float],
    metric: str,
    our_measured: Measured = NOTHING,
    their_measured: Measured = NOTHING,
) -> Estimate | None:
    """Return ours minus theirs of a metric over the seeds that both have; None without a common seed.

    Runs of one seed share their start, the classes held out and the classes measured, so that the interval of their
    differences is mostly narrower than that of the difference of the means.
    """
    common = sorted(ours.keys() & theirs.keys())
    if not common:
        return None
    table = subtract(_table(common, metric, our_measured), _table(common, metric, their_measured))
    return estimate([ours[seed] - theirs[seed] for seed in common], table, difference_bounds(metric))


def _table(seeds: Sequence[int], metric: str, measured: Measured) -> ScoresByClass | None:
    if len(seeds) < 2:
        return None
    return class_table([read_class_scores(measured.get(seed, {})) for seed in seeds], metric)


def judge_claim(claim: Claim, difference: Estimate | None, verdict: Verdict) -> tuple[Verdict, str]:
    """Return the verdict on a claim's difference, "better" as it claims, and whether the claim holds.

    Args:
        claim: The claim.
        difference: The arm `better` minus the arm `than`.
        verdict: `zoo.evaluation.statistics.judge` of the difference, with the claim's margin if it has one.
    """
    if claim.lower:
        verdict = replace(verdict, word={BETTER: WORSE, WORSE: BETTER}.get(verdict.word, verdict.word))
    if verdict.word == UNDECIDED or difference is None or difference.interval is None:
        return verdict, UNDECIDED
    if claim.within is None:
        return verdict, HOLDS if verdict.word == BETTER else FAILS
    low, high = difference.interval
    beyond = low > claim.within or high < -claim.within
    return verdict, HOLDS if verdict.word == EQUIVALENT else FAILS if beyond else UNDECIDED

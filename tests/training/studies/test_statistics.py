"""Statistics over seeds: intervals, p-values and correlations compared with SciPy; verdicts calculated by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from training.studies.statistics import (
    FAILS,
    HOLDS,
    UNDECIDED,
    Summary,
    adjust_holm,
    judge_claim,
    metric_bounds,
    p_value,
    paired_difference,
    pearson,
    summarise,
)
from training.studies.study import Claim

DRAW = np.random.default_rng(0)


@pytest.mark.parametrize("n", [2, 3, 5, 10, 31])
def test_intervals_are_students(n: int) -> None:
    values = DRAW.normal(0.6, 0.02, n)
    result = summarise(values.tolist())
    assert result.interval == pytest.approx(stats.t.interval(0.95, n - 1, values.mean(), stats.sem(values)), abs=1e-5)
    assert (result.n, result.mean) == (n, pytest.approx(values.mean()))
    assert result.sd == pytest.approx(values.std(ddof=1))
    assert summarise([0.5]) == Summary(1, 0.5, None, None)


def test_paired_differences_are_those_of_the_paired_t_test() -> None:
    a, b = DRAW.normal(0.6, 0.1, (2, 6)) + DRAW.normal(0, 0.01, 6)
    difference_of_means = paired_difference(dict(enumerate(a)), {**dict(enumerate(b)), 9: 0.1}, "map_at_r")
    assert difference_of_means is not None
    low, high = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert difference_of_means.interval == pytest.approx((low, high), abs=1e-4)
    assert difference_of_means.n == 6
    assert paired_difference({0: 1.0}, {1: 1.0}, "map_at_r") is None


def test_intervals_stay_within_the_possible_values_of_a_metric() -> None:
    """The finding: of two seeds, R@1 was between -.05 and .67."""
    values = [0.279, 0.336]  # mean 0.3075, standard error 0.0285, 12.706 of which are 0.3621
    half = 12.706 * 0.0285
    assert summarise(values, metric_bounds("recall_at_1")).interval == pytest.approx((0, 0.3075 + half))
    assert summarise(values, metric_bounds("uniformity")).interval == pytest.approx((0.3075 - half, 0.3075 + half))
    assert summarise([0.9, 1.0], metric_bounds("nmi")).interval == pytest.approx((0.95 - 12.706 * 0.05, 1))
    assert summarise([0.05, 0.25], metric_bounds("ami")).interval == pytest.approx((-1, 1))
    cut = paired_difference({0: 0.9, 1: 1.0}, {0: 0.1, 1: 0.0}, "recall_at_1")
    assert cut is not None
    assert cut.interval == pytest.approx((0.9 - 12.706 * 0.1, 1))
    # 0.9 +- 0.762 is above 0, but wider than the difference itself, however much of it no difference can reach.
    wide = paired_difference({0: 0.96, 1: 0.96}, {0: 0.0, 1: 0.12}, "recall_at_1")
    assert wide is not None
    assert wide.half == pytest.approx(12.706 * 0.06)
    assert wide.interval == pytest.approx((0.9 - 12.706 * 0.06, 1))
    assert judge_claim(Claim("", "a", "b"), wide) == UNDECIDED


def difference(low: float, high: float) -> Summary:
    return Summary(5, (low + high) / 2, 0.1, (low, high))


@pytest.mark.parametrize(
    ("claim", "low", "high", "expected"),
    [
        ({}, 0.01, 0.02, HOLDS),
        ({}, -0.02, -0.01, FAILS),
        ({}, -0.01, 0.02, UNDECIDED),
        ({}, 0.0, 0.0, UNDECIDED),
        ({"lower": True}, -0.02, -0.01, HOLDS),
        ({"lower": True}, 0.01, 0.02, FAILS),
        ({"lower": True}, -0.01, 0.02, UNDECIDED),
        ({"within": 0.03}, -0.02, 0.03, HOLDS),
        ({"within": 0.03}, 0.031, 0.05, FAILS),
        ({"within": 0.03}, -0.05, -0.04, FAILS),
        ({"within": 0.03}, 0.02, 0.04, UNDECIDED),
        ({"within": 0.03}, -0.1, 0.1, UNDECIDED),
        # Wider than the difference itself: .008 against .005, .012 against .01; as wide is not wider.
        ({}, 0.001, 0.009, UNDECIDED),
        ({}, -0.016, -0.004, UNDECIDED),
        ({}, 0.25, 0.75, HOLDS),
        ({"lower": True}, -0.009, -0.001, UNDECIDED),
        ({"lower": True}, 0.001, 0.009, UNDECIDED),
        ({"within": 0.03}, 0.04, 0.14, UNDECIDED),
        ({"within": 0.03}, -0.001, 0.009, HOLDS),
    ],
)
def test_verdicts_by_hand(claim: dict[str, Any], low: float, high: float, expected: str) -> None:
    assert judge_claim(Claim("x", "a", **claim), difference(low, high)) == expected


def test_one_seed_decides_nothing() -> None:
    assert judge_claim(Claim("x", "a"), summarise([0.5])) == UNDECIDED
    assert judge_claim(Claim("x", "a"), None) == UNDECIDED


def test_p_values_are_those_of_the_paired_t_test() -> None:
    a, b = DRAW.normal(0.6, 0.1, (2, 6))
    assert p_value(paired_difference(dict(enumerate(a)), dict(enumerate(b)), "map_at_r")) == pytest.approx(
        stats.ttest_rel(a, b).pvalue
    )
    assert p_value(summarise([0.1, 0.1])) == 0
    assert p_value(summarise([0.0, 0.0])) == 1
    assert (p_value(summarise([0.1])), p_value(None)) == (None, None)


def test_holms_correction_by_hand() -> None:
    """Smallest first: 4 x 0.01, then 3 x 0.013 which may not be less, then 2 x 0.02 likewise, then 0.9."""
    assert adjust_holm([0.02, None, 0.01, 0.9, 0.013]) == pytest.approx([0.04, None, 0.04, 0.9, 0.04])
    assert adjust_holm([0.3, 0.4]) == pytest.approx([0.6, 0.6])
    assert adjust_holm([None, 0.8, 0.9]) == [None, 1.0, 1.0]


def test_correlations_are_pearsons() -> None:
    a, b = DRAW.normal(size=(2, 9))
    assert pearson(a.tolist(), b.tolist()) == pytest.approx(stats.pearsonr(a, b).statistic)
    assert pearson([1, 2], [1, 2]) is None
    assert pearson([1, 1, 1], [1, 2, 3]) is None


def test_pairs_that_are_not_finite_are_left_out_of_a_correlation() -> None:
    a, b = [1.0, 2.0, 4.0, float("nan"), 9.0], [3.0, 1.0, 7.0, 100.0, float("nan")]
    assert pearson(a, b) == pytest.approx(stats.pearsonr(a[:3], b[:3]).statistic)
    assert pearson(a[1:], b[1:]) is None

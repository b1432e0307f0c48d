"""Intervals and tests over seeds and classes: hand calculations, SciPy's tests, float64 loops, and simulations."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

from tests.benchmarks.bench_coverage import coverage, tables
from tests.raising import raises
from zoo.errors import EvaluationError, UsageError
from zoo.evaluation import intervals_over_classes
from zoo.evaluation.statistics import (
    BETTER,
    EQUIVALENT,
    QUERIES,
    SIGNED,
    UNDECIDED,
    WORSE,
    Estimate,
    ScoresByClass,
    adjust_holm,
    class_scores,
    class_table,
    difference_over_classes,
    estimate,
    judge,
    parse_margins,
    partial_correlation,
    pearson,
    subtract,
)

DRAW = np.random.default_rng(0)


def loop_estimate(scores: np.ndarray, queries: np.ndarray) -> tuple[float, float, float]:
    """Return mean, standard error and degrees of freedom by loops over seeds and classes."""
    seeds, classes = scores.shape
    total = sum(queries)
    mean = sum(queries[c] * scores[s, c] for s in range(seeds) for c in range(classes)) / (total * seeds)
    cells = [
        [mean + classes * queries[c] / total * (scores[s, c] - mean) for c in range(classes)] for s in range(seeds)
    ]
    rows = [sum(line) / classes for line in cells]
    columns = [sum(line[c] for line in cells) / seeds for c in range(classes)]
    by_seed = sum(classes * (row - mean) ** 2 for row in rows) / (seeds - 1)
    by_class = sum(seeds * (column - mean) ** 2 for column in columns) / (classes - 1)
    rest = sum((cells[s][c] - rows[s] - columns[c] + mean) ** 2 for s, c in product(range(seeds), range(classes)))
    rest /= (seeds - 1) * (classes - 1)
    square = by_seed + by_class - rest
    if square <= max(by_seed, by_class):
        larger = max((by_seed, seeds - 1), (by_class, classes - 1))
        return mean, math.sqrt(larger[0] / (seeds * classes)), larger[1]
    parts = by_seed**2 / (seeds - 1) + by_class**2 / (classes - 1) + rest**2 / ((seeds - 1) * (classes - 1))
    return mean, math.sqrt(square / (seeds * classes)), square**2 / parts


@pytest.mark.parametrize(("seeds", "spread"), [(2, 0.0), (3, 0.1), (3, 1.0), (8, 0.3)])
def test_seeds_and_classes_agree_with_loops(seeds: int, spread: float) -> None:
    scores = DRAW.normal(0, spread, (seeds, 1)) + DRAW.normal(0, 1, (seeds, 20)) + DRAW.normal(0, 1, 20)
    queries = DRAW.integers(1, 9, 20)
    mean, error, freedom = loop_estimate(scores, queries)
    found = estimate((scores @ queries / queries.sum()).tolist(), ScoresByClass(scores, queries))
    assert (found.n, found.mean, found.over) == (seeds, pytest.approx(mean), "seeds and classes")
    assert (found.error, found.freedom) == (pytest.approx(error), pytest.approx(freedom))
    assert found.interval == pytest.approx(stats.t.interval(0.95, freedom, mean, error))


def test_seeds_and_classes_by_hand() -> None:
    """Two seeds and two classes: mean squares .25, 1 and 0, so that V = 1.25 / 4 and f = 1.25^2 / (.0625 + 1)."""
    found = estimate([0.75, 1.25], ScoresByClass(np.array([[0.25, 1.25], [0.75, 1.75]]), np.array([5.0, 5.0])))
    assert (found.mean, found.error) == (1.0, pytest.approx(math.sqrt(1.25 / 4)))
    assert found.freedom == pytest.approx(1.25**2 / 1.0625)


@pytest.mark.parametrize("n", [2, 3, 31])
def test_without_classes_it_is_students_t_over_seeds(n: int) -> None:
    values = DRAW.normal(0.6, 0.02, n)
    for table in (None, ScoresByClass(values[:, None], np.array([7.0]))):
        found = estimate(values.tolist(), table)
        assert found.interval == pytest.approx(stats.t.interval(0.95, n - 1, values.mean(), stats.sem(values)))
        assert (found.n, found.over, found.sd) == (n, "seeds", pytest.approx(values.std(ddof=1)))
    assert estimate([0.5]) == Estimate(1, 0.5)


def test_one_seed_is_students_t_over_classes_and_says_so() -> None:
    values = DRAW.normal(0.6, 0.1, 12)
    found = estimate([float(values.mean())], ScoresByClass(values[None], np.full(12, 3.0)))
    assert found.interval == pytest.approx(stats.t.interval(0.95, 11, values.mean(), stats.sem(values)))
    assert (found.over, "not over seeds" in found.note) == ("classes", True)
    assert estimate([0.1, 0.2]).note == ""


def test_the_interval_is_cut_to_what_is_possible() -> None:
    """The finding: of two seeds, R@1 was between -.05 and .67."""
    found = estimate([0.279, 0.336], bounds=(0.0, 1.0))  # standard error .0285, t of one degree 12.706
    assert found.interval == pytest.approx((0, 0.3075 + 12.7062 * 0.0285))
    assert found.half == pytest.approx(12.7062 * 0.0285)


# Coverage


@pytest.mark.parametrize("seeds", [3, 8])
def test_intervals_cover_the_truth_where_seeds_differ_as_much_as_classes(seeds: int) -> None:
    """1,000 draws: a standard error of .007; docs/lab/statistics.md has the long run."""
    both, over_seeds, over_classes, _ = coverage(seeds, 1.0, 1000, np.random.default_rng(1))
    assert 0.93 <= both <= 0.975
    assert over_seeds < both - 0.04
    assert over_classes < both


def test_under_the_null_five_percent_of_families_find_something() -> None:
    """400 families of five differences of nothing: Holm's error of the family is at most .05, give or take .011."""
    rng = np.random.default_rng(2)
    single = false = 0
    for _ in range(400):
        family = [estimate((t.scores @ t.queries / t.queries.sum()).tolist(), t) for t in tables(8, 1.0, 5, rng)]
        verdicts = judge(family, [None] * 5)
        false += any(verdict.word != UNDECIDED for verdict in verdicts)
        single += judge(family[:1], [None])[0].word != UNDECIDED
    assert 0.02 <= single / 400 <= 0.083
    assert 0.015 <= false / 400 <= 0.083


def test_a_difference_of_the_margin_is_called_equivalent_in_five_percent() -> None:
    rng = np.random.default_rng(3)
    draws = [estimate((0.3 + rng.normal(0, 0.3, 8)).tolist()) for _ in range(1000)]
    equivalent = sum(judge([found], [0.3])[0].word == EQUIVALENT for found in draws)
    assert equivalent / 1000 <= 0.072  # .05 and three standard errors


# Tests of differences


def test_p_and_equivalence_are_those_of_scipys_tests() -> None:
    values = DRAW.normal(0.01, 0.02, 8)
    found = estimate(values.tolist())
    (verdict,) = judge([found], [0.04])
    assert verdict.p == pytest.approx(stats.ttest_1samp(values, 0).pvalue)
    lower = stats.ttest_1samp(values, -0.04, alternative="greater").pvalue
    upper = stats.ttest_1samp(values, 0.04, alternative="less").pvalue
    assert verdict.p_equivalence == pytest.approx(max(lower, upper))
    low, high = stats.t.interval(0.90, 7, values.mean(), stats.sem(values))
    assert (verdict.p_equivalence < 0.05) == (low > -0.04 and high < 0.04)


def test_the_detectable_difference_is_found_with_four_fifths_power() -> None:
    for freedom in (7, 40):
        detectable = judge([Estimate(8, 0.0, error=0.01, freedom=freedom)], [None])[0].detectable
        limit, centre = stats.t.ppf(0.975, freedom), detectable / 0.01
        power = stats.nct.sf(limit, freedom, centre) + stats.nct.cdf(-limit, freedom, centre)
        assert power == pytest.approx(0.8, abs=0.02)


@pytest.mark.parametrize(
    ("mean", "error", "margin", "expected"),
    [
        (0.03, 0.01, None, BETTER),
        (-0.03, 0.01, None, WORSE),
        (0.01, 0.01, None, UNDECIDED),
        (0.001, 0.01, 0.03, EQUIVALENT),
        (0.003, 0.001, 0.03, EQUIVALENT),  # not 0, but smaller than what matters
        (0.03, 0.01, 0.03, BETTER),
        (0.01, 0.02, 0.03, UNDECIDED),
        (0.02, 0.009, None, BETTER),  # an interval wider than the difference decides all the same
    ],
)
def test_verdicts_by_hand(mean: float, error: float, margin: float | None, expected: str) -> None:
    """With 60 degrees of freedom t is 2.0003 two-sided and 1.6706 one-sided."""
    (verdict,) = judge([Estimate(8, mean, error=error, freedom=60.0)], [margin])
    assert verdict.word == expected
    assert (verdict.detectable is not None and "detectable" in str(verdict)) == (expected == UNDECIDED)


@pytest.mark.parametrize(
    ("values", "table"),
    [
        ([0.1], ScoresByClass(np.array([[0.1, 0.1]]), np.array([10.0, 10.0]))),
        ([0.1], ScoresByClass(np.array([[1 - 0.9, 0.1, 0.3 - 0.2]]), np.array([3.0, 7.0, 11.0]))),
        ([1 / 3], ScoresByClass(np.array([[0.333333, 0.666667 - 0.333333]]), np.array([3.0, 6.0]))),  # as stored
        ([0.62 - 0.6, 0.52 - 0.5], None),
        ([0.1, 0.1], ScoresByClass(np.full((2, 4), 0.1), np.ones(4))),
        ([0.0], ScoresByClass(np.zeros((1, 30)), np.ones(30))),
    ],
)
def test_differences_that_agree_are_no_evidence(values: list[float], table: ScoresByClass | None) -> None:
    found = estimate(values, table, SIGNED)
    assert (found.mean, found.error, found.interval, found.note) == (pytest.approx(np.mean(values)), 0, None, "")
    for margin in (None, 0.5):
        (verdict,) = judge([found], [margin])
        assert (verdict.word, verdict.p, verdict.p_equivalence, verdict.detectable) == (UNDECIDED, None, None, None)
        assert (verdict.p_text, str(verdict), verdict.margin) == ("", UNDECIDED, margin)


def test_a_difference_that_agrees_counts_in_its_family_as_if_p_were_1() -> None:
    far, agreed = Estimate(8, 0.0205, error=0.01, freedom=60.0), estimate([0.1, 0.1])
    verdicts = judge([far, agreed], [0.05, 0.05])
    assert verdicts[0].p == pytest.approx(2 * 2 * stats.t.sf(2.05, 60))
    assert verdicts[0].p_equivalence == pytest.approx(2 * stats.t.sf(2.95, 60))
    assert (verdicts[1].p, [verdict.family for verdict in verdicts]) == (None, [2, 2])


def test_under_the_null_few_queries_of_two_classes_find_nothing_too_often() -> None:
    """Pairs of scores of .9 that agree in both classes, a tenth of all draws, were called better or worse."""
    rng, found = np.random.default_rng(4), 0
    for difference in (rng.binomial(10, 0.9, (1000, 2)) - rng.binomial(10, 0.9, (1000, 2))) / 10:
        one = estimate([difference.mean()], ScoresByClass(difference[None], np.array([10.0, 10.0])), SIGNED)
        found += judge([one], [None])[0].word != UNDECIDED
    assert found / 1000 <= 0.072  # .05 and three standard errors


def test_a_family_adjusts_p_and_leaves_out_what_was_not_tested() -> None:
    near, far = (Estimate(8, mean, error=0.01, freedom=60.0) for mean in (0.0205, 0.04))
    assert [v.word for v in judge([near], [None])] == [BETTER]
    verdicts = judge([near, None, far, Estimate(1, 0.5), near], [None] * 5)
    assert [v.word for v in verdicts] == [UNDECIDED, UNDECIDED, BETTER, UNDECIDED, UNDECIDED]
    assert {v.family for v in verdicts} == {3}
    assert (verdicts[1].p, verdicts[3].p) == (None, None)
    assert verdicts[0].p == pytest.approx(2 * 2 * stats.t.sf(2.05, 60))


def test_holms_correction_by_hand() -> None:
    """Smallest first: 4 x 0.01, then 3 x 0.013 which may not be less, then 2 x 0.02 likewise, then 0.9."""
    assert adjust_holm([0.02, None, 0.01, 0.9, 0.013]) == pytest.approx([0.04, None, 0.04, 0.9, 0.04])
    assert adjust_holm([0.3, 0.4]) == pytest.approx([0.6, 0.6])
    assert adjust_holm([None, 0.8, 0.9]) == [None, 1.0, 1.0]


@pytest.mark.parametrize("text", ["map_at_r", "=.1", "map_at_r=0", "map_at_r=-1", "map_at_r=nan", "map_at_r=x"])
def test_other_margins_are_refused(text: str) -> None:
    with raises(UsageError, "invalid-value"):
        parse_margins([text])
    assert parse_margins(["map_at_r=.005", "recall_at_1 = 1e-2"]) == {"map_at_r": 0.005, "recall_at_1": 0.01}
    with raises(UsageError, "invalid-value"):
        parse_margins(["map_at_r=.1", "map_at_r=.2"])


# Intervals over classes


def test_queries_of_one_class_make_nothing_more_certain() -> None:
    classes, values = np.repeat(np.arange(12), 4), DRAW.random(48)
    once = intervals_over_classes({"m": values}, classes)
    assert intervals_over_classes({"m": np.tile(values, 9)}, np.tile(classes, 9))["m"] == pytest.approx(once["m"])


def test_names_order_and_other_metrics_change_no_interval() -> None:
    classes = np.repeat(np.arange(30), DRAW.integers(1, 9, 30))
    values = {"a": DRAW.integers(0, 2, len(classes)).astype(float), "b": np.full(len(classes), 0.25)}
    intervals, order = intervals_over_classes(values, classes), DRAW.permutation(len(classes))
    shuffled = {name: rows[order] for name, rows in values.items()}
    for found in (
        intervals_over_classes(values, DRAW.permutation(30)[classes]),
        intervals_over_classes(shuffled, classes[order]),
        {name: intervals_over_classes({name: rows}, classes)[name] for name, rows in values.items()},
    ):
        assert found == {name: pytest.approx(bounds) for name, bounds in intervals.items()}
    assert intervals["b"] == (0.25, 0.25)
    assert intervals["a"][0] < values["a"].mean() < intervals["a"][1]


def test_one_class_is_refused() -> None:
    with raises(EvaluationError, "too-few-classes"):
        intervals_over_classes({"m": np.ones(3)}, np.zeros(3, np.int64))


def test_the_interval_of_class_scores_is_that_of_the_single_queries() -> None:
    names = DRAW.permutation(np.repeat(["owl", "wren", "auk", "tit", "kite"], [3, 1, 4, 2, 5]))
    first, second = ({"map_at_r": DRAW.random(15)} for _ in range(2))
    scores = [class_scores(values, names, ["map_at_r"]) for values in (first, second)]
    assert scores[0][QUERIES] == (4, 5, 3, 2, 1), "by the order of the names"
    change = first["map_at_r"] - second["map_at_r"]
    found = difference_over_classes(*scores, "map_at_r")
    assert found.mean == pytest.approx(change.mean())
    assert found.interval == pytest.approx(intervals_over_classes({"m": change}, names, SIGNED)["m"])


def test_scores_of_other_queries_are_not_subtracted() -> None:
    one, two = {QUERIES: (2.0, 3.0), "m": (0.5, 0.1)}, {QUERIES: (2.0, 4.0), "m": (0.5, 0.1)}
    with raises(EvaluationError, "evaluation"):
        difference_over_classes(one, two, "m")
    assert class_table([one, two], "m") is None
    assert class_table([one, None], "m") is None
    assert class_table([], "m") is None
    assert subtract(class_table([one], "m"), None) is None


# Correlations


def test_correlations_are_scipys() -> None:
    a, b = DRAW.normal(size=(2, 9))
    assert pearson(a.tolist(), b.tolist()) == pytest.approx(stats.pearsonr(a, b).statistic)
    found, expected = partial_correlation(a, b), stats.pearsonr(a, b)
    assert found is not None
    assert (found.n, found.mean) == (9, pytest.approx(expected.statistic))
    assert found.interval == pytest.approx(tuple(expected.confidence_interval()))
    assert pearson([1, 2], [1, 2]) is pearson([1, 1, 1], [1, 2, 3]) is None
    finite = pearson([1.0, 2.0, 4.0, math.nan, 9.0], [3.0, 1.0, 7.0, 100.0, math.nan])
    assert finite == pytest.approx(stats.pearsonr([1, 2, 4], [3, 1, 7]).statistic)


def test_a_partial_correlation_is_that_of_the_recursion_by_hand() -> None:
    """(r_ab - r_ac r_bc) / sqrt((1 - r_ac^2) (1 - r_bc^2)); Fisher's interval with n - 4."""
    given = DRAW.normal(size=20)
    a, b = given + DRAW.normal(size=20), 2 * given + DRAW.normal(size=20)
    (ab, ac, bc) = (np.corrcoef(*pair)[0, 1] for pair in ((a, b), (a, given), (b, given)))
    expected = (ab - ac * bc) / math.sqrt((1 - ac**2) * (1 - bc**2))
    found = partial_correlation(a, b, given)
    assert found is not None
    assert found.mean == pytest.approx(expected)
    ends = [math.tanh(math.atanh(expected) + sign * 1.959964 / math.sqrt(16)) for sign in (-1, 1)]
    assert found.interval == pytest.approx(ends)
    fewer = partial_correlation(a, b, given, independent=10)
    assert fewer is not None
    assert fewer.mean == found.mean
    assert fewer.interval == pytest.approx(
        [math.tanh(math.atanh(expected) + sign * 1.959964 / math.sqrt(6)) for sign in (-1, 1)]
    )
    assert partial_correlation(a[:4], b[:4], given[:4]) is None
    assert partial_correlation(given, b, given) is None
    line = partial_correlation(a, 1 - 2 * a)
    assert line is not None
    assert (line.mean, line.interval) == (pytest.approx(-1), None)

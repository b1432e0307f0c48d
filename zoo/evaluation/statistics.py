"""Intervals, tests and verdicts over seeds and classes: the one definition of all commands and reports.

The score, or the paired difference, of seed s and class c is a crossed mixed model, y_sc = m + a_s + b_c + e_sc. The
estimate of m is the mean; its variance is that of the analysis of variance, (MS_seeds + MS_classes - MS_rest) / (S C),
not below what the seeds or the classes alone give, with Satterthwaite's degrees of freedom (Searle, Casella and
McCulloch 1992, Variance Components, chapter 4; Satterthwaite 1946). With a single seed this is Student's t over
classes, without scores by class Student's t over seeds. docs/lab/statistics.md says why, and shows the coverage.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from zoo.errors import EvaluationError, UsageError

ALPHA, POWER = 0.05, 0.8
"""The level of all tests, whose intervals cover 95 %; and the power of the minimal detectable difference."""

BETTER, WORSE, EQUIVALENT, UNDECIDED = "better", "worse", "equivalent", "undecided"
"""The verdicts on a paired difference."""

QUERIES = "queries"
"""Key of the numbers of queries in `class_scores`."""

Bounds = tuple[float, float]
"""The lowest and the highest possible value."""

SHARE: Bounds = (0.0, 1.0)
SIGNED: Bounds = (-1.0, 1.0)
UNBOUNDED: Bounds = (-math.inf, math.inf)

SEEDS, CLASSES, BOTH = "seeds", "classes", "seeds and classes"

ROUNDING, STORED = 1e-12, 1e-6
"""Deviations of scores, and of scores by class as they are stored, that rounding explains: they are taken as 0."""

ONE_SEED = "over classes only, not over seeds"
"""What is said of every interval of models with a single seed, or with unlike seeds."""

VERDICT_RULE = (
    'Differences are paired. "Better" (higher) and "worse": Holm\'s p of the two-sided t-test is below .05. '
    '"Equivalent": Holm\'s p of the two one-sided tests (TOST) against the margin, which was stated before, is below '
    ".05; this goes before the other two. All else is undecided; beside it is the smallest difference that is found "
    "with 80 % power. Intervals cover 95 %, each for itself; p is adjusted within its family."
)


class ScoresByClass(NamedTuple):
    """Scores by seed and class, float64 [seeds, classes], and the number of queries of each class."""

    scores: np.ndarray
    queries: np.ndarray


@dataclass(frozen=True)
class Estimate:
    """The mean of n seeds with its uncertainty.

    Attributes:
        n: The number of seeds.
        mean: The mean over seeds.
        sd: Its standard deviation over seeds; None for a single one.
        error: The standard error; None where there is a single seed or class, 0 where all of them agree.
        freedom: Its degrees of freedom; None without an error.
        interval: 95 %, cut to the values that are possible; None without an error, or with one of 0.
        over: What the interval is over: "seeds and classes", "seeds" or "classes"; None without one.
    """

    n: int
    mean: float
    sd: float | None = None
    error: float | None = None
    freedom: float | None = None
    interval: tuple[float, float] | None = None
    over: str | None = None

    @property
    def half(self) -> float | None:
        """The longer of the distances from the mean to the ends of the interval."""
        return None if self.interval is None else max(self.interval[1] - self.mean, self.mean - self.interval[0])

    @property
    def note(self) -> str:
        """The remark that the interval leaves out the seed; "" for other intervals, and without one."""
        return ONE_SEED if self.over == CLASSES else ""


@dataclass(frozen=True)
class Verdict:
    """The tests of one paired difference of a family.

    Attributes:
        word: "better", "worse", "equivalent" or "undecided".
        p: Of no difference, two-sided, adjusted by Holm within the family; None without a standard error above 0.
        p_equivalence: Of a difference beyond the margin (TOST), likewise; None without a margin.
        margin: The margin of equivalence; None if none was stated.
        detectable: The smallest difference that a two-sided test of 5 % finds with 80 % power; None without `p`.
        family: The number of differences that were tested together.
    """

    word: str
    p: float | None = None
    p_equivalence: float | None = None
    margin: float | None = None
    detectable: float | None = None
    family: int = 0

    @property
    def p_text(self) -> str:
        """The p-value that decides; "" without one."""
        return p_text(self.p_equivalence if self.word == EQUIVALENT else self.p)

    def __str__(self) -> str:
        if self.word != UNDECIDED or self.detectable is None:
            return self.word
        return f"{self.word} (detectable: {self.detectable:.4f})"


def p_text(p: float | None) -> str:
    """Return a printed p-value; "" without one."""
    return "" if p is None else f"{p:.3f}" if p >= 0.001 else "< 0.001"


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


def class_table(scores: Sequence[Mapping[str, Sequence[float]] | None], metric: str) -> ScoresByClass | None:
    """Return the `class_scores` of each seed as one table; None unless all are of the same queries."""
    known = [one for one in scores if one is not None and metric in one]
    if not known or len(known) < len(scores) or any(tuple(one[QUERIES]) != tuple(known[0][QUERIES]) for one in known):
        return None
    return ScoresByClass(np.array([one[metric] for one in known], np.float64), np.array(known[0][QUERIES], np.float64))


def subtract(first: ScoresByClass | None, second: ScoresByClass | None) -> ScoresByClass | None:
    """Return the differences of two tables of the same seeds; None unless both are of the same queries."""
    if first is None or second is None or not np.array_equal(first.queries, second.queries):
        return None
    return ScoresByClass(first.scores - second.scores, first.queries)


def difference_over_classes(
    first: Mapping[str, Sequence[float]], second: Mapping[str, Sequence[float]], metric: str
) -> Estimate:
    """Return the mean of `first` less `second`, `class_scores` of one model each, with its interval over classes.

    Raises:
        EvaluationError: If the classes have other numbers of queries.
    """
    table = subtract(class_table([first], metric), class_table([second], metric))
    if table is None:
        raise EvaluationError("the two scores are not of the same queries.")
    return estimate([float(table.scores[0] @ table.queries / table.queries.sum())], table, SIGNED)


def estimate(values: Sequence[float], table: ScoresByClass | None = None, bounds: Bounds = UNBOUNDED) -> Estimate:
    """Return the mean of scores, or of paired differences, with its 95 % interval over seeds and classes.

    Args:
        values: One for each seed.
        table: The same by class; None, or a single class, leaves the interval over seeds.
        bounds: The values that are possible; the interval is cut to them, which takes nothing from its coverage.
    """
    from scipy.special import stdtrit

    n, mean = len(values), statistics.fmean(values)
    sd = statistics.stdev(values) if n > 1 else None
    if table is not None and len(table.queries) > 1:
        shares = table.queries / table.queries.mean()
        level = (table.scores @ shares).mean() / len(shares)
        scores = level + shares * (table.scores - level)  # the mean over queries as a plain mean over classes
    else:
        scores = np.array(values, np.float64)[:, None]
    if scores.size == 1:
        return Estimate(n, mean)
    error, freedom = _standard_error(scores)
    if error * math.sqrt(scores.size) < (ROUNDING if scores.shape[1] == 1 else STORED):
        return Estimate(n, mean, sd, 0.0, freedom)
    half = float(stdtrit(freedom, 1 - ALPHA / 2)) * error
    over = SEEDS if scores.shape[1] == 1 else CLASSES if n == 1 else BOTH
    return Estimate(n, mean, sd, error, freedom, (max(mean - half, bounds[0]), min(mean + half, bounds[1])), over)


def _standard_error(scores: np.ndarray) -> tuple[float, float]:
    """Return the standard error of the mean of scores [seeds, classes], and its degrees of freedom."""
    seeds, classes = scores.shape
    by_seed, by_class = scores.mean(1, keepdims=True), scores.mean(0, keepdims=True)
    squares = [
        classes * ((by_seed - scores.mean()) ** 2).sum() / max(seeds - 1, 1),
        seeds * ((by_class - scores.mean()) ** 2).sum() / max(classes - 1, 1),
        -((scores - by_seed - by_class + scores.mean()) ** 2).sum() / max((seeds - 1) * (classes - 1), 1),
    ]
    degrees = [seeds - 1, classes - 1, (seeds - 1) * (classes - 1)]
    larger = int(np.argmax(squares[:2])) if min(degrees[:2]) else int(seeds == 1)
    total = sum(squares)
    if not min(degrees) or total <= squares[larger]:
        return math.sqrt(squares[larger] / scores.size), float(degrees[larger])
    return math.sqrt(total / scores.size), total**2 / sum(s**2 / d for s, d in zip(squares, degrees, strict=True))


def intervals_over_classes(
    values: Mapping[str, np.ndarray], classes: np.ndarray, bounds: Bounds = SHARE
) -> dict[str, tuple[float, float]]:
    """Return the 95 % interval of each metric's mean over queries, for further classes.

    The queries of one class rise and fall together: single queries would give intervals that are too narrow.

    Args:
        values: Metric -> float [m], one value per query.
        classes: Integers [m], the class of each query. Neither its numbers nor the order of the rows matter.
        bounds: The values that are possible: `SIGNED` for differences of scores.

    Returns:
        Metric -> (low, high), equal where all classes have the same score.

    Raises:
        EvaluationError: If there are fewer than two classes, which do not show how classes differ.
    """
    scores = class_scores(values, classes, list(values))
    if len(scores[QUERIES]) < 2:
        raise EvaluationError("an interval over classes needs at least two classes.", code="too-few-classes")
    estimates = {
        name: estimate([float(row.mean())], class_table([scores], name), bounds) for name, row in values.items()
    }
    return {name: found.interval or (found.mean, found.mean) for name, found in estimates.items()}


def interval_of_share(share: float, same: np.ndarray, classes: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Return the 95 % interval (low, high) of a share of weighted pairs, for further classes.

    Wilson's interval (1927), which suits shares near 0 and 1, with as many independent pairs as give the variance
    between classes, and Student's t over classes in place of the normal distribution.

    Args:
        share: The weighted share of pairs that are `same`.
        same: bool [n].
        classes: Integers [n], the class of each pair.
        weights: float [n].
    """
    from scipy.special import stdtrit

    codes = np.unique(classes, return_inverse=True)[1]
    clusters = int(codes.max()) + 1
    if clusters < 2:
        return SHARE
    sums = np.bincount(codes, weights * (same - share))
    variance = float(sums @ sums) / float(weights.sum()) ** 2 * clusters / (clusters - 1)
    n = share * (1 - share) / variance if variance > 0 else float(clusters)
    n = min(n, float(weights.sum() ** 2 / (weights @ weights)))
    squared = float(stdtrit(clusters - 1, 1 - ALPHA / 2)) ** 2 / n
    middle = (share + squared / 2) / (1 + squared)
    half = math.sqrt(squared * share * (1 - share) + squared**2 / 4) / (1 + squared)
    return max(0.0, middle - half), min(1.0, middle + half)


def judge(differences: Sequence[Estimate | None], margins: Sequence[float | None]) -> list[Verdict]:
    """Return the verdict on each paired difference of one family.

    The tests of a difference and those of equivalence are two families: each errs in 5 % of all families at most.

    Args:
        differences: Those to test; None, and one without a standard error, stays undecided and is not counted. One
            with a standard error of 0 stays undecided without p, and counts in the family as one with p = 1.
        margins: Of equivalence, stated before the results; None for a difference without one.
    """
    ps = adjust_holm([_p_of_difference(found) for found in differences])
    equal = adjust_holm([_p_of_equivalence(*pair) for pair in zip(differences, margins, strict=True)])
    family = sum(p is not None for p in ps)
    return [
        Verdict(_word(found.mean, p, near), p, near, margin, _detectable(found), family)
        if found and found.error and p is not None
        else Verdict(UNDECIDED, margin=margin, family=family)
        for found, margin, p, near in zip(differences, margins, ps, equal, strict=True)
    ]


def _word(difference: float, p: float, p_equivalence: float | None) -> str:
    if p_equivalence is not None and p_equivalence < ALPHA:
        return EQUIVALENT
    return UNDECIDED if p >= ALPHA else BETTER if difference > 0 else WORSE


def _p_of_difference(difference: Estimate | None) -> float | None:
    """Return the two-sided p-value of Student's t against no difference."""
    return None if difference is None else _upper_tail(abs(difference.mean), difference, sides=2)


def _p_of_equivalence(difference: Estimate | None, margin: float | None) -> float | None:
    """Return the larger p-value of the two one-sided tests (Schuirmann 1987)."""
    if difference is None or margin is None:
        return None
    return _upper_tail(margin - abs(difference.mean), difference, sides=1)


def _upper_tail(distance: float, difference: Estimate, sides: int) -> float | None:
    """Return the probability of a mean that far above its expectation, times the sides; 1 with an error of 0."""
    from scipy.special import stdtr

    if difference.error is None or difference.freedom is None:
        return None
    if difference.error == 0:
        return 1.0
    return float(sides * stdtr(difference.freedom, -distance / difference.error))


def _detectable(difference: Estimate) -> float | None:
    """Return the minimal detectable difference: the sum of two quantiles of t in standard errors."""
    from scipy.special import stdtrit

    if difference.error is None or difference.freedom is None:
        return None
    return difference.error * float(stdtrit(difference.freedom, 1 - ALPHA / 2) + stdtrit(difference.freedom, POWER))


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


def parse_margins(texts: Iterable[str]) -> dict[str, float]:
    """Return the margins of equivalence by metric.

    Args:
        texts: METRIC=MARGIN, as `--margin` takes them.

    Raises:
        UsageError: If a text has another form, a margin is not above 0, or a metric has two.
    """
    margins: dict[str, float] = {}
    for text in texts:
        metric, _, value = (part.strip() for part in text.partition("="))
        try:
            margin = float(value)
        except ValueError:
            margin = math.nan
        if not metric or metric in margins or not 0 < margin < math.inf:
            raise UsageError(
                f"--margin {text}: expected METRIC=MARGIN above 0, once for each metric, as map_at_r=.005.",
                code="invalid-value",
            )
        margins[metric] = margin
    return margins


def check_margins(margins: Iterable[str], metrics: Sequence[str]) -> None:
    """Raise `UsageError` if a margin is of another metric than these, which are compared."""
    for metric in margins:
        if metric not in metrics:
            raise UsageError(f"--margin {metric}: compared are {', '.join(metrics)}.", code="unknown-name")


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


def partial_correlation(
    a: Sequence[float], b: Sequence[float], given: Sequence[float] = (), independent: int | None = None
) -> Estimate | None:
    """Return the correlation of what a straight line through `given` leaves of both sides, with Fisher's interval.

    Fisher's transform has the variance 1 / (n - 3 - k) with k controlled variables (Fisher 1924). Without `given` it is
    Pearson's correlation. `independent` is n where fewer pairs are independent than there are.

    Returns:
        The estimate, whose n is the number of pairs, without an interval where it is 1 or -1; None below 4 + k pairs,
        and where nothing is left to vary.
    """
    controls = np.array([np.ones(len(a)), *([given] if len(given) else [])], np.float64).T
    sides = np.array([a, b], np.float64).T
    degrees = (independent or len(sides)) - 2 - controls.shape[1]
    if degrees < 1:
        return None
    left = sides - controls @ np.linalg.lstsq(controls, sides, rcond=None)[0]
    if np.any(np.linalg.norm(left, axis=0) <= 1e-12 * np.linalg.norm(sides, axis=0)):
        return None
    r = float(np.clip(left[:, 0] @ left[:, 1] / np.linalg.norm(left, axis=0).prod(), -1, 1))
    half = statistics.NormalDist().inv_cdf(1 - ALPHA / 2) / math.sqrt(degrees)
    if 1 - abs(r) < ROUNDING:
        return Estimate(len(sides), r)
    centre = math.atanh(r)
    return Estimate(len(sides), r, interval=(math.tanh(centre - half), math.tanh(centre + half)), over="pairs")


def correlation_triangle(columns: Mapping[str, Sequence[float]]) -> list[list[float | None]]:
    """Return the correlations of each column with all columns before it."""
    names = list(columns)
    return [[pearson(columns[other], columns[name]) for other in names[:i]] for i, name in enumerate(names)]

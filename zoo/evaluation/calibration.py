"""Calibration of similarities: the probability that a result of a search has the query's class (p_same).

The similarity alone does not tell it: a query in a crowded region has many results of other classes at a similarity
that only relatives of another query reach. p_same is therefore a function of the contrast: the similarity minus the
query's background, which is the mean similarity of its 21st to 50th result.

The first result has a curve of its own. At a low contrast it is right less often than a later result of this contrast,
whose query has several near relatives, and at a high one more often. A later result never gets more than the first one
of its search, so that p_same never rises from one result to the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self

import numpy as np

from zoo.errors import EvaluationError
from zoo.evaluation.statistics import interval_of_share

DEPTH, NEAR = 50, 20
"""Number of results per search that a calibration is fitted to. Those after the first `NEAR` are the background."""

PERSISTENCE = 0.9
"""Probability that a user who looks at a result looks at the next one too: ten results on average, as on a page."""

IDENTICAL = 1 - 1e-5
"""Images of at least this similarity are identical: rounding alone separates their embeddings."""

ENOUGH_PAIRS = 20
"""Least number of pairs of a fit."""

EQUAL = 1e-6
"""Results whose similarities differ by less are equally near."""

Curve = tuple[np.ndarray, np.ndarray]
"""Contrasts and probabilities of a curve's points."""

BINS = 10
"""Equal parts of the probabilities in a reliability diagram."""

_GROUPS, _LEAST = 40, 25
"""Most groups of a fit, and least pairs of a group (fewer only in a fit of few pairs)."""


@dataclass(frozen=True)
class Calibration:
    """Non-decreasing curves from contrasts to probabilities: linear between their points, constant outside them.

    p_same is the share of results with the query's class among the results of this contrast that a user looks at, in
    searches without a filter: each next one with probability 0.9 (`PERSISTENCE`; the user of rank-biased precision,
    Moffat & Zobel 2008). One curve is for first results and one for later ones, which the first result's p_same
    bounds. Identical images (`IDENTICAL`) have p_same 1 and are not part of the fit. The curves are valid
    for queries and a gallery like those of the fit.

    Attributes:
        contrasts: The contrasts of the points of the curve of later results, ascending.
        probabilities: Their probabilities.
        neighbours: The number of results per search in the fit; 0 where it is not known.
        pairs: The number of pairs of the fit.
        error: The expected calibration error on classes outside the fit (mean distance between probability and share
            over ten bins, by their weights); None where it was not measured.
        first_contrasts, first_probabilities: The curve of first results; empty where too few pairs are known: then the
            other curve is fitted to all results and used for all.
    """

    contrasts: tuple[float, ...]
    probabilities: tuple[float, ...]
    neighbours: int
    pairs: int
    error: float | None = None
    first_contrasts: tuple[float, ...] = ()
    first_probabilities: tuple[float, ...] = ()

    def probability(self, similarities: Any, level: Any, nearest: Any = np.inf) -> np.ndarray:
        """Return the probabilities, float64, of similarities to queries of a background (broadcast).

        Args:
            similarities: The similarities.
            level: `Background.level` of their queries.
            nearest: `Background.nearest`; by default all are later results.
        """
        similarities = np.asarray(similarities, np.float64)
        later = np.array(self.contrasts), np.array(self.probabilities)
        first = (np.array(self.first_contrasts), np.array(self.first_probabilities)) if self.first_contrasts else None
        chances = _interpolate(similarities - level, np.asarray(nearest) - level, first, later)
        return np.where(similarities >= IDENTICAL, 1.0, chances)

    @property
    def range(self) -> tuple[float, float]:
        """Return the smallest and the largest probability."""
        every = (*self.probabilities, *self.first_probabilities)
        return min(every), max(every)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the curve of JSON values, which may have further keys."""
        own: dict[str, Any] = {field.name: values[field.name] for field in fields(Calibration) if field.name in values}
        return cls(**own | {name: tuple(value) for name, value in own.items() if isinstance(value, list)})


@dataclass(frozen=True)
class Bin:
    """Bin of a reliability diagram.

    Attributes:
        probability: Mean probability of its pairs.
        share: Share of pairs of one class.
        count: Number of pairs.
        low, high: 95 % interval of the share, over classes.
        weight: Sum of its pairs' weights.
    """

    probability: float
    share: float
    count: int
    low: float
    high: float
    weight: float


@dataclass(frozen=True)
class Background:
    """The other results of a query in a search without a filter, identical images not counted.

    Attributes:
        level: Mean similarity of the 21st to 50th; of fewer than 50, of the last three fifths.
        nearest: Similarity of the first.
    """

    level: float
    nearest: float


@dataclass(frozen=True)
class WeightedPairs:
    """Queries and results of which it is known whether they have one class.

    Attributes:
        contrasts: float64 [n].
        same: Whether the two have one class, bool [n].
        classes: Class of the query, int64 [n].
        weights: How much each pair counts, float64 [n].
        nearest: Contrast of the query's first result, float64 [n]; inf where it is not known.
    """

    contrasts: np.ndarray
    same: np.ndarray
    classes: np.ndarray
    weights: np.ndarray
    nearest: np.ndarray

    def chosen(self, rows: np.ndarray) -> WeightedPairs:
        return WeightedPairs(*(values[rows] for values in vars(self).values()))


def background(similarities: np.ndarray) -> Background:
    """Return the background of a query.

    similarities: float [k], of the results of a search without a filter, highest first.
    """
    others = similarities[(similarities < IDENTICAL) & np.isfinite(similarities)][:DEPTH]
    if not others.size:
        return Background(1.0, 1.0)
    return Background(float(others[len(others) * NEAR // DEPTH :].mean(dtype=np.float64)), float(others[0]))


def pairs_of_searches(similarities: np.ndarray, outcomes: np.ndarray, classes: np.ndarray) -> WeightedPairs:
    """Return the known pairs of searches, each weighted by the probability that a user looks at it (`PERSISTENCE`).

    Results without a label are left out, and the others stand for them: how the share of unlabelled results changes
    with the contrast tells whether whole classes or single items lack labels, and so how many of the unlabelled results
    have the query's class.

    Args:
        similarities: Float [q, k], of each query's results without the query, highest first; -inf where there are
            fewer. k is at most `DEPTH`.
        outcomes: Int [q, k]: 1 for the query's class, 0 for another, -1 where it is not known.
        classes: The class of each query, int64 [q].
    """
    similarities = np.asarray(similarities, np.float64)
    counted = np.isfinite(similarities) & (similarities < IDENTICAL)
    weights = PERSISTENCE ** (counted.cumsum(axis=1) - 1)
    backgrounds = [background(row) for row in similarities]
    levels = np.array([found.level for found in backgrounds])
    contrasts = similarities - levels[:, None]
    nearest = np.array([found.nearest for found in backgrounds]) - levels
    nearest = np.broadcast_to(nearest[:, None], counted.shape)[counted]
    own = np.broadcast_to(np.asarray(classes)[:, None], counted.shape)
    contrasts, outcomes, own, weights = contrasts[counted], outcomes[counted], own[counted], weights[counted]
    same, known = outcomes == 1, outcomes >= 0
    factors = _unlabelled_factors(contrasts, outcomes, weights)
    weights = weights * np.where(same, factors[0], factors[1])
    return WeightedPairs(contrasts[known], same[known], own[known], weights[known], nearest[known])


def calibrate(pairs: WeightedPairs, neighbours: int = 0) -> Calibration:
    """Fit the curves to pairs by isotonic regression; `neighbours` is kept with them.

    Their points are the blocks of the regression (centred isotonic regression: Oron & Flournoy 2017).

    Raises:
        EvaluationError: If there are fewer than `ENOUGH_PAIRS` pairs, all pairs have one class or none has, or pairs of
            higher contrast do not have one class more often.
    """
    if len(pairs.same) < ENOUGH_PAIRS:
        message = f"a calibration needs {ENOUGH_PAIRS} pairs of known class, not {len(pairs.same)}."
        raise EvaluationError(message, code="too-few-samples")
    first, later = _fit_curves(pairs)
    held_out = held_out_bins(pairs)
    error = expected_calibration_error(held_out) if held_out else None
    fitted = Calibration(*_points(later), neighbours, len(pairs.same), error)
    if first is None:
        return fitted
    contrasts, probabilities = _points(first)
    return replace(fitted, first_contrasts=contrasts, first_probabilities=probabilities)


def _points(curve: Curve) -> tuple[tuple[float, ...], tuple[float, ...]]:
    contrasts, probabilities = curve
    return tuple(contrasts.round(6).tolist()), tuple(probabilities.round(6).tolist())


def held_out_bins(pairs: WeightedPairs) -> list[Bin]:
    """Return the reliability of calibrations on classes outside their fit.

    One is fitted to every second class of the queries and applied to the others, a second one the other way round. The
    list is empty for fewer than four classes and where a half cannot be fitted.
    """
    codes = np.unique(pairs.classes, return_inverse=True)[1]
    if codes.max(initial=0) < 3:
        return []
    probabilities = np.empty(len(codes))
    for half in (0, 1):
        try:
            curves = _fit_curves(pairs.chosen(codes % 2 == half))
        except EvaluationError:
            return []
        rest = codes % 2 != half
        probabilities[rest] = _interpolate(pairs.contrasts[rest], pairs.nearest[rest], *curves)
    return reliability_bins(probabilities, pairs.same, pairs.classes, pairs.weights)


def reliability_bins(
    probabilities: np.ndarray, same: np.ndarray, classes: np.ndarray, weights: np.ndarray | None = None
) -> list[Bin]:
    """Return the reliability diagram: one `Bin` for each tenth of 0 to 1 that is not empty.

    The arguments are of pairs, as in `WeightedPairs`; without `weights` each counts 1.
    """
    weights = np.ones(len(same)) if weights is None else weights
    index = np.minimum((probabilities * BINS).astype(int), BINS - 1)
    found = []
    for rows in (index == number for number in np.unique(index)):
        total = weights[rows].sum()
        mean, share = weights[rows] @ probabilities[rows] / total, weights[rows] @ same[rows] / total
        interval = interval_of_share(float(share), same[rows], classes[rows], weights[rows])
        found.append(Bin(float(mean), float(share), int(rows.sum()), *interval, float(total)))
    return found


def expected_calibration_error(bins: list[Bin]) -> float:
    """Return the mean distance between probability and share, by the bins' weights (Naeini et al. 2015)."""
    return sum(part.weight * abs(part.probability - part.share) for part in bins) / sum(part.weight for part in bins)


def isotonic(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the non-decreasing numbers nearest to `values` by weighted squares (pool adjacent violators)."""
    blocks: list[tuple[float, float, int]] = []  # sum, weight and number of pooled values
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        block = (value * weight, weight, 1)
        while blocks and blocks[-1][0] * block[1] >= block[0] * blocks[-1][1]:
            total, size, count = blocks.pop()
            block = (block[0] + total, block[1] + size, block[2] + count)
        blocks.append(block)
    return np.repeat([total / size for total, size, _ in blocks], [count for *_, count in blocks])


def _fit_curves(pairs: WeightedPairs) -> tuple[Curve | None, Curve]:
    """Return the curves of first and of later results; None and one of all results where they cannot be told apart."""
    is_first = pairs.contrasts >= pairs.nearest - EQUAL
    if min(is_first.sum(), (~is_first).sum()) >= ENOUGH_PAIRS:
        with suppress(EvaluationError):
            return _fit(pairs.chosen(is_first)), _fit(pairs.chosen(~is_first))
    return None, _fit(pairs)


def _interpolate(contrasts: np.ndarray, nearest: np.ndarray, first: Curve | None, later: Curve) -> np.ndarray:
    """Return the probabilities of contrasts; `nearest`: the contrasts of the first results of their searches."""
    chances = np.interp(contrasts, *later)
    if first is None:
        return chances
    bound = np.interp(np.maximum(nearest, contrasts), *first)
    return np.where(contrasts >= nearest - EQUAL, bound, np.minimum(bound, chances))


def _fit(pairs: WeightedPairs) -> Curve:
    """Return the curve of pairs."""
    count, positives = len(pairs.same), int(pairs.same.sum())
    if positives in (0, count):
        kind = "of the query's class" if positives else "of another class"
        message = f"all {count} neighbours are {kind}: a calibration needs neighbours of both kinds."
        raise EvaluationError(message, code="too-few-samples")
    groups = _groups(pairs.contrasts, pairs.weights)
    counts, weights = np.bincount(groups), np.bincount(groups, pairs.weights)
    contrasts = np.bincount(groups, pairs.weights * pairs.contrasts) / weights
    shares = np.bincount(groups, pairs.weights * pairs.same) / weights
    # Half a pair of either kind keeps shares of few pairs off 0 and 1 (Jeffreys).
    fitted = isotonic((shares * counts + 0.5) / (counts + 1), weights)
    blocks = np.unique(fitted, return_inverse=True)[1]
    if not blocks.any():
        raise EvaluationError(
            "neighbours of higher similarity are not more often of the query's class, so similarity predicts nothing "
            "here. Check that the labels belong to these images."
        )
    return np.bincount(blocks, weights * contrasts) / np.bincount(blocks, weights), np.unique(fitted)


def _groups(contrasts: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the number of each pair's group, int64 [n]: groups of one weight, the last one halved again and again.

    The halves follow the rise of the curve among the few pairs of the highest contrasts.
    """
    order = np.argsort(contrasts, kind="stable")
    ordered, cumulated = contrasts[order], np.cumsum(weights[order])
    count = int(np.clip(weights.sum() // _LEAST, 2, _GROUPS))
    numbers = np.minimum(count * (cumulated - weights[order]) / cumulated[-1], count - 1).astype(int)
    start = int(np.searchsorted(numbers, count - 1))
    while len(order) - start >= 2 * _LEAST:
        start, count = (start + len(order)) // 2, count + 1
        numbers[start:] = count - 1
    groups = np.empty(len(order), np.int64)
    groups[order] = numbers[np.searchsorted(ordered, ordered)]  # equal contrasts are of one group
    return np.unique(groups, return_inverse=True)[1]


def _unlabelled_factors(contrasts: np.ndarray, outcomes: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Return how many results each labelled one of the query's class, and of another class, stands for.

    If a share of the items of either kind has labels, the unlabelled results of a group are a sum of multiples of its
    labelled ones: least squares over the groups finds the two multiples.
    """
    if not (outcomes < 0).any():
        return 1.0, 1.0
    groups = _groups(contrasts, weights)
    other, same, unknown = (np.bincount(groups, weights * (outcomes == kind), groups.max() + 1) for kind in (0, 1, -1))
    multiples = np.linalg.lstsq(np.stack([same, other], axis=1), unknown, rcond=None)[0]
    for kind, only in ((0, other), (1, same)):
        if multiples[kind] < 0:
            multiples[kind], multiples[1 - kind] = 0, float(unknown @ only) / max(float(only @ only), 1e-12)
    return 1 + float(multiples[0]), 1 + float(multiples[1])

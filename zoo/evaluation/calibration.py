"""From a similarity to a probability: how often a neighbour of that similarity is of the query's class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from zoo.errors import EvaluationError

_MAX_STEPS, _TOLERANCE = 100, 1e-10


@dataclass(frozen=True)
class Calibration:
    """p(same class) = 1 / (1 + exp(-(slope * similarity + offset))), for the first `neighbours` of a search.

    `pairs`: how many pairs it was fitted to, `marked` of them marked by users and the others neighbours of labelled
    queries; `error`: its expected calibration error on classes that it was not
    fitted to (mean distance of probability and share over ten bins, weighted by their size), None where it was not
    measured. It holds for queries whose class may be in the gallery as often as it was for the items it was fitted
    to; of pictures of something else altogether it promises nothing. `neighbours` is 0 for single pairs.
    """

    slope: float
    offset: float
    neighbours: int
    pairs: int
    error: float | None = None
    marked: int = 0

    def probability(self, similarities: Any) -> np.ndarray:
        """Float64, of the shape of `similarities`."""
        scores = self.slope * np.asarray(similarities, np.float64) + self.offset
        return _logistic(scores)

    def similarity_at(self, probability: float) -> float:
        """The similarity from which on `probability` is reached; it may lie outside -1 to 1: never, or always."""
        if not 0 < probability < 1:
            return float("-inf") if probability <= 0 else float("inf")
        return float((np.log(probability / (1 - probability)) - self.offset) / self.slope)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Calibration:
        return cls(**values)


@dataclass(frozen=True)
class Bin:
    """Of `count` neighbours with about this `probability` (their mean), the `share` that are of the query's class."""

    probability: float
    share: float
    count: int


def calibrate(similarities: Any, same: Any, classes: Any) -> Calibration:
    """Fit the logistic curve to neighbours whose class is known.

    similarities: float [n, k], of the neighbours of n labelled queries, each query left out of its own; or float [n],
    of single pairs; same: bool of that shape, whether the two are of one class; classes: n labels of the queries. The
    curve is Platt's (1999, Probabilistic Outputs for Support Vector Machines, section 2.1), with his targets that stay
    off 0 and 1, so that classes without overlap give a steep curve instead of an endless one. The error is that of
    `held_out`.

    Raises `EvaluationError` where all neighbours are alike, or where similar neighbours are not more often of the
    query's class, of which no probability can be made.
    """
    similarities, same = _check_arguments(similarities, same, classes)
    slope, offset = _fit(similarities.ravel(), same.ravel())
    chances = held_out_probabilities(similarities, same, classes)
    error = None if chances is None else expected_calibration_error(reliability_bins(chances, same))
    return Calibration(slope, offset, same.shape[1] if same.ndim == 2 else 0, same.size, error)


def held_out_probabilities(similarities: Any, same: Any, classes: Any) -> np.ndarray | None:
    """The probability of each pair by a curve that was not fitted to its query's class, of the shape of `similarities`.

    Fitted to every second class and read at the others, and the other way round; None where there are fewer than four
    classes, or one half cannot be fitted to.
    """
    similarities, same = _check_arguments(similarities, same, classes)
    codes = np.unique(np.asarray(classes), return_inverse=True)[1]
    if codes.max(initial=0) < 3:
        return None
    chances = np.empty_like(similarities)
    for half in (0, 1):
        fitted, read = codes % 2 == half, codes % 2 != half
        try:
            slope, offset = _fit(similarities[fitted].ravel(), same[fitted].ravel())
        except EvaluationError:
            return None
        chances[read] = _logistic(slope * similarities[read] + offset)
    return chances


def reliability_bins(probabilities: Any, same: Any, bins: int = 10) -> list[Bin]:
    """The reliability diagram: one `Bin` per tenth of 0..1 that holds anything."""
    chances, same = np.asarray(probabilities, np.float64).ravel(), np.asarray(same, bool).ravel()
    which = np.minimum((chances * bins).astype(int), bins - 1)
    counts = np.bincount(which, minlength=bins)
    sums, hits = np.bincount(which, chances, bins), np.bincount(which, same, bins)
    return [Bin(sums[i] / counts[i], hits[i] / counts[i], int(counts[i])) for i in np.flatnonzero(counts)]


def expected_calibration_error(bins: list[Bin]) -> float:
    """Mean distance of probability and share, weighted by the bins' sizes (Naeini et al. 2015)."""
    total = sum(one.count for one in bins)
    return sum(one.count * abs(one.probability - one.share) for one in bins) / total


def _check_arguments(similarities: Any, same: Any, classes: Any) -> tuple[np.ndarray, np.ndarray]:
    similarities, same = np.asarray(similarities, np.float64), np.asarray(same, bool)
    if similarities.shape != same.shape or similarities.ndim not in (1, 2) or len(classes) != len(same):
        raise EvaluationError(
            f"similarities {list(similarities.shape)} and same {list(same.shape)} must be one [n, k] or [n], classes n "
            f"of them, not {len(classes)}."
        )
    if not np.isfinite(similarities).all():
        raise EvaluationError("similarities must be finite.")
    return similarities, same


def _fit(similarities: np.ndarray, same: np.ndarray) -> tuple[float, float]:
    """Slope and offset by Newton's method with halved steps; the loss is convex."""
    positives, negatives = int(same.sum()), int((~same).sum())
    if not positives or not negatives:
        kind = "of the query's class" if positives else "of another class"
        raise EvaluationError(f"all {same.size} neighbours are {kind}: nothing tells when a neighbour is not.")
    targets = np.where(same, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    # Standardised, the two unknowns are nearly independent and the first step is nearly right.
    mean, deviation = similarities.mean(), max(float(similarities.std()), 1e-12)
    inputs = np.stack([(similarities - mean) / deviation, np.ones_like(similarities)])
    weights = np.array([0.0, np.log((positives + 1) / (negatives + 1))])
    loss = _cross_entropy(weights @ inputs, targets)
    for _ in range(_MAX_STEPS):
        chances = _logistic(weights @ inputs)
        gradient = inputs @ (chances - targets)
        curvature = (inputs * (chances * (1 - chances))) @ inputs.T + 1e-9 * np.eye(2)
        step, share = np.linalg.solve(curvature, gradient), 1.0
        while (after := _cross_entropy((weights - share * step) @ inputs, targets)) > loss and share > 1e-6:
            share /= 2
        weights, gained, loss = weights - share * step, loss - after, after
        if gained <= _TOLERANCE * same.size:
            break
    slope = float(weights[0] / deviation)
    if slope <= 0:
        raise EvaluationError(
            "neighbours of higher similarity are not more often of the query's class; similarity says nothing here. "
            "Check that the labels belong to these images."
        )
    return slope, float(weights[1] - slope * mean)


def _logistic(scores: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(0.5 * scores))  # without overflow


def _cross_entropy(scores: np.ndarray, targets: np.ndarray) -> float:
    return float((np.logaddexp(0, scores) - targets * scores).sum())

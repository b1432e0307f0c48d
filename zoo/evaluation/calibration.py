"""Calibration of similarities: the probability that a neighbour has the query's class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from zoo.errors import EvaluationError

_MAX_STEPS, _TOLERANCE = 100, 1e-10


@dataclass(frozen=True)
class Calibration:
    """Logistic curve p(same class) = 1 / (1 + exp(-(slope * similarity + offset))).

    The curve is valid if the share of queries whose class is in the gallery is the same as in the fit. It is not valid
    for images of another kind.

    Attributes:
        neighbours: The number of neighbours per search for which the curve was fitted; 0 for single pairs.
        pairs: The number of pairs of the fit.
        marked: The number of those pairs that users marked; the others are neighbours of labelled queries.
        error: The expected calibration error on classes outside the fit (mean distance between probability and share
            over ten bins, weighted by their size); None where it was not measured.
    """

    slope: float
    offset: float
    neighbours: int
    pairs: int
    error: float | None = None
    marked: int = 0

    def probability(self, similarities: Any) -> np.ndarray:
        """Return the probabilities, float64 of the shape of `similarities`."""
        return _logistic(self.slope * np.asarray(similarities, np.float64) + self.offset)

    def similarity_at(self, probability: float) -> float:
        """Return the lowest similarity that reaches `probability`; outside -1 to 1 it means never or always."""
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
    """Bin of a reliability diagram: `count` neighbours, their mean `probability`, and the `share` of correct ones."""

    probability: float
    share: float
    count: int


def calibrate(similarities: Any, same: Any, classes: Any) -> Calibration:
    """Fit the logistic curve to neighbours of known class.

    The curve is Platt's (1999, Probabilistic Outputs for Support Vector Machines, section 2.1), with his targets that
    stay off 0 and 1, so that classes without overlap give a steep curve and not an infinitely steep one.

    Args:
        similarities: Float [n, k], of the neighbours of n labelled queries without the query itself, or [n], of pairs.
        same: Bool of that shape: the two have one class.
        classes: The n labels of the queries.

    Raises:
        EvaluationError: If all neighbours have the query's class or none has it, or the more similar neighbours do not
            have the query's class more often.
    """
    similarities, same = _check_arguments(similarities, same, classes)
    slope, offset = _fit(similarities.ravel(), same.ravel())
    probabilities = held_out_probabilities(similarities, same, classes)
    error = None if probabilities is None else expected_calibration_error(reliability_bins(probabilities, same))
    return Calibration(slope, offset, same.shape[1] if same.ndim == 2 else 0, same.size, error)


def held_out_probabilities(similarities: Any, same: Any, classes: Any) -> np.ndarray | None:
    """Return each pair's probability by a curve that was fitted without its query's class.

    One curve is fitted to every second class and applied to the others, a second one the other way round. The arguments
    are those of `calibrate`.

    Returns:
        Float64 of the shape of `similarities`; None for fewer than four classes and where a half cannot be fitted.
    """
    similarities, same = _check_arguments(similarities, same, classes)
    codes = np.unique(np.asarray(classes), return_inverse=True)[1]
    if codes.max(initial=0) < 3:
        return None
    probabilities = np.empty_like(similarities)
    for half in (0, 1):
        fitted, rest = codes % 2 == half, codes % 2 != half
        try:
            slope, offset = _fit(similarities[fitted].ravel(), same[fitted].ravel())
        except EvaluationError:
            return None
        probabilities[rest] = _logistic(slope * similarities[rest] + offset)
    return probabilities


def reliability_bins(probabilities: Any, same: Any, bins: int = 10) -> list[Bin]:
    """Return the reliability diagram: one `Bin` for each of `bins` equal parts of 0 to 1 that is not empty."""
    probabilities, same = np.asarray(probabilities, np.float64).ravel(), np.asarray(same, bool).ravel()
    index = np.minimum((probabilities * bins).astype(int), bins - 1)
    counts = np.bincount(index, minlength=bins)
    sums, hits = np.bincount(index, probabilities, bins), np.bincount(index, same, bins)
    return [Bin(sums[i] / counts[i], hits[i] / counts[i], int(counts[i])) for i in np.flatnonzero(counts)]


def expected_calibration_error(bins: list[Bin]) -> float:
    """Return the mean distance between probability and share, weighted by the bins' sizes (Naeini et al. 2015)."""
    total = sum(part.count for part in bins)
    return sum(part.count * abs(part.probability - part.share) for part in bins) / total


def _check_arguments(similarities: Any, same: Any, classes: Any) -> tuple[np.ndarray, np.ndarray]:
    similarities, same = np.asarray(similarities, np.float64), np.asarray(same, bool)
    if similarities.shape != same.shape or similarities.ndim not in (1, 2) or len(classes) != len(same):
        raise EvaluationError(
            f"similarities {list(similarities.shape)} and same {list(same.shape)} must both be [n, k] or [n], with n "
            f"classes, not {len(classes)}.",
            code="invalid-shape",
        )
    if not np.isfinite(similarities).all():
        raise EvaluationError("similarities must be finite.", code="not-finite")
    return similarities, same


def _fit(similarities: np.ndarray, same: np.ndarray) -> tuple[float, float]:
    """Return slope and offset by Newton's method with halved steps; the loss is convex."""
    positives, negatives = int(same.sum()), int((~same).sum())
    if not positives or not negatives:
        kind = "of the query's class" if positives else "of another class"
        raise EvaluationError(
            f"all {same.size} neighbours are {kind}: a calibration needs neighbours of both kinds.",
            code="single-outcome",
        )
    targets = np.where(same, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    # With standardised inputs the two unknowns are nearly independent and the first step is nearly right.
    mean, deviation = similarities.mean(), max(float(similarities.std()), 1e-12)
    inputs = np.stack([(similarities - mean) / deviation, np.ones_like(similarities)])
    weights = np.array([0.0, np.log((positives + 1) / (negatives + 1))])
    loss = _cross_entropy(weights @ inputs, targets)
    for _ in range(_MAX_STEPS):
        probabilities = _logistic(weights @ inputs)
        gradient = inputs @ (probabilities - targets)
        curvature = (inputs * (probabilities * (1 - probabilities))) @ inputs.T + 1e-9 * np.eye(2)
        step, scale = np.linalg.solve(curvature, gradient), 1.0
        while (new_loss := _cross_entropy((weights - scale * step) @ inputs, targets)) > loss and scale > 1e-6:
            scale /= 2
        weights, gain, loss = weights - scale * step, loss - new_loss, new_loss
        if gain <= _TOLERANCE * same.size:
            break
    slope = float(weights[0] / deviation)
    if slope <= 0:
        raise EvaluationError(
            "neighbours of higher similarity are not more often of the query's class, so similarity predicts nothing "
            "here. Check that the labels belong to these images.",
            code="uninformative-similarity",
        )
    return slope, float(weights[1] - slope * mean)


def _logistic(scores: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(0.5 * scores))  # without overflow


def _cross_entropy(scores: np.ndarray, targets: np.ndarray) -> float:
    return float((np.logaddexp(0, scores) - targets * scores).sum())

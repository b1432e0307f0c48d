"""Whitening of features by their covariance, or by that within classes, in NumPy alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from zoo.console import count
from zoo.errors import UsageError
from zoo.models.card import Card
from zoo.models.folder import ONNX

SMALLEST = 1e-9
"""Least variance along a direction, as a share of the largest, that is more than float32 rounding."""

SHRINK, POWER = 0.1, 0.5
"""Share of the mean variance that is added to every direction's, and the power of the variance that each is divided by,
where nothing else is asked for."""

LEAST_DIM = 64
"""Directions below which whitening is not worth while: a search by so few numbers loses more than it gains."""

BLOCK = 2048
"""Rows that are converted to float64 at a time."""


def check_can_be_whitened(card: Card) -> None:
    """Raise `UsageError` (`not-available`) for a model that whitening cannot be added to.

    Whitening is a linear map of a trunk's features, or of what a single head makes of them.
    """
    if card.architecture == ONNX:
        raise UsageError(f"{card.name} is an ONNX graph, which cannot be whitened.", code="not-available")
    if len(card.heads) > 1:
        raise UsageError(
            f"{card.name} joins {len(card.heads)} heads; only a model with one vector can be whitened.",
            code="not-available",
        )


def default_dim(images: int, width: int) -> int:
    """Return the number of directions that whitening of features [images, width] keeps by default.

    Each is estimated by two images or more.

    Raises:
        UsageError: `too-few-samples` for so few images that less than `LEAST_DIM` directions of more would be left.
    """
    dim = min(width, (images - 1) // 2)
    if dim < min(width, LEAST_DIM):
        raise UsageError(
            f"{count(images, 'image')} are too few for whitening, which takes {2 * min(width, LEAST_DIM) + 1} or more. "
            "Leave --whiten out, give more images, or say with --dim how many numbers to keep.",
            code="too-few-samples",
        )
    return dim


def fit_whitening(
    features: np.ndarray, dim: int | None = None, shrink: float = 0.0, power: float = POWER
) -> tuple[np.ndarray, np.ndarray]:
    """Fit PCA whitening: features @ weight.T + bias have mean 0 and, without `shrink`, covariance 1.

    Keeps the directions of largest variance, each divided by its standard deviation (n - 1 degrees of freedom), the
    largest variance first. Computed in float64, one block of rows at a time. Whitening before retrieval: Jégou & Chum
    2012, Negative Evidences and Co-occurrences in Image Retrieval: the Benefit of PCA and Whitening, section 3.

    Args:
        features: [n, f].
        dim: Number of directions; by default all f.
        shrink: Share of the mean variance that is added to the variance of every direction: small ones, which are of
            noise or of these images alone, are enlarged less.
        power: Power of the variance by which each direction is divided: 0 rotates only, .5 whitens.

    Returns:
        Weight float32 [dim, f] and bias float32 [dim].

    Raises:
        UsageError: `invalid-value` for a negative share, a power outside 0 to 1 or a dimension outside 1 to f,
            `too-few-samples` if the rows vary along fewer directions, `not-finite` for features that are not finite.
    """
    images = len(features)
    kept = check_whitening(images, features.shape[1], dim, shrink, power)
    mean, covariance = _moments(features)
    variances, directions = np.linalg.eigh(covariance)
    varied = int((variances > SMALLEST * max(variances[-1], 1e-30)).sum()) if images > 1 else 0
    _check_directions(images, varied, kept)
    lengths = (variances[::-1][:kept] + shrink * variances.mean()) ** power
    projection = directions[:, ::-1][:, :kept] / lengths
    # The sign of an eigenvector is arbitrary; this rule gives the same sign on every machine.
    projection *= np.sign(projection[np.abs(projection).argmax(0), np.arange(kept)])
    return projection.T.astype(np.float32), (-mean @ projection).astype(np.float32)


def within_class_whitening(features: np.ndarray, labels: np.ndarray, shrink: float) -> np.ndarray:
    """Return the symmetric map that makes the scatter within classes a sphere: the inverse root of its covariance.

    It weakens what differs between images of one class, as linear discriminant analysis does (Fisher 1936, The use of
    multiple measurements in taxonomic problems; Mikolajczyk & Matas 2007, Improving Descriptors for Fast Tree Matching
    by Optimal Linear Projection). The covariance is shrunk towards a multiple of the identity (Friedman 1989,
    Regularized discriminant analysis).

    Args:
        features: [n, f].
        labels: Their classes, int [n].
        shrink: Share of the mean variance within classes that is added to every direction's.

    Returns:
        A matrix float64 [f, f]; the identity if no class has two different rows.
    """
    values = features.astype(np.float64)
    _, positions, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    sums = np.zeros((len(sizes), values.shape[1]))
    np.add.at(sums, positions, values)
    inside = values - (sums / sizes[:, None])[positions]
    if not inside.any():
        return np.eye(values.shape[1])
    variances, directions = np.linalg.eigh(inside.T @ inside / (len(values) - len(sizes)))
    scale = 1 / np.sqrt(np.maximum(variances, 0) + shrink * variances.mean())
    whitening: np.ndarray = (directions * scale) @ directions.T
    return whitening


def check_whitening(images: int, width: int, dim: int | None = None, shrink: float = 0.0, power: float = POWER) -> int:
    """Return the number of directions that whitening of features [images, width] keeps.

    Raises:
        UsageError: `invalid-value` or `too-few-samples`, as `fit_whitening`.
    """
    if not 0 <= shrink < np.inf:
        raise UsageError(f"--shrink is 0 or more, not {shrink}.", code="invalid-value")
    if not 0 <= power <= 1:
        raise UsageError(f"--power is 0 to 1, not {power}.", code="invalid-value")
    kept = width if dim is None else dim
    if not 1 <= kept <= width:
        raise UsageError(
            f"the features have {width} numbers, so whitening keeps 1 to {width} of them, not {kept}.",
            code="invalid-value",
        )
    _check_directions(images, max(0, images - 1), kept)
    return kept


def _check_directions(images: int, varied: int, wanted: int) -> None:
    """Check that images vary along enough directions."""
    if varied < wanted:
        raise UsageError(
            f"{count(images, 'image')} can give {count(varied, 'direction')}, fewer than the {wanted} to be kept. "
            "Give a smaller --dim or more images.",
            code="too-few-samples",
        )


def _moments(features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows' mean [f] and covariance [f, f], float64; zeros for too few rows."""
    total, width = features.shape
    mean, scatter = np.zeros(width), np.zeros((width, width))
    for rows in _blocks(features):
        if not np.isfinite(rows).all():
            raise UsageError("some features are not finite; whitening cannot be fitted on them.", code="not-finite")
        mean += rows.sum(0) / total
    # A second pass, because the sum of squares minus the square of the sum loses the small variances.
    for rows in _blocks(features):
        rows -= mean
        scatter += rows.T @ rows
    return mean, scatter / max(total - 1, 1)


def _blocks(features: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(features), BLOCK):
        yield features[start : start + BLOCK].astype(np.float64)

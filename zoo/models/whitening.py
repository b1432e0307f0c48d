"""Whitening of features by their covariance, or by that within classes, in NumPy alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from zoo.console import count
from zoo.errors import UsageError

SMALLEST = 1e-9
"""Least variance along a direction, as a share of the largest, that is more than float32 rounding."""

BLOCK = 2048
"""Rows that are converted to float64 at a time."""


def fit_whitening(features: np.ndarray, dim: int | None = None, shrink: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Fit PCA whitening: features @ weight.T + bias have mean 0 and, without `shrink`, covariance 1.

    Keeps the directions of largest variance, each divided by its standard deviation (n - 1 degrees of freedom).
    Computed in float64, one block of rows at a time. Whitening before retrieval: Jégou & Chum 2012, Negative Evidences
    and Co-occurrences in Image Retrieval: the Benefit of PCA and Whitening, section 3.

    Args:
        features: [n, f].
        dim: Number of directions; by default all f.
        shrink: Share of the mean variance that is added to the variance of every direction: small ones, which are of
            noise or of these images alone, are enlarged less.

    Returns:
        Weight float32 [dim, f] and bias float32 [dim].

    Raises:
        UsageError: `invalid-value` for a negative share, `invalid-value` for a dimension outside 1 to f,
            `too-few-samples` if the rows vary along fewer directions, `not-finite` for features that are not finite.
    """
    images = len(features)
    wanted = check_whitening(images, features.shape[1], dim, shrink)
    mean, covariance = _moments(features)
    variances, directions = np.linalg.eigh(covariance)
    varied = int((variances > SMALLEST * max(variances[-1], 1e-30)).sum()) if images > 1 else 0
    _check_directions(images, varied, wanted)
    projection = directions[:, ::-1][:, :wanted] / np.sqrt(variances[::-1][:wanted] + shrink * variances.mean())
    # The sign of an eigenvector is arbitrary; this rule gives the same sign on every machine.
    projection *= np.sign(projection[np.abs(projection).argmax(0), np.arange(wanted)])
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


def check_whitening(images: int, width: int, dim: int | None = None, shrink: float = 0.0) -> int:
    """Return the number of directions that whitening of features [images, width] keeps.

    Raises:
        UsageError: `invalid-value` or `too-few-samples`, as `fit_whitening`.
    """
    if not 0 <= shrink < np.inf:
        raise UsageError(f"--shrink is 0 or more, not {shrink}.", code="invalid-value")
    wanted = width if dim is None else dim
    if not 1 <= wanted <= width:
        raise UsageError(
            f"the features have {width} numbers, so whitening keeps 1 to {width} of them, not {wanted}.",
            code="invalid-value",
        )
    _check_directions(images, max(0, images - 1), wanted)
    return wanted


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

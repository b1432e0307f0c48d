"""PCA whitening of embeddings, as one linear map that a model folder stores as a head."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from zoo.errors import UsageError

SMALLEST = 1e-9
"""The least variance along a direction, as a share of the largest, for it to be more than rounding of float32."""

BLOCK = 2048
"""Rows that are held in float64 at a time."""


def fit_whitening(features: np.ndarray, dim: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """weight float32 [dim, f] and bias float32 [dim]: features [n, f] @ weight.T + bias have mean 0 and covariance 1.

    The `dim` directions of largest variance (default: all f), each divided by its standard deviation over the n rows
    (n - 1 degrees of freedom). Computed in float64, a block of rows at a time. Whitening before retrieval: Jégou &
    Chum 2012, Negative Evidences and Co-occurrences in Image Retrieval: the Benefit of PCA and Whitening, section 3.

    Raises `UsageError` where the rows do not vary along that many directions.
    """
    count, width = features.shape
    wanted = width if dim is None else dim
    if not 1 <= wanted <= width:
        raise UsageError(f"the features have {width} numbers, so whitening keeps 1 to {width} of them, not {wanted}.")
    mean, covariance = _moments(features)
    variances, directions = np.linalg.eigh(covariance)
    varied = int((variances > SMALLEST * max(variances[-1], 1e-30)).sum()) if count > 1 else 0
    if varied < wanted:
        raise UsageError(
            f"{count} images vary along {varied} directions, which is fewer than the {wanted} to be kept: give a "
            "smaller --dim or more images."
        )
    chosen = directions[:, ::-1][:, :wanted] / np.sqrt(variances[::-1][:wanted])
    # Eigenvectors have no sign of their own; a rule makes the same one everywhere.
    chosen *= np.sign(chosen[np.abs(chosen).argmax(0), np.arange(wanted)])
    return chosen.T.astype(np.float32), (-mean @ chosen).astype(np.float32)


def _moments(features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows' mean [f] and covariance [f, f], float64; zeros where there are too few rows."""
    count, width = features.shape
    mean, scatter = np.zeros(width), np.zeros((width, width))
    for rows in _blocks(features):
        if not np.isfinite(rows).all():
            raise UsageError("some features are not finite; whitening cannot be fitted on them.")
        mean += rows.sum(0) / count
    # A second pass, because the sum of squares less the square of the sum loses the small variances.
    for rows in _blocks(features):
        rows -= mean
        scatter += rows.T @ rows
    return mean, scatter / max(count - 1, 1)


def _blocks(features: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(features), BLOCK):
        yield features[start : start + BLOCK].astype(np.float64)

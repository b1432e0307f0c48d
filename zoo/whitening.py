"""PCA whitening of embeddings, as one linear map that a model folder stores as a head."""

from __future__ import annotations

import numpy as np

from zoo.errors import UsageError

SMALLEST = 1e-9
"""The least variance along a direction, as a share of the largest, for it to be more than rounding of float32."""


def fit_whitening(features: np.ndarray, dim: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """weight float32 [dim, f] and bias float32 [dim]: features [n, f] @ weight.T + bias have mean 0 and covariance 1.

    The `dim` directions of largest variance (default: all f), each divided by its standard deviation over the n rows
    (n - 1 degrees of freedom). Computed in float64. Whitening before retrieval: Jégou & Chum 2012, Negative Evidences
    and Co-occurrences in Image Retrieval: the Benefit of PCA and Whitening, section 3.

    Raises `UsageError` where the rows do not vary along that many directions.
    """
    count, width = features.shape
    wanted = width if dim is None else dim
    if not 1 <= wanted <= width:
        raise UsageError(f"the features have {width} numbers, so whitening keeps 1 to {width} of them, not {wanted}.")
    rows = np.asarray(features, np.float64)
    if not np.isfinite(rows).all():
        raise UsageError("some features are not finite; whitening cannot be fitted on them.")
    mean = rows.mean(0) if count else np.zeros(width)
    centred = rows - mean
    variances, directions = np.linalg.eigh(centred.T @ centred / max(count - 1, 1))
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

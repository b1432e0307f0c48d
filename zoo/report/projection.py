"""Embeddings on a plane: principal components in NumPy, or t-SNE where scikit-learn is installed."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import numpy as np

from zoo.errors import MissingDependencyError


def principal_components(rows: np.ndarray) -> tuple[np.ndarray, float]:
    """The rows along the two directions of largest variance, float64 [n, 2], and the share of variance in these two.

    rows: [n, d], n and d at least 1; with d = 1 the second coordinate is zero. Each direction points to where its entry
    of largest absolute value is positive, so that the picture does not depend on the linear algebra library.
    """
    centred = np.asarray(rows, np.float64) - np.mean(rows, axis=0, dtype=np.float64)
    values, vectors = np.linalg.eigh(centred.T @ centred)  # ascending
    directions = vectors[:, ::-1][:, :2]
    largest = np.abs(directions).argmax(axis=0)
    directions = directions * np.sign(directions[largest, np.arange(directions.shape[1])])
    plane = np.zeros((len(centred), 2))
    plane[:, : directions.shape[1]] = centred @ directions
    total = values.sum()
    return plane, float(values[::-1][:2].sum() / total) if total > 0 else 1.0


def check_available() -> None:
    """Raise `MissingDependencyError` where t-SNE cannot be had."""
    if find_spec("sklearn") is None:
        raise MissingDependencyError(
            "t-SNE needs scikit-learn, which is not installed. Install it, or take the principal components: --map pca"
        )


def neighbour_embedding(rows: np.ndarray, seed: int = 0) -> np.ndarray:
    """t-SNE of the rows [n, d] with n at least 3: [n, 2] (van der Maaten & Hinton 2008, Visualizing Data using t-SNE).

    Needs scikit-learn: `check_available`.
    """
    manifold = import_module("sklearn.manifold")
    plane: np.ndarray = manifold.TSNE(perplexity=min(30.0, (len(rows) - 1) / 3), random_state=seed).fit_transform(rows)
    return plane

"""Measures of the known factors beside the class that an embedding encodes: colour, face, angle."""

from __future__ import annotations

import numpy as np

from zoo.errors import EvaluationError


def neighbours_across_classes(embeddings: np.ndarray, labels: np.ndarray, values: np.ndarray) -> dict[str, float]:
    """Return the share of samples whose nearest neighbour of ANOTHER class has the same value of a factor.

    Args:
        embeddings: Float [n, d], unit rows. All samples are queries; ties go to the lower index.
        labels: Int [n], the classes.
        values: Int [n], the factor.

    Returns:
        `precision`, and `chance`: the mean share of the samples of other classes that have the query's value.

    Raises:
        EvaluationError: If there are fewer than two classes.
    """
    if len(np.unique(labels)) < 2:
        raise EvaluationError("neighbours of other classes need at least two classes.", code="too-few-classes")
    hits, chances = [], []
    for rows in np.array_split(np.arange(len(labels)), max(1, len(labels) // 1024)):
        other_class = labels[rows][:, None] != labels[None, :]
        same = values[rows][:, None] == values[None, :]
        nearest = np.where(other_class, embeddings[rows] @ embeddings.T, -np.inf).argmax(1)
        hits.append(same[np.arange(len(rows)), nearest])
        chances.append((same & other_class).sum(1) / other_class.sum(1))
    return {"precision": float(np.concatenate(hits).mean()), "chance": float(np.concatenate(chances).mean())}


def order_within_classes(embeddings: np.ndarray, labels: np.ndarray, measure: np.ndarray) -> float:
    """Return the rank correlation between distance and difference of a numeric factor, over pairs of one class.

    Args:
        embeddings: Float [n, d].
        labels: Int [n], the classes.
        measure: Float [n], the factor.

    Returns:
        Spearman's correlation, as the mean over classes of at least three samples; 1 where the embedding orders each
        class by the factor.

    Raises:
        EvaluationError: If no class has three samples.
    """
    scores = []
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        if len(rows) < 3:
            continue
        i, j = np.triu_indices(len(rows), 1)
        distances = np.linalg.norm(embeddings[rows[i]] - embeddings[rows[j]], axis=1)
        scores.append(_correlation(_ranks(distances), _ranks(np.abs(measure[rows[i]] - measure[rows[j]]))))
    if not scores:
        raise EvaluationError(
            "the order within classes needs a class of at least three samples.", code="too-few-samples"
        )
    return float(np.mean(scores))


def predictability(source: np.ndarray, target: np.ndarray, labels: np.ndarray, penalty: float = 1e-3) -> float:
    """Return the share of one embedding's variance that another one predicts linearly on new classes (R^2).

    Ridge regression is fitted on every second class and scored on the rest; then the halves change places.

    Args:
        source: Float [n, d], the embedding that predicts.
        target: Float [n, e], the embedding that is predicted.
        labels: Int [n], the classes.
        penalty: The ridge penalty, as a multiple of the mean variance of `source`.

    Returns:
        The mean R^2 of both halves.
    """
    even = np.isin(labels, np.unique(labels)[::2])
    return float(np.mean([_r_squared(source, target, fit, penalty) for fit in (even, ~even)]))


def _r_squared(source: np.ndarray, target: np.ndarray, fit: np.ndarray, penalty: float) -> float:
    x, y = source - source[fit].mean(0), target - target[fit].mean(0)
    gram = x[fit].T @ x[fit]
    gram[np.diag_indices_from(gram)] += penalty * np.trace(gram) / len(gram)
    predicted = x[~fit] @ np.linalg.solve(gram, x[fit].T @ y[fit])
    return float(1 - ((y[~fit] - predicted) ** 2).sum() / ((y[~fit] - y[~fit].mean(0)) ** 2).sum())


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return ranks from 0; equal values share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    return ((last - counts + last - 1) / 2)[inverse]


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a - a.mean(), b - b.mean()
    scale = np.sqrt((a**2).sum() * (b**2).sum())
    return float((a * b).sum() / scale) if scale else 0.0

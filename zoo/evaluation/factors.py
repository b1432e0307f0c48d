"""What an embedding says of known factors beside the class: colour, face, angle."""

from __future__ import annotations

import numpy as np

from zoo.errors import EvaluationError


def neighbours_across_classes(embeddings: np.ndarray, labels: np.ndarray, values: np.ndarray) -> dict[str, float]:
    """How often the nearest neighbour of ANOTHER class shares the query's value of a factor.

    embeddings: float [n, d], unit rows; labels, values: int [n]. Returns `precision`, and `chance`: the mean share of
    the samples of other classes that have the query's value. Queries are all samples; ties go to the lower index.
    Raises `EvaluationError` for fewer than two classes.
    """
    if len(np.unique(labels)) < 2:
        raise EvaluationError("neighbours of other classes need two classes or more.")
    hits, chances = [], []
    for rows in np.array_split(np.arange(len(labels)), max(1, len(labels) // 1024)):
        others = labels[rows][:, None] != labels[None, :]
        same = values[rows][:, None] == values[None, :]
        nearest = np.where(others, embeddings[rows] @ embeddings.T, -np.inf).argmax(1)
        hits.append(same[np.arange(len(rows)), nearest])
        chances.append((same & others).sum(1) / others.sum(1))
    return {"precision": float(np.concatenate(hits).mean()), "chance": float(np.concatenate(chances).mean())}


def order_within_classes(embeddings: np.ndarray, labels: np.ndarray, measure: np.ndarray) -> float:
    """Spearman's rank correlation between distance and difference of a measured factor, over pairs of one class.

    embeddings: float [n, d]; labels: int [n]; measure: float [n]. The mean over classes of three samples and more; 1
    where the embedding orders each class by the factor. Raises `EvaluationError` where no class has three samples.
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
        raise EvaluationError("no class has the three samples that an order needs.")
    return float(np.mean(scores))


def predictability(known: np.ndarray, other: np.ndarray, labels: np.ndarray, penalty: float = 1e-3) -> float:
    """The share of an embedding's variance that another one predicts linearly on classes it was not fitted on (R^2).

    known: float [n, d]; other: float [n, e]; labels: int [n]. Ridge regression with `penalty` times the mean variance
    of `known`, fitted on every other class and scored on the rest, then the other way round; the mean of both.
    """
    even = np.isin(labels, np.unique(labels)[::2])
    return float(np.mean([_r_squared(known, other, fit, penalty) for fit in (even, ~even)]))


def _r_squared(known: np.ndarray, other: np.ndarray, fit: np.ndarray, penalty: float) -> float:
    x, y = known - known[fit].mean(0), other - other[fit].mean(0)
    gram = x[fit].T @ x[fit]
    gram[np.diag_indices_from(gram)] += penalty * np.trace(gram) / len(gram)
    predicted = x[~fit] @ np.linalg.solve(gram, x[fit].T @ y[fit])
    return float(1 - ((y[~fit] - predicted) ** 2).sum() / ((y[~fit] - y[~fit].mean(0)) ** 2).sum())


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0; equal values share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    return ((last - counts + last - 1) / 2)[inverse]


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a - a.mean(), b - b.mean()
    scale = np.sqrt((a**2).sum() * (b**2).sum())
    return float((a * b).sum() / scale) if scale else 0.0

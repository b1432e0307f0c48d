"""How densely classes lie, within and between: Revisiting's distances (Roth et al. 2020, section 5), and its code's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from zoo.errors import EvaluationError
from zoo.evaluation.inputs import class_codes, members_of, unit_rows
from zoo.evaluation.neighbours import as_rows

CHUNK_BYTES = 64 * 2**20
"""How large one chunk's table of float64 distances may be."""


def intra_class_distance(embeddings: Any, labels: Any) -> float:
    """Mean Euclidean distance of two samples of one class: the mean over classes of each class's mean over pairs.

    embeddings: [n, d], as they are (the paper's are of unit length); labels: n integers or strings. Classes of one
    sample have no pair and are left out. Section 5, pi_intra; the paper leaves open whether pairs or classes weigh
    alike: here classes do, as in its code.

    Raises `EvaluationError` for rows that are not 2-D and finite, labels that do not fit, and no class of two samples.
    """
    return _over_classes(as_rows(embeddings, "embeddings"), labels, _mean_distance)


def inter_class_distance(embeddings: Any, labels: Any) -> float:
    """Mean Euclidean distance of the MEANS of two classes, over all pairs of classes; the means are not normalised.

    Section 5, pi_inter. Arguments as of `intra_class_distance`. Raises `EvaluationError` for fewer than two classes.
    """
    return _mean_distance(_class_means(as_rows(embeddings, "embeddings"), labels))


def intra_class_cosine_distance(embeddings: Any, labels: Any) -> float:
    """Mean of 1 - cosine of two samples of one class, weighed as in `intra_class_distance`; 0 to 2.

    The code of Revisiting (`dists@intra`), which gives classes of one sample the largest value of all; here they are
    left out. Raises `EvaluationError` as `intra_class_distance` does, and for rows that are all zero.
    """
    return _over_classes(unit_rows(embeddings), labels, lambda rows: scatter(rows) / (len(rows) - 1))


def inter_class_cosine_distance(embeddings: Any, labels: Any) -> float:
    """Mean of 1 - cosine of the means of two classes, over all pairs of classes; rows are scaled to unit length first.

    The code of Revisiting (`dists@inter`). A mean of length 0 has the cosine 0 with every other. Raises
    `EvaluationError` as `inter_class_distance` does, and for rows that are all zero.
    """
    means = _class_means(unit_rows(embeddings), labels)
    lengths = np.linalg.norm(means, axis=1, keepdims=True)
    directions = np.divide(means, lengths, out=np.zeros_like(means), where=lengths > 0)
    total = (directions.sum(axis=0) ** 2).sum() - (directions**2).sum()
    return float(1 - total / (len(means) * (len(means) - 1)))


def density_ratio(intra: float, inter: float) -> float:
    """pi_ratio = pi_intra / pi_inter (section 5), also of cosine distances.

    What float32 cannot part is taken as float32's rounding apart, so that it is a number where all classes coincide.
    """
    return intra / max(inter, float(np.finfo(np.float32).eps))


def scatter(rows: np.ndarray) -> float:
    """The sum of squared distances to the mean; of [n, d], that is 1 / 2n of the sum over all ordered pairs."""
    rows = rows.astype(np.float64)
    return float(((rows - rows.mean(axis=0)) ** 2).sum())


def _over_classes(rows: np.ndarray, labels: Any, measure: Callable[[np.ndarray], float]) -> float:
    members = members_of(class_codes(labels, len(rows))[0])
    values = [measure(rows[own]) for own in members if len(own) > 1]
    if not values:
        raise EvaluationError("distances within a class need a class of at least two samples.")
    return float(np.mean(values))


def _class_means(rows: np.ndarray, labels: Any) -> np.ndarray:
    """The mean of each class, float64 [classes, d]."""
    codes = class_codes(labels, len(rows))[0]
    if len(np.unique(codes)) < 2:
        raise EvaluationError("distances between classes need at least two classes.")
    return np.stack([rows[own].mean(axis=0, dtype=np.float64) for own in members_of(codes)])


def _mean_distance(rows: np.ndarray) -> float:
    """Over all pairs of different rows of [n, d]."""
    rows = rows.astype(np.float64)
    rows -= rows.mean(axis=0)  # the nearer to the origin, the less is lost in the products
    lengths, total = np.einsum("ij,ij->i", rows, rows), 0.0
    step = max(1, CHUNK_BYTES // (8 * len(rows)))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        squares = (lengths[part, None] + lengths - 2 * rows[part] @ rows.T).clip(min=0)
        squares[np.arange(len(squares)), np.arange(start, start + len(squares))] = 0
        total += float(np.sqrt(squares).sum())
    return total / (len(rows) * (len(rows) - 1))

"""Structure of an embedding space: density of classes, spectral decay, alignment and uniformity.

Density and spectral decay are those of Revisiting (Roth et al. 2020, section 5), including the cosine distances of its
code. Alignment and uniformity are those of Wang and Isola 2020 (Understanding Contrastive Representation Learning
through Alignment and Uniformity on the Hypersphere, section 4.1), with the exponents of its experiments, 2 each; both
are losses, so less is better.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from zoo.errors import EvaluationError
from zoo.evaluation.gpu import MIN_ROWS, kernel_sum_on_gpu, singular_values_on_gpu
from zoo.evaluation.inputs import class_codes, rows_by_class, unit_rows
from zoo.evaluation.knn import as_rows

CHUNK_BYTES = 64 * 2**20
"""The largest size of a chunk's table of distances or similarities."""


def structure_metrics(embeddings: Any, labels: Any) -> dict[str, float]:
    """Return every measure of structure, of the rows scaled to unit length.

    Revisiting measures the structure of the TRAINING data.

    Args:
        embeddings: [n, d].
        labels: n integers or strings.

    Returns:
        intra_class_distance, inter_class_distance, intra_inter_ratio     Euclidean, as in the paper of Revisiting
        intra_class_cosine_distance, inter_class_cosine_distance, intra_inter_cosine_ratio     cosine, as in its code
        spectral_decay            of all rows
        spectral_decay_drop_1     without the largest singular value (code of Revisiting: rho_spectrum@2)
        spectral_decay_by_class   the mean over classes (its appendix C)
        alignment, uniformity     Wang and Isola 2020.

    Raises:
        EvaluationError: As `retrieval_metrics`; fewer than two classes or dimensions; no class of two samples.
    """
    rows = unit_rows(embeddings)
    if rows.shape[1] < 2:
        raise EvaluationError(
            "structure needs at least two dimensions, and the embeddings have one; leave this group out.",
            code="too-few-samples",
        )
    intra, inter = intra_class_distance(rows, labels), inter_class_distance(rows, labels)
    intra_cosine, inter_cosine = intra_class_cosine_distance(rows, labels), inter_class_cosine_distance(rows, labels)
    return {
        "intra_class_distance": intra,
        "inter_class_distance": inter,
        "intra_inter_ratio": density_ratio(intra, inter),
        "intra_class_cosine_distance": intra_cosine,
        "inter_class_cosine_distance": inter_cosine,
        "intra_inter_cosine_ratio": density_ratio(intra_cosine, inter_cosine),
        "spectral_decay": spectral_decay(rows),
        "spectral_decay_drop_1": spectral_decay(rows, drop=1),
        "spectral_decay_by_class": spectral_decay_by_class(rows, labels),
        "alignment": alignment(rows, labels),
        "uniformity": uniformity(rows),
    }


def intra_class_distance(embeddings: Any, labels: Any) -> float:
    """Return the mean Euclidean distance between two samples of one class, pi_intra of section 5.

    It is the mean over classes of each class's mean over pairs, as in the code of Revisiting; the paper does not say
    whether pairs or classes weigh alike. Classes of one sample have no pair and are left out.

    Args:
        embeddings: [n, d], used without scaling (the paper's are of unit length).
        labels: n integers or strings.

    Raises:
        EvaluationError: If rows are not 2-D and finite, labels do not fit, or no class has two samples.
    """
    return _mean_over_classes(as_rows(embeddings, "embeddings"), labels, _mean_distance)


def inter_class_distance(embeddings: Any, labels: Any) -> float:
    """Return the mean Euclidean distance between the MEANS of two classes, pi_inter of section 5.

    The means are not normalised. Arguments are those of `intra_class_distance`.

    Raises:
        EvaluationError: As `intra_class_distance`, and for fewer than two classes.
    """
    return _mean_distance(_class_means(as_rows(embeddings, "embeddings"), labels))


def intra_class_cosine_distance(embeddings: Any, labels: Any) -> float:
    """Return the mean of 1 - cosine of two samples of one class, from 0 to 2, as the mean over classes.

    The code of Revisiting (`dists@intra`) gives classes of one sample the largest value; here they are left out.

    Raises:
        EvaluationError: As `intra_class_distance`, and for rows that are all zero.
    """
    return _mean_over_classes(unit_rows(embeddings), labels, lambda rows: _scatter(rows) / (len(rows) - 1))


def inter_class_cosine_distance(embeddings: Any, labels: Any) -> float:
    """Return the mean of 1 - cosine of the means of two classes, over all pairs of classes (`dists@inter`).

    Rows are scaled to unit length first. A mean of length 0 has the cosine 0 with every other.

    Raises:
        EvaluationError: As `inter_class_distance`, and for rows that are all zero.
    """
    means = _class_means(unit_rows(embeddings), labels)
    lengths = np.linalg.norm(means, axis=1, keepdims=True)
    directions = np.divide(means, lengths, out=np.zeros_like(means), where=lengths > 0)
    total = (directions.sum(axis=0) ** 2).sum() - (directions**2).sum()
    return float(1 - total / (len(means) * (len(means) - 1)))


def density_ratio(intra: float, inter: float) -> float:
    """Return pi_ratio = pi_intra / pi_inter (section 5), also for cosine distances.

    An `inter` below the rounding of float32 counts as that rounding, so the ratio is finite where all classes coincide.
    """
    return intra / max(inter, float(np.finfo(np.float32).eps))


def spectral_decay(embeddings: Any, drop: int = 0) -> float:
    """Return rho = KL(U || S): how unevenly the embeddings use their directions; 0 if they use all equally.

    S is the k = min(n, d) singular values of the rows, not centred, divided by their sum; U is uniform over k. The
    result is in nats and has no upper bound; the scale of the embeddings does not matter (Revisiting, section 5).

    An unused direction would make the divergence infinite. Singular values below the rounding of double precision
    therefore count as that rounding, so the result stays finite (some tens of nats at most). Where `drop` leaves
    nothing above the rounding, all values are equal, and the result is 0.

    Args:
        embeddings: [n, d].
        drop: The number of largest singular values that are left out of S and U first.

    Raises:
        EvaluationError: If rows are not 2-D and finite, the array is empty or all zero, or `drop` is not in 0 to k - 1.
    """
    rows = as_rows(embeddings, "embeddings")
    if not rows.any():
        raise EvaluationError("spectral decay needs at least one row that is not zero.", code="too-few-samples")
    if not 0 <= drop < min(rows.shape):
        raise EvaluationError(
            f"drop is {drop}, but there are {min(rows.shape)} singular values; at least one has to be left.",
            code="invalid-value",
        )
    values = singular_values_on_gpu(rows) if len(rows) >= MIN_ROWS else None
    values = np.linalg.svd(rows.astype(np.float64), compute_uv=False) if values is None else values
    rounding = values[0] * max(rows.shape) * np.finfo(np.float64).eps
    shares = np.maximum(values[drop:], rounding)
    shares /= shares.sum()
    return float(-np.log(len(shares) * shares).mean())


def spectral_decay_by_class(embeddings: Any, labels: Any, drop: int = 0) -> float:
    """Return the mean over classes of the spectral decay of each class's own rows (Revisiting, appendix C).

    Classes of one sample have one singular value, and `drop` leaves none of a class of `drop` samples; both are left
    out.

    Args:
        embeddings: [n, d], neither scaled nor centred.
        labels: n integers or strings.
        drop: The number of largest singular values of each class that are left out.

    Raises:
        EvaluationError: As `spectral_decay`, and where labels do not fit or no class has enough samples.
    """
    rows = as_rows(embeddings, "embeddings")
    members = [own for own in rows_by_class(class_codes(labels, len(rows))[0]) if len(own) > max(1, drop)]
    if not members:
        least = "two" if drop < 2 else str(drop + 1)
        raise EvaluationError(
            f"spectral decay by class needs a class of at least {least} samples.", code="too-few-samples"
        )
    return float(np.mean([spectral_decay(rows[own], drop) for own in members]))


def alignment(embeddings: Any, labels: Any) -> float:
    """Return E |x - y|^2 over positive pairs of unit rows; 0 if each class is one point.

    x is drawn among all samples that have a relative and y among its relatives, so a class weighs by its samples.
    Classes of one sample are left out.

    Args:
        embeddings: [n, d], scaled to unit length here.
        labels: n integers or strings.

    Raises:
        EvaluationError: As `retrieval_metrics`, and where no class has two samples.
    """
    rows = unit_rows(embeddings)
    members = [own for own in rows_by_class(class_codes(labels, len(rows))[0]) if len(own) > 1]
    if not members:
        raise EvaluationError("alignment needs a class of at least two samples.", code="too-few-samples")
    totals = [len(own) * 2 * _scatter(rows[own]) / (len(own) - 1) for own in members]
    return float(sum(totals) / sum(map(len, members)))


def uniformity(embeddings: Any, t: float = 2.0) -> float:
    """Return log E exp(-t |x - y|^2) over all pairs of different unit rows, from -4t to 0 (all in one point).

    Args:
        embeddings: [n, d], scaled to unit length here.
        t: The exponent.

    Raises:
        EvaluationError: If rows are not 2-D and finite, one is all zero, or there are fewer than two.
    """
    rows = unit_rows(embeddings)
    if len(rows) < 2:
        raise EvaluationError("uniformity needs at least two rows.", code="too-few-samples")
    # |x - y|^2 = 2 - 2 x.y for unit rows.
    total = kernel_sum_on_gpu(rows, 2 * t) if len(rows) >= MIN_ROWS else None
    total = _kernel_sum(rows, 2 * t) if total is None else total
    return float(np.log(total / (len(rows) * (len(rows) - 1))))


def _scatter(rows: np.ndarray) -> float:
    """Return the sum of squared distances of rows [n, d] to their mean: 1 / 2n of the sum over all ordered pairs."""
    rows = rows.astype(np.float64)
    return float(((rows - rows.mean(axis=0)) ** 2).sum())


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


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return ranks from 0; equal values share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    return ((last - counts + last - 1) / 2)[inverse]


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a - a.mean(), b - b.mean()
    scale = np.sqrt((a**2).sum() * (b**2).sum())
    return float((a * b).sum() / scale) if scale else 0.0


def _mean_over_classes(rows: np.ndarray, labels: Any, measure: Callable[[np.ndarray], float]) -> float:
    members = rows_by_class(class_codes(labels, len(rows))[0])
    values = [measure(rows[own]) for own in members if len(own) > 1]
    if not values:
        raise EvaluationError("distances within a class need a class of at least two samples.", code="too-few-samples")
    return float(np.mean(values))


def _class_means(rows: np.ndarray, labels: Any) -> np.ndarray:
    """Return the mean of each class, float64 [classes, d]."""
    codes = class_codes(labels, len(rows))[0]
    if len(np.unique(codes)) < 2:
        raise EvaluationError("distances between classes need at least two classes.", code="too-few-classes")
    return np.stack([rows[own].mean(axis=0, dtype=np.float64) for own in rows_by_class(codes)])


def _mean_distance(rows: np.ndarray) -> float:
    """Return the mean distance over all pairs of different rows of [n, d]."""
    rows = rows.astype(np.float64)
    rows -= rows.mean(axis=0)  # the products lose less precision near the origin
    lengths, total = np.einsum("ij,ij->i", rows, rows), 0.0
    step = max(1, CHUNK_BYTES // (8 * len(rows)))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        squares = (lengths[part, None] + lengths - 2 * rows[part] @ rows.T).clip(min=0)
        squares[np.arange(len(squares)), np.arange(start, start + len(squares))] = 0
        total += float(np.sqrt(squares).sum())
    return total / (len(rows) * (len(rows) - 1))


def _kernel_sum(rows: np.ndarray, scale: float) -> float:
    """Return the sum of `zoo.evaluation.gpu.kernel_sum_on_gpu` on the CPU."""
    total, step = 0.0, max(1, CHUNK_BYTES // (4 * len(rows)))
    for start in range(0, len(rows), step):
        kernel = np.exp(scale * (rows[start : start + step] @ rows.T - 1))
        kernel[np.arange(len(kernel)), np.arange(start, start + len(kernel))] = 0
        total += float(kernel.sum(dtype=np.float64))
    return total

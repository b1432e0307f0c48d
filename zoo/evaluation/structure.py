"""Density, spectral decay, alignment, uniformity.

How densely classes lie, within and between: Revisiting's distances (Roth et al. 2020, section 5), and its code's.

Alignment and uniformity on the unit hypersphere.

Wang and Isola 2020, Understanding Contrastive Representation Learning through Alignment and Uniformity on the
Hypersphere, section 4.1, with the exponents of its experiments, 2 each. Both are losses: less is better.

Structure of an embedding space, apart from any ranking (Roth et al. 2020, Revisiting, section 5).
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
    members = rows_by_class(class_codes(labels, len(rows))[0])
    values = [measure(rows[own]) for own in members if len(own) > 1]
    if not values:
        raise EvaluationError("distances within a class need a class of at least two samples.")
    return float(np.mean(values))


def _class_means(rows: np.ndarray, labels: Any) -> np.ndarray:
    """The mean of each class, float64 [classes, d]."""
    codes = class_codes(labels, len(rows))[0]
    if len(np.unique(codes)) < 2:
        raise EvaluationError("distances between classes need at least two classes.")
    return np.stack([rows[own].mean(axis=0, dtype=np.float64) for own in rows_by_class(codes)])


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


"""How large one chunk's table of float32 similarities may be."""


def alignment(embeddings: Any, labels: Any) -> float:
    """E |x - y|^2 over positive pairs of unit rows, from 0 (each class in one point).

    embeddings: [n, d], scaled to unit length here; labels: n integers or strings. x is drawn among all samples that
    have a relative, y among its relatives: a class counts by its samples. Classes of one sample are left out.

    Raises `EvaluationError` for what `retrieval_metrics` refuses and for no class of two samples.
    """
    rows = unit_rows(embeddings)
    members = [own for own in rows_by_class(class_codes(labels, len(rows))[0]) if len(own) > 1]
    if not members:
        raise EvaluationError("alignment needs a class of at least two samples.")
    totals = [len(own) * 2 * scatter(rows[own]) / (len(own) - 1) for own in members]
    return float(sum(totals) / sum(map(len, members)))


def uniformity(embeddings: Any, t: float = 2.0) -> float:
    """log E exp(-t |x - y|^2) over all pairs of different unit rows: 0 where all are in one point, at least -4t.

    embeddings: [n, d], scaled to unit length here. Raises `EvaluationError` for rows that are not 2-D and finite, that
    are all zero, and for fewer than two.
    """
    rows = unit_rows(embeddings)
    if len(rows) < 2:
        raise EvaluationError("uniformity needs at least two rows.")
    # |x - y|^2 = 2 - 2 x.y for unit rows.
    total = kernel_sum_on_gpu(rows, 2 * t) if len(rows) >= MIN_ROWS else None
    total = _kernel_sum(rows, 2 * t) if total is None else total
    return float(np.log(total / (len(rows) * (len(rows) - 1))))


def _kernel_sum(rows: np.ndarray, scale: float) -> float:
    """As on a GPU."""
    total, step = 0.0, max(1, CHUNK_BYTES // (4 * len(rows)))
    for start in range(0, len(rows), step):
        near = np.exp(scale * (rows[start : start + step] @ rows.T - 1))
        near[np.arange(len(near)), np.arange(start, start + len(near))] = 0
        total += float(near.sum(dtype=np.float64))
    return total


def structure_metrics(embeddings: Any, labels: Any) -> dict[str, float]:
    """Every measure of structure, of the rows scaled to unit length: embeddings [n, d]; labels, integers or strings.

        intra_class_distance, inter_class_distance, intra_inter_ratio     Euclidean, as the paper of Revisiting
        intra_class_cosine_distance, inter_class_cosine_distance, intra_inter_cosine_ratio     cosine, as its code
        spectral_decay            of all rows
        spectral_decay_drop_1     without the largest singular value (code of Revisiting: rho_spectrum@2)
        spectral_decay_by_class   the mean over classes (its appendix C)
        alignment, uniformity     Wang and Isola 2020

    Revisiting measures the TRAINING data's structure. Raises `EvaluationError` for what `retrieval_metrics` refuses,
    fewer than two classes or dimensions, and no class of two samples.
    """
    rows = unit_rows(embeddings)
    if rows.shape[1] < 2:
        raise EvaluationError("structure is of two dimensions or more, and the embeddings have one; leave it out.")
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


def spectral_decay(embeddings: Any, drop: int = 0) -> float:
    """rho = KL(U || S): how unevenly the embeddings use their directions; 0 where they use all alike, no upper end.

    embeddings: [n, d]. S holds the k = min(n, d) singular values, of the rows as they are (not centred), over their
    sum; U is uniform over k. In nats (Revisiting, section 5). The scale of the embeddings does not matter.
    drop: how many of the largest singular values are left out of S and U first.

    A direction that is not used at all would make the divergence infinite. Singular values below double precision's
    rounding therefore count as that rounding, so that the result stays a number (some tens of nats at most). Where
    `drop` leaves nothing above the rounding, all are alike, and the result is 0.

    Raises `EvaluationError` for rows that are not 2-D and finite, for no rows, where all are zero, and unless
    0 <= drop < k.
    """
    rows = as_rows(embeddings, "embeddings")
    if not rows.any():
        raise EvaluationError("spectral decay needs at least one row that is not zero.")
    if not 0 <= drop < min(rows.shape):
        raise EvaluationError(f"drop is {drop}, but there are {min(rows.shape)} singular values; one has to be left.")
    values = singular_values_on_gpu(rows) if len(rows) >= MIN_ROWS else None
    values = np.linalg.svd(rows.astype(np.float64), compute_uv=False) if values is None else values
    rounding = values[0] * max(rows.shape) * np.finfo(np.float64).eps
    shares = np.maximum(values[drop:], rounding)
    shares /= shares.sum()
    return float(-np.log(len(shares) * shares).mean())


def spectral_decay_by_class(embeddings: Any, labels: Any, drop: int = 0) -> float:
    """The mean over classes of the spectral decay of each class's own rows (Revisiting, appendix C).

    embeddings: [n, d], as they are and not centred; labels: n integers or strings. drop: how many of each class's
    largest singular values are left out. Classes of one sample have one singular value, and those of `drop` samples
    none that is left: they are left out. Raises `EvaluationError` as `spectral_decay` does, for labels that do not
    fit, and for no class of enough samples.
    """
    rows = as_rows(embeddings, "embeddings")
    members = [own for own in rows_by_class(class_codes(labels, len(rows))[0]) if len(own) > max(1, drop)]
    if not members:
        least = "two" if drop < 2 else str(drop + 1)
        raise EvaluationError(f"spectral decay by class needs a class of at least {least} samples.")
    return float(np.mean([spectral_decay(rows[own], drop) for own in members]))

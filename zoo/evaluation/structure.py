"""Structure of an embedding space, apart from any ranking (Roth et al. 2020, Revisiting, section 5)."""

from __future__ import annotations

from typing import Any

import numpy as np

from zoo.errors import EvaluationError
from zoo.evaluation.density import (
    density_ratio,
    inter_class_cosine_distance,
    inter_class_distance,
    intra_class_cosine_distance,
    intra_class_distance,
)
from zoo.evaluation.gpu import ON_GPU
from zoo.evaluation.gpu_structure import singular_values
from zoo.evaluation.hypersphere import alignment, uniformity
from zoo.evaluation.inputs import class_codes, members_of, unit_rows
from zoo.evaluation.neighbours import as_rows


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
    values = singular_values(rows) if len(rows) >= ON_GPU else None
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
    members = [own for own in members_of(class_codes(labels, len(rows))[0]) if len(own) > max(1, drop)]
    if not members:
        least = "two" if drop < 2 else str(drop + 1)
        raise EvaluationError(f"spectral decay by class needs a class of at least {least} samples.")
    return float(np.mean([spectral_decay(rows[own], drop) for own in members]))

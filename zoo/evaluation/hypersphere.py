"""Alignment and uniformity on the unit hypersphere.

Wang and Isola 2020, Understanding Contrastive Representation Learning through Alignment and Uniformity on the
Hypersphere, section 4.1, with the exponents of its experiments, 2 each. Both are losses: less is better.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from zoo.errors import EvaluationError
from zoo.evaluation.density import scatter
from zoo.evaluation.gpu import ON_GPU
from zoo.evaluation.gpu_structure import pairs_within
from zoo.evaluation.inputs import class_codes, members_of, unit_rows

CHUNK_BYTES = 64 * 2**20
"""How large one chunk's table of float32 similarities may be."""


def alignment(embeddings: Any, labels: Any) -> float:
    """E |x - y|^2 over positive pairs of unit rows, from 0 (each class in one point).

    embeddings: [n, d], scaled to unit length here; labels: n integers or strings. x is drawn among all samples that
    have a relative, y among its relatives: a class counts by its samples. Classes of one sample are left out.

    Raises `EvaluationError` for what `retrieval_metrics` refuses and for no class of two samples.
    """
    rows = unit_rows(embeddings)
    members = [own for own in members_of(class_codes(labels, len(rows))[0]) if len(own) > 1]
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
    total = pairs_within(rows, 2 * t) if len(rows) >= ON_GPU else None
    total = _pairs_within(rows, 2 * t) if total is None else total
    return float(np.log(total / (len(rows) * (len(rows) - 1))))


def _pairs_within(rows: np.ndarray, scale: float) -> float:
    """As on a GPU."""
    total, step = 0.0, max(1, CHUNK_BYTES // (4 * len(rows)))
    for start in range(0, len(rows), step):
        near = np.exp(scale * (rows[start : start + step] @ rows.T - 1))
        near[np.arange(len(near)), np.arange(start, start + len(near))] = 0
        total += float(near.sum(dtype=np.float64))
    return total

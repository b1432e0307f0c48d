"""Pairs of samples, of one class and of two, and their similarities."""

from __future__ import annotations

from typing import Any

import numpy as np

from zoo.errors import EvaluationError
from zoo.evaluation.inputs import class_codes, unit_rows

_BLOCK = 2**20


def sample_pairs(labels: Any, number: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """`number` random pairs of one class and as many of two classes: rows int64 [number, 2] each.

    labels: n integers or strings. The pairs are balanced over classes, so that a large class counts no more than a
    small one: of one class, a class of two samples or more is drawn, then two different samples of it; of two, two
    different classes are drawn, then a sample of each. Pairs are drawn independently and may come twice.

    Raises `EvaluationError` for labels of another kind, fewer than two classes, no class of two samples, and a number
    below 1.
    """
    if number < 1:
        raise EvaluationError(f"{number} pairs say nothing; draw at least 1.")
    codes = class_codes(labels, len(labels))[0]
    sizes = np.bincount(codes)
    if len(sizes) < 2:
        raise EvaluationError("pairs of two classes need at least two classes.")
    if sizes.max() < 2:
        raise EvaluationError("pairs of one class need a class of at least two samples.")
    rng = np.random.default_rng(seed)
    order, starts = np.argsort(codes, kind="stable"), np.cumsum(sizes) - sizes

    drawn = rng.choice(np.flatnonzero(sizes > 1), number)
    same = order[starts[drawn][:, None] + _two_of(sizes[drawn], rng)]
    classes = _two_of(np.full(number, len(sizes)), rng)
    different = order[starts[classes] + rng.integers(sizes[classes])]
    return same, different


def pair_similarities(embeddings: Any, pairs: Any) -> np.ndarray:
    """The cosine of each pair, summed in double precision, float64 [m]: embeddings [n, d]; pairs: rows [m, 2].

    Raises `EvaluationError` for embeddings that `retrieval_metrics` refuses and for pairs of rows that are not there.
    """
    rows, pairs = unit_rows(embeddings), np.asarray(pairs)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu":
        raise EvaluationError(f"pairs must be row numbers [m, 2], not {pairs.dtype} of shape {list(pairs.shape)}.")
    if pairs.size and not 0 <= pairs.min() <= pairs.max() < len(rows):
        raise EvaluationError(
            f"pairs name rows {pairs.min()} to {pairs.max()}; the embeddings have 0 to {len(rows) - 1}."
        )
    similar = np.empty(len(pairs))
    step = max(1, _BLOCK // rows.shape[1])
    for start in range(0, len(pairs), step):
        block = slice(start, start + step)
        a, b = rows[pairs[block, 0]], rows[pairs[block, 1]]
        similar[block] = np.einsum("ij,ij->i", a, b, dtype=np.float64)
    return similar


def _two_of(sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Two different numbers below each of the sizes, int64 [m, 2], every pair as likely."""
    first, second = rng.integers(sizes), rng.integers(sizes - 1)
    return np.stack([first, second + (second >= first)], axis=1)

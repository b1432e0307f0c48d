"""Verification of pairs (do two samples have one class?): true accept rate, equal error rate and ROC area."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from zoo.errors import EvaluationError
from zoo.evaluation.inputs import class_codes, unit_rows
from zoo.evaluation.knn import as_rows
from zoo.evaluation.memory import release

FARS = (0.1, 0.01, 0.001)
PAIRS = 200_000

_BLOCK_NUMBERS = 2**20


def verification_metrics(
    embeddings: Any, labels: Any, fars: Sequence[float] = FARS, pairs: int = PAIRS, seed: int = 0
) -> dict[str, float]:
    """Measure verification by the cosine, over sampled pairs that are balanced over classes (`sample_pairs`).

    To measure given pairs, use `pair_similarities` and the functions below.

    Args:
        embeddings: [n, d].
        labels: n integers or strings.
        fars: The false accept rates.
        pairs: The number of pairs of one class, and of pairs of two classes.
        seed: Seed of the sampled pairs.

    Returns:
        tar_at_far_F    share of pairs of one class that are accepted where a share F of pairs of two classes is
        eer             equal error rate
        roc_auc         how often a pair of one class is more similar than a pair of two classes.

    Raises:
        EvaluationError: As `retrieval_metrics` and `sample_pairs`, and for a rate that needs more pairs.
    """
    rows = as_rows(embeddings, "embeddings")
    classes = class_codes(labels, len(rows))[0]
    same, different = (pair_similarities(rows, drawn) for drawn in sample_pairs(classes, pairs, seed))
    rates = {f"tar_at_far_{far:g}": tar_at_far(same, different, far) for far in fars}
    return {**rates, "eer": eer(same, different), "roc_auc": roc_auc(same, different)}


def sample_pairs(labels: Any, number: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draw `number` random pairs of one class and as many of two classes.

    The pairs are balanced over classes, so that a large class weighs no more than a small one. For a pair of one class,
    a class of at least two samples is drawn, then two different samples of it; for a pair of two classes, two different
    classes are drawn, then a sample of each. Pairs are drawn independently and may repeat.

    Args:
        labels: n integers or strings.
        number: The number of pairs of each kind.
        seed: Seed of the draws.

    Returns:
        Row numbers int64 [number, 2] of the pairs of one class, and of two classes.

    Raises:
        EvaluationError: If labels are of another type, there are fewer than two classes, no class has two samples, or
            `number` is below 1.
    """
    if number < 1:
        raise EvaluationError(f"the number of pairs must be at least 1, not {number}.", code="invalid-value")
    codes = class_codes(labels, len(labels))[0]
    sizes = np.bincount(codes)
    if len(sizes) < 2:
        raise EvaluationError("pairs of two classes need at least two classes.", code="too-few-classes")
    if sizes.max() < 2:
        raise EvaluationError("pairs of one class need a class of at least two samples.", code="too-few-samples")
    rng = np.random.default_rng(seed)
    order, starts = np.argsort(codes, kind="stable"), np.cumsum(sizes) - sizes

    drawn = rng.choice(np.flatnonzero(sizes > 1), number)
    same = order[starts[drawn][:, None] + _distinct_pairs(sizes[drawn], rng)]
    classes = _distinct_pairs(np.full(number, len(sizes)), rng)
    different = order[starts[classes] + rng.integers(sizes[classes])]
    return same, different


def pair_similarities(embeddings: Any, pairs: Any) -> np.ndarray:
    """Return the cosine of each pair, summed in double precision: float64 [m].

    Args:
        embeddings: [n, d].
        pairs: Row numbers [m, 2].

    Raises:
        EvaluationError: As `retrieval_metrics`, and for pairs of rows that do not exist.
    """
    rows, pairs = unit_rows(embeddings), np.asarray(pairs)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu":
        raise EvaluationError(
            f"pairs must be row numbers [m, 2], not {pairs.dtype} of shape {list(pairs.shape)}.", code="invalid-value"
        )
    if pairs.size and not 0 <= pairs.min() <= pairs.max() < len(rows):
        raise EvaluationError(
            f"pairs name rows {pairs.min()} to {pairs.max()}; the embeddings have 0 to {len(rows) - 1}.",
            code="invalid-value",
        )
    similar = np.empty(len(pairs))
    step = max(1, _BLOCK_NUMBERS // rows.shape[1])
    for start in range(0, len(pairs), step):
        block = slice(start, start + step)
        a, b = rows[pairs[block, 0]], rows[pairs[block, 1]]
        similar[block] = np.einsum("ij,ij->i", a, b, dtype=np.float64)
        release(rows)
    return similar


def tar_at_far(same: Any, different: Any, far: float) -> float:
    """Return the true accept rate at a false accept rate.

    It is the largest share of `same` above a threshold that at most the share `far` of `different` exceeds.

    Args:
        same: Similarities [m] of pairs of one class.
        different: Similarities [k] of pairs of two classes.
        far: The false accept rate, from 1/k (below it, no pair would be accepted) to 1.

    Raises:
        EvaluationError: If there are no similarities, one is NaN, or `far` is out of range.
    """
    same, different = _similarities(same, "same"), _similarities(different, "different")
    accepted = int(far * len(different) + 1e-6) if 0 < far <= 1 else 0  # 0.29 x 100 is 28.999999999999996
    if accepted < 1:
        raise EvaluationError(
            f"a false accept rate of {far:g} cannot be measured on {len(different)} pairs of two classes; it must be "
            f"from 1/{len(different)} to 1.",
            code="invalid-value",
        )
    if accepted == len(different):
        return 1.0
    threshold = np.partition(different, -accepted - 1)[-accepted - 1]  # the most similar pair that is rejected
    return float((same > threshold).mean())


def eer(same: Any, different: Any) -> float:
    """Return the equal error rate: the accepted share of `different` equals the rejected share of `same`.

    Between two thresholds the rates are taken as linear. Arguments and errors are those of `tar_at_far`.
    """
    same, different = _similarities(same, "same"), _similarities(different, "different")
    thresholds = np.unique(np.concatenate([same, different]))
    far = np.append(1 - np.searchsorted(different, thresholds) / len(different), 0.0)
    frr = np.append(np.searchsorted(same, thresholds) / len(same), 1.0)
    after = int((far <= frr).argmax())  # far falls from 1 to 0 and frr rises from 0 to 1
    gap, next_gap = far[after - 1] - frr[after - 1], far[after] - frr[after]
    return float(far[after] + (far[after - 1] - far[after]) * next_gap / (next_gap - gap))


def roc_auc(same: Any, different: Any) -> float:
    """Return the chance that a pair of `same` is more similar than one of `different`, a tie counting half.

    It is the area under the ROC curve (Hanley and McNeil 1982). Arguments and errors are those of `tar_at_far`.
    """
    same, different = _similarities(same, "same"), _similarities(different, "different")
    below, up_to = (np.searchsorted(different, same, side) for side in ("left", "right"))
    return float((below + up_to).mean() / (2 * len(different)))


def _similarities(values: Any, name: str) -> np.ndarray:
    """Return the similarities ascending, float64 [m]."""
    similar = np.sort(np.asarray(values, np.float64))
    if similar.ndim != 1 or not len(similar) or np.isnan(similar[-1]):  # NaN is sorted last
        raise EvaluationError(
            f"the similarities of `{name}` must be numbers [m], at least one and none NaN.", code="invalid-value"
        )
    return similar


def _distinct_pairs(sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return two different numbers below each of the sizes, int64 [m, 2], every pair equally likely."""
    first, second = rng.integers(sizes), rng.integers(sizes - 1)
    return np.stack([first, second + (second >= first)], axis=1)

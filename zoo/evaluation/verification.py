"""TAR@FAR, EER.

Pairs of samples, of one class and of two, and their similarities.

Verification: are two samples of one class? Error rates over thresholds of their similarity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from zoo.errors import EvaluationError
from zoo.evaluation.inputs import class_codes, unit_rows
from zoo.evaluation.knn import as_rows

_BLOCK_NUMBERS = 2**20


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
    same = order[starts[drawn][:, None] + _distinct_pairs(sizes[drawn], rng)]
    classes = _distinct_pairs(np.full(number, len(sizes)), rng)
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
    step = max(1, _BLOCK_NUMBERS // rows.shape[1])
    for start in range(0, len(pairs), step):
        block = slice(start, start + step)
        a, b = rows[pairs[block, 0]], rows[pairs[block, 1]]
        similar[block] = np.einsum("ij,ij->i", a, b, dtype=np.float64)
    return similar


def _distinct_pairs(sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Two different numbers below each of the sizes, int64 [m, 2], every pair as likely."""
    first, second = rng.integers(sizes), rng.integers(sizes - 1)
    return np.stack([first, second + (second >= first)], axis=1)


FARS = (0.1, 0.01, 0.001)
PAIRS = 200_000


def verification_metrics(
    embeddings: Any, labels: Any, fars: Sequence[float] = FARS, pairs: int = PAIRS, seed: int = 0
) -> dict[str, float]:
    """Verification by the cosine, over `pairs` sampled pairs of one class and as many of two classes.

    embeddings: [n, d]; labels: n integers or strings. The pairs are balanced over classes and drawn by the seed, see
    `sample_pairs`; pairs that are given can be measured with `pair_similarities` and the functions below.

        tar_at_far_F    share of pairs of one class that are accepted where a share F of pairs of two is
        eer             equal error rate
        roc_auc         how often a pair of one class is more similar than one of two

    Raises `EvaluationError` for what `retrieval_metrics` refuses, fewer than two classes, no class of two samples, and
    a rate that the pairs are too few to tell.
    """
    rows = as_rows(embeddings, "embeddings")
    classes = class_codes(labels, len(rows))[0]
    same, different = (pair_similarities(rows, drawn) for drawn in sample_pairs(classes, pairs, seed))
    rates = {f"tar_at_far_{far:g}": tar_at_far(same, different, far) for far in fars}
    return {**rates, "eer": eer(same, different), "roc_auc": roc_auc(same, different)}


def tar_at_far(same: Any, different: Any, far: float) -> float:
    """True accept rate at a false accept rate: the largest share of `same` above a threshold that at most the share
    `far` of `different` is above.

    same, different: similarities of pairs of one class and of two, [m] and [k]. Raises `EvaluationError` for none, for
    NaN, and where `far` is not in 1/k to 1: fewer than one of the k pairs would be accepted.
    """
    same, different = _similarities(same, "same"), _similarities(different, "different")
    accepted = int(far * len(different) + 1e-6) if 0 < far <= 1 else 0  # 0.29 x 100 is 28.999999999999996
    if accepted < 1:
        raise EvaluationError(
            f"a false accept rate of {far:g} cannot be told from {len(different)} pairs of two classes; it must be "
            f"from 1/{len(different)} to 1."
        )
    if accepted == len(different):
        return 1.0
    threshold = np.partition(different, -accepted - 1)[-accepted - 1]  # the most similar one to be rejected
    return float((same > threshold).mean())


def eer(same: Any, different: Any) -> float:
    """Equal error rate: where the share of `different` accepted is the share of `same` rejected, from 0 to 1.

    Between two thresholds the rates are taken as linear. Arguments and errors as of `tar_at_far`.
    """
    same, different = _similarities(same, "same"), _similarities(different, "different")
    thresholds = np.unique(np.concatenate([same, different]))
    far = np.append(1 - np.searchsorted(different, thresholds) / len(different), 0.0)
    frr = np.append(np.searchsorted(same, thresholds) / len(same), 1.0)
    after = int((far <= frr).argmax())  # far falls from 1 to 0 and frr rises from 0 to 1
    gap, next_gap = far[after - 1] - frr[after - 1], far[after] - frr[after]
    return float(far[after] + (far[after - 1] - far[after]) * next_gap / (next_gap - gap))


def roc_auc(same: Any, different: Any) -> float:
    """The chance that a pair of `same` is more similar than one of `different`, a tie counting half.

    The area under the ROC curve (Hanley and McNeil 1982). Arguments and errors as of `tar_at_far`.
    """
    same, different = _similarities(same, "same"), _similarities(different, "different")
    below, up_to = (np.searchsorted(different, same, side) for side in ("left", "right"))
    return float((below + up_to).mean() / (2 * len(different)))


def _similarities(values: Any, name: str) -> np.ndarray:
    """Ascending, float64 [m]."""
    similar = np.sort(np.asarray(values, np.float64))
    if similar.ndim != 1 or not len(similar) or np.isnan(similar[-1]):  # NaN is sorted last
        raise EvaluationError(f"the similarities of `{name}` must be numbers [m], at least one and none NaN.")
    return similar

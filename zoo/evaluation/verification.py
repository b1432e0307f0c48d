"""Verification: are two samples of one class? Error rates over thresholds of their similarity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from zoo.errors import EvaluationError
from zoo.evaluation.inputs import class_codes
from zoo.evaluation.neighbours import as_rows
from zoo.evaluation.pairs import pair_similarities, sample_pairs

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

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import interp1d
from scipy.optimize import brentq
from sklearn.metrics import roc_auc_score, roc_curve

from tests.raising import raises
from zoo.errors import EvaluationError
from zoo.evaluation.verification import eer, roc_auc, tar_at_far, verification_metrics

scores = st.lists(st.integers(-5, 5).map(lambda score: score / 5), min_size=1, max_size=30)


def naive_tar(same, different, far):
    """The best over every threshold that could matter."""
    best = 0.0
    for threshold in [*same, *different, np.inf]:
        if np.mean([score >= threshold for score in different]) <= far + 1e-9:
            best = max(best, np.mean([score >= threshold for score in same]))
    return best


@settings(max_examples=60)
@given(scores, scores, st.integers(1, 30))
def test_agrees_with_single_steps_and_scikit_learn(same, different, accepted):
    accepted = min(accepted, len(different))
    far = accepted / len(different)
    assert tar_at_far(same, different, far) == pytest.approx(naive_tar(same, different, far))
    truth, similar = [1] * len(same) + [0] * len(different), [*same, *different]
    assert roc_auc(same, different) == pytest.approx(roc_auc_score(truth, similar))
    far_of, tar_of, _ = roc_curve(truth, similar, drop_intermediate=False)
    along = np.linspace(0, 1, len(far_of))
    gap = interp1d(along, far_of - (1 - tar_of))
    place = brentq(gap, 0, 1)
    assert eer(same, different) == pytest.approx(float(interp1d(along, far_of)(place)), abs=1e-6)
    assert eer(same, different) == pytest.approx(eer(-np.array(different), -np.array(same)), abs=1e-9)


def test_by_hand():
    same, different = [0.9, 0.8, 0.4, 0.3], [0.7, 0.5, 0.2, 0.1, 0.0]
    assert tar_at_far(same, different, 0.2) == 0.5  # 0.7 may pass: 0.9 and 0.8 do, and 0.5 is out
    assert tar_at_far(same, different, 0.4) == 1  # 0.7 and 0.5 may pass
    assert tar_at_far(same, different, 1) == 1
    # From threshold 0.5 (FAR 2/5, FRR 1/2) to 0.4 (FAR 2/5, FRR 1/4): they meet at 2/5.
    assert eer(same, different) == pytest.approx(0.4)
    assert roc_auc(same, different) == pytest.approx((5 + 5 + 3 + 3) / 20)


def test_separate_inverted_and_equal_scores():
    high, low = [0.8, 0.9], [0.1, 0.2, 0.3]
    assert (tar_at_far(high, low, 0.34), eer(high, low), roc_auc(high, low)) == (1, 0, 1)
    assert (tar_at_far(low, high, 0.5), eer(low, high), roc_auc(low, high)) == (0, 1, 0)
    assert (tar_at_far([1, 1], [1, 1], 0.5), eer([1, 1], [1, 1]), roc_auc([1, 1], [1, 1])) == (0, 0.5, 0.5)


def test_rates_that_are_whole_numbers_of_pairs_are_not_rounded_down():
    different = np.arange(100) / 100
    assert tar_at_far([0.705], different, 0.29) == 1  # 0.71 to 0.99 are 29, and pass
    assert tar_at_far([0.705], different, 0.28) == 0


def clustered(seed, sizes, dim=16, noise=1.0):
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    return rng.normal(size=(len(sizes), dim))[labels] + noise * rng.normal(size=(len(labels), dim)), labels


def test_sampled_pairs_come_near_to_all_pairs():
    rows, labels = clustered(0, (8,) * 12)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    i, j = np.triu_indices(len(labels), 1)
    similar, alike = (unit @ unit.T)[i, j], labels[i] == labels[j]
    # Classes of one size: all pairs are as likely as the sampled ones.
    measured = verification_metrics(rows, labels, (0.1, 0.01), pairs=40_000)
    assert measured.keys() == {"tar_at_far_0.1", "tar_at_far_0.01", "eer", "roc_auc"}
    assert measured["roc_auc"] == pytest.approx(roc_auc_score(alike, similar), abs=0.01)
    assert measured["eer"] == pytest.approx(eer(similar[alike], similar[~alike]), abs=0.01)
    assert measured["tar_at_far_0.1"] == pytest.approx(tar_at_far(similar[alike], similar[~alike], 0.1), abs=0.02)
    assert measured == verification_metrics(rows, labels, (0.1, 0.01), pairs=40_000)
    assert measured != verification_metrics(rows, labels, (0.1, 0.01), pairs=40_000, seed=1)


def test_a_perfect_embedding():
    labels = np.repeat(np.arange(5), 3)
    measured = verification_metrics(np.eye(5)[labels], labels, pairs=2000)
    assert measured == {"tar_at_far_0.1": 1, "tar_at_far_0.01": 1, "tar_at_far_0.001": 1, "eer": 0, "roc_auc": 1}


@pytest.mark.parametrize(
    ("call", "code", "value"),
    [
        (lambda: tar_at_far([1], [0] * 9, 0.1), "invalid-value", "9 pairs"),
        (lambda: tar_at_far([1], [0] * 9, 0), "invalid-value", "9 pairs"),
        (lambda: tar_at_far([1], [0] * 9, 1.1), "invalid-value", "1.1"),
        (lambda: tar_at_far([1], [0] * 9, float("nan")), "invalid-value", "9 pairs"),
        (lambda: eer([], [0]), "invalid-value", "`same`"),
        (lambda: roc_auc([0], [np.nan, 1]), "invalid-value", "`different`"),
        (lambda: eer([[0]], [0]), "invalid-value", "`same`"),
        (lambda: verification_metrics(np.eye(3), [0, 0, 0]), "too-few-classes", ""),
        (lambda: verification_metrics(np.eye(3), [0, 1, 2]), "too-few-samples", ""),
        (lambda: verification_metrics(np.eye(3), [0, 1]), "invalid-labels", "3"),
        (lambda: verification_metrics(np.diag([1, 1, np.nan]), [0, 0, 1]), "not-finite", "row 2 of embeddings"),
        (lambda: verification_metrics(np.diag([1, 1, 0]), [0, 0, 1]), "invalid-embedding", "row 2 of embeddings"),
    ],
)
def test_invalid_input_is_refused(call, code, value):
    with raises(EvaluationError, code) as caught:
        call()
    assert value in str(caught.value)

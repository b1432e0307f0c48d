from __future__ import annotations

import numpy as np
import pytest

from tests.raising import raises
from zoo.errors import EvaluationError
from zoo.evaluation.verification import pair_similarities, sample_pairs

SIZES = (1, 2, 3, 10)
LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(len(SIZES)), SIZES))


def test_pairs_are_of_one_class_or_of_two_and_never_of_one_sample():
    same, different = sample_pairs(LABELS, 5000)
    assert same.shape == different.shape == (5000, 2)
    assert (LABELS[same[:, 0]] == LABELS[same[:, 1]]).all()
    assert (same[:, 0] != same[:, 1]).all()
    assert (LABELS[different[:, 0]] != LABELS[different[:, 1]]).all()


def test_pairs_are_balanced_over_classes_and_within_them():
    same, different = sample_pairs(LABELS, 30_000)
    shares = np.bincount(LABELS[same[:, 0]], minlength=4) / 30_000
    np.testing.assert_allclose(shares, [0, 1 / 3, 1 / 3, 1 / 3], atol=0.015)  # a class of one has no pair
    np.testing.assert_allclose(np.bincount(LABELS[different].ravel()) / 60_000, [1 / 4] * 4, atol=0.015)
    large = np.flatnonzero(LABELS == 3)
    counts = np.bincount(same[LABELS[same[:, 0]] == 3].ravel(), minlength=len(LABELS))[large]
    np.testing.assert_allclose(counts / counts.sum(), [1 / 10] * 10, atol=0.01)
    _, kinds = np.unique(same[LABELS[same[:, 0]] == 3], axis=0, return_counts=True)
    assert len(kinds) == 90  # each ordered pair of the ten comes


def test_the_seed_decides():
    first, again, other = (sample_pairs(LABELS, 50, seed) for seed in (1, 1, 2))
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)
    assert (first[0] != other[0]).any()


def test_similarities_are_cosines_one_by_one(monkeypatch):
    rows = np.random.default_rng(1).normal(size=(20, 7)).astype(np.float32)
    pairs = np.random.default_rng(2).integers(20, size=(300, 2))
    expected = [
        a @ b / np.sqrt((a @ a) * (b @ b)) for a, b in ((np.float64(rows[i]), np.float64(rows[j])) for i, j in pairs)
    ]
    np.testing.assert_allclose(pair_similarities(rows, pairs), expected, atol=2e-7)
    monkeypatch.setattr("zoo.evaluation.verification._BLOCK_NUMBERS", 7 * 11)
    np.testing.assert_allclose(pair_similarities(rows, pairs), expected, atol=2e-7)


@pytest.mark.parametrize(
    ("call", "code", "value"),
    [
        (lambda: sample_pairs([0, 0], 5), "too-few-classes", ""),
        (lambda: sample_pairs([], 5), "too-few-classes", ""),
        (lambda: sample_pairs([0, 1, 2], 5), "too-few-samples", ""),
        (lambda: sample_pairs([0, 0, 1], 0), "invalid-value", "0"),
        (lambda: pair_similarities(np.eye(3), [[0, 3]]), "invalid-value", "0 to 3"),
        (lambda: pair_similarities(np.eye(3), [[-1, 2]]), "invalid-value", "-1 to 2"),
        (lambda: pair_similarities(np.eye(3), [[0.0, 1.0]]), "invalid-value", ""),
        (lambda: pair_similarities(np.eye(3), [0, 1]), "invalid-value", ""),
        (lambda: pair_similarities([[0, 0], [0, 1]], [[0, 1]]), "invalid-embedding", "row 0 of embeddings"),
    ],
)
def test_invalid_input_is_refused(call, code, value):
    with raises(EvaluationError, code) as caught:
        call()
    assert value in str(caught.value)

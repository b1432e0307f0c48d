from __future__ import annotations

import math

import numpy as np
import pytest

from zoo.errors import EvaluationError
from zoo.evaluation.structure import spectral_decay


def naive(rows: np.ndarray) -> float:
    """KL(U || S) in single steps; the singular values are the roots of the eigenvalues of R^T R."""
    n, d = rows.shape
    gram = [[sum(rows[i, a] * rows[i, b] for i in range(n)) for b in range(d)] for a in range(d)]
    values = sorted((math.sqrt(max(v, 0.0)) for v in np.linalg.eigvalsh(np.array(gram))), reverse=True)[: min(n, d)]
    total, divergence = sum(values), 0.0
    for value in values:
        uniform, share = 1 / len(values), value / total
        divergence += uniform * math.log(uniform / share)
    return divergence


def test_by_hand():
    """Singular values 3 and 1, so S = (3/4, 1/4) and KL = (log(2/3) + log 2) / 2 = log(4/3) / 2."""
    assert spectral_decay([[3, 0], [0, 1]]) == pytest.approx(math.log(4 / 3) / 2, rel=1e-12)
    # The same with both rows twice: every singular value grows by the root of 2.
    assert spectral_decay([[3, 0], [0, 1], [3, 0], [0, 1]]) == pytest.approx(math.log(4 / 3) / 2, rel=1e-12)


@pytest.mark.parametrize("shape", [(40, 7), (60, 2), (5, 5), (4, 5)])
def test_agrees_with_single_steps(shape):
    rows = np.random.default_rng(0).normal(0.3, 1, shape).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    assert spectral_decay(rows) == pytest.approx(naive(rows.astype(np.float64)), rel=1e-6)


def test_neither_scale_nor_order_nor_rotation_matter_but_the_mean_does():
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(50, 4))
    turn = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    expected = spectral_decay(rows)
    for same in (7 * rows, rows[::-1], rows @ turn):
        assert spectral_decay(same) == pytest.approx(expected, rel=1e-5)
    assert spectral_decay(rows + 5) > 2 * expected  # uncentred: a common offset is one strong direction


def test_all_directions_alike_is_zero_and_an_unused_one_is_large_but_finite():
    assert spectral_decay(np.eye(6)) == pytest.approx(0, abs=1e-12)
    assert spectral_decay([[1, 2, 3]]) == pytest.approx(0, abs=1e-12)  # one row has one singular value
    assert 10 < spectral_decay(np.tile([[0.6, 0.8]], (30, 1))) < 50


@pytest.mark.parametrize("rows", [np.zeros((3, 2)), np.zeros((0, 2)), [[1.0, np.nan]], [1.0, 2.0]])
def test_what_has_no_spectrum_is_refused(rows):
    with pytest.raises(EvaluationError):
        spectral_decay(rows)

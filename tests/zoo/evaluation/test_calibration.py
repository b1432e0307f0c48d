from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from tests.raising import raises
from zoo.errors import EvaluationError
from zoo.evaluation.calibration import (
    Bin,
    Calibration,
    calibrate,
    expected_calibration_error,
    held_out_probabilities,
    reliability_bins,
)


def drawn(n: int = 4000, k: int = 5, slope: float = 9.0, offset: float = -5.0, seed: int = 0):
    draw = np.random.default_rng(seed)
    similarities = draw.uniform(-0.2, 1, (n, k))
    same = draw.random((n, k)) < 1 / (1 + np.exp(-(slope * similarities + offset)))
    return similarities, same, draw.integers(20, size=n)


def test_the_curve_that_made_the_data_is_found():
    fitted = calibrate(*drawn(20_000))
    assert fitted.slope == pytest.approx(9, rel=0.03)
    assert fitted.offset == pytest.approx(-5, rel=0.03)
    assert (fitted.neighbours, fitted.pairs) == (5, 100_000)
    assert fitted.error is not None
    assert fitted.error < 0.01


def test_the_fit_is_the_minimum_that_a_general_optimiser_finds():
    similarities, same, classes = drawn(60, seed=3)
    x, y = similarities.ravel(), same.ravel()
    targets = np.where(y, (y.sum() + 1) / (y.sum() + 2), 1 / ((~y).sum() + 2))

    def loss(weights: np.ndarray) -> float:
        chance = 1 / (1 + np.exp(-(weights[0] * x + weights[1])))
        return -float((targets * np.log(chance) + (1 - targets) * np.log(1 - chance)).sum())

    best = minimize(loss, [1.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-10, "maxiter": 4000})
    fitted = calibrate(similarities, same, classes)
    np.testing.assert_allclose([fitted.slope, fitted.offset], best.x, rtol=1e-4)


def test_classes_without_overlap_give_a_steep_and_finite_curve():
    similarities = np.array([[0.9, 0.1], [0.8, 0.2], [0.95, 0.15]] * 20)
    fitted = calibrate(similarities, similarities > 0.5, np.arange(60) % 5)
    assert np.isfinite([fitted.slope, fitted.offset]).all()
    assert fitted.probability(0.8) > 0.95
    assert fitted.probability(0.2) < 0.05


def test_probability_and_its_inverse():
    calibration = Calibration(9.0, -5.0, 10, 100)
    assert calibration.probability(5 / 9) == pytest.approx(0.5)
    for p in (0.01, 0.5, 0.9):
        assert calibration.probability(calibration.similarity_at(p)) == pytest.approx(p)
    assert calibration.similarity_at(0) == -np.inf
    assert calibration.similarity_at(1) == np.inf
    assert np.isfinite(calibration.probability([-1e6, 1e6])).all()
    assert Calibration.from_json(calibration.to_json()) == calibration


def test_the_reliability_diagram_by_hand():
    bins = reliability_bins([0.05, 0.05, 0.95, 0.95, 0.95, 1.0], [False, True, True, True, True, False])
    assert [part.count for part in bins] == [2, 4]
    assert bins[0] == Bin(0.05, 0.5, 2)
    assert bins[1].share == 0.75
    assert bins[1].probability == pytest.approx((3 * 0.95 + 1) / 4)
    by_hand = (2 * 0.45 + 4 * (0.9625 - 0.75)) / 6
    assert expected_calibration_error(bins) == pytest.approx(by_hand)


def test_a_curve_that_fits_other_classes_badly_has_an_error():
    similarities, same, _ = drawn(2000)
    classes = np.arange(2000) % 4
    same[classes % 2 == 0] = ~same[classes % 2 == 0] & (similarities[classes % 2 == 0] > 0.4)
    error = calibrate(similarities, same, classes).error
    assert error is None or error > 0.05


def test_single_pairs_give_the_curve_of_rows_of_pairs():
    similarities, same, classes = drawn(300)
    rows, singles = (
        calibrate(similarities, same, classes),
        calibrate(similarities.ravel(), same.ravel(), classes.repeat(5)),
    )
    np.testing.assert_allclose([singles.slope, singles.offset], [rows.slope, rows.offset])
    assert (singles.error, singles.pairs, singles.neighbours) == (pytest.approx(rows.error), 1500, 0)


def test_held_out_probabilities_are_of_the_curve_of_the_other_classes():
    similarities, same, classes = drawn(400)
    chances = held_out_probabilities(similarities, same, classes)
    assert chances is not None
    for half in (0, 1):
        ours, others = classes % 2 == half, classes % 2 != half
        curve = calibrate(similarities[others], same[others], classes[others])
        np.testing.assert_allclose(chances[ours], curve.probability(similarities[ours]))
    error = (
        np.mean([abs(part.probability - part.share) * part.count for part in reliability_bins(chances, same)])
        * 10
        / 2000
    )
    assert calibrate(similarities, same, classes).error == pytest.approx(error)
    assert held_out_probabilities(similarities, same, np.arange(400) % 3) is None


def test_few_classes_leave_the_error_open():
    similarities, same, _ = drawn(100)
    assert calibrate(similarities, same, ["a", "b"] * 50).error is None


@pytest.mark.parametrize(
    ("similarities", "same", "classes", "code", "value"),
    [
        ([[0.1, 0.2]], [[True, True]], [0], "single-outcome", "2"),
        ([[0.1, 0.2]], [[False, False]], [0], "single-outcome", "2"),
        ([[0.9, 0.1]] * 9, [[False, True]] * 9, [0] * 9, "uninformative-similarity", ""),
        ([[0.5, 0.5]] * 9, [[False, True]] * 9, [0] * 9, "uninformative-similarity", ""),
        ([[0.1, np.nan]], [[True, False]], [0], "not-finite", ""),
        ([[0.1, 0.2]], [[True]], [0], "invalid-shape", ""),
        ([[[0.1]], [[0.2]]], [[[True]], [[False]]], [0, 1], "invalid-shape", ""),
    ],
)
def test_neighbours_without_a_calibration_are_refused(similarities, same, classes, code, value):
    with raises(EvaluationError, code) as caught:
        calibrate(similarities, same, classes)
    assert value in str(caught.value)

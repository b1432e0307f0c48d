"""The calibration of p_same, compared with known probabilities, scikit-learn, loops and hand calculations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t as student_t
from sklearn.isotonic import IsotonicRegression

from tests.raising import raises
from zoo.errors import EvaluationError
from zoo.evaluation.calibration import (
    DEPTH,
    IDENTICAL,
    NEAR,
    PERSISTENCE,
    Background,
    Bin,
    Calibration,
    WeightedPairs,
    background,
    calibrate,
    expected_calibration_error,
    held_out_bins,
    isotonic,
    pairs_of_searches,
    reliability_bins,
)


def chance(contrasts: np.ndarray) -> np.ndarray:
    """The true probability, far from a logistic curve."""
    return np.interp(contrasts, [0.0, 0.2, 0.35, 0.9], [0.1, 0.15, 0.75, 0.98])


def drawn(n: int = 20_000, classes: int = 200, seed: int = 0) -> WeightedPairs:
    draw = np.random.default_rng(seed)
    contrasts = draw.beta(1, 4, n) - 0.05  # few pairs of high contrast, as in a gallery
    return WeightedPairs(
        contrasts, draw.random(n) < chance(contrasts), draw.integers(classes, size=n), np.ones(n), np.full(n, np.inf)
    )


def test_probabilities_are_the_ones_that_made_the_data() -> None:
    fitted = calibrate(drawn(), 20)
    assert (fitted.neighbours, fitted.pairs) == (20, 20_000)
    for low, high in ((-0.05, 0.1), (0.1, 0.28), (0.32, 0.5), (0.5, 0.7), (0.7, 0.9)):
        inside = np.linspace(low, high, 101)
        assert fitted.probability(inside, 0).mean() == pytest.approx(chance(inside).mean(), abs=0.05)
    assert fitted.error is not None
    assert fitted.error < 0.02


def test_the_table_is_reliable_on_classes_outside_the_fit() -> None:
    bins = held_out_bins(drawn())
    assert sum(part.count for part in bins) == 20_000
    for part in bins:
        assert abs(part.probability - part.share) <= 0.05 or part.low <= part.probability <= part.high


@settings(max_examples=25)
@given(st.integers(20, 400), st.integers(0, 10_000))
def test_p_same_never_falls_and_is_one_for_the_identical_image(n: int, seed: int) -> None:
    try:
        fitted = calibrate(drawn(n, seed=seed))
    except EvaluationError:  # all of one kind
        return
    similarities = np.append(np.linspace(-1, 1, 501), 1 + 1e-7)
    for base in (-0.5, 0.3, 0.99):
        chances = fitted.probability(similarities, base)
        assert (np.diff(chances) >= 0).all()
        assert ((chances >= 0) & (chances <= 1)).all()
        assert chances[-1] == chances[-2] == fitted.probability(IDENTICAL, base) == 1
    assert fitted.probability(0.5, 0.5) <= fitted.probability(0.5, 0.4), "a crowded region promises less"


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(1, 9)), min_size=1, max_size=30))
def test_isotonic_is_scikit_learns(pairs: list[tuple[int, int]]) -> None:
    values, weights = np.array(pairs, float).T
    expected = IsotonicRegression().fit_transform(np.arange(len(values)), values, sample_weight=weights)
    np.testing.assert_allclose(isotonic(values, weights), expected, atol=1e-9)


def test_the_background_by_hand() -> None:
    row = np.linspace(0.9, 0.3, 61)
    assert background(row).level == pytest.approx(row[NEAR:DEPTH].mean())
    with_copies = np.concatenate([[1.0, IDENTICAL], row, [-np.inf]])
    assert background(with_copies).level == pytest.approx(row[NEAR:DEPTH].mean()), "identical images do not count"
    assert background(np.array([0.9, 0.8, 0.6, 0.5, 0.4])).level == pytest.approx(0.5), "the last three of five"
    assert background(np.array([0.7, -np.inf])).level == pytest.approx(0.7)
    assert background(np.array([1.0])) == Background(1.0, 1.0)
    assert background(with_copies).nearest == background(row).nearest == 0.9


def test_pairs_of_searches_by_loops() -> None:
    draw = np.random.default_rng(0)
    similarities = -np.sort(-draw.uniform(-0.2, 0.99, (7, DEPTH)), axis=1)
    similarities[0, :2], similarities[1, 40:] = 1.0, -np.inf
    outcomes, classes = draw.integers(0, 2, (7, DEPTH)), np.arange(7) * 10
    pairs = pairs_of_searches(similarities, outcomes, classes)
    expected = []
    for row, same, own in zip(similarities, outcomes, classes, strict=True):
        others = [(s, y) for s, y in zip(row, same, strict=True) if -1 <= s < IDENTICAL]
        base = np.mean([s for s, _ in others[len(others) * 2 // 5 :]])
        expected += [(s - base, y, own, PERSISTENCE**rank) for rank, (s, y) in enumerate(others)]
    found = list(zip(pairs.contrasts, pairs.same, pairs.classes, pairs.weights, strict=True))
    np.testing.assert_allclose(np.array(found, float), np.array(expected, float))


@pytest.mark.parametrize("missing", ["classes", "items"])
def test_missing_labels_do_not_change_the_probabilities(missing: str) -> None:
    """A searched item has a query's class with a known probability; labels lack whole classes, or half of all items."""
    draw = np.random.default_rng(1)
    similarities = -np.sort(-draw.beta(2, 3, (3000, DEPTH)), axis=1) * 0.99
    true = np.clip(1.5 * similarities - 0.4, 0.02, 0.95)
    same = draw.random(true.shape) < true
    # The queries' classes have all their labels, and another item has one in half of the cases.
    hidden = draw.random(true.shape) < 0.5
    outcomes = np.where(hidden & (~same if missing == "classes" else True), -1, same)
    whole = calibrate(pairs_of_searches(similarities, same.astype(int), np.arange(3000)))
    partly = calibrate(pairs_of_searches(similarities, outcomes, np.arange(3000)))
    contrasts = np.linspace(-0.1, 0.5, 13)
    np.testing.assert_allclose(partly.probability(contrasts, 0), whole.probability(contrasts, 0), atol=0.06)


def test_a_calibration_is_read_back() -> None:
    fitted = calibrate(drawn(500))
    assert Calibration.from_json(fitted.to_json()) == fitted
    assert fitted.probability([0.5, 0.9], [[0.1], [0.2]]).shape == (2, 2)


def test_two_contrasts_by_hand() -> None:
    """40 pairs at 0.1, of which 10 have one class, and 60 at 0.4, of which 45 have: half a pair of either kind more."""
    contrasts = np.repeat([0.1, 0.4], [40, 60])
    same = np.concatenate([np.arange(40) < 10, np.arange(60) < 45])
    fitted = calibrate(WeightedPairs(contrasts, same, np.arange(100) % 2, np.ones(100), np.full(100, np.inf)))
    assert fitted.contrasts == (0.1, 0.4)
    assert fitted.probabilities == pytest.approx((10.5 / 41, 45.5 / 61), abs=1e-6)
    assert fitted.probability(0.85, 0.6) == pytest.approx((10.5 / 41 + 45.5 / 61) / 2, abs=1e-6)
    assert fitted.error is None, "two classes are too few to leave half of them out"


def searches(n: int = 2000, seed: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Similarities and outcomes [n, 20], and classes: a first result is right by another curve than a later one."""
    draw = np.random.default_rng(seed)
    similarities = -np.sort(-draw.beta(2, 3, (n, 20)), axis=1) * 0.99
    true = np.clip(similarities - 0.1, 0.02, 0.95)
    true[:, 0] = np.clip(3 * similarities[:, 0] - 1.6, 0.02, 0.98)
    return similarities, (draw.random(true.shape) < true).astype(int), draw.integers(100, size=n)


def test_first_and_later_results_have_their_own_curves_by_hand() -> None:
    """40 first results at 0.3, of which 10 are right, 60 at 0.6, of which 45 are; later ones 5 and 30 of 50 each.

    A later result at 0.4 would have 30.5 / 51 = 0.598 and has at most its search's first one.
    """
    contrasts = np.repeat([0.3, 0.6, 0.1, 0.4], [40, 60, 50, 50])
    same = np.concatenate([np.arange(n) < right for n, right in ((40, 10), (60, 45), (50, 5), (50, 30))])
    nearest = np.repeat([0.3, 0.6, 0.6, 0.6], [40, 60, 50, 50])
    fitted = calibrate(WeightedPairs(contrasts, same, np.arange(200) % 2, np.ones(200), nearest))
    assert (fitted.first_contrasts, fitted.contrasts) == ((0.3, 0.6), (0.1, 0.4))
    low, high = 10.5 / 41, 45.5 / 61
    assert fitted.first_probabilities == pytest.approx((low, high), abs=1e-6)
    assert fitted.probabilities == pytest.approx((5.5 / 51, 30.5 / 51), abs=1e-6)
    assert fitted.probability([0.8, 0.6, 0.3], 0.2, 0.8) == pytest.approx([high, 30.5 / 51, 5.5 / 51], abs=1e-6)
    assert fitted.probability([0.5, 0.49], 0.2, 0.5) == pytest.approx([low, low], abs=1e-6), "bounded by the first"
    assert fitted.probability(0.6, 0.2) == pytest.approx(30.5 / 51, abs=1e-6)
    assert fitted.range == pytest.approx((5.5 / 51, high), abs=1e-6)
    assert Calibration.from_json(fitted.to_json()) == fitted


def test_the_first_result_is_as_reliable_as_all() -> None:
    """The finding: one curve for all promised too much or too little for the first result."""
    similarities, outcomes, classes = searches()
    fitted = calibrate(pairs_of_searches(similarities, outcomes, classes), 20)
    similarities, outcomes, classes = searches(seed=4)
    found = [background(row) for row in similarities]
    levels, nearest = np.array([one.level for one in found]), np.array([one.nearest for one in found])
    first = fitted.probability(similarities[:, 0], levels, nearest)
    for part in reliability_bins(first, outcomes[:, 0] == 1, classes):
        assert abs(part.probability - part.share) <= 0.05 or part.low <= part.probability <= part.high
    chances = fitted.probability(similarities, levels[:, None], nearest[:, None])
    assert (np.diff(chances, axis=1) <= 1e-12).all(), "p_same never rises from one result to the next"


def test_the_calibration_of_an_earlier_version_has_one_curve() -> None:
    values = {name: value for name, value in calibrate(drawn(500)).to_json().items() if not name.startswith("first")}
    old = Calibration.from_json({**values, "measured": None})
    assert old.probability(0.5, 0.2, 0.5) == old.probability(0.5, 0.2)


def test_the_reliability_diagram_by_hand() -> None:
    probabilities = np.array([0.05, 0.05, 0.95, 0.95, 0.95, 1.0])
    same = np.array([False, True, True, True, True, False])
    low, high = reliability_bins(probabilities, same, np.array([0, 1, 0, 1, 2, 2]))
    assert (low.probability, low.share, low.count) == (0.05, 0.5, 2)
    assert (high.share, high.count) == (0.75, 4)
    assert high.probability == pytest.approx((3 * 0.95 + 1) / 4)
    by_hand = (2 * 0.45 + 4 * (0.9625 - 0.75)) / 6
    assert expected_calibration_error([low, high]) == pytest.approx(by_hand)
    (weighted,) = reliability_bins(probabilities[2:], same[2:], np.array([0, 1, 2, 2]), np.array([1.0, 1, 1, 5]))
    assert weighted.share == pytest.approx(3 / 8)
    (single,) = reliability_bins(probabilities[2:], same[2:], np.zeros(4, int))
    assert (single.low, single.high) == (0, 1), "one class shows nothing about others"


def coverage(draw: np.random.Generator, rounds: int, classes: int, per_class: int, deviation: float) -> float:
    """Return how often the interval has the true share, where each class has a probability around 0.6 of its own."""
    labels, covered = np.repeat(np.arange(classes), per_class), 0
    for _ in range(rounds):
        same = draw.random(len(labels)) < np.clip(draw.normal(0.6, deviation, classes), 0, 1)[labels]
        (part,) = reliability_bins(np.full(len(labels), 0.6), same, labels)
        covered += part.low <= 0.6 <= part.high
    return covered / rounds


def test_the_interval_covers_the_share_of_further_classes() -> None:
    assert 0.9 < coverage(np.random.default_rng(5), rounds=300, classes=30, per_class=20, deviation=0.2) < 0.99
    (sure,) = reliability_bins(np.full(60, 0.95), np.ones(60, bool), np.arange(60) % 6)
    quantile = student_t.ppf(0.975, 5)
    assert sure == Bin(pytest.approx(0.95), 1.0, 60, pytest.approx(6 / (6 + quantile**2)), pytest.approx(1), 60), (
        "Wilson, of six classes"
    )


def test_the_interval_covers_with_few_classes() -> None:
    """The fault: the normal distribution in place of Student's t gave too narrow intervals from a few classes."""
    assert coverage(np.random.default_rng(6), rounds=400, classes=5, per_class=40, deviation=0.15) > 0.93


@pytest.mark.parametrize(
    ("contrasts", "same", "code"),
    [
        (np.linspace(0, 1, 19), np.arange(19) > 9, "too-few-samples"),
        (np.linspace(0, 1, 30), np.ones(30, bool), "too-few-samples"),
        (np.linspace(0, 1, 30), np.zeros(30, bool), "too-few-samples"),
        (np.linspace(0, 1, 100), np.arange(100) < 50, "evaluation"),
        (np.full(100, 0.5), np.arange(100) < 50, "evaluation"),
    ],
)
def test_pairs_without_a_calibration_are_refused(contrasts: np.ndarray, same: np.ndarray, code: str) -> None:
    with raises(EvaluationError, code):
        calibrate(WeightedPairs(contrasts, same, np.arange(len(same)), np.ones(len(same)), np.full(len(same), np.inf)))

"""The fit of a line of relevance: it recovers a known curve, and its line is shown to few queries without relatives."""

from __future__ import annotations

import numpy as np
import pytest

from tools.fit_relevance import LINES, RESULTS, Searches, choose_line, describe, fit_curve, probabilities
from zoo.evaluation.relevance import RelevanceCurve

FIRST, LATER = (-4.0, 1.5), (-3.0, 0.75)


def drawn(seed: int, queries: int = 4000, first: tuple[float, float] = FIRST) -> Searches:
    """Results whose chance to be of the query's class is known; every third query is called unanswerable."""
    rng = np.random.default_rng(seed)
    contrasts = rng.uniform(0, 6, (queries, RESULTS))
    lines = np.array([first, *[LATER] * (RESULTS - 1)])
    chances = 1 / (1 + np.exp(-(lines[:, 0] + lines[:, 1] * contrasts)))
    return Searches(contrasts, rng.random(contrasts.shape) < chances, np.arange(queries) % 3 > 0)


def test_a_known_curve_is_recovered() -> None:
    curve = fit_curve([drawn(0), drawn(1, queries=1000)])
    assert curve.first == pytest.approx(FIRST, rel=0.1)
    assert curve.later == pytest.approx(LATER, rel=0.1)


def test_each_subject_has_the_same_weight() -> None:
    """A subject of many searches does not outvote one of few."""
    other = (-1.0, 0.5)
    few, many = drawn(0, 2000, other), drawn(1, 2000)
    twice = Searches(*(np.concatenate([values] * 3) for values in (many.contrasts, many.same, many.answerable)))
    assert fit_curve([few, twice]).first == pytest.approx(fit_curve([few, many]).first, abs=1e-3)


def test_the_line_is_the_lowest_that_few_queries_without_relatives_reach() -> None:
    curve = RelevanceCurve((0.0, 1.0), (0.0, 1.0), 0.5)  # the probability is the logistic function of the contrast

    def searches(*best: float) -> Searches:
        """Twenty queries without relatives: these are the probabilities of the first results, 0.1 of the others."""
        chances = np.full((20, RESULTS), 0.1)
        chances[: len(best), 0] = best
        return Searches(np.log(chances / (1 - chances)), np.zeros(chances.shape, bool), np.zeros(20, bool))

    np.testing.assert_allclose(probabilities(curve, searches(0.77))[:2, 0], [0.77, 0.1])
    for best, line in (((0.77, 0.78), LINES[0]), ((0.77, 0.78, 0.79), LINES[1]), ((0.99,) * 5, LINES[-1])):
        assert choose_line([(curve, searches()), (curve, searches(*best))]) == line


def test_the_description_counts_what_is_above_the_line() -> None:
    """Two of four queries have relatives; two results are above the line, one of them rightly."""
    curve = RelevanceCurve((0.0, 1.0), (-9.0, 0.0), 0.5)
    contrasts = np.full((4, RESULTS), -9.0)
    contrasts[:2, 0] = 9.0
    same = np.zeros(contrasts.shape, bool)
    same[0, 0] = True
    described = describe(curve, Searches(contrasts, same, np.array([True, False, True, False])))
    assert [cell.strip() for cell in described.split("|")][1:] == ["0.50 (2)", "0.50", "0.50"]

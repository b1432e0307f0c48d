"""Differences of a study's arms, and verdicts on its claims by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from training.studies.statistics import FAILS, HOLDS, judge_claim, metric_bounds, paired_difference
from training.studies.study import Claim
from zoo.evaluation.statistics import BETTER, EQUIVALENT, UNDECIDED, WORSE, Estimate, Verdict

DRAW = np.random.default_rng(0)
SEEDS, QUERIES = 3, "4 5 6"


def measured(scores: np.ndarray) -> dict[int, dict[str, Any]]:
    """Return measurements of scores [seeds, classes] as results.json keeps them."""
    texts = [" ".join(map(str, line)) for line in scores]
    return {seed: {"class_scores": {"queries": QUERIES, "map_at_r": text}} for seed, text in enumerate(texts)}


def test_differences_are_paired_by_seed() -> None:
    a, b = DRAW.normal(0.6, 0.1, (2, 6)) + DRAW.normal(0, 0.01, 6)
    found = paired_difference(dict(enumerate(a)), {**dict(enumerate(b)), 9: 0.1}, "map_at_r")
    assert found is not None
    assert found.interval == pytest.approx(tuple(stats.ttest_rel(a, b).confidence_interval(0.95)))
    assert (found.n, found.over) == (6, "seeds")
    assert paired_difference({0: 1.0}, {1: 1.0}, "map_at_r") is None


def test_differences_are_of_classes_too_where_all_measurements_have_them() -> None:
    ours, theirs = DRAW.random((2, SEEDS, 3))
    sides = [dict(enumerate((scores @ [4, 5, 6] / 15).tolist())) for scores in (ours, theirs)]
    found = paired_difference(*sides, "map_at_r", measured(ours), measured(theirs))
    assert found is not None
    assert found.over == "seeds and classes"
    lacking = {**measured(theirs), 2: {}}
    other = {**measured(theirs), 1: {"class_scores": {"queries": "4 5 7", "map_at_r": "1 1 1"}}}
    for partial in (lacking, other, {}):
        alone = paired_difference(*sides, "map_at_r", measured(ours), partial)
        assert alone is not None
        assert (alone.mean, alone.over) == (found.mean, "seeds")
    single = paired_difference({0: 0.5}, {0: 0.4}, "map_at_r", measured(ours), measured(theirs))
    assert single is not None
    assert single.interval is None, "a study is about arms, not about single networks"


def test_metrics_have_the_bounds_of_their_definition() -> None:
    assert metric_bounds("recall_at_1") == metric_bounds("nmi") == (0, 1)
    assert metric_bounds("ami") == (-1, 1)
    assert metric_bounds("uniformity") == (-np.inf, np.inf)


@pytest.mark.parametrize(
    ("claim", "word", "interval", "shown", "expected"),
    [
        ({}, BETTER, (0.01, 0.02), BETTER, HOLDS),
        ({}, WORSE, (-0.02, -0.01), WORSE, FAILS),
        ({}, UNDECIDED, (-0.01, 0.02), UNDECIDED, UNDECIDED),
        ({}, EQUIVALENT, (-0.01, 0.02), EQUIVALENT, FAILS),
        ({"lower": True}, WORSE, (-0.02, -0.01), BETTER, HOLDS),
        ({"lower": True}, BETTER, (0.01, 0.02), WORSE, FAILS),
        ({"within": 0.03}, EQUIVALENT, (-0.02, 0.03), EQUIVALENT, HOLDS),
        ({"within": 0.03}, BETTER, (0.031, 0.05), BETTER, FAILS),
        ({"within": 0.03}, WORSE, (-0.05, -0.04), WORSE, FAILS),
        ({"within": 0.03}, BETTER, (0.02, 0.04), BETTER, UNDECIDED),
        ({"within": 0.03}, UNDECIDED, (-0.1, 0.1), UNDECIDED, UNDECIDED),
    ],
)
def test_verdicts_by_hand(
    claim: dict[str, Any], word: str, interval: tuple[float, float], shown: str, expected: str
) -> None:
    difference = Estimate(5, sum(interval) / 2, 0.1, 0.05, 4.0, interval, "seeds")
    verdict, held = judge_claim(Claim("x", "a", **claim), difference, Verdict(word))
    assert (verdict.word, held) == (shown, expected)


def test_no_difference_decides_nothing() -> None:
    assert judge_claim(Claim("x", "a"), None, Verdict(UNDECIDED))[1] == UNDECIDED
    assert judge_claim(Claim("x", "a"), Estimate(1, 0.5), Verdict(UNDECIDED))[1] == UNDECIDED

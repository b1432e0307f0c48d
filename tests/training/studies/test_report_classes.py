"""Intervals of a study over seeds and classes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.training.studies import toys
from tests.training.studies.toys import finish
from training.studies.plan import Plan
from training.studies.report import Report, build_report
from training.studies.statistics import HOLDS, UNDECIDED, Summary, class_interval, spread_over_classes

QUERIES = [10, 10, 20]
SEEDS = {"margin": (0.50, 0.51, 0.52), "contrastive": (0.60, 0.61, 0.62)}
"""R@1 by arm and seed: contrastive is .1 above margin with every seed."""


def texts(scores: list[float]) -> dict[str, str]:
    """Return scores by class as results.json keeps them."""
    return {"queries": " ".join(map(str, QUERIES)), "recall_at_1": " ".join(map(str, scores))}


def report_of(folder: Path, gains: list[float]) -> Report:
    """Return the report of a study whose second arm has these gains in the three classes, in every seed."""
    plan: Plan = toys.plan(folder, seeds=3)
    for run in plan.runs(folder):
        score = SEEDS[run.arm.label][run.seed]
        finish(run, score, [0.7, 0.3])
        gain = np.array(gains if run.arm.label == "contrastive" else [0.0, 0.0, 0.0])
        by_class = [SEEDS["margin"][run.seed] + value for value in gain]
        evaluations: list[dict[str, Any]] = run.result()["evaluations"]
        changed = [
            {**evaluation, "class_scores": texts(by_class)} if evaluation["split"] == "test" else evaluation
            for evaluation in evaluations
        ]
        toys.change(run, evaluations=changed)
    return build_report(plan, folder)


def drawn_differences(gains: list[float]) -> tuple[float, float]:
    """Return the 95 % interval of the mean gain if classes are drawn, by counting all 27 samples of three classes."""
    means = []
    for draw in np.ndindex(3, 3, 3):
        queries = sum(QUERIES[i] for i in draw)
        means.append(sum(QUERIES[i] * gains[i] for i in draw) / queries)
    low, high = np.quantile(means, (0.025, 0.975), method="inverted_cdf")
    return float(low), float(high)


def test_the_interval_over_classes_is_that_of_all_samples_of_classes() -> None:
    gains = [0.0, 0.1, 0.3]
    own = [{"class_scores": texts([0.5 + seed / 10 + gain for gain in gains])} for seed in range(2)]
    others = [{"class_scores": texts([0.5 + seed / 10] * 3)} for seed in range(2)]
    assert class_interval(own, others, "recall_at_1") == pytest.approx(drawn_differences(gains), abs=1e-9)
    alone = class_interval([{"class_scores": texts(gains)}], (), "recall_at_1")
    assert alone == pytest.approx(drawn_differences(gains), abs=1e-9)


@pytest.mark.parametrize("lacking", [{}, {"class_scores": {"queries": "1 2 3", "recall_at_1": "1 1 1"}}])
def test_measurements_without_classes_or_of_other_queries_have_no_interval(lacking: dict[str, Any]) -> None:
    known = {"class_scores": texts([0.1, 0.2, 0.3])}
    assert class_interval([known], [lacking], "recall_at_1") is None
    assert class_interval([known, lacking], (), "recall_at_1") is None
    assert class_interval([known], (), "map_at_r") is None


def test_the_squares_of_both_halves_add_up() -> None:
    over_seeds = Summary(3, 0.5, 0.01, (0.47, 0.53))
    both = spread_over_classes(over_seeds, (0.46, 0.9), (0.0, 1.0))
    assert both.interval == pytest.approx((0.45, 0.5 + math.hypot(0.03, 0.4)))
    assert spread_over_classes(over_seeds, (0.46, 1.2), (0.0, 1.0)).interval == pytest.approx((0.45, 1.0))
    assert spread_over_classes(over_seeds, (0.51, 0.54), (0.0, 1.0)).interval == pytest.approx((0.47, 0.55))
    assert spread_over_classes(over_seeds, None, (0.0, 1.0)) == over_seeds
    single = Summary(1, 0.5, None, None)
    assert spread_over_classes(single, (0.4, 0.6), (0.0, 1.0)) == single


def test_a_difference_that_a_few_classes_make_is_undecided(tmp_path: Path) -> None:
    even = report_of(tmp_path / "even", [0.1, 0.1, 0.1])
    assert even.over_classes
    assert even.claims[0].verdict == HOLDS
    uneven = report_of(tmp_path / "uneven", [0.4, 0.0, 0.0])
    assert uneven.claims[0].verdict == UNDECIDED
    difference = uneven.claims[0].difference
    assert difference is not None
    assert difference.mean == pytest.approx(0.1)
    assert difference.interval == pytest.approx(drawn_differences([0.4, 0.0, 0.0]), abs=1e-9)  # no spread over seeds


def test_the_interval_of_a_score_is_over_seeds_and_classes(tmp_path: Path) -> None:
    report = report_of(tmp_path, [0.1, 0.1, 0.1])
    row = next(row for row in report.rows if (row.arm, str(row.measure)) == ("margin", "test recall_at_1"))
    expected = stats.t.interval(0.95, 2, 0.51, stats.sem(SEEDS["margin"]))  # all classes are alike
    assert row.value.interval == pytest.approx(expected, abs=1e-4)
    assert not build_report(plan := toys.plan(tmp_path / "none", seeds=3), tmp_path / "none").over_classes
    assert plan.seeds == 3

"""Intervals of a study over seeds and classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.training.studies import toys
from tests.training.studies.toys import finish
from training.studies.plan import Plan
from training.studies.report import Report, build_report
from training.studies.statistics import HOLDS
from zoo.evaluation.statistics import UNDECIDED

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


def test_a_difference_that_a_few_classes_make_is_undecided(tmp_path: Path) -> None:
    even = report_of(tmp_path / "even", [0.1, 0.11, 0.1])
    assert even.over_classes
    assert even.claims[0].verdict == HOLDS
    uneven = report_of(tmp_path / "uneven", [0.4, 0.0, 0.0])
    assert uneven.claims[0].verdict == UNDECIDED
    difference = uneven.claims[0].difference
    assert difference is not None
    assert difference.mean == pytest.approx(0.1)
    # By hand: a query's gain is .4 or 0, the three classes have 10, 10 and 20 of 40 queries; seeds do not differ.
    shares = np.array([0.75, 0.75, 1.5])
    error = stats.sem(shares * (np.array([0.4, 0.0, 0.0]) - 0.1))
    assert difference.interval == pytest.approx(stats.t.interval(0.95, 2, 0.1, error))


def test_the_interval_of_a_score_is_over_seeds_and_classes(tmp_path: Path) -> None:
    report = report_of(tmp_path, [0.1, 0.1, 0.1])
    row = next(row for row in report.rows if (row.arm, str(row.measure)) == ("margin", "test recall_at_1"))
    expected = stats.t.interval(0.95, 2, 0.51, stats.sem(SEEDS["margin"]))  # all classes are alike
    assert row.value.interval == pytest.approx(expected)
    assert not build_report(plan := toys.plan(tmp_path / "none", seeds=3), tmp_path / "none").over_classes
    assert plan.seeds == 3

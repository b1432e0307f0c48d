"""The two intervals of a precision cost, against closed forms and naive loops."""

from __future__ import annotations

import numpy as np
import pytest

from zoo.data.dataset import Dataset
from zoo.evaluation.remeasure import precision_cost
from zoo.evaluation.retrieval import PerQuery
from zoo.models.results import cost_verdict

CLASSES, EACH = 50, 40
CODES = np.repeat(np.arange(CLASSES), EACH)
NORMAL = 1.959964
"""The 97.5 % quantile of the normal distribution."""


def of(values: np.ndarray) -> PerQuery:
    return PerQuery({"recall_at_1": values, "map_at_r": values / 2}, np.arange(len(CODES)), CODES, 0)


def hits(chance: np.ndarray, seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).random(len(CODES)) < chance).astype(np.float64)


def cost_of(before: np.ndarray, after: np.ndarray) -> dict:
    dataset = Dataset("made", "test", [b""] * len(CODES), CODES, tuple(map(str, range(CLASSES))), [""] * len(CODES))
    return precision_cost(dataset, of(before), of(after), "int8")


def mean_and_error(rows: np.ndarray) -> tuple[float, float]:
    """In one loop each, in float64."""
    mean = sum(map(float, rows)) / len(rows)
    return mean, (sum((float(row) - mean) ** 2 for row in rows) / len(rows)) ** 0.5 / len(rows) ** 0.5


def test_both_agree_with_the_normal_approximation_of_a_paired_difference() -> None:
    before = hits(np.full(len(CODES), 0.4), 0)
    # Where a class loses, its queries lose together.
    flips = hits(0.15 * np.random.default_rng(1).random(CLASSES)[CODES], 2)
    after = np.where(flips == 1, 1 - before, before)
    cost = cost_of(before, after)
    changes = after - before
    by_class = changes.reshape(CLASSES, EACH).mean(1)
    row = cost["recall_at_1"]
    for said, units in ((row, by_class), (row["over_queries"], changes)):
        mean, error = mean_and_error(units)
        assert row["difference"] == pytest.approx(mean)
        assert said["interval"] == pytest.approx([mean - NORMAL * error, mean + NORMAL * error], abs=0.15 * error)
        assert said["within_target"] == (said["interval"][0] >= -0.002)
    assert cost["map_at_r"]["over_queries"]["interval"] == pytest.approx(np.array(row["over_queries"]["interval"]) / 2)


def test_over_queries_agrees_with_a_naive_bootstrap() -> None:
    before, after = hits(np.full(len(CODES), 0.4), 0), hits(np.full(len(CODES), 0.38), 1)
    draw, n = np.random.default_rng(9), len(CODES)
    means = []
    for _ in range(400):
        rows = draw.integers(n, size=n)
        means.append(float(after[rows].mean() - before[rows].mean()))  # the same queries of both
    (low, high), width = np.quantile(means, (0.025, 0.975)), np.std(means)
    assert cost_of(before, after)["recall_at_1"]["over_queries"]["interval"] == pytest.approx(
        [low, high], abs=0.3 * width
    )


def test_classes_that_differ_decide_over_queries_alone() -> None:
    """Half of the classes lose what the others win: of these images nothing is lost, of others nobody knows."""
    before = hits(np.full(len(CODES), 0.5), 3)
    after = np.where(CODES < CLASSES / 2, np.minimum(before, CODES % 2), np.maximum(before, CODES % 2))
    row = cost_of(before, after)["recall_at_1"]
    narrow, wide = np.ptp(row["over_queries"]["interval"]), np.ptp(row["interval"])
    assert narrow < wide / 2


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-0.002, 0.001, "met"),
        (-0.00201, 0.001, "undecided"),
        (-0.03, -0.002, "undecided"),
        (-0.03, -0.0021, "missed"),
        (0.001, 0.002, "met"),
    ],
)
def test_verdicts(low: float, high: float, expected: str) -> None:
    assert cost_verdict((low, high)) == expected

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tests.raising import raises
from zoo.errors import EvaluationError
from zoo.evaluation import bootstrap_intervals
from zoo.evaluation.bootstrap import QUERIES, class_scores, paired_class_interval


def test_agrees_with_every_possible_draw_of_classes():
    rng = np.random.default_rng(0)
    classes = np.repeat(np.arange(5), [3, 1, 4, 2, 5])
    values = rng.random(len(classes))
    by_class = [values[classes == c] for c in range(5)]
    exact = [np.concatenate([by_class[c] for c in draw]).mean() for draw in product(range(5), repeat=5)]
    low, high = bootstrap_intervals({"m": values}, classes, replicates=20_000)["m"]
    assert (low, high) == pytest.approx(np.quantile(exact, (0.025, 0.975)), abs=0.005)


def test_repeating_the_queries_of_a_class_makes_nothing_more_certain():
    rng = np.random.default_rng(1)
    classes, values = np.repeat(np.arange(12), 4), rng.random(48)
    once = bootstrap_intervals({"m": values}, classes)
    assert bootstrap_intervals({"m": np.tile(values, 9)}, np.tile(classes, 9))["m"] == pytest.approx(once["m"])


def test_covers_the_true_mean_of_clustered_queries():
    rng = np.random.default_rng(2)
    covered = single = 0
    for _ in range(200):
        classes = np.repeat(np.arange(60), 8)
        values = 0.5 + rng.normal(0, 0.2, 60)[classes] + rng.normal(0, 0.1, 480)
        low, high = bootstrap_intervals({"m": values}, classes, replicates=300)["m"]
        covered += low <= 0.5 <= high
        low, high = bootstrap_intervals({"m": values}, np.arange(480), replicates=300)["m"]
        single += low <= 0.5 <= high
    assert 0.90 <= covered / 200 <= 0.99
    assert single / 200 < 0.8  # drawing single queries would promise too much


def test_the_seed_decides_and_every_metric_gets_its_interval():
    rng = np.random.default_rng(3)
    classes, values = np.repeat(np.arange(10), 3), {"a": rng.random(30), "b": np.full(30, 0.25)}
    first = bootstrap_intervals(values, classes, seed=5)
    assert first == bootstrap_intervals(values, classes, seed=5)
    assert first != bootstrap_intervals(values, classes, seed=6)
    assert first["b"] == (0.25, 0.25)
    assert first["a"][0] < values["a"].mean() < first["a"][1]


def test_one_class_is_refused():
    with raises(EvaluationError, "too-few-classes"):
        bootstrap_intervals({"m": np.ones(3)}, np.zeros(3, np.int64))


def test_neither_names_nor_order_of_classes_change_an_interval():
    rng = np.random.default_rng(4)
    classes = np.repeat(np.arange(30), rng.integers(1, 9, 30))
    values = {"a": rng.integers(0, 2, len(classes)).astype(float), "b": rng.random(len(classes))}
    intervals = bootstrap_intervals(values, classes)
    order = rng.permutation(len(classes))
    renamed = bootstrap_intervals(values, rng.permutation(30)[classes])
    shuffled = bootstrap_intervals({name: rows[order] for name, rows in values.items()}, classes[order])
    for name, bounds in intervals.items():
        assert renamed[name] == pytest.approx(bounds)
        assert shuffled[name] == pytest.approx(bounds)


def test_an_interval_does_not_depend_on_the_metrics_beside_it():
    """`zoo finetune` measures fewer metrics than `zoo evaluate`; their intervals on the same images are the same."""
    rng = np.random.default_rng(5)
    classes = np.repeat(np.arange(12), 4)
    values = {name: rng.integers(0, 2, 48).astype(float) for name in "abc"}
    together = bootstrap_intervals(values, classes)
    assert together == {name: bootstrap_intervals({name: rows}, classes)[name] for name, rows in values.items()}
    assert bootstrap_intervals(dict(reversed(values.items())), classes) == together


def test_the_interval_of_class_scores_is_that_of_the_single_queries():
    rng = np.random.default_rng(6)
    names = rng.permutation(np.repeat(["owl", "wren", "auk", "tit", "kite"], [3, 1, 4, 2, 5]))
    first, second = ({"map_at_r": rng.random(15), "recall_at_1": rng.integers(0, 2, 15) * 1.0} for _ in range(2))
    scores = [class_scores(values, names, ["map_at_r"]) for values in (first, second)]
    assert scores[0][QUERIES] == (4, 5, 3, 2, 1), "by the order of the names"
    assert scores[0]["map_at_r"] == pytest.approx(
        [first["map_at_r"][names == name].mean() for name in sorted(set(names))]
    )
    codes = np.unique(names, return_inverse=True)[1]
    expected = bootstrap_intervals({"m": first["map_at_r"] - second["map_at_r"]}, codes)["m"]
    assert paired_class_interval(*scores, "map_at_r") == pytest.approx(expected, abs=1e-12)


def test_class_scores_of_other_queries_and_of_one_class_are_refused():
    one, two = {QUERIES: (2.0, 3.0), "m": (0.5, 0.1)}, {QUERIES: (2.0, 4.0), "m": (0.5, 0.1)}
    with raises(EvaluationError, "evaluation"):
        paired_class_interval(one, two, "m")
    with raises(EvaluationError, "too-few-classes"):
        paired_class_interval({QUERIES: (2.0,), "m": (1.0,)}, {QUERIES: (2.0,), "m": (0.0,)}, "m")

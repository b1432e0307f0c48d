"""Saved models have paired intervals over classes: their scores by class are kept."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.training.studies.test_compare import RECIPE, evaluation, model, save
from training.studies.compare import find_runs
from training.studies.compare_own import OwnScore, own_scores
from zoo.cli.main import main
from zoo.data.dataset import DataIdentity
from zoo.evaluation import intervals_over_classes
from zoo.evaluation.evaluate import evaluate
from zoo.evaluation.statistics import SIGNED
from zoo.models.results import add_result, read_class_scores, read_results

QUERIES = (3, 2, 4, 1)
DATA = DataIdentity("cub", "a" * 64, 10, 4)


def measured(home: Path, name: str, seed: int, scores: list[float], data: DataIdentity = DATA) -> np.ndarray:
    """Save a model with these scores of its four classes; return the scores of its ten queries."""
    folder = model(home, name, {**RECIPE, "seed": seed, "method": name.partition("-seed")[0]})
    single = np.repeat(scores, QUERIES)
    by_class = {"queries": QUERIES, "recall_at_1": tuple(scores)}
    result = evaluation(name, recall_at_1=float(single.mean()))
    save(folder, replace(result, data=data, class_scores=by_class))
    return single


def row(name: str, against: str) -> OwnScore:
    (found,) = (
        row
        for row in own_scores(find_runs(), dataset="cub", metrics=["recall_at_1"], against=against)
        if row.name == name
    )
    return found


def by_queries(difference: np.ndarray) -> tuple[float, float]:
    return intervals_over_classes({"m": difference}, np.repeat(np.arange(4), QUERIES), SIGNED)["m"]


def test_one_seed_has_an_interval_over_classes(own_zoo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = measured(own_zoo, "first", 0, [0.5, 0.25, 0.75, 1])
    second = measured(own_zoo, "second", 0, [0.4, 0.35, 0.5, 0])
    found = row("second", "first").difference
    assert found is not None
    assert (found.seeds, found.estimate.over) == ((0,), "classes")
    assert found.estimate.mean == pytest.approx((second - first).mean())
    assert found.estimate.interval == pytest.approx(by_queries(second - first))
    assert main(["benchmark", "models", "--dataset", "cub", "--against", "first", "--metric", "recall_at_1"]) == 0
    assert f"{found.estimate.interval[0]:.4f} to {found.estimate.interval[1]:.4f} over classes" in " ".join(
        capsys.readouterr().out.split()
    )


def test_other_seeds_are_compared_over_classes(own_zoo: Path) -> None:
    """Two seeds of one against another seed of the other: by hand, the mean of the two less the one."""
    first = measured(own_zoo, "first", 7, [0.5, 0.25, 0.75, 1])
    pair = [measured(own_zoo, f"second-seed{n}", n, s) for n, s in ((1, [0.4, 0.3, 0.5, 0]), (2, [0.6, 0.2, 0.5, 1]))]
    found = row("second", "first").difference
    assert found is not None
    assert (found.seeds, found.estimate.over) == ((), "classes")
    assert found.estimate.mean == pytest.approx((np.mean(pair, axis=0) - first).mean())
    assert found.estimate.interval == pytest.approx(by_queries(np.mean(pair, axis=0) - first))


def test_other_images_and_scores_without_classes_have_none(own_zoo: Path) -> None:
    measured(own_zoo, "first", 0, [0.5, 0.25, 0.75, 1])
    measured(own_zoo, "other", 1, [0.5, 0.25, 0.75, 1], DataIdentity("cub", "b" * 64, 10, 4))
    measured(own_zoo, "damaged", 0, [0.5, 0.25, 0.75, 1])
    results = own_zoo / "models" / "damaged" / "results.json"
    (entry,) = json.loads(results.read_text())
    for damage in ("1 2", "one", 3):
        results.write_text(json.dumps([{**entry, "class_scores": {**entry["class_scores"], "recall_at_1": damage}}]))
        found = row("damaged", "first").difference
        assert found is not None
        assert (found.estimate.interval, found.estimate.over) == (None, None)
    assert {r.name for r in own_scores(find_runs(), dataset="cub", against="first") if r.difference} == {"damaged"}


def test_a_measurement_keeps_the_scores_of_its_classes(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    rows, labels = draw.normal(size=(30, 4)).astype(np.float32), np.repeat(["c", "a", "b"], [5, 15, 10])
    result = evaluate(rows, labels=labels, k=(1,))
    add_result(tmp_path, replace(result, fingerprint="f" * 64))
    (stored,) = read_results(tmp_path)
    kept = read_class_scores(stored)
    assert kept is not None
    assert kept["queries"] == (15, 10, 5)
    for metric in ("recall_at_1", "map_at_r"):
        assert np.average(kept[metric], weights=kept["queries"]) == pytest.approx(result.metrics[metric], abs=1e-6)


def test_seeds_and_classes_verdicts_and_margins_are_printed(own_zoo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two seeds of each: differences of about .1 in every class and seed are sure, others are undecided."""
    for seed in (1, 2):
        measured(own_zoo, f"first-seed{seed}", seed, [0.5, 0.25, 0.7, 0.9])
        measured(own_zoo, f"second-seed{seed}", seed, [0.6, 0.34, 0.8, 1])
        measured(own_zoo, f"third-seed{seed}", seed, [0.9, 0.05, 0.6, 1])
    words = ["benchmark", "models", "--dataset", "cub", "--against", "first", "--metric", "recall_at_1"]
    assert main([*words, "--json"]) == 0
    rows = {row["name"]: row["difference"] for row in json.loads(capsys.readouterr().out)}
    assert rows["first"] is None
    assert (rows["second"]["verdict"]["word"], rows["second"]["verdict"]["family"]) == ("better", 2)
    assert (rows["second"]["estimate"]["over"], rows["second"]["note"]) == ("seeds and classes", "")
    third = rows["third"]["verdict"]
    assert third["word"] == "undecided"
    assert main(words) == 0
    assert f"(detectable: {third['detectable']:.4f})" in " ".join(capsys.readouterr().out.split())
    assert main([*words, "--margin", "recall_at_1=.2", "--json"]) == 0
    rows = {row["name"]: row["difference"] for row in json.loads(capsys.readouterr().out)}
    assert rows["second"]["verdict"]["word"] == "equivalent"
    assert main([*words, "--margin", "map_at_r=.2"]) == 2

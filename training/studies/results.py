"""Reading what runs measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from training.studies.plan import Run
from training.studies.study import Measure
from zoo.errors import TrainingError

Values = dict[str, dict[int, float]]
"""By the arm's label and the seed."""


def value_of(result: Mapping[str, Any], measure: Measure) -> float:
    """The measure's value in a run's result. Raises `TrainingError` where it was not measured."""
    return float(_evaluation(result, measure)["metrics"][measure.metric])


def holds(result: Mapping[str, Any], measure: Measure) -> bool:
    return any(_fits(each, measure) for each in result["evaluations"])


def values_of(runs: Sequence[Run], results: Sequence[Mapping[str, Any]], measure: Measure) -> Values:
    """The measure of every finished run; results: one for each of the runs."""
    values: Values = {}
    for run, result in zip(runs, results, strict=True):
        values.setdefault(run.arm.label, {})[run.seed] = value_of(result, measure)
    return values


def twins_of(runs: Sequence[Run], results: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Labels of arms that are one model: the same losses and the same scores, to the last digit, in every run."""
    told: dict[str, list[tuple[int, str, str]]] = {}
    for run, result in zip(runs, results, strict=True):
        losses = [record.get("loss") for each in result["training"] for record in each["log"]]
        scores = [each["metrics"] for each in result["evaluations"]]
        told.setdefault(run.arm.label, []).append((run.seed, run.selection, json.dumps([losses, scores])))
    alike: dict[str, list[str]] = {}
    for label, runs_of_it in told.items():
        alike.setdefault(str(sorted(runs_of_it)), []).append(label)
    return [labels for labels in alike.values() if len(labels) > 1]


def _evaluation(result: Mapping[str, Any], measure: Measure) -> Mapping[str, Any]:
    for each in result["evaluations"]:
        if _fits(each, measure):
            return each
    raise TrainingError(
        f"the run of {result['arm']} with seed {result['seed']} has no {measure}: the study measures more by now. "
        "Begin anew in another folder."
    )


def _fits(evaluation: Mapping[str, Any], measure: Measure) -> bool:
    found = (evaluation["split"], evaluation["view"]) == (measure.split, measure.view)
    return found and measure.metric in evaluation["metrics"]

"""Reading what runs measured."""

from __future__ import annotations

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

"""The outcome of a study: every arm by every measure, differences to the baseline, verdicts, correlations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from training.studies.beside import protocols_of, published_of
from training.studies.plan import FAILURE, Plan, Run, read
from training.studies.results import Values, values_of
from training.studies.statistics import Summary, holm, p_value, paired, summary, verdict
from training.studies.study import Claim, Measure
from zoo.report.matrix import pearson

Result = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One arm by one measure; difference: to the baseline, over common seeds; published: the paper's own number."""

    arm: str
    x: float | None
    selection: str
    measure: Measure
    value: Summary
    difference: Summary | None
    published: float | None = None


@dataclass(frozen=True)
class Judged:
    """A claim, the paired difference it rests on, and the verdict.

    holm: the p-value of the difference, adjusted for all claims of differences in the report; None where the claim is
    that there is little difference, and below two seeds.
    """

    claim: Claim
    than: str
    selection: str
    difference: Summary | None
    verdict: str
    holm: float | None = None


@dataclass(frozen=True)
class Report:
    """What the finished runs of a plan say. correlations: selection -> pairs of names with their Pearson correlation.

    protocols: how published numbers of its arms came about. values: selection -> measure -> the value of each run.
    missing: titles of runs without a result; failures: title -> message; made_with: hardware, versions, commits: all
    that the runs were made with.
    """

    plan: Plan
    protocols: list[str]
    values: dict[str, dict[Measure, Values]]
    rows: list[Row]
    claims: list[Judged]
    correlations: list[tuple[str, str, str, float | None]]
    curves: dict[str, list[float]]
    spectra: dict[str, list[float]]
    missing: list[str]
    failures: dict[str, str]
    made_with: dict[str, list[Any]]
    seconds: float


def report_of(plan: Plan, folder: Path) -> Report:
    """Read all that is finished in the folder of a study."""
    runs = plan.runs(folder)
    finished = [run for run in runs if run.finished]
    results = [run.result() for run in finished]
    rows: list[Row] = []
    claims: list[Judged] = []
    correlations: list[tuple[str, str, str, float | None]] = []
    values: dict[str, dict[Measure, Values]] = {}
    for selection in plan.selections:
        pairs = [(run, result) for run, result in zip(finished, results, strict=True) if run.selection == selection]
        chosen, found = [run for run, _ in pairs], [result for _, result in pairs]
        tables = {measure: values_of(chosen, found, measure) for measure in plan.study.measures}
        values[selection] = tables
        rows += _rows(plan, selection, tables)
        claims += [_judged(plan, selection, claim, tables[claim.measure]) for claim in plan.study.claims]
        correlations += _correlations(plan, selection, tables)
    return Report(
        plan,
        protocols_of(plan),
        values,
        rows,
        _adjusted(claims),
        correlations,
        _means(finished, results, _curve),
        _means(finished, results, _spectrum),
        [run.title for run in runs if not run.finished],
        {run.title: str(read(run.folder / FAILURE)["message"]) for run in runs if (run.folder / FAILURE).exists()},
        {
            key: _different(result.get(key) for result in results)
            for key in ("device", "hardware", "versions", "commit")
        },
        sum(each["seconds"] for result in results for each in result["training"]),
    )


def _rows(plan: Plan, selection: str, tables: dict[Measure, Values]) -> list[Row]:
    rows = []
    for arm in plan.study.arms:
        for measure, values in tables.items():
            if arm.label in values:
                base = values.get(plan.study.reference, {})
                difference = None if arm.label == plan.study.reference else paired(values[arm.label], base)
                value = summary(list(values[arm.label].values()))
                found = published_of(plan, arm, measure)
                published = None if found is None else found[1].value
                rows.append(Row(arm.label, arm.x, selection, measure, value, difference, published))
    return rows


def _judged(plan: Plan, selection: str, claim: Claim, values: Values) -> Judged:
    than = claim.than or plan.study.reference
    difference = paired(values.get(claim.better, {}), values.get(than, {}))
    return Judged(claim, than, selection, difference, verdict(claim, difference))


def _adjusted(claims: list[Judged]) -> list[Judged]:
    """The claims with their p-values, adjusted for one another."""
    values = [None if each.claim.within is not None else p_value(each.difference) for each in claims]
    return [replace(each, holm=value) for each, value in zip(claims, holm(values), strict=True)]


def _correlations(
    plan: Plan, selection: str, tables: dict[Measure, Values]
) -> list[tuple[str, str, str, float | None]]:
    """Over all runs: of every two measures, where the study asks for it; and of the axis with every measure, over the
    runs of each recipe."""
    columns = {str(measure): _flat(values) for measure, values in tables.items()}
    found: list[tuple[str, str, str, float | None]] = []
    for recipe in dict.fromkeys(arm.recipe for arm in plan.study.arms if arm.x is not None):
        places = {arm.label: arm.x for arm in plan.study.arms if arm.recipe == recipe and arm.x is not None}
        axis = f"{plan.study.x} ({recipe.partition('-$')[0]})"
        for name, column in columns.items():
            on = [(places[label], value) for (label, _), value in column.items() if label in places]
            found.append((selection, axis, name, pearson([x for x, _ in on], [y for _, y in on])))
    names = list(columns) if plan.study.correlate else []
    for i, a in enumerate(names):
        others = [(b, pearson(list(columns[a].values()), list(columns[b].values()))) for b in names[i + 1 :]]
        found += [(selection, a, b, value) for b, value in others]
    return found


def _flat(values: Values) -> dict[tuple[str, int], float]:
    return {(label, seed): value for label, seeds in values.items() for seed, value in seeds.items()}


def _means(runs: Sequence[Run], results: Sequence[Result], lines: Any) -> dict[str, list[float]]:
    """The mean over seeds of what `lines` finds in a result, by arm; of lines as long as the first."""
    found: dict[str, list[list[float]]] = {}
    for run, result in zip(runs, results, strict=True):
        for name, line in lines(result).items():
            found.setdefault(f"{run.arm.label}: {name}", []).append(line)
    return {
        name: np.mean([line for line in several if len(line) == len(several[0])], axis=0).tolist()
        for name, several in found.items()
    }


def _curve(result: Result) -> dict[str, list[float]]:
    """Recall at 1 on held-out training classes, epoch by epoch; test classes are measured once."""
    log = result["training"][0]["log"]
    line = [record["validation_recall_at_1"] for record in log if "validation_recall_at_1" in record]
    return {"validation recall_at_1 by epoch": line} if line else {}


def _spectrum(result: Result) -> dict[str, list[float]]:
    return {
        f"singular values, {each['split']} {each['view']}, {result['selection']}": each["spectrum"]
        for each in result["evaluations"]
        if "spectrum" in each
    }


def _different(values: Any) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found

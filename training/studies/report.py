"""The outcome of a study: every arm by every measure, differences to the baseline, verdicts, correlations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from training.studies.beside import protocols_of, published_of
from training.studies.correlations import CorrelationEstimate, correlations_of
from training.studies.plan import FAILURE, Plan, Run, read
from training.studies.rank import Ranks, ranks_of
from training.studies.results import Values, twins_of, values_of
from training.studies.selections import Moved, moved, unlike
from training.studies.statistics import UNDECIDED, Summary, holm, p_value, paired, summary, verdict
from training.studies.study import Claim, Measure
from training.studies.trends import TrendEstimate as Trended
from training.studies.trends import trends_of

Result = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One arm by one measure; difference: to the baseline, over common seeds.

    published, published_sd: the paper's own number, and its standard deviation over runs where it gives one. rank: the
    highest rank and the dimension of the embeddings, where the measure is decided by the rank's being lower.
    """

    arm: str
    x: float | None
    selection: str
    measure: Measure
    value: Summary
    difference: Summary | None
    published: float | None = None
    published_sd: float | None = None
    rank: tuple[int, int] | None = None


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
    """What the finished runs of a plan say.

    ranks: arms whose spectral decay means nothing; they are in no correlation with it. twins: labels of one model.
    moved, unlike: what `training.studies.selections` says of the two selections, where there are both.
    protocols: how published numbers of its arms came about. values: selection -> measure -> the value of each run.
    missing: titles of runs without a result; failures: title -> message; made_with: hardware, versions, commits: all
    that the runs were made with; dates: when the first and the last run ended.
    """

    plan: Plan
    protocols: list[str]
    values: dict[str, dict[Measure, Values]]
    rows: list[Row]
    claims: list[Judged]
    trends: list[Trended]
    ranks: Ranks
    twins: list[list[str]]
    moved: list[Moved]
    unlike: str
    correlations: CorrelationEstimate
    curves: dict[str, list[float]]
    spectra: dict[str, list[float]]
    missing: list[str]
    failures: dict[str, str]
    made_with: dict[str, list[Any]]
    dates: tuple[str, str] | None
    seconds: float


def report_of(plan: Plan, folder: Path, runs: Sequence[Run] | None = None) -> Report:
    """Read all that is finished in the folder of a study; runs: those of the plan, if they are known already."""
    runs = plan.runs(folder) if runs is None else runs
    finished = [run for run in runs if run.finished]
    results, ranks = [run.result() for run in finished], ranks_of(plan)
    rows: list[Row] = []
    claims: list[Judged] = []
    trends: list[Trended] = []
    correlations: CorrelationEstimate = []
    values: dict[str, dict[Measure, Values]] = {}
    for selection in plan.selections:
        pairs = [(run, result) for run, result in zip(finished, results, strict=True) if run.selection == selection]
        chosen, found = [run for run, _ in pairs], [result for _, result in pairs]
        tables = {measure: values_of(chosen, found, measure) for measure in plan.study.measures}
        values[selection] = tables
        rows += _rows(plan, selection, tables, ranks)
        claims += [_judged(plan, selection, claim, tables[claim.measure], ranks) for claim in plan.claims]
        trends += trends_of(plan, selection, tables)
        correlations += correlations_of(plan, selection, tables, ranks)
    return Report(
        plan,
        protocols_of(plan),
        values,
        rows,
        _adjusted(claims),
        trends,
        ranks,
        twins_of(finished, results),
        moved(plan, values),
        unlike(results),
        correlations,
        _means(finished, results, _curve),
        _means(finished, results, _spectrum),
        [run.title for run in runs if not run.finished],
        {run.title: str(read(run.folder / FAILURE)["message"]) for run in runs if (run.folder / FAILURE).exists()},
        {
            key: _different(result.get(key) for result in results)
            for key in ("device", "hardware", "versions", "commit")
        },
        _dates(results),
        sum(each["seconds"] for result in results for each in result["training"]),
    )


def _rows(plan: Plan, selection: str, tables: dict[Measure, Values], ranks: Ranks) -> list[Row]:
    rows = []
    for arm in plan.study.arms:
        for measure, values in tables.items():
            if arm.label in values:
                base = values.get(plan.study.reference, {})
                difference = None if arm.label == plan.study.reference else paired(values[arm.label], base)
                value = summary(list(values[arm.label].values()))
                found = published_of(plan, arm, measure)
                printed, sd = (None, None) if found is None else (found[1].value, found[1].sd)
                rank = ranks.get(measure, {}).get(arm.label)
                rows.append(Row(arm.label, arm.x, selection, measure, value, difference, printed, sd, rank))
    return rows


def _judged(plan: Plan, selection: str, claim: Claim, values: Values, ranks: Ranks) -> Judged:
    than = claim.than or plan.study.reference
    difference = paired(values.get(claim.better, {}), values.get(than, {}))
    low = {claim.better, than} & set(ranks.get(claim.measure, {}))
    return Judged(claim, than, selection, difference, UNDECIDED if low else verdict(claim, difference))


def _adjusted(claims: list[Judged]) -> list[Judged]:
    """The claims with their p-values, adjusted for one another."""
    values = [None if each.claim.within is not None else p_value(each.difference) for each in claims]
    return [replace(each, holm=value) for each, value in zip(claims, holm(values), strict=True)]


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


def _dates(results: Sequence[Result]) -> tuple[str, str] | None:
    """All are in UTC, and so sorted as text."""
    dates = sorted(result["date"] for result in results if "date" in result)
    return (dates[0], dates[-1]) if dates else None


def _different(values: Any) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found

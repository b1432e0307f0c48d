"""A published score and ours: mean, spread and interval over seeds, and how both came about."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from zoo.comparison.runs import Run, find_runs, runs_of, runs_of_arm
from zoo.published import PublishedScore, Table

STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""0.975 quantiles of Student's t for 1 to 30 degrees of freedom; the last one serves for more."""


@dataclass(frozen=True)
class Ours:
    """What was measured here. value: the mean over runs; sd: over them, None for one.

    interval: 95 %, `over` "seeds" (Student's t of the mean) or, of a single run, "classes" (the bootstrap of its
    results.json); None where neither is known. protocol: how the epoch was selected and the score measured. found: the
    runs themselves.
    """

    value: float
    sd: float | None
    interval: tuple[float, float] | None
    over: str | None
    runs: tuple[str, ...]
    seeds: tuple[int | None, ...]
    protocol: str
    found: tuple[Run, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """A published score beside ours, which is None unless status is "measured".

    status: "measured"; "not measured" where there is a model but not this metric; "not run" where there is no model;
    "no recipe" where neither a model nor a study of this project measures the same thing.
    """

    table: Table
    score: PublishedScore
    status: str
    ours: Ours | None = None

    @property
    def difference(self) -> float | None:
        return None if self.ours is None else self.ours.value - self.score.value


def compare(tables: Iterable[Table], dataset: str | None = None, runs: Sequence[Run] | None = None) -> list[Comparison]:
    """Each score of the tables (those of one data set, where it is given) beside ours.

    runs: what to look at; by default all models that are trained here or shipped, and all studies that were run here.
    """
    known = find_runs() if runs is None else list(runs)
    return [
        _compare(table, score, known)
        for table in tables
        for score in table.scores
        if dataset is None or score.dataset == dataset
    ]


def _compare(table: Table, score: PublishedScore, known: Sequence[Run]) -> Comparison:
    if score.recipe is None and score.study is None:
        return Comparison(table, score, "no recipe")
    groups = _groups(score, known)
    pairs = max((newest(runs, score.dataset, score.split, score.metric) for runs in groups), key=len)
    if not pairs:
        return Comparison(table, score, "not measured" if any(groups) else "not run")
    return Comparison(table, score, "measured", ours_of(score.metric, pairs))


def _groups(score: PublishedScore, known: Sequence[Run]) -> list[list[Run]]:
    """The runs of the score's recipe, and those of the arm that measures it, each by the view that it is of."""
    groups = [] if score.recipe is None else [runs_of(score.recipe, known)]
    if score.study is not None and score.arm is not None:
        groups.append(runs_of_arm(score.study, score.arm, score.dataset, known))
    views = [[view for run in group if (view := run.view(score.view)) is not None] for group in groups]
    # A model trained under the recipe's name with another dimension is another model.
    return [[run for run in group if run.dim == score.dim] for group in views]


Pair = tuple[Run, dict[str, Any]]
"""A run and a measurement of it, as results.json has it."""


def newest(runs: Iterable[Run], dataset: str, split: str, metric: str) -> list[Pair]:
    """Of each run that has one its newest measurement of the metric, with torch in fp32 where there is one."""
    return [(run, result) for run in runs if (result := _newest(run, dataset, split, metric)) is not None]


def _newest(run: Run, dataset: str, split: str, metric: str) -> dict[str, Any] | None:
    fits = [
        result
        for result in run.results
        if (result["dataset"], result["split"]) == (dataset, split) and metric in result["metrics"]
    ]
    exact = [result for result in fits if (result["runtime"], result["precision"]) == ("torch", "fp32")]
    return next(reversed(exact or fits), None)


def ours_of(metric: str, pairs: Sequence[Pair]) -> Ours:
    """The mean of a metric over one or more measurements, one a seed."""
    values = [float(result["metrics"][metric]) for _, result in pairs]
    interval = interval_over_seeds(values) if len(values) > 1 else _over_classes(pairs[0][1], metric)
    return Ours(
        value=statistics.fmean(values),
        sd=statistics.stdev(values) if len(values) > 1 else None,
        interval=interval,
        over=None if interval is None else "seeds" if len(values) > 1 else "classes",
        runs=tuple(run.name for run, _ in pairs),
        seeds=tuple(run.seed for run, _ in pairs),
        protocol="; ".join(dict.fromkeys(_protocol(run, result) for run, result in pairs)),
        found=tuple(run for run, _ in pairs),
    )


def interval_over_seeds(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the mean of two or more values, by Student's t; beyond 31 values a little too wide."""
    n, mean = len(values), statistics.fmean(values)
    half = STUDENT[min(n - 1, len(STUDENT)) - 1] * statistics.stdev(values) / n**0.5
    return mean - half, mean + half


def _over_classes(result: dict[str, Any], metric: str) -> tuple[float, float] | None:
    bounds = result.get("intervals", {}).get(metric)
    return None if bounds is None else (float(bounds[0]), float(bounds[1]))


def _protocol(run: Run, result: dict[str, Any]) -> str:
    return f"{run.selection}; {result['protocol']}; {result['runtime']} {result['precision']}"

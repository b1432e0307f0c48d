"""Models that were measured here beside one another: the seeds of a recipe together, and paired differences."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from zoo.comparison.compare import Ours, Pair, interval_over_seeds, newest, ours_of
from zoo.comparison.runs import SEEDED, Run, seeds_of
from zoo.errors import UsageError, nearest

METRICS = ("recall_at_1", "map_at_r")


@dataclass(frozen=True)
class Difference:
    """A model's mean less another's over the seeds that both have. interval: 95 %, Student's t of the paired
    differences; None of a single seed."""

    value: float
    interval: tuple[float, float] | None
    seeds: tuple[int | None, ...]


@dataclass(frozen=True)
class Measured:
    """One metric of a model, or of all seeds of its recipe, on one split. difference: to the model named, if one is."""

    name: str
    dim: int
    dataset: str
    split: str
    metric: str
    ours: Ours
    difference: Difference | None = None


def measured(
    runs: Sequence[Run],
    names: Sequence[str] = (),
    dataset: str | None = None,
    metrics: Sequence[str] = METRICS,
    against: str | None = None,
) -> list[Measured]:
    """What results.json of the models holds, by data set, metric and name. Finished runs of studies are left out.

    names: only these models, each with the other seeds of its recipe. against: the model, or one of the seeds, from
    which differences are taken. Raises `UsageError` for a name that no model has.
    """
    groups = list(_groups([run for run in runs if run.curves is None]))
    named = [_named(name, groups) for name in names]
    chosen = [group for group in groups if group in named] if named else groups
    metrics = tuple(dict.fromkeys(metrics))
    base = None if against is None else _named(against, groups)
    rows = [
        _measured(group, base, place, metric, pairs)
        for group in chosen
        for place in _places(group, dataset)
        for metric in metrics
        if (pairs := newest(group, *place, metric))
    ]
    return sorted(rows, key=lambda row: (row.dataset, row.split, metrics.index(row.metric), row.name))


def _measured(
    group: Sequence[Run], base: Sequence[Run] | None, place: tuple[str, str], metric: str, pairs: Sequence[Pair]
) -> Measured:
    others = newest(base, *place, metric) if base is not None and base is not group else []
    difference = _difference(pairs, others, metric)
    return Measured(_name_of(group), group[0].dim, *place, metric, ours_of(metric, pairs), difference)


def _difference(pairs: Sequence[Pair], others: Sequence[Pair], metric: str) -> Difference | None:
    """None where no seed was measured of both, on as many images and by one protocol."""
    of_seed = {(other.seed, *_measurement(result)): result for other, result in others}
    both = [(run.seed, result, of_seed.get((run.seed, *_measurement(result)))) for run, result in pairs]
    found = {seed: float(a["metrics"][metric]) - float(b["metrics"][metric]) for seed, a, b in both if b is not None}
    if not found:
        return None
    values = list(found.values())
    return Difference(statistics.fmean(values), interval_over_seeds(values) if len(values) > 1 else None, tuple(found))


def _measurement(result: dict[str, Any]) -> tuple[Any, ...]:
    """What two measurements have in common that can be compared."""
    return tuple(result.get(key) for key in ("protocol", "runtime", "precision", "queries", "classes"))


def _groups(runs: Sequence[Run]) -> Iterator[list[Run]]:
    """The runs, those of a recipe that differ by seed together; each is in one group alone."""
    left = sorted(runs, key=lambda run: (SEEDED.fullmatch(run.name) is not None, run.name))
    while left:
        group = seeds_of(left[0], left)
        yield group
        left = [run for run in left if run not in group]


def _named(name: str, groups: Sequence[list[Run]]) -> list[Run]:
    for group in groups:
        if name in {known for run in group for known in _names(run)}:
            return group
    known = [run.name for group in groups for run in group]
    raise UsageError(f"no model {name!r} here.{nearest(name, known)} What there is: zoo list")


def _names(run: Run) -> tuple[str, ...]:
    """By which a run is asked for: its own, and without its seed."""
    seeded = SEEDED.fullmatch(run.name)
    return (run.name, seeded["name"]) if seeded else (run.name,)


def _name_of(group: Sequence[Run]) -> str:
    """The name without what tells its seeds apart."""
    shortest = min((run.name for run in group), key=len)
    seeded = SEEDED.fullmatch(shortest)
    return seeded["name"] if seeded and len(group) > 1 else shortest


def _places(group: Sequence[Run], dataset: str | None) -> list[tuple[str, str]]:
    """The data sets and splits that the runs were measured on."""
    places = {(result["dataset"], result["split"]) for run in group for result in run.results}
    return sorted(place for place in places if None not in place and dataset in (None, place[0]))

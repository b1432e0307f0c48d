"""Models that were measured here next to one another: only scores on the same images are compared."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from types import MappingProxyType
from typing import Any

from training.studies.compare import (
    SEEDED,
    MeasuredImages,
    MeasuredScore,
    Measurement,
    Record,
    TrainedModel,
    average_measurements,
    measured_images,
    newest_measurements,
    seeds_of,
)
from training.studies.statistics import difference_bounds
from zoo.data.dataset import FOLDER, split_title
from zoo.errors import UsageError, command, nearest
from zoo.evaluation.evaluate import METRICS
from zoo.evaluation.statistics import Estimate, ScoresByClass, Verdict, class_table, estimate, judge, subtract
from zoo.models.results import read_class_scores


@dataclass(frozen=True)
class ScoreDifference:
    """A model's mean minus another's, over their common seeds if they have some.

    Attributes:
        estimate: The paired difference with its interval, over classes alone below two common seeds.
        seeds: The common seeds; empty if all seeds of both are averaged.
        verdict: In the family of all models by one metric on the same images.
        note: What the interval leaves out; "" for several common seeds.
    """

    estimate: Estimate
    seeds: tuple[int | None, ...]
    verdict: Verdict | None = None
    note: str = ""


@dataclass(frozen=True)
class OwnScore:
    """One metric of a model, or of all seeds of its recipe, on the same images.

    Attributes:
        images: The images that were measured.
        classes: The number of their classes that have queries; None where it is not recorded.
        pixels: The side of the model's input; None where it is not known.
        head: What makes the embedding, as in `ModelInfo`.
        difference: To the model that was named, if one was and both were measured alike.
        no_difference: Why the difference is missing.
    """

    name: str
    dim: int
    images: MeasuredImages
    metric: str
    ours: MeasuredScore
    classes: int | None
    pixels: int | None = None
    head: str = ""
    difference: ScoreDifference | None = None
    no_difference: str = ""


def own_scores(
    runs: Sequence[TrainedModel],
    names: Sequence[str] = (),
    dataset: str | None = None,
    metrics: Sequence[str] = METRICS,
    against: str | None = None,
    margins: Mapping[str, float] = MappingProxyType({}),
) -> list[OwnScore]:
    """Return the measured scores of models, by data set, metric and name. Runs of studies are left out.

    Args:
        runs: Models and runs.
        names: Only these models, each with the other seeds of its recipe.
        dataset: Only scores on this data set.
        metrics: Keys of results.json.
        against: The model, or one of its seeds, from which differences are taken.
        margins: By metric the difference below which two models are equivalent.

    Raises:
        UsageError: If no model has a given name, no score has a given metric, or `against` no score on the images of
            any other row.
    """
    groups = list(_seed_groups([run for run in runs if run.curves is None]))
    named = [_group_of(name, groups) for name in names]
    selected_groups = [group for group in groups if group in named] if named else groups
    metrics = tuple(dict.fromkeys(metrics))
    _check_metrics(metrics, groups)
    base = None if against is None else _group_of(against, groups)
    rows = [
        _own_score(group, base, images, metric, measurements)
        for group in selected_groups
        for images in measured_images(group, dataset)
        for metric in metrics
        if (measurements := newest_measurements(group, images, metric))
    ]
    if against is not None and base is not None:
        _check_common_images(against, base, rows)
    return sorted(
        _with_verdicts(rows, margins),
        key=lambda row: (row.images.title, row.images, metrics.index(row.metric), row.name),
    )


def _with_verdicts(rows: Sequence[OwnScore], margins: Mapping[str, float]) -> list[OwnScore]:
    """Return the rows with verdicts on their differences; those of one metric on the same images are a family."""
    judged = [row for row in rows if row.difference is None]
    families: dict[tuple[MeasuredImages, str], list[tuple[OwnScore, ScoreDifference]]] = {}
    for row in rows:
        if row.difference is not None:
            families.setdefault((row.images, row.metric), []).append((row, row.difference))
    for (_, metric), family in families.items():
        verdicts = judge([difference.estimate for _, difference in family], [margins.get(metric)] * len(family))
        judged += [
            replace(row, difference=replace(difference, verdict=verdict))
            for (row, difference), verdict in zip(family, verdicts, strict=True)
        ]
    return judged


def _check_metrics(metrics: Sequence[str], groups: Sequence[Sequence[TrainedModel]]) -> None:
    """Raise `UsageError` for a metric that no score has, if there are scores."""
    known = sorted({name for group in groups for run in group for result in run.results for name in result["metrics"]})
    for metric in metrics:
        if known and metric not in {*known, *METRICS}:
            raise UsageError(
                f"no score of a model here has the metric {metric!r}.{nearest(metric, known)} They have "
                f"{', '.join(known)}; zoo evaluate MODEL --metrics all --save adds the others.",
                code="unknown-name",
            )


def _own_score(
    group: Sequence[TrainedModel],
    base: Sequence[TrainedModel] | None,
    images: MeasuredImages,
    metric: str,
    measurements: Sequence[Measurement],
) -> OwnScore:
    ours, classes = average_measurements(metric, measurements), measurements[0][1].get("classes")
    name = _group_name([run for run, _ in measurements])
    row = OwnScore(name, group[0].dim, images, metric, ours, classes, group[0].pixels, group[0].head)
    if base is None:
        return row
    if base is group:
        return replace(row, no_difference="the model itself")
    base_measurements = newest_measurements(base, images, metric)
    if not base_measurements:
        return replace(row, no_difference="not measured on these images")
    difference = _score_difference(measurements, base_measurements, metric)
    return replace(row, difference=difference) if difference else replace(row, no_difference=_unlike(base_measurements))


def _unlike(base_measurements: Sequence[Measurement]) -> str:
    """Return with what a measurement has to agree to be compared with those of the base."""
    seeds = sorted({"none" if run.seed is None else str(run.seed) for run, _ in base_measurements})
    ways = sorted({f"{result['runtime']} {result['precision']}" for _, result in base_measurements})
    return f"none measured alike: seed {', '.join(seeds)}, {', '.join(ways)}, same protocol"


def _check_common_images(against: str, base: Sequence[TrainedModel], rows: Sequence[OwnScore]) -> None:
    """Raise `UsageError` if there are rows of other models, and the base was measured on the images of none."""
    own = measured_images(base)
    others = {row.images for row in rows if not any(run in base for run in row.ours.models)}
    if not others or others & set(own):
        return
    has = ", ".join(f"{images.title}, {split_title(images.split)}" for images in own) or "no scores"
    wanted = ", ".join(f"{images.title}, {split_title(images.split)}" for images in sorted(others))
    first = min(others)
    data = ("--data", "DIR") if first.dataset == FOLDER else ()
    measure = command("evaluate", against, "--dataset", first.dataset, *data, "--split", first.split, "--save")
    raise UsageError(
        f"{against} cannot be compared: it has {has}, and the other models were measured on {wanted}. Measure it on "
        f"the same images: {measure}",
        code="no-results",
    )


def _score_difference(
    measurements: Sequence[Measurement], base_measurements: Sequence[Measurement], metric: str
) -> ScoreDifference | None:
    """Return the difference over the seeds that both have, else over the classes that both have, else None.

    Measurements are paired if they are of as many images and of one protocol. A model that was not trained has no
    seed, and is compared with every seed.
    """
    alike = [
        (own, base)
        for own, base in product(measurements, base_measurements)
        if _conditions(own[1]) == _conditions(base[1])
    ]
    paired: dict[int | None, tuple[Record, Record]] = {}
    for (run, result), (base, other) in alike:
        if run.seed == base.seed or run.seedless or base.seedless:
            paired[base.seed if run.seedless else run.seed] = result, other
    bounds = difference_bounds(metric)
    if paired:
        own, others = map(list, zip(*paired.values(), strict=True))
        values = [mine - other for mine, other in zip(_values(own, metric), _values(others, metric), strict=True)]
        found = estimate(values, subtract(_class_table(own, metric), _class_table(others, metric)), bounds)
        return ScoreDifference(found, tuple(paired), note=found.note)
    # Other seeds are not paired, but the classes that both were measured on are.
    own, others = ([result for _, result in side] for side in (measurements, base_measurements))
    tables = [_class_table(results, metric) for results in (own, others)]
    table = subtract(*(table and ScoresByClass(table.scores.mean(0, keepdims=True), table.queries) for table in tables))
    if table is None or len(table.queries) < 2 or len(alike) < len(own) * len(others):
        return None
    difference = statistics.fmean(_values(own, metric)) - statistics.fmean(_values(others, metric))
    found = estimate([difference], table, bounds)
    return ScoreDifference(found, (), note=found.note)


def _values(results: Sequence[Record], metric: str) -> list[float]:
    return [float(result["metrics"][metric]) for result in results]


def _class_table(results: Sequence[Record], metric: str) -> ScoresByClass | None:
    return class_table([read_class_scores(result) for result in results], metric)


def _conditions(result: Record) -> tuple[Any, ...]:
    """Return the facts that two comparable measurements share."""
    return tuple(result.get(key) for key in ("protocol", "runtime", "precision", "queries", "classes"))


def _seed_groups(runs: Sequence[TrainedModel]) -> Iterator[list[TrainedModel]]:
    """Group the runs by recipe; each run is in one group."""
    left = sorted(runs, key=lambda run: (SEEDED.fullmatch(run.name) is not None, run.name))
    while left:
        group = seeds_of(left[0], left)
        yield group
        left = [run for run in left if run not in group]


def _group_of(name: str, groups: Sequence[list[TrainedModel]]) -> list[TrainedModel]:
    for group in groups:
        if any(name in _names(run) for run in group):
            return group
    names = [run.name for group in groups for run in group]
    raise UsageError(f"no model {name!r} here.{nearest(name, names)} List the models: zoo list", code="unknown-name")


def _names(run: TrainedModel) -> tuple[str, ...]:
    """Return the names that select a run: its own, and the one without its seed."""
    seeded = SEEDED.fullmatch(run.name)
    return (run.name, seeded["name"]) if seeded else (run.name,)


def _group_name(group: Sequence[TrainedModel]) -> str:
    """Return the shortest name of the group, without the seed."""
    shortest = min((run.name for run in group), key=len)
    seeded = SEEDED.fullmatch(shortest)
    return seeded["name"] if seeded and len(group) > 1 else shortest

"""Markdown tables of the comparison: scores of each arm with intervals over classes, and differences of arms."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.quality.arms import ARMS, PAIRS, SEEDS
from tests.benchmarks.quality.study import METRICS, SELECTION, Record
from training.studies.results import archived_lines
from training.studies.study import EMBEDDING, FEATURES
from zoo.data.dataset import OTHER_EDITIONS
from zoo.errors import UsageError
from zoo.evaluation import intervals_over_classes
from zoo.evaluation.statistics import SIGNED
from zoo.files import read_object
from zoo.render import Table

EQUAL = """\
Equal for all arms: the trunk with its weights of ImageNet, the decoded images, the input size, the augmentation (random
resized crop and mirror image), the classes that are held out (a tenth of the training classes, by seed), the rule that
keeps the epoch with the best MAP@R on them, the schedule of the learning rate, the choice of precision, the loop of
training, the measurement, and two learning rates to choose from if trials were made (by MAP@R on the held-out training
classes of the first seed). The unseen classes choose nothing.

Each library's own: loss, miner and their constants, optimiser and weight decay, ratio of the head's and the proxies'
rates to the trunk's, composition of batches, start of the head, and whether batch norm learns. The recipes of dml-zoo
begin with principal directions as head, and may keep that start (epoch 0); the peers begin with random weights.
`tests/benchmarks/quality/peers.py` and `training/recipes/photos.py` state all settings with their sources.

Intervals are 95 % intervals over the unseen classes of the mean over seeds; they do not contain the variation
between seeds. Seconds per step are of the wall clock, the median of the epochs; they include augmentation, forward,
backward and update, without validation. Other work on the machine lengthens them."""


@dataclass(frozen=True)
class ArmResults:
    """The runs of one arm on one data set at its selected learning rate.

    Attributes:
        arm: The name of the arm.
        dataset: The data set.
        records: The records, by seed.
        trials: The number of learning rates that were compared.
    """

    arm: str
    dataset: str
    records: Sequence[Record]
    trials: int

    @property
    def views(self) -> list[str]:
        """The views that were measured."""
        return [view for view in (EMBEDDING, FEATURES) if view in self.records[0]["views"]]

    @property
    def seeds(self) -> list[int]:
        """The seeds of the records."""
        return [record["seed"] for record in self.records]

    def best_view(self, metric: str) -> str:
        """Return the view with the higher score."""
        return max(self.views, key=lambda view: self.score(view, metric))

    def score(self, view: str, metric: str) -> float:
        """Return the mean over queries and seeds."""
        return float(np.mean([record["views"][view]["scores"][metric] for record in self.records]))

    def queries(self, view: str, metric: str, seeds: Iterable[int] | None = None) -> np.ndarray:
        """Return a value for each query, float64 [m], equal within a class: the class's mean over these seeds."""
        chosen = [record["views"][view] for record in self.records if seeds is None or record["seed"] in seeds]
        means = np.mean([record["classes"][metric] for record in chosen], axis=0)
        values: np.ndarray = np.repeat(means, chosen[0]["queries"])
        return values

    def classes(self) -> np.ndarray:
        """Return the class of each query, int64 [m]."""
        counts = self.records[0]["views"][FEATURES]["queries"]
        return np.repeat(np.arange(len(counts)), counts)


def read_records(folder: Path) -> list[Record]:
    """Return the records of the finished runs in a folder: a file each, or lines of runs.jsonl.gz.

    Raises:
        UsageError: `no-results` if no run is finished.
    """
    files = map(read_object, sorted(folder.glob("*.json")))
    archived = map(json.loads, archived_lines(folder / "runs.jsonl"))
    records = [record for record in (*archived, *files) if "views" in record]
    if not records:
        raise UsageError(
            f"{folder} has no finished run. Make some with: python -m tests.benchmarks.quality run {folder}",
            code="no-results",
        )
    return records


def group_records(records: Iterable[Record]) -> list[ArmResults]:
    """Return the results of each data set and arm, in the order of `SEEDS` and `ARMS`.

    Of several learning rates, the one with the best validation on the smallest seed is used.

    Raises:
        UsageError: `other-study` if runs on one data set were measured on different images.
    """
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((record["dataset"], record["arm"]), []).append(record)
    for dataset in {dataset for dataset, _ in groups}:
        measured = {r["measured"]["sha256"] for (name, _), rows in groups.items() if name == dataset for r in rows}
        if len(measured) > 1:
            raise UsageError(
                f"the runs on {dataset} were measured on {len(measured)} different sets of images; keep them in "
                "different folders.",
                code="other-study",
            )
    names = [arm.name for arm in ARMS]
    order = sorted(groups, key=lambda key: (_position(key[0], list(SEEDS)), _position(key[1], names)))
    return [_selected(dataset, arm, groups[dataset, arm]) for dataset, arm in order]


def _position(name: str, names: list[str]) -> tuple[int, str]:
    return names.index(name) if name in names else len(names), name


def _selected(dataset: str, arm: str, records: list[Record]) -> ArmResults:
    """Return the results at the learning rate that the first seed's validation selects.

    Shorter runs, which only check that an arm runs, are left out.
    """
    longest = max(record["steps"] for record in records)
    records = [record for record in records if record["steps"] == longest]
    first = min(record["seed"] for record in records)
    trials = [record for record in records if record["seed"] == first]
    best = max(trials, key=lambda record: record["validation"].get(SELECTION, 0.0))
    chosen = sorted((r for r in records if r["rate"] == best["rate"]), key=lambda record: record["seed"])
    return ArmResults(arm, dataset, chosen, len(trials))


def score_table(results: Iterable[ArmResults]) -> Table:
    """Return the scores of the arms of one data set, a row for each view."""
    columns = ("Arm", "Library", "View", "R@1", "95 %", "MAP@R", "95 %", "Rate", "Seeds", "Steps", "Images", "s/step")
    rows = [score_cells(result, view) for result in results for view in result.views]
    return Table(columns, rows, range(3, len(columns)))


def score_cells(result: ArmResults, view: str) -> list[str]:
    """Return the cells of a view of an arm."""
    first = result.records[0]
    values = {metric: result.queries(view, metric) for metric in METRICS}
    intervals = intervals_over_classes(values, result.classes())
    scores = []
    for metric in METRICS:
        low, high = intervals[metric]
        scores += [f"{100 * result.score(view, metric):.2f}", f"{100 * low:.1f} to {100 * high:.1f}"]
    trained = first["steps"] > 0
    speeds = [r["images_per_second"] for r in result.records if r["images_per_second"]]
    return [
        result.arm,
        first["library"],
        f"{'head' if view == EMBEDDING else 'trunk'}, {first['views'][view]['dim']}",
        *scores,
        f"{first['rate']:.3g} (of {result.trials})" if trained else "",
        str(len(result.records)),
        _distinct(record["steps"] for record in result.records),
        _distinct(record["steps"] * record["images_per_step"] for record in result.records),
        f"{np.median([first['images_per_step'] / speed for speed in speeds]):.2f}" if speeds else "",
    ]


def difference_table(results: Iterable[ArmResults]) -> Table:
    """Return our arm minus the similar peer, both in their better view, on the seeds that both have."""
    by_arm = {result.arm: result for result in results}
    columns = ("Ours", "Peer", "R@1", "95 %", "MAP@R", "95 %", "Seeds")
    rows = [
        [ours, peer, *difference_cells(by_arm[ours], by_arm[peer], seeds), str(len(seeds))]
        for ours, peer in PAIRS
        if ours in by_arm and peer in by_arm and (seeds := set(by_arm[ours].seeds) & set(by_arm[peer].seeds))
    ]
    return Table(columns, rows, range(2, len(columns)))


def difference_cells(ours: ArmResults, peer: ArmResults, seeds: set[int]) -> list[str]:
    """Return difference and interval of each metric in points, paired by class."""
    values = {}
    for metric in METRICS:
        mine, theirs = (result.queries(result.best_view(metric), metric, seeds) for result in (ours, peer))
        values[metric] = mine - theirs
    intervals = intervals_over_classes(values, ours.classes(), SIGNED)
    cells = []
    for metric in METRICS:
        low, high = intervals[metric]
        cells += [f"{100 * values[metric].mean():+.2f}", f"{100 * low:+.1f} to {100 * high:+.1f}"]
    return cells


def markdown(folder: Path) -> str:
    """Return the page of the finished runs in a folder. Raises what `read_records` and `group_records` raise."""
    records = read_records(folder)
    results = group_records(records)
    parts = []
    for dataset in dict.fromkeys(result.dataset for result in results):
        rows = [result for result in results if result.dataset == dataset]
        measured = rows[0].records[0]["measured"]
        parts.append(f"### {dataset}\n\n{dataset_text(dataset, measured)}\n\n{score_table(rows).markdown()}")
        differences = difference_table(rows)
        if differences.rows:
            parts.append(
                f"Ours minus the similar peer, in points, the better view of each:\n\n{differences.markdown()}"
            )
    return "\n\n".join([*parts, EQUAL, made_with_text(records)]) + "\n"


def dataset_text(dataset: str, measured: Record) -> str:
    """Return which images were measured, and which better known data set they are not."""
    edition = OTHER_EDITIONS.get(dataset)
    other = f" This is {edition}: published scores of that data set say nothing about it." if edition else ""
    return f"{measured['images']:,} images of {measured['classes']} classes that no arm was trained on.{other}"


def made_with_text(records: Sequence[Record]) -> str:
    """Return the dates, processors, threads and versions of the runs."""
    dates = sorted(record["date"][:10] for record in records)
    versions: dict[str, set[Any]] = {}
    for record in records:
        for name, number in record["versions"].items():
            versions.setdefault(name, set()).add(number)
    libraries = ", ".join(f"{name} {_distinct(numbers)}" for name, numbers in sorted(versions.items()))
    precisions = _distinct(f"{r['computation']['precision']} {r['computation']['memory_format']}" for r in records)
    return (
        f"Runs from {dates[0]} to {dates[-1]} on {_distinct(r['hardware']['cpu'] for r in records)}, "
        f"{_distinct(r['threads'] for r in records)} thread(s), {precisions}; {libraries}."
    )


def _distinct(values: Iterable[Any]) -> str:
    return ", ".join(map(str, sorted(set(values), key=str)))

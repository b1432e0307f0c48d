"""Queue of the comparison: each run trains one arm and writes one JSON file; finished runs are skipped."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.benchmarks.quality.arms import Arm
from tests.benchmarks.quality.peers import library_version
from training.api import train_network
from training.overrides import override
from training.recipe import Recipe
from training.studies.measure import embed_views
from training.studies.runner import StudyContext
from training.studies.study import EMBEDDING, FEATURES
from training.trainer import Trained
from zoo.console import note
from zoo.errors import UsageError, ZooError
from zoo.evaluation import per_query
from zoo.files import LockHeldError, locked, read_object, write_json
from zoo.models.network import Network, feature_count

METRICS = ("recall_at_1", "map_at_r")
SELECTION = "map_at_r"
"""Metric on the held-out training classes by which a trial rate is selected."""
CHECKPOINTS = "checkpoints"

Record = dict[str, Any]
"""What the JSON file of a run holds."""


@dataclass(frozen=True)
class Run:
    """One training of one arm.

    Attributes:
        arm: The arm.
        dataset: The data set.
        recipe: The resolved recipe, with seed and learning rate.
    """

    arm: Arm
    dataset: str
    recipe: Recipe

    @property
    def key(self) -> str:
        """The name of the run's file without its suffix; it differs between the trial rates."""
        return f"{self.arm.name}.{self.dataset}.seed{self.recipe.seed}.lr{self.recipe.optimizer.lr:.3g}"


@dataclass(frozen=True)
class Queue:
    """The runs of a study.

    Attributes:
        arms: The arms.
        seeds: The number of seeds by data set.
        folder: The folder of the runs' files.
        trials: Compare every rate of an arm on the first seed, and use the one that is better on the held-out training
            classes for the other seeds; without trials the first rate is used.
        steps: Train only this many steps.
        settings: Changes to every recipe, as `zoo train --set` takes them.
    """

    arms: Sequence[Arm]
    seeds: Mapping[str, int]
    folder: Path
    trials: bool = False
    steps: int | None = None
    settings: Sequence[str] = ()

    def runs(self) -> Iterator[Run]:
        """Yield the runs by data set, seed and arm, so that decoded images are shared.

        A later seed's rate is selected when its run is due, from the files of the first seed.
        """
        for dataset, number in self.seeds.items():
            for seed in range(number):
                for arm in self.arms:
                    if arm.seeds is not None and seed >= arm.seeds:
                        continue
                    for factor in self._factors(arm, dataset, seed):
                        yield self._run(arm, dataset, seed, factor)

    def _run(self, arm: Arm, dataset: str, seed: int, factor: float) -> Run:
        return Run(arm, dataset, override(arm.recipe(dataset, seed, factor, self.steps), self.settings))

    def _factors(self, arm: Arm, dataset: str, seed: int) -> Sequence[float]:
        if not self.trials or len(arm.rates) == 1:
            return arm.rates[:1]
        if seed == 0:
            return arm.rates
        trials = {factor: self._run(arm, dataset, 0, factor) for factor in arm.rates}
        finished = {factor: record for factor, run in trials.items() if (record := finished_record(run, self.folder))}
        return [max(finished, key=lambda factor: finished[factor]["validation"][SELECTION])] if finished else []

    def perform(self, context: StudyContext) -> int:
        """Perform the runs that have no file yet, and return the number of those that failed.

        A run that was killed continues after its last epoch. A run that fails leaves no file, and the queue goes on.

        Raises:
            UsageError: `busy` if another process works on the same folder.
        """
        failed = 0
        with lock_folder(self.folder):
            for run in self.runs():
                if finished_record(run, self.folder):
                    continue
                note(f"{run.key}: {steps_of(run.recipe)} steps of {run.recipe.batch.size} images")
                try:
                    record = perform_run(run, self.folder, context)
                except ZooError as error:
                    note(f"{run.key} failed: {error}")
                    failed += 1
                    continue
                note(f"{run.key}: {', '.join(map(view_text, record['views'].items()))}")
        return failed


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the folder of a queue.

    Raises:
        UsageError: `busy` if another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with locked(folder, wait=False):
            yield
    except LockHeldError:
        raise UsageError(
            f"another queue works in {folder}. Wait for it, or name another folder.", code="busy"
        ) from None


def finished_record(run: Run, folder: Path) -> Record:
    """Return the record of a run; empty if it is missing or is that of an older version of the recipe."""
    record = read_object(folder / f"{run.key}.json")
    return record if record.get("digest") == run.recipe.digest else {}


def perform_run(run: Run, folder: Path, context: StudyContext) -> Record:
    """Train a run, measure it on the unseen classes and write its file.

    Args:
        run: The run.
        folder: The folder of the study, which also has the run's checkpoint until its file is written.
        context: The device, the decoded images and the measured split.

    Returns:
        The record.

    Raises:
        ZooError: If data or recipe cannot be used, or training fails.
    """
    scratch = folder / CHECKPOINTS / run.key
    trained, _ = train_network(run.recipe, context.setup, scratch)
    record = {
        "arm": run.arm.name,
        "library": run.arm.library,
        "dataset": run.dataset,
        "seed": run.recipe.seed,
        "rate": run.recipe.optimizer.lr,
        "digest": run.recipe.digest,
        "steps": steps_of(run.recipe),
        "images_per_step": run.recipe.batch.size,
        "validation": trained.validation,
        **training_facts(trained),
        "views": measure(trained.network, run.recipe, context),
        "measured": asdict(context.splits.dataset(run.dataset, "test").identity),
        "recipe": run.recipe.record,
        **made_with(run.arm, context),
    }
    write_json(folder / f"{run.key}.json", record)
    shutil.rmtree(scratch)
    return record


def steps_of(recipe: Recipe) -> int:
    """Return the number of steps of a recipe that names its steps per epoch."""
    return recipe.schedule.epochs * recipe.schedule.steps


def training_facts(trained: Trained) -> Record:
    """Return the kept epoch, the seconds of training, those of a step (median of the epochs) and the computation."""
    rates = [epoch["images_per_second"] for epoch in trained.log]
    return {
        "best_epoch": trained.best_epoch,
        "training_seconds": trained.seconds,
        "images_per_second": statistics.median(rates) if rates else None,
        "computation": asdict(trained.computation),
        "log": trained.log,
    }


def measure(network: Network, recipe: Recipe, context: StudyContext) -> dict[str, Record]:
    """Return the scores of the head and of the trunk's features on the unseen classes, by view.

    Without a head the features are the only view.
    """
    name = recipe.data.dataset
    pixels = context.splits.images(name, "test", recipe.preprocessing)
    labels = context.splits.dataset(name, "test").labels
    views = (EMBEDDING, FEATURES) if recipe.heads else (FEATURES,)
    rows = embed_views(network, recipe, pixels, views, context.device)
    dims = {EMBEDDING: recipe.dim, FEATURES: feature_count(network.trunk)}
    return {view: {"dim": dims[view], **class_scores(rows[view], labels)} for view in views}


def class_scores(rows: np.ndarray, labels: np.ndarray) -> Record:
    """Return R@1 and MAP@R: means over queries, and by class for intervals.

    Args:
        rows: Unit rows float32 [n, d].
        labels: Classes, int64 [n].

    Returns:
        `scores`, metric -> mean over queries; `queries`, their number in each class; `classes`, metric -> mean of each
        class.
    """
    queries = per_query(rows, labels, k=(1,))
    _, position = np.unique(queries.classes, return_inverse=True)
    counts = np.bincount(position)
    means = {name: np.bincount(position, queries.values[name]) / counts for name in METRICS}
    return {
        "scores": {name: float(queries.values[name].mean()) for name in METRICS},
        "queries": counts.tolist(),
        "classes": {name: values.tolist() for name, values in means.items()},
    }


def made_with(arm: Arm, context: StudyContext) -> Record:
    """Return versions, the peer's among them, commit, hardware, threads and the date."""
    facts = dict(context.made_with)
    versions = {**facts["versions"], arm.library: library_version(arm.library)}
    return {
        **facts,
        "versions": versions,
        "threads": torch.get_num_threads(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def view_text(view: tuple[str, Record]) -> str:
    """Return a view's scores as a text."""
    name, record = view
    scores = record["scores"]
    return f"{name} ({record['dim']}) R@1 {scores['recall_at_1']:.4f} MAP@R {scores['map_at_r']:.4f}"

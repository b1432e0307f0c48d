"""Train by name: from recipe and settings to a model folder in the local zoo."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from training import data as training_data
from training.data import prepare
from training.ensembles import concatenate
from training.frozen import data as frozen_data
from training.frozen.data import Samples
from training.loop import CHECKPOINT, train
from training.memory_allocation import keep_freed_memory
from training.origin import UNKNOWN, origin_facts
from training.output import write_model_folder
from training.processes import Processes, connect
from training.recipe import Ensemble, Recipe
from training.run import Place
from training.trackers import check_trackers, create_trackers
from zoo import paths
from zoo.cards import Card, read_card
from zoo.datasets.dataset import Dataset
from zoo.errors import UsageError, ZooError
from zoo.onnx_runtime import threads
from zoo.registry import find
from zoo.torch_runtime import choose_device


@dataclass(frozen=True)
class Outcome:
    """What a training run left: the model folder, its validation scores, time and speed."""

    name: str
    folder: Path
    seconds: float
    epochs: int
    best_epoch: int | None
    validation: dict[str, float]
    skipped: int = 0

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "folder": str(self.folder)}

    def summary(self) -> str:
        scores = ", ".join(f"{name} {value:.4f}" for name, value in self.validation.items())
        kept = f"epoch {self.best_epoch}, best on held-out training classes ({scores})" if scores else "the last epoch"
        left_out = f"{self.skipped} images could not be read and were left out.\n" if self.skipped else ""
        return (
            f"{left_out}{self.name}: {self.epochs} epochs in {self.seconds:.0f} s; kept {kept}.\n"
            f"Written to {self.folder}. Measure it with: zoo evaluate {self.name}"
        )


def train_ensemble(ensemble: Ensemble, restart: bool = False, origin: str | None = None, **how: Any) -> Outcome:
    """Train the members that the local zoo lacks, each as `train_model` does with `how`, and join them.

    origin: the recipe that it was made of, by default the one of its name.
    """
    outcomes = [
        train_model(member, restart=restart, **how) for member in ensemble.members if restart or not _is_trained(member)
    ]
    folder = paths.local_models() / ensemble.name
    if int(os.environ.get("RANK", "0")) == 0:
        members = [paths.local_models() / member.name for member in ensemble.members]
        concatenate(members, folder, ensemble.name, origin_facts(ensemble, origin))
    seconds = sum(outcome.seconds for outcome in outcomes)
    epochs = sum(outcome.epochs for outcome in outcomes)
    return Outcome(ensemble.name, folder, seconds, epochs, None, {}, sum(outcome.skipped for outcome in outcomes))


def _is_trained(recipe: Recipe) -> bool:
    """Whether the local zoo has the model of exactly this recipe."""
    try:
        record = json.loads((paths.local_models() / recipe.name / "recipe.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(record.get("recipe") == recipe.to_json())


def train_model(
    recipe: Recipe,
    root: str | Path | None = None,
    device: str | None = None,
    restart: bool = False,
    progress: bool = True,
    compiled: bool = False,
    track: Iterable[str] = (),
    dataset: Dataset | None = None,
    facts: Mapping[str, Any] | None = None,
    origin: str | None = None,
) -> Outcome:
    """Train and write `ZOO_HOME/models/<name>`, replacing an older folder of that name when all went well.

    compiled: put the trunk through `torch.compile`. track: trackers to tell of each epoch beside the log. dataset: to
    train on, in place of the one that the recipe names. facts: more to record in recipe.json. origin: the recipe that
    this one was made of, by default the one of its name; it is recorded with what was changed. Started by torchrun, the
    processes share every batch, and the first one writes.
    """
    if compiled and recipe.data.features:
        raise UsageError("on cached features there is no trunk to compile; leave --compile out.")
    track = tuple(track)
    check_trackers(track)
    processes, chosen = connect(choose_device(device))
    keep_freed_memory()
    torch.set_num_threads(_threads(processes))
    data = _load(recipe, root, dataset, processes, progress)
    # Of other images it would be another run: it must not go on from this one's checkpoint.
    scratch = paths.home() / "runs" / f"{recipe.name}-{recipe.digest}-{data.digest}"
    with ExitStack() as stack:
        trackers = create_trackers(track, recipe, scratch) if processes.first else ()
        for tracker in trackers:
            stack.callback(tracker.close)
        trained = train(recipe, data, scratch, Place(chosen, processes, compiled), restart, progress, trackers)
    folder = paths.local_models() / recipe.name
    if processes.first:
        run = {
            "seconds": trained.seconds,
            "best_epoch": trained.best_epoch,
            "device": str(chosen),
            "processes": processes.count,
            "compiled": compiled,
            "precision": trained.precision,
            "skipped": list(data.skipped),
        }
        base, teacher = base_of(recipe), teacher_of(recipe)
        made_of = {kind: card.identity for kind, card in (("base", base), ("teacher", teacher)) if card is not None}
        of_recipe = origin_facts(recipe, origin) if dataset is None else UNKNOWN
        record = {**of_recipe, **run, **made_of, **(facts or {})}
        write_model_folder(folder, recipe, trained.network, trained.log, record, data.golden, base, teacher)
        (scratch / CHECKPOINT).unlink(missing_ok=True)
    processes.wait()
    return Outcome(
        recipe.name,
        folder,
        trained.seconds,
        recipe.schedule.epochs,
        trained.best_epoch,
        _validation(trained.log, trained.best_epoch),
        len(data.skipped),
    )


def _threads(processes: Processes) -> int:
    """Of this process: its part of the cores; alone, as many as OMP_NUM_THREADS allows (which torchrun sets to 1)."""
    return threads() if processes.count == 1 else max(1, len(os.sched_getaffinity(0)) // processes.count)


def base_of(recipe: Recipe) -> Card | None:
    """The card of the model that the recipe starts from; None where it starts from other weights, or from none."""
    start = recipe.backbone.pretrained
    if isinstance(start, bool):
        return None
    try:
        return read_card(find(start))
    except ZooError:
        return None  # a folder or a file of weights alone


def teacher_of(recipe: Recipe) -> Card | None:
    """The card of the model that a student learns from; None for a recipe that has no teacher."""
    if recipe.objective.method != "distillation":
        return None
    return read_card(find(recipe.objective.method_args["teacher"]))


def _load(
    recipe: Recipe, root: str | Path | None, dataset: Dataset | None, processes: Processes, progress: bool
) -> Samples:
    """The data; the first process decodes before the others, who find what it kept."""
    if recipe.data.features:
        return frozen_data.load(recipe)
    if not processes.first:
        processes.wait()
    shown = progress and processes.first
    data = training_data.load(recipe, root, shown) if dataset is None else prepare(recipe, dataset, shown)
    if processes.first:
        processes.wait()
    return data


def _validation(log: list[dict[str, Any]], epoch: int | None) -> dict[str, float]:
    if epoch is None:
        return {}
    record = log[epoch - 1]
    return {key.removeprefix("validation_"): value for key, value in record.items() if key.startswith("validation_")}

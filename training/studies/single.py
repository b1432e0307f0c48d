"""One run of a study: trained, measured, written down."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from training.api import TrainingSetup, train_network
from training.data import image_key
from training.frozen.data import Samples
from training.loop import CHECKPOINT, Trained
from training.output import provenance
from training.recipe import Recipe
from training.run import Place
from training.studies.arms import changes_of, recipe_name
from training.studies.measuring import Splits, embed, measure
from training.studies.plan import FAILURE, Run
from training.studies.same_images import RunSchedule, images_of
from zoo.data.dataset import SPLITS
from zoo.errors import ZooError
from zoo.files import LockHeldError, locked, write_json


@dataclass
class Workplace:
    """The training setup and the measured splits that the runs of a study share.

    made_with: versions, commit and hardware.
    """

    setup: TrainingSetup
    splits: Splits
    made_with: dict[str, Any] = field(default_factory=provenance)

    @property
    def device(self) -> torch.device:
        """Return the device that trains and embeds."""
        return self.setup.place.device

    def check(self, recipes: Iterable[Recipe]) -> None:
        """Raise `DatasetError` now, where it would end every run, for a split of their data sets that cannot be had."""
        for name in dict.fromkeys(recipe.data.dataset for recipe in recipes):
            for split in SPLITS:
                self.splits.dataset(name, split)


def workplace(device: torch.device, root: str | Path | None) -> Workplace:
    return Workplace(TrainingSetup(Place(device), root), Splits(root))


@contextmanager
def claimed(folder: Path) -> Iterator[bool]:
    """Whether this process alone holds the run's folder now; the claim goes with the process."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "claim").touch()
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder / "claim", wait=False))
        except LockHeldError:
            yield False
        else:
            yield True


def perform(run: Run, schedule: RunSchedule, work: Workplace) -> dict[str, Any]:
    """Train the run's recipes, going on from their checkpoints, measure, and append the result to results.jsonl.

    The test split is read when training has ended. A failure is written down and raised, other images than those of the
    study's finished runs among them.
    """
    started = time.perf_counter()
    try:
        result = _perform(run, schedule, work)
        schedule.check_images(run, images_of(run, result))
    except ZooError as error:
        write_json(run.folder / FAILURE, {"error": type(error).__name__, "message": str(error)})
        raise
    run.finish({**result, "wall_seconds": time.perf_counter() - started})
    for checkpoint in run.folder.glob(f"*/{CHECKPOINT}"):
        checkpoint.unlink()
    return run.result()


def _perform(run: Run, schedule: RunSchedule, work: Workplace) -> dict[str, Any]:
    plan = schedule.plan
    trained, digests = [], []
    for recipe in run.recipes:

        def check(samples: Samples, key: tuple[Any, ...] = image_key(recipe)) -> None:
            schedule.check_images(run, {key: samples.digest})

        network, samples = train_network(recipe, work.setup, run.folder, check=check)
        trained.append(network)
        digests.append(samples.digest)
    networks = [each.network for each in trained]
    rows = embed(networks, run.recipes, plan.study, work.splits, work.device)
    first = run.recipes[0]
    return {
        "arm": run.arm.label,
        "seed": run.seed,
        "selection": run.selection,
        "recipe": recipe_name(run.arm.recipe, plan.dataset, run.arm.backbone),
        "changed": changes_of(run.arm, plan.dataset),
        "settings": list(plan.settings),
        "resolved": [recipe.to_json() for recipe in run.recipes],
        "recipes": run.digests,
        "data": digests,
        "measured": {split: work.splits.digest(first.data.dataset, split, first.preprocessing) for split, _ in rows},
        "dataset": first.data.dataset,
        "evaluations": measure(rows, plan.study, work.splits, first.data.dataset),
        "training": [_facts(each) for each in trained],
        "device": str(work.device),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **work.made_with,
    }


def _facts(trained: Trained) -> dict[str, Any]:
    return {
        "epochs": len(trained.log),
        "measured_epoch": trained.best_epoch or len(trained.log),
        "seconds": trained.seconds,
        "precision": trained.precision,
        "log": trained.log,
    }

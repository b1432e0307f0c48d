"""Train by name: from recipe and settings to a model folder in the local zoo."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from training import data as training_data
from training.loop import train
from training.output import write_model_folder
from training.recipe import Recipe
from training.recipes import RECIPES
from training.settings import override
from zoo import paths
from zoo.errors import RecipeError, nearest
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

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "folder": str(self.folder)}

    def summary(self) -> str:
        scores = ", ".join(f"{name} {value:.4f}" for name, value in self.validation.items())
        kept = f"epoch {self.best_epoch}, best on held-out training classes ({scores})" if scores else "the last epoch"
        return (
            f"{self.name}: {self.epochs} epochs in {self.seconds:.0f} s; kept {kept}.\n"
            f"Written to {self.folder}. Measure it with: zoo evaluate {self.name}"
        )


def resolve(name: str, settings: Iterable[str] = (), seed: int | None = None, rename: str | None = None) -> Recipe:
    """The recipe of a name with `key=value` settings applied. Raises `RecipeError` with the nearest name or key."""
    if name not in RECIPES:
        raise RecipeError(f"there is no recipe {name!r}.{nearest(name, RECIPES)} All recipes: zoo list")
    recipe = override(RECIPES[name](), settings)
    seed = recipe.seed if seed is None else seed
    return dataclasses.replace(recipe, seed=seed, name=recipe.name if rename is None else rename)


def train_model(
    recipe: Recipe,
    root: str | Path | None = None,
    device: str | None = None,
    restart: bool = False,
    progress: bool = True,
) -> Outcome:
    """Train and write `ZOO_HOME/models/<name>`, replacing an older folder of that name when all went well."""
    chosen = choose_device(device)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    data = training_data.load(recipe, root, progress)
    # Of other images it would be another run: it must not go on from this one's checkpoint.
    scratch = paths.home() / "runs" / f"{recipe.name}-{recipe.digest}-{data.digest}"
    trained = train(recipe, data, scratch, chosen, restart, progress)
    folder = paths.local_models() / recipe.name
    facts = {"seconds": trained.seconds, "best_epoch": trained.best_epoch, "device": str(chosen)}
    write_model_folder(folder, recipe, trained.network, trained.log, facts, data.golden)
    (scratch / "checkpoint.safetensors").unlink(missing_ok=True)
    return Outcome(
        recipe.name,
        folder,
        trained.seconds,
        recipe.schedule.epochs,
        trained.best_epoch,
        _validation(trained.log, trained.best_epoch),
    )


def _validation(log: list[dict[str, Any]], epoch: int | None) -> dict[str, float]:
    if epoch is None:
        return {}
    record = log[epoch - 1]
    return {key.removeprefix("validation_"): value for key, value in record.items() if key.startswith("validation_")}

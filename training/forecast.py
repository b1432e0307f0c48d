"""Forecast of a training run by an earlier one of the same recipe, or by a few steps: time, memory and folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from training.recipe import EnsembleRecipe, Recipe
from zoo import paths
from zoo.console import count, duration
from zoo.files import read_object

MEASURED = "training measures a few steps before its first one"

PEAK = "peak_memory_bytes"
"""Entry of recipe.json: the largest resident set of the process that trained the model."""


def forecast(recipe: Recipe | EnsembleRecipe, origin: str) -> list[str]:
    """Return sentences about a run before it begins: its length, time, memory and folders.

    Args:
        recipe: The resolved recipe.
        origin: The name of the recipe it was made of, whose earlier models are looked for.
    """
    members = recipe.members if isinstance(recipe, EnsembleRecipe) else (recipe,)
    lines = [_length(member) for member in members[:1]]
    earlier = next((run for name in (recipe.name, origin) if (run := _earlier(name))), None)
    epochs = sum(member.schedule.epochs for member in members)
    if earlier is None:
        lines.append(f"time and memory: no earlier run of this recipe tells; {MEASURED}")
    else:
        folder, seconds, memory = earlier
        taken = duration(seconds * epochs)
        size = f"{memory / 2**30:.1f} GiB" if memory else f"an unknown memory ({MEASURED})"
        where = "the machine that made the shipped model" if folder.is_relative_to(paths.SHIPPED) else "this machine"
        lines.append(f"time and memory: about {taken} and {size}, by an earlier run on {where}")
    return [*lines, f"log: {paths.home() / 'runs' / recipe.name}-*, then {paths.local_models() / recipe.name}"]


def is_known(*names: str) -> bool:
    """Return whether an earlier run of one of the recipes tells both time and memory."""
    first = next((run for name in names if (run := _earlier(name))), None)
    return first is not None and first[2] > 0


def measured_forecast(steps: int, seconds: float, memory: int, images: int, device: str) -> str:
    """Return a sentence about the time and memory of a run by the measurement of its first passes.

    Args:
        steps: The steps of the run.
        seconds: The passes of one step.
        memory: The largest memory so far, in bytes; 0 if it is not known.
        images: The images of a step.
        device: Where they were measured.
    """
    size = f", in {memory / 2**30:.1f} GiB" if memory else ""
    return (
        f"time and memory: at least {duration(steps * seconds)} for the passes of {count(steps, 'step')}{size}, "
        f"measured with {count(images, 'random image')} on {device}; objective, reading of images and validation come "
        "on top"
    )


def _length(recipe: Recipe) -> str:
    schedule, size = recipe.schedule, count(recipe.batch.size, "image")
    steps = f"{count(schedule.steps, 'step')} of {size}" if schedule.steps else f"all images, {size} a step"
    return f"{recipe.name}: {count(schedule.epochs, 'epoch')} of {steps}"


def _earlier(name: str) -> tuple[Path, float, int] | None:
    """Return the folder, the seconds of an epoch and the peak of memory (0: unknown) of a trained model."""
    for folder in (paths.local_models() / name, paths.SHIPPED / name):
        records = _records(folder / "log.jsonl")
        if records:
            seconds = sum(record["seconds"] for record in records) / len(records)
            return folder, seconds, int(read_object(folder / "recipe.json").get(PEAK) or 0)
    return None


def _records(path: Path) -> list[dict[str, Any]]:
    try:
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):
        return []
    return [record for record in records if isinstance(record.get("seconds"), int | float)]

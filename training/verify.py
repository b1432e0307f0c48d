"""Verification of a model: its files, its golden images, the definitions of its recipe, its scores: `zoo.verify`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from training.definitions import outdated
from training.repeats import changed_start
from training.reproduce import usable_recipe
from zoo.data import check_dataset_path
from zoo.data.dataset import FOLDER
from zoo.errors import ZooError
from zoo.evaluation.remeasure import remeasure, remeasure_costs
from zoo.files import read_object
from zoo.models.names import find_model
from zoo.models.registry import ModelLike
from zoo.models.results import Check
from zoo.models.verify import verify as verify_golden
from zoo.models.verify import verify_files, verify_records
from zoo.paths import expand


def verify(
    model: ModelLike,
    data: str | os.PathLike[str] | None = None,
    *,
    quick: bool = False,
    device: str | None = None,
    progress: bool = False,
) -> Iterator[Check]:
    """Check a model's files and golden embeddings, measure it again, and give one check after the other.

    >>> sound = not any(check.fails for check in zoo.verify("margin-conv4-glyphs", quick=True))

    Args:
        model: The model.
        data: The folder of the data sets (default: `ZOO_DATA`, else downloaded); a missing one leaves its check open.
        quick: Check files and golden images only, and measure no scores.
        device: cpu, cuda or cuda:N, for scores by torch (default: cuda if there is one).
        progress: Show progress bars.

    Returns:
        The checks. One that cannot be made on this machine has None for `ok`, and does not fail.

    Raises:
        ModelNotFoundError: If there is no such model.
        DatasetError: If `data` does not exist.
    """
    folder = None if data is None else expand(data)
    if folder is not None:
        check_dataset_path(folder, FOLDER)  # scores on a table are checked against it
    return _checks(find_model(model), folder, quick, device, progress)


def _checks(folder: Path, data: Path | None, quick: bool, device: str | None, progress: bool) -> Iterator[Check]:
    yield from verify_golden(folder)
    yield from verify_files(folder)
    yield from verify_records(folder)
    yield from _reproduction(folder)
    if not quick:
        yield from remeasure(folder, data, progress, device)
        yield from remeasure_costs(folder, data, progress)


def _reproduction(folder: Path) -> Iterator[Check]:
    """Yield why a model cannot be trained again: another definition, an unreadable recipe, or another start."""
    record = read_object(folder / "recipe.json")
    if isinstance(recipe := record.get("recipe"), dict):
        for name, change in outdated(recipe).items():
            text = f"is not possible: today's {name} may not be the recorded one ({change})"
            yield Check("reproduction", None, text)
        try:
            usable_recipe(recipe, folder)
        except ZooError as error:
            yield Check("reproduction", None, f"is not possible: {error}")
    if problem := changed_start(record):
        yield Check("reproduction", None, f"is not possible: the model {problem}")

"""Folder of a run: what it keeps for a diagnosis beside its log, and how a history is read back."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from training.health.diagnosis import History
from zoo import paths
from zoo.errors import ModelNotFoundError, UsageError
from zoo.files import read_object, write_json
from zoo.models.names import find_model
from zoo.paths import expand
from zoo.report.model import LOG_FILE, epoch_records

RECIPE_FILE, DIVERGENCE_FILE = "recipe.json", "diverged.json"


def keep_recipe(folder: Path, recipe: Mapping[str, Any]) -> None:
    """Write a run's recipe, as JSON, to its folder, and forget that an earlier attempt diverged."""
    with suppress(OSError):  # a full disk is reported by the log, and training does not need this file
        write_json(folder / RECIPE_FILE, {"recipe": recipe})
    (folder / DIVERGENCE_FILE).unlink(missing_ok=True)


def keep_divergence(folder: Path, record: Mapping[str, Any]) -> None:
    """Write what is known of an epoch that did not end."""
    with suppress(OSError):  # the error itself must not be hidden by a full disk
        write_json(folder / DIVERGENCE_FILE, record)


def read_history(folder: Path) -> History:
    """Return the history of a run from its folder, or from that of its model.

    Raises:
        UsageError: `no-results` if the folder has no log of a training run, `no-results` if the log has no indicators.
    """
    recipe, divergence = read_object(folder / RECIPE_FILE), read_object(folder / DIVERGENCE_FILE)
    records = list(epoch_records(folder))
    if recipe.get("ensemble"):
        members = ", ".join(str(member.get("name", member)) for member in recipe["ensemble"])
        raise UsageError(f"{folder} is an ensemble; name one of its members: {members}.", code="no-results")
    if not records and not divergence:
        raise UsageError(
            f"{folder} has no {LOG_FILE} of a training run; name a model that was trained here, or the folder of a run "
            f"in {paths.home() / 'runs'}.",
            code="no-results",
        )
    history = History(records, recipe.get("recipe") or {}, divergence)
    if not history.measured and not history.start and not history.divergence:
        raise UsageError(
            f"the log in {folder} has no indicators of health. Train the model again to have them recorded.",
            code="no-results",
        )
    return history


def find_run(name: str) -> Path:
    """Return the folder of a run: a path, a model's folder, or the newest run of that name if there is no model.

    Raises:
        ModelNotFoundError: If there is neither.
    """
    if (folder := expand(name)).is_dir():
        return folder
    if (folder := paths.local_models() / name).is_dir():
        return folder
    runs = [path.parent for path in (paths.home() / "runs").glob(f"{_literal(name)}-*-*/{RECIPE_FILE}")]
    own = [path for path in runs if read_object(path / RECIPE_FILE).get("recipe", {}).get("name") == name]
    if own:
        return max(own, key=lambda path: (path / RECIPE_FILE).stat().st_mtime)
    try:
        return find_model(name)
    except ModelNotFoundError as error:
        raise ModelNotFoundError(f"there is no run of that name, and {error}", code=error.code) from None


def _literal(name: str) -> str:
    """Return a pattern of pathlib that matches the name alone."""
    return "".join(f"[{character}]" if character in "*?[" else character for character in name)

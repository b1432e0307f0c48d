"""What the recipe.json of model folders tells a finetune: whose place it would take, and what its base has seen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from training.recipe import Recipe
from zoo import paths
from zoo.errors import UsageError, ZooError
from zoo.files import read_object
from zoo.models.card import read_card
from zoo.models.catalogue import known_names
from zoo.models.registry import here
from zoo.models.results import RESULTS_FILE as RESULTS

FILE = "recipe.json"


def check_name(name: str, base: Path, replace: bool = False) -> None:
    """Raise `UsageError` where the new model would take the place of its base, or, unless told to, of another model.

    A finetune that was stopped left no folder, or one without a measurement, and may go on; `check_same` sees to that.
    """
    folder = paths.local_models() / name
    if folder.resolve() == base.resolve():
        raise UsageError(f"the new model would take the place of {name}, which it starts from; name it with --as.")
    if replace or _unmeasured(folder):
        return
    if folder.exists() or name in known_names():
        raise _taken(name)


def check_same(recipe: Recipe, split: dict[str, object], replace: bool = False) -> None:
    """Raise `UsageError` where the name belongs to a model of another recipe or split, unless it may be replaced."""
    folder = paths.local_models() / recipe.name
    made = read_object(folder / FILE)
    same = made.get("recipe") == recipe.to_json() and made.get("split") == split
    if folder.exists() and not replace and not same:
        raise _taken(recipe.name)


def seen(base: Path, classes: Iterable[str]) -> tuple[str, ...]:
    """Those of `classes`, by name, that the model in the folder `base` or one it started from was finetuned on."""
    learnt: set[str] = set()
    for folder in _line(base):
        learnt.update(_of(read_object(folder / FILE), "split").get("train_classes", ()))
    return tuple(name for name in classes if name in learnt)


def unreadable(base: Path) -> Path | None:
    """The recipe.json, of the model in the folder `base` or one it started from, that is there and cannot be read.

    What that model was finetuned on is not known then.
    """
    damaged = (folder / FILE for folder in _line(base) if (folder / FILE).exists() and not read_object(folder / FILE))
    return next(damaged, None)


def _line(base: Path) -> Iterator[Path]:
    """The folder `base`, those of the models that it started from and learnt from, and so on."""
    waiting, visited = [base], set[Path]()
    while waiting:
        folder = waiting.pop(0)
        if folder not in visited:
            visited.add(folder)
            yield folder
            waiting += _made_of(read_object(folder / FILE))


def _made_of(record: dict[str, Any]) -> Iterator[Path]:
    """The folders of the model that one started from and of its teacher, if they still hold the same models."""
    recipe = _of(record, "recipe")
    starts = {
        "base": _of(recipe, "backbone").get("pretrained"),
        "teacher": _of(_of(recipe, "objective"), "method_args").get("teacher"),
    }
    for kind, start in starts.items():
        with suppress(ZooError):
            folder = here(start) if isinstance(start, str) else None
            if folder is not None and read_card(folder).fingerprint == _of(record, kind).get("fingerprint"):
                yield folder


def _unmeasured(folder: Path) -> bool:
    """Whether a finetune was stopped between the writing of its model and the measuring."""
    return "split" in read_object(folder / FILE) and not (folder / RESULTS).exists()


def _of(record: dict[str, Any], key: str) -> dict[str, Any]:
    found = record.get(key)
    return found if isinstance(found, dict) else {}


def _taken(name: str) -> UsageError:
    return UsageError(
        f"there is a model or recipe {name} already. Name the new one with --as OTHER, or let it take the place of a "
        "model of that name with --replace."
    )

"""Name -> folder, without network.

The models on this machine by name, and the folder of each one.

By what a model that another one was made of is written down, so that it is found again, here and elsewhere.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from zoo import paths
from zoo.errors import ModelNotFoundError, UsageError
from zoo.hub import download
from zoo.hub.download import cached_models, pinned_name
from zoo.models.baselines import baselines_root, folder_by_name, repository_of

RECIPES_FILE = Path(__file__).parent / "recipes.json"
"""Every recipe's name and key facts, generated from `training.recipes` (a test holds the two equal)."""


def cached_folder(name: str) -> Path | None:
    """Return the folder that `find_model` takes without asking the Hub; None if this machine has none."""
    return local_folder(name) or _in_the_hubs_cache(name)


@cache
def recipes() -> dict[str, dict[str, Any]]:
    """Return the key facts of every recipe by name."""
    rows: dict[str, dict[str, Any]] = json.loads(RECIPES_FILE.read_text(encoding="utf-8"))
    return rows


def model_folders() -> Iterator[Path]:
    """Iterate over the model folders on this machine; those that `zoo.models.load.find_model` takes first come last."""
    yield from cached_models()
    for root in (baselines_root(), paths.SHIPPED, paths.local_models()):
        # org/name: what was made of a model of the Hub, as `zoo export` does it.
        for card in sorted([*root.glob("*/card.json"), *root.glob("*/*/card.json")]):
            if not any(part.startswith(".") for part in card.relative_to(root).parts):
                yield card.parent  # the others are what a writer that was killed has left behind


def _in_the_hubs_cache(name: str) -> Path | None:
    """Return the folder that `zoo.models.load.find_model` would take from the Hub's cache, without asking the Hub."""
    base, _, revision = name.partition("@")
    if looks_like_path(name) or repository_of(base) is not None:
        return None
    try:
        return download.cached_snapshot(download.repository_id(base), revision or None)
    except ModelNotFoundError:  # no name that a repository can have
        return None


def local_folder(name: str) -> Path | None:
    """Return the folder of a model outside the Hub's cache: a path, the local zoo, the shipped models, a baseline."""
    candidates = [paths.expand(name)]
    if not looks_like_path(name):
        candidates += [paths.local_models() / name.removeprefix("hf-hub:"), paths.SHIPPED / name]
        candidates += [folder_by_name(name)] if "@" not in name else []
    return next((folder for folder in candidates if exists(folder / "card.json")), None)


def looks_like_path(name: str) -> bool:
    """Return whether a text is a path rather than a model's name or a repository of the Hub."""
    return name.startswith((".", "/", "~")) or (os.sep in name and exists(Path(name)))


def model_text(name: str | os.PathLike[str]) -> str:
    """Return a model's name or path as text. Raises `UsageError` for other types."""
    if isinstance(name, str | os.PathLike) and isinstance(text := os.fspath(name), str):
        return text
    raise UsageError(
        f"a model is named by text, not by {type(name).__name__}: by a name of zoo list, the path of a model folder, "
        "org/name[@revision] or timm/ID on the Hub."
    )


def exists(path: Path) -> bool:
    """Return whether something is at a path; False if the path cannot be looked up."""
    try:
        return path.exists()
    except OSError:  # a name longer than the file system takes, a folder that may not be entered
        return False


def reference(folder: Path) -> str:
    """The name by which a model folder is found, of one in the Hub's cache with its commit; else its full path.

    A path says where a person keeps things, and nothing on another machine.
    """
    return next((name for name in _names(folder) if _is_found(name, folder)), str(folder.resolve()))


def _names(folder: Path) -> Iterator[str]:
    if folder.parent in (paths.local_models(), paths.SHIPPED, baselines_root()):
        yield folder.name
    if (name := pinned_name(folder)) is not None:
        yield name


def _is_found(name: str, folder: Path) -> bool:
    """Whether it means this folder, and not another one of its name that comes first."""
    found = cached_folder(name)
    return found is not None and found.resolve() == folder.resolve()

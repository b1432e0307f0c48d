"""Which models there are, by name, and where each one lies."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from zoo import hub, paths
from zoo.cards import Card, read_card
from zoo.errors import HubError, ModelFolderError, ModelNotFoundError, nearest

RECIPES = Path(__file__).parent / "recipes.json"
"""Every recipe's name and key facts, generated from `training.recipes` (a test holds the two equal)."""


@dataclass(frozen=True)
class ModelInfo:
    """One line of `zoo list`. `status`: shipped, trained (in the local zoo) or recipe (not trained yet)."""

    name: str
    status: str
    dim: int
    method: str
    backbone: str
    dataset: str
    folder: Path | None = None
    card: Card | None = None
    results: list[dict[str, Any]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        facts: dict[str, Any] = {
            key: getattr(self, key) for key in ("name", "status", "dim", "method", "backbone", "dataset")
        }
        facts["folder"] = str(self.folder) if self.folder else None
        facts["card"] = self.card.to_json() if self.card else None
        facts["results"] = self.results
        return facts


def list_models(method: str | None = None, backbone: str | None = None, dataset: str | None = None) -> list[ModelInfo]:
    """Every known model, sorted by name: trained here, shipped with the package, or a recipe. Filters are exact."""
    models: dict[str, ModelInfo] = {name: _from_recipe(name, row) for name, row in recipes().items()}
    for status, root in (("shipped", paths.SHIPPED), ("trained", paths.local_models())):
        for folder in sorted(path.parent for path in root.glob("*/card.json")):
            if folder.name.startswith("."):
                continue  # what a writer that was killed has left behind
            try:
                models[folder.name] = _from_folder(folder, status)
            except ModelFolderError:
                continue  # a damaged folder must not hide the others; `zoo info` says what is wrong with it
    wanted = {"method": method, "backbone": backbone, "dataset": dataset}
    keep = [m for m in models.values() if all(v is None or getattr(m, k) == v for k, v in wanted.items())]
    return sorted(keep, key=lambda m: m.name)


def info(name: str) -> ModelInfo:
    """What is known of a model, by name or path. Raises `ModelNotFoundError` with the nearest names."""
    folder = _local(name)
    if folder is not None:
        status = "shipped" if folder.parent == paths.SHIPPED else "trained"
        return _from_folder(folder, status)
    if name in recipes():
        return _from_recipe(name, recipes()[name])
    raise ModelNotFoundError(f"there is no model {name!r}.{nearest(name, known_names())} All names: zoo list")


def find(name_or_path: str | os.PathLike[str], revision: str | None = None) -> Path:
    """The folder of a model: a path, the local zoo, the shipped checkpoints, the Hub's cache, the Hub, in this order.

    With `revision` only the Hub is asked. Raises `ModelNotFoundError` that says where it looked and what to run.
    """
    name = os.fspath(name_or_path)
    if revision is None and (folder := _local(name)) is not None:
        return folder
    if _looks_like_path(name):
        raise ModelNotFoundError(f"{name} is no model folder: there is no {Path(name) / 'card.json'}.")
    repo_id = hub.repository(name)
    try:
        return hub.snapshot(repo_id, revision)
    except (ModelNotFoundError, HubError) as error:
        # A bare name may be a typing error; one with an organisation was meant for the Hub.
        kind = type(error) if "/" in name else ModelNotFoundError
        raise kind(_not_found(name, str(error))) from None


def known_names() -> list[str]:
    return [model.name for model in list_models()]


@cache
def recipes() -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = json.loads(RECIPES.read_text(encoding="utf-8"))
    return rows


def _local(name: str) -> Path | None:
    candidates = [paths.expand(name)]
    if not _looks_like_path(name):
        candidates += [paths.local_models() / name, paths.SHIPPED / name]
    return next((folder for folder in candidates if _exists(folder / "card.json")), None)


def _looks_like_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or (os.sep in name and _exists(Path(name)))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name longer than the file system takes, a folder that may not be entered
        return False


def _not_found(name: str, hub_says: str) -> str:
    advice = f"Train it with: zoo train {name}" if name in recipes() else "All names: zoo list"
    hint = "" if name in recipes() else nearest(name, known_names())
    return (
        f"no model {name!r}.{hint} Looked for a folder of that path, in the local zoo ({paths.local_models()}), "
        f"among the shipped models and on the Hub ({hub_says}) {advice}"
    )


def _from_recipe(name: str, row: dict[str, Any]) -> ModelInfo:
    return ModelInfo(name, "recipe", row["dim"], row["method"], row["backbone"], row["dataset"])


def _from_folder(folder: Path, status: str) -> ModelInfo:
    from zoo.results import read_results

    card = read_card(folder)
    # A copy under another name is loaded by that name; elsewhere than among the models, the folder's name is nothing.
    name = folder.name if folder.parent in (paths.SHIPPED, paths.local_models()) else card.name
    return ModelInfo(
        name, status, card.dim, card.method, card.backbone, card.dataset, folder, card, read_results(folder)
    )

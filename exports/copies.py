"""Where what is made of a model is written: its folder, or a copy of a shipped or downloaded one in the local zoo."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from zoo import paths
from zoo.errors import UsageError
from zoo.files import atomic_folder
from zoo.hub.download import name_of
from zoo.models.card import read_card
from zoo.models.folder import check_files


def place_of(folder: Path, precisions: Sequence[str], name: str | None = None) -> Path:
    """Where variants of the model are to be written; nothing is written yet.

    The model's folder; for one that is shipped with the package or lies in the Hub's cache, the folder in the local zoo
    of the name that loads it, `name` where it was asked for by one (as `org/name@revision`). A name is looked up in the
    local zoo before either, so that from then on it finds the copy with its new variants.

    Raises `UsageError` where fp32 is asked of a shipped model, which has it, or another model has the copy's name.
    """
    shipped = folder.resolve().is_relative_to(paths.SHIPPED.resolve())
    if shipped and list(precisions) == ["fp32"]:
        raise UsageError(f"{folder.name} is shipped with the package, its ONNX graph too; there is nothing to export.")
    if not shipped and not _in_hub_cache(folder):
        return folder
    card = read_card(folder)
    asked = None if name is None or (paths.expand(name) / "card.json").exists() else name.removeprefix("hf-hub:")
    copy = paths.local_models() / (asked or name_of(folder) or card.name)
    if (copy / "card.json").exists() and read_card(copy).fingerprint != card.fingerprint:
        raise UsageError(f"{copy} is another model of the same name as {folder}; rename or remove one of them.")
    return copy


def copy_model(folder: Path, place: Path) -> None:
    """Copy a model folder to its place, where it is not there yet. Raises `ModelFolderError` for one that is spoilt."""
    if (place / "card.json").exists():
        return
    check_files(folder, read_card(folder))
    with atomic_folder(place) as temporary:
        shutil.copytree(folder, temporary, dirs_exist_ok=True)  # links into the cache's blobs become files


def writable(folder: Path, precisions: Sequence[str], name: str | None = None) -> Path:
    """The place of `place_of`, and what both functions above raise; the copy is there afterwards."""
    place = place_of(folder, precisions, name)
    if place != folder:
        copy_model(folder, place)
    return place


def _in_hub_cache(folder: Path) -> bool:
    from huggingface_hub.constants import HF_HUB_CACHE

    return folder.resolve().is_relative_to(Path(HF_HUB_CACHE).resolve())

"""A folder that may be written to: a shipped or downloaded model is copied into the local zoo first."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from zoo import paths
from zoo.cards import read_card
from zoo.errors import UsageError
from zoo.files import atomic_folder


def writable(folder: Path, precisions: Sequence[str]) -> Path:
    """The model's folder, or its copy in the local zoo where it is shipped with the package or in the Hub's cache.

    A name is looked up in the local zoo before either, so that from then on it finds the copy with its new variants.
    Raises `UsageError` where fp32 is asked of a shipped model, which has it, or another model has the copy's name.
    """
    shipped = folder.resolve().is_relative_to(paths.SHIPPED.resolve())
    if shipped and list(precisions) == ["fp32"]:
        raise UsageError(f"{folder.name} is shipped with the package, its ONNX graph too; there is nothing to export.")
    if not shipped and not _in_hub_cache(folder):
        return folder
    card = read_card(folder)
    copy = paths.local_models() / card.name
    if (copy / "card.json").exists():
        if read_card(copy).fingerprint != card.fingerprint:
            raise UsageError(f"{copy} is another model of the same name as {folder}; rename or remove one of them.")
        return copy
    with atomic_folder(copy) as temporary:
        shutil.copytree(folder, temporary, dirs_exist_ok=True)  # links into the cache's blobs become files
    return copy


def _in_hub_cache(folder: Path) -> bool:
    from huggingface_hub.constants import HF_HUB_CACHE

    return folder.resolve().is_relative_to(Path(HF_HUB_CACHE).resolve())

"""A data set written out as a plain folder of PNG files, which `zoo index` and the data set `folder` read back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from zoo.datasets.dataset import Dataset
from zoo.errors import DatasetError
from zoo.files import atomic_folder
from zoo.images import open_image


def export_folder(dataset: Dataset, directory: str | Path) -> Path:
    """Write every image as `directory/<class>/<n>.png`, n counted within the class, and return `directory`.

    The folder is whole or not there. Raises `DatasetError` if it holds something already.
    """
    target = Path(directory).expanduser()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise DatasetError(f"{target} exists already. Name a folder that does not, or delete it.")
    folders = folder_names(dataset.classes)
    digits = len(str(np.bincount(dataset.labels).max() - 1))
    counts = [0] * len(folders)
    with atomic_folder(target, durable=False) as temporary:
        for image, label in zip(dataset.images, dataset.labels.tolist(), strict=True):
            path = temporary / folders[label] / f"{counts[label]:0{digits}d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            open_image(image).save(path)
            counts[label] += 1
    return target


def folder_names(classes: Sequence[str]) -> list[str]:
    """A safe, different folder for each class: "Greek/character 01" becomes "Greek/character_01".

    Letters and digits of ASCII and `_ . ( ) -` stay, "/" nests, everything else becomes "_"; names that would then be
    the same, or the same but for upper and lower case, are numbered.
    """
    taken: set[str] = set()
    names = []
    for name in classes:
        safe = "/".join(_safe(part) for part in name.split("/"))
        unique, n = safe, 1
        while unique.casefold() in taken:
            n += 1
            unique = f"{safe}-{n}"
        taken.add(unique.casefold())
        names.append(unique)
    return names


def _safe(part: str) -> str:
    # A leading dot would hide the folder; "" would make the path absolute or lose a level.
    return re.sub(r"^\.+", "_", re.sub(r"[^\w.()-]+", "_", part, flags=re.ASCII)) or "_"

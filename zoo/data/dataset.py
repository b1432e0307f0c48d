"""Dataset.

What a data set is to the rest of the project: images, integer labels, class names and, if known, factors.

A data set written out as a plain folder of PNG files, which `zoo index` and the data set `folder` read back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from zoo.data.images import ImageLike, open_image
from zoo.errors import DatasetError
from zoo.files import atomic_folder

SPLITS = ("train", "test")
FOLDER = "folder"
"""The name of every data set that is a person's own folder of images, or a table of them."""
WHOLE = "all"
"""The split of a folder that is not parted, whichever was asked for."""


def split_title(split: str | None) -> str:
    """How a split is called."""
    return "all of it" if split == WHOLE else f"{split} split"


@dataclass(frozen=True)
class Dataset:
    """One split of a data set.

    images: n images (paths, bytes, PIL images or uint8 arrays), indexable; may be decoded or rendered on access.
    labels: int64 [n], indices into `classes`.
    sources: n strings that say where each image comes from (a path or an id), unique within the split.
    factors: known properties of each image beside its class, name -> array [n]. One named `query` parts a retrieval
    test: 1 for the images that search, 0 for the gallery, the only ones that are searched.
    """

    name: str
    split: str
    images: Sequence[ImageLike]
    labels: np.ndarray
    classes: tuple[str, ...]
    sources: Sequence[str]
    factors: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n = len(self.images)
        if n == 0:
            raise DatasetError(f"{self.name} ({self.split}) holds no images.")
        if self.labels.shape != (n,) or len(self.sources) != n:
            raise DatasetError(f"{self.name} ({self.split}): {n} images, {len(self.labels)} labels.")
        if self.labels.min() < 0 or self.labels.max() >= len(self.classes):
            raise DatasetError(f"{self.name} ({self.split}): labels go past the {len(self.classes)} classes.")

    def __len__(self) -> int:
        return len(self.images)


def subset(dataset: Dataset, kept: np.ndarray, split: str = "train") -> Dataset:
    """The rows of a data set where `kept` (bool [n]) is true, in their order, and those of its classes that they are
    of. Raises `DatasetError` where none is kept."""
    rows = np.flatnonzero(kept).tolist()
    codes, labels = np.unique(dataset.labels[rows], return_inverse=True)
    return Dataset(
        dataset.name,
        split,
        [dataset.images[row] for row in rows],
        labels.astype(np.int64),
        tuple(dataset.classes[code] for code in codes),
        [dataset.sources[row] for row in rows],
        {name: values[rows] for name, values in dataset.factors.items()},
    )


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

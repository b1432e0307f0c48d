"""Data set value: one split's images, labels, classes, factors and identity; its subsets and its export as PNG."""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from zoo.data.images import ImageLike, open_image
from zoo.errors import DatasetError, ImageError
from zoo.files import atomic_folder

SPLITS = ("train", "test")
FOLDER = "folder"
"""The `Dataset.name` of every data set that is a user's own folder of images, or a table of them."""
QUERY = "query"
"""The factor that divides a retrieval test into queries (1) and the gallery that they search (0)."""
BOTH = 2
"""The value of this factor for a query that is also in the gallery, where it does not find itself."""
WHOLE = "all"
"""The split of a folder or table without the parts train and test."""


OTHER_EDITIONS = {"cub2010": "not CUB-200-2011", "cars-half": "not Cars196"}
"""Data sets that could be taken for a more common one, and what a reader of their scores must know."""


LARGER_EDITIONS = {"cub2010": "cub", "cars-half": "cars"}
"""Data sets of the same subjects as a larger one."""


def dataset_title(name: str) -> str:
    """Return the name of a data set as scores on it are shown: "cub2010, not CUB-200-2011"."""
    return f"{name}, {OTHER_EDITIONS[name]}" if name in OTHER_EDITIONS else name


def split_title(split: str | None) -> str:
    """Return the split's name in a sentence: "test split", "all of it"."""
    return "all of it" if split == WHOLE else f"{split} split"


@dataclass(frozen=True)
class DataIdentity:
    """Identity of measured images: equal wherever the same images with the same labels are stored.

    Attributes:
        name: The data set's name, for people: "glyphs"; of a folder or table its own name, "photos" or "photos.csv".
        sha256: Of each image's source, class and part in the search, and of the size of each file of a user's own.
        images: The number of images.
        classes: The number of classes that they have.
    """

    name: str
    sha256: str
    images: int
    classes: int

    def __str__(self) -> str:
        return f"{dataset_title(self.name)} ({self.sha256[:8]})"


def identify(
    name: str,
    sources: Sequence[str],
    labels: Sequence[object],
    queries: Sequence[object] | None = None,
    sizes: Sequence[int | None] | None = None,
) -> DataIdentity:
    """Return the identity of n images; their order does not count.

    Args:
        name: The name for people, which does not count.
        sources: n paths or ids.
        labels: n classes, compared as text.
        queries: n marks of queries, if some images search the others.
        sizes: n sizes of files in bytes, where they count.
    """
    columns = [sources, list(map(str, labels)), *(column for column in (queries, sizes) if column is not None)]
    return identify_rows(name, sorted(zip(*columns, strict=True), key=lambda row: str(row[0])))


def identify_rows(name: str, rows: Iterable[Sequence[object]]) -> DataIdentity:
    """Return the identity of images that are read once: source, class (None: unknown) and further columns of each.

    The rows are in the order of their sources.
    """
    digest, count, classes = hashlib.sha256(b"["), 0, set[object]()
    for row in rows:
        # pure ASCII, also of names that are not UTF-8
        digest.update((", " if count else "").encode() + json.dumps(row).encode())
        count += 1
        classes.add(row[1])
    digest.update(b"]")
    return DataIdentity(name, digest.hexdigest(), count, len(classes - {None}))


@dataclass(frozen=True)
class Dataset:
    """One split of a data set.

    Attributes:
        name: The data set's name in `zoo.data.DATASETS`: `FOLDER` for a user's own folder or table.
        split: "train", "test" or "all".
        images: n images (paths, bytes, PIL images or uint8 arrays), indexable; may be decoded or drawn on access.
        labels: Indices into `classes`, int64 [n].
        classes: Names of the classes.
        sources: n paths or ids of the images, unique within the split.
        factors: Known properties of the images apart from the class, name -> array [n]. The factor `query` divides a
            retrieval test: images with 1 are queries, images with 0 are the gallery that the queries search, and
            images with 2 (`BOTH`) are in both.
        own_name: Of a user's folder or table: its own name, "birds" or "birds.csv".
    """

    name: str
    split: str
    images: Sequence[ImageLike]
    labels: np.ndarray
    classes: tuple[str, ...]
    sources: Sequence[str]
    factors: Mapping[str, np.ndarray] = field(default_factory=dict)
    own_name: str = ""

    def __post_init__(self) -> None:
        n = len(self.images)
        if n == 0:
            raise DatasetError(f"{self.name} ({self.split}) holds no images.", code="no-images")
        if self.labels.shape != (n,) or len(self.sources) != n:
            raise DatasetError(
                f"{self.name} ({self.split}) has {n} images, {len(self.labels)} labels and {len(self.sources)} "
                "sources; the numbers must be equal.",
                code="invalid-labels",
            )
        if self.labels.min() < 0 or self.labels.max() >= len(self.classes):
            raise DatasetError(
                f"{self.name} ({self.split}) has labels from {self.labels.min()} to {self.labels.max()}; expected 0 to "
                f"{len(self.classes) - 1}, one per class.",
                code="invalid-labels",
            )

    def __len__(self) -> int:
        return len(self.images)

    @property
    def title(self) -> str:
        """Return the name for people: of a user's folder or table its own."""
        return self.own_name or dataset_title(self.name)

    @cached_property
    def identity(self) -> DataIdentity:
        """Return what a score on these images is stored with, and compared by.

        The files of a user's folder or table count with their sizes, and their paths from the folder that holds them
        all, so that neither the place nor the kind of the list matters.
        """
        queries = self.factors[QUERY].tolist() if QUERY in self.factors else None
        labels = [self.classes[label] for label in self.labels.tolist()]
        if self.name != FOLDER:
            return identify(self.name, self.sources, labels, queries)
        return identify(
            self.own_name or self.name, _shared_paths(self.sources), labels, queries, list(map(file_size, self.images))
        )


def _shared_paths(sources: Iterable[str]) -> list[str]:
    """Return paths relative to the deepest folder that holds all of them."""
    paths = [posixpath.normpath(source) for source in sources]
    with suppress(ValueError):  # absolute and relative paths are mixed
        root = posixpath.commonpath([posixpath.dirname(path) for path in paths])
        return [posixpath.relpath(path, root) if root else path for path in paths]
    return paths


def file_size(image: ImageLike) -> int | None:
    """Return the bytes of an image file; None for an image in memory and for a file that is missing."""
    with suppress(OSError, ValueError):  # ValueError: a null byte in its name
        return Path(image).stat().st_size if isinstance(image, str | os.PathLike) else None
    return None


def subset(dataset: Dataset, mask: np.ndarray, split: str = "train") -> Dataset:
    """Return the rows where `mask` (bool [n]) is true, in their order, with the classes that these rows have.

    Raises:
        DatasetError: If no row is kept.
    """
    rows = np.flatnonzero(mask).tolist()
    codes, labels = np.unique(dataset.labels[rows], return_inverse=True)
    return replace(
        dataset,
        split=split,
        images=[dataset.images[row] for row in rows],
        labels=labels.astype(np.int64),
        classes=tuple(dataset.classes[code] for code in codes),
        sources=[dataset.sources[row] for row in rows],
        factors={name: values[rows] for name, values in dataset.factors.items()},
    )


def without(dataset: Dataset, sources: Container[str]) -> Dataset:
    """Return the data set without the images of some sources. Raises `DatasetError` if none is left."""
    kept = np.array([source not in sources for source in dataset.sources])
    return dataset if kept.all() else subset(dataset, kept, dataset.split)


def export_folder(dataset: Dataset, directory: str | Path) -> Path:
    """Write every image as `directory/<class>/<n>.png`, n counted within the class, and return `directory`.

    `zoo index` and the data set `folder` read the result. It is written whole or not at all. A directory that holds
    exactly these images stays unchanged.

    Raises:
        DatasetError: If the directory exists and holds something else.
    """
    target, names = Path(directory).expanduser(), _exported_names(dataset)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        if _is_exported(dataset, target, names):
            return target
        raise DatasetError(
            f"{target} exists already and holds something else. Name a folder that does not exist, or delete it.",
            code="already-exists",
        )
    with atomic_folder(target, durable=False) as temporary:
        for image, name in zip(dataset.images, names, strict=True):
            path = temporary / name
            path.parent.mkdir(parents=True, exist_ok=True)
            open_image(image).save(path)
    return target


def _exported_names(dataset: Dataset) -> list[str]:
    """Return the path of each image below the directory of `export_folder`."""
    folders = folder_names(dataset.classes)
    digits = len(str(np.bincount(dataset.labels).max() - 1))
    counts = [0] * len(folders)
    names = []
    for label in dataset.labels.tolist():
        names.append(f"{folders[label]}/{counts[label]:0{digits}d}.png")
        counts[label] += 1
    return names


def _is_exported(dataset: Dataset, folder: Path, names: Sequence[str]) -> bool:
    """Return whether a folder holds exactly the images of a data set."""
    if {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()} != set(names):
        return False
    try:
        return all(
            np.array_equal(np.asarray(open_image(folder / name)), np.asarray(open_image(image)))
            for name, image in zip(names, dataset.images, strict=True)
        )
    except ImageError:
        return False


def folder_names(classes: Sequence[str]) -> list[str]:
    """Return a safe, different folder for each class: "Greek/character 01" becomes "Greek/character_01".

    ASCII letters and digits and `_ . ( ) -` stay, "/" nests, everything else becomes "_". Names that would then differ
    only in case, or not at all, are numbered.
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

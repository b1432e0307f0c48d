"""Folder of images as dataset.

A plain folder of images as a data set: an image's class is the folder that it lies in, or what a table says.

A person's own pictures: a folder for each class, or a table of images and labels; read, checked, split by class.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from zoo.data import table
from zoo.data.dataset import SPLITS, WHOLE, Dataset, subset
from zoo.data.decode import unreadable_images
from zoo.data.images import SUFFIXES
from zoo.errors import DatasetError, UsageError, none_readable_message
from zoo.paths import expand


def load(split: str, data: str | Path | None = None) -> Dataset:
    """The folder `data`; classes are the images' folders relative to it ("birds/wren"), sorted, nested or not.

    If `data` has the subfolders `train` and `test`, the one asked for is the data set; otherwise all of `data` is,
    whichever split is asked for, "all" included, and its split is called so. A CSV file is read as
    `zoo.data.table` says. Raises `DatasetError` for a missing or empty folder, images outside any class, and a
    single class.
    """
    if data is None:
        raise DatasetError(
            "the data set 'folder' needs to know which one: name it, or a table of images and labels (CSV), with "
            "--data DIR, in Python data='DIR'."
        )
    if table.is_table(data):
        return table.load(split, data)
    root = expand(data)
    if has_splits(root):
        if split == WHOLE:
            raise DatasetError(f"{root} has the folders train and test, and is no split of its own; name one of them.")
        root = root / split
    else:
        split = WHOLE
    paths = list_images(root)
    names = [path.relative_to(root).as_posix() for path in paths]
    labels, classes = _classes(root, names)
    return Dataset(name="folder", split=split, images=paths, labels=labels, classes=classes, sources=names)


def has_splits(root: str | Path) -> bool:
    """Whether the folder has the subfolders `train` and `test`, or the table a column `split`."""
    if table.is_table(root):
        return table.has_splits(root)
    return all((expand(root) / name).is_dir() for name in SPLITS)


def check_splits(root: str | Path) -> None:
    """Raise `DatasetError` for a folder or table whose classes are not parted into those to train on and those to
    measure on, and for a table of which one is both; not for a folder that is missing, which who reads it says."""
    if table.is_table(root):
        table.check_splits(root)
    if expand(root).is_dir() and not has_splits(root):
        raise DatasetError(
            f"{root} has no folders train and test, and a study measures on classes that it did not train on: move the "
            f"classes' folders into {root}/train and {root}/test."
        )


def list_unlabelled(place: str | Path) -> list[Path]:
    """Every image under a folder, as `list_images` gives them, or those of a table that are to be learnt from.

    Raises `DatasetError` where there are none, and what `list_images` and `table.images_of` raise.
    """
    images = table.training_images(place) if table.is_table(place) else list_images(place)
    if not images:
        raise DatasetError(f"{place} holds no images to learn from.")
    return images


def list_images(root: str | Path) -> list[Path]:
    """Every image under `root`, by suffix, sorted by path; hidden files and folders are left out.

    Linked folders are followed, except one that leads back to a folder it lies in.
    Raises `DatasetError` for a folder that is missing or can't be read; without images the list is empty.
    """
    return list_files(root)[0]


def list_files(root: str | Path) -> tuple[list[Path], list[Path]]:
    """The images under `root`, as `list_images` gives them, and the files of other kinds, sorted as well."""
    root = expand(root)
    if not root.exists():
        raise DatasetError(f"there is no folder {root}.")
    if not root.is_dir():
        raise DatasetError(f"{root} is not a folder.")
    images: list[Path] = []
    others: list[Path] = []
    for path in sorted(_walk(root, ()), key=lambda path: path.relative_to(root).parts):
        (images if path.suffix.lower() in SUFFIXES else others).append(path)
    return images, others


def _walk(folder: Path, above: tuple[Path, ...]) -> Iterator[Path]:
    """The files under `folder`; `above` are the real paths of the folders that led here."""
    real = folder.resolve()
    if real in above:
        return
    try:
        entries = list(folder.iterdir())
    except OSError as error:
        raise DatasetError(f"the folder {folder} cannot be read: {error.strerror}.") from None
    for path in entries:
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from _walk(path, (*above, real))
        elif path.is_file():
            yield path


def _classes(root: Path, names: Sequence[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Labels, int64 [n], and class names."""
    if not names:
        raise DatasetError(f"{root} holds no images ({', '.join(sorted(SUFFIXES))}).")
    folders = [name.rpartition("/")[0] for name in names]
    if "" in folders:
        stray = names[folders.index("")]
        raise DatasetError(
            f"{root / stray} has no class: put each image into a folder named as its class, {root}/CLASS/."
        )
    classes = tuple(sorted(set(folders)))
    if len(classes) == 1:
        raise DatasetError(f"{root} holds the single class {classes[0]!r}; at least two are needed.")
    index = {name: i for i, name in enumerate(classes)}
    return np.array([index[name] for name in folders], dtype=np.int64), classes


def sources_sha256(sources: Iterable[str]) -> str:
    """Return the SHA-256 of images' sources, which tells whether two folders hold the same images."""
    text = "".join(f"{source}\n" for source in sources)
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()  # names of files may be any bytes


MIN_CLASSES = 4
"""Two to train on and two to measure on."""


@dataclass(frozen=True)
class TrainingFolder:
    """dataset: the images that can be read, of classes that have two or more. What was left out, and why: unreadable,
    image -> reason; alone: classes with a single readable image."""

    dataset: Dataset
    unreadable: dict[str, str] = field(default_factory=dict)
    alone: tuple[str, ...] = ()

    def notes(self) -> list[str]:
        """What was left out, in words."""
        lines = [f"left out, cannot be read: {source}: {reason}" for source, reason in self.unreadable.items()]
        return lines + [f"left out, a class of one image: {name}" for name in self.alone]


@dataclass(frozen=True)
class ClassSplit:
    """Classes to train on and classes to measure on; no class is in both."""

    train: Dataset
    test: Dataset
    seed: int
    share: float

    def to_json(self) -> dict[str, object]:
        """Return what makes the split again and shows that it is the same; `zoo.evaluation.split` reads it."""
        return {
            "seed": self.seed,
            "test_share": self.share,
            "train_classes": list(self.train.classes),
            "test_classes": list(self.test.classes),
            "train_images": len(self.train),
            "test_images": len(self.test),
            "images_sha256": sources_sha256([*self.train.sources, *self.test.sources]),
        }


def read_training_folder(path: str | Path, progress: bool = False) -> TrainingFolder:
    """The images of a folder of folders, or of a table (`zoo.data.table`); each is decoded once.

    Raises `DatasetError` or `UsageError` where there is nothing that can be split, saying what is missing.
    """
    place = expand(path)
    if has_splits(place):
        raise UsageError(
            f"{path} is parted into train and test. The split is made here, by class: name a folder whose subfolders "
            "are the classes, or a table without the column split."
        )
    # Its own split is measured by all pictures, each beside all others, whatever a table says of queries.
    named = replace(load("train", place), factors={})
    unreadable = {source: str(error) for source, error in unreadable_images(named, progress).items()}
    readable = np.array([source not in unreadable for source in named.sources])
    if not readable.any():
        raise DatasetError(none_readable_message(len(named), next(iter(unreadable.values()))))
    counts = np.bincount(named.labels[readable], minlength=len(named.classes))
    kept = readable & (counts[named.labels] >= 2)
    alone = tuple(name for name, count in zip(named.classes, counts, strict=True) if count == 1)
    found = int((counts >= 2).sum())
    if found < MIN_CLASSES:
        single = f" {len(alone)} classes have a single image ({', '.join(alone[:5])})." if alone else ""
        broken = f" {len(unreadable)} images cannot be read." if unreadable else ""
        raise DatasetError(
            f"{path} holds {found} classes of two or more readable images; {MIN_CLASSES} are needed, two to train on "
            f"and two to measure on.{single}{broken} Add classes, or images to those that are there."
        )
    return TrainingFolder(subset(named, kept), unreadable, alone)


def check_share(share: float) -> None:
    """Raise `UsageError` for a share of which nothing, or all, is held out."""
    if not 0 < share < 1:
        raise UsageError(f"--test-share lies between 0 and 1, not at {share}.")


def split_classes(dataset: Dataset, share: float = 0.3, seed: int = 0) -> ClassSplit:
    """A share of the classes, at least two, drawn by the seed, is to be measured on; at least two are left."""
    check_share(share)
    number = len(dataset.classes)
    count = min(max(2, round(share * number)), number - 2)
    drawn = np.random.default_rng(seed).choice(number, count, replace=False)
    tests = np.isin(dataset.labels, drawn)
    return ClassSplit(subset(dataset, ~tests, "train"), subset(dataset, tests, "test"), seed, share)

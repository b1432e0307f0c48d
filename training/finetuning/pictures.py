"""A person's own pictures: a folder for each class, or a table of images and labels; read, checked, split by class."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from zoo.data.decode import unreadable_images
from zoo.datasets.dataset import Dataset, subset
from zoo.datasets.folder import digest_of, is_parted
from zoo.datasets.folder import load as load_folder
from zoo.errors import DatasetError, UsageError, none_readable
from zoo.paths import expand

LEAST_CLASSES = 4
"""Two to train on and two to measure on."""


@dataclass(frozen=True)
class Pictures:
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
class Split:
    """Classes to train on and classes to measure on; no class is in both."""

    train: Dataset
    test: Dataset
    seed: int
    share: float

    def to_json(self) -> dict[str, object]:
        """All that is needed to make the split again and to see that it is the same; `zoo.held_out` reads it."""
        return {
            "seed": self.seed,
            "test_share": self.share,
            "train_classes": list(self.train.classes),
            "test_classes": list(self.test.classes),
            "train_images": len(self.train),
            "test_images": len(self.test),
            "images_sha256": digest_of([*self.train.sources, *self.test.sources]),
        }


def read_pictures(path: str | Path, progress: bool = False) -> Pictures:
    """The images of a folder of folders, or of a table (`zoo.data.table`); each is decoded once.

    Raises `DatasetError` or `UsageError` where there is nothing that can be split, saying what is missing.
    """
    place = expand(path)
    if is_parted(place):
        raise UsageError(
            f"{path} is parted into train and test. The split is made here, by class: name a folder whose subfolders "
            "are the classes, or a table without the column split."
        )
    # Its own split is measured by all pictures, each beside all others, whatever a table says of queries.
    named = replace(load_folder("train", place), factors={})
    unreadable = {source: str(error) for source, error in unreadable_images(named, progress).items()}
    readable = np.array([source not in unreadable for source in named.sources])
    if not readable.any():
        raise DatasetError(none_readable(len(named), next(iter(unreadable.values()))))
    counts = np.bincount(named.labels[readable], minlength=len(named.classes))
    kept = readable & (counts[named.labels] >= 2)
    alone = tuple(name for name, count in zip(named.classes, counts, strict=True) if count == 1)
    found = int((counts >= 2).sum())
    if found < LEAST_CLASSES:
        single = f" {len(alone)} classes have a single image ({', '.join(alone[:5])})." if alone else ""
        broken = f" {len(unreadable)} images cannot be read." if unreadable else ""
        raise DatasetError(
            f"{path} holds {found} classes of two or more readable images; {LEAST_CLASSES} are needed, two to train on "
            f"and two to measure on.{single}{broken} Add classes, or images to those that are there."
        )
    return Pictures(subset(named, kept), unreadable, alone)


def check_share(share: float) -> None:
    """Raise `UsageError` for a share of which nothing, or all, is held out."""
    if not 0 < share < 1:
        raise UsageError(f"--test-share lies between 0 and 1, not at {share}.")


def split_classes(dataset: Dataset, share: float = 0.3, seed: int = 0) -> Split:
    """A share of the classes, at least two, drawn by the seed, is to be measured on; at least two are left."""
    check_share(share)
    number = len(dataset.classes)
    count = min(max(2, round(share * number)), number - 2)
    drawn = np.random.default_rng(seed).choice(number, count, replace=False)
    tests = np.isin(dataset.labels, drawn)
    return Split(subset(dataset, ~tests, "train"), subset(dataset, tests, "test"), seed, share)

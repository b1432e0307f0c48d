"""The images that a student learns from, and those that are held out to see what it has learnt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from zoo import data as datasets
from zoo.data import table
from zoo.data.dataset import FOLDER, SPLITS, WHOLE, Dataset, subset
from zoo.data.decode import unreadable_images
from zoo.data.folder import LEAST_CLASSES, check_share, digest_of, is_parted, list_images
from zoo.errors import DatasetError, UsageError
from zoo.paths import expand

LEAST_IMAGES = 4
"""Two to learn from and two to measure on."""

BY_CLASS, BY_IMAGE, AS_GIVEN = "class", "image", "given"


@dataclass(frozen=True)
class Pictures:
    """Images to learn from, whose labels play no part, and images to measure on.

    labelled: whether the labels of `test` mean anything. by: how the two were parted: "class", no class is in both;
    "image", at random; "given", by a data set's split, the folders train and test or a table's column split.
    unreadable: images that were left out, and why.
    """

    train: Dataset
    test: Dataset
    labelled: bool
    by: str
    seed: int
    share: float
    unreadable: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """All that is needed to part the images again and to see that they are the same; `zoo.evaluation.split` reads it."""
        by_class = self.by != BY_IMAGE and self.labelled
        return {
            "by": self.by,
            "seed": self.seed,
            "test_share": self.share,
            "train_images": len(self.train),
            "test_images": len(self.test),
            "train_classes": list(self.train.classes) if by_class else [],
            "test_classes": list(self.test.classes) if by_class else [],
            "images_sha256": digest_of([*self.train.sources, *self.test.sources]),
        }


def check_source(place: str | None, dataset: str | None, data: str | None = None) -> None:
    """Raise `UsageError` or `DatasetError` for what no image can come from, before anything is loaded."""
    if (place is None) == (dataset is None):
        raise UsageError("name a folder of images or a table of them, or a data set with --dataset; one of the two.")
    if dataset == FOLDER:
        raise UsageError("a folder or a table is named without --dataset: zoo distill TEACHER DIR ...")
    if dataset is not None:
        datasets.check(dataset, "train", data)
    elif data is not None:
        raise UsageError("--data says where the data set of --dataset lies; a folder of images is named by itself.")
    else:
        datasets.check_data(str(place), FOLDER)
        is_parted(str(place))  # whether a table is one


def read_dataset(name: str, data: str | Path | None, seed: int) -> Pictures:
    """A data set's training split to learn from, its test split to measure on."""
    train, test = (datasets.load(name, split, data) for split in SPLITS)
    return Pictures(train, test, True, AS_GIVEN, seed, 0.0)


def read_pictures(path: str | Path, share: float = 0.2, seed: int = 0, progress: bool = False) -> Pictures:
    """Every image below a folder or of a table (`zoo.data.table`), with labels or without.

    With the subfolders `train` and `test`, or the column split, these are taken. Else a share is held out by the seed:
    of the classes, where every image lies in a folder of its class, or has a label, and at least four classes have two
    images; of the images otherwise. Images that cannot be read are left out. Raises `DatasetError` where there are too
    few images, saying how many, and `UsageError` for a table that is none.
    """
    check_share(share)
    place = expand(path)
    bad: dict[str, str] = {}
    if is_parted(place):
        train, test = (_readable(_listed(place, split), bad, progress) for split in SPLITS)
        return Pictures(train, test, is_labelled(test, least=2), AS_GIVEN, seed, share, bad)
    whole = _readable(_listed(place), bad, progress)
    labelled = is_labelled(whole)
    held_out = held_out_rows(whole, labelled, share, seed)
    train, test = subset(whole, ~held_out), subset(whole, held_out, "test")
    return Pictures(train, test, labelled, BY_CLASS if labelled else BY_IMAGE, seed, share, bad)


def unlabelled(dataset: Dataset) -> Dataset:
    """The same images, each a class of its own, so that batches are drawn evenly from all of them."""
    n = len(dataset)
    return replace(dataset, labels=np.arange(n), classes=tuple(dataset.sources), factors={})


def is_labelled(dataset: Dataset, least: int = LEAST_CLASSES) -> bool:
    """Whether every image has a class, and `least` of these have two images."""
    return "" not in dataset.classes and int((np.bincount(dataset.labels) >= 2).sum()) >= least


def held_out_rows(dataset: Dataset, by_class: bool, share: float, seed: int) -> np.ndarray:
    """bool [n]: a share of the images, or all of a share of the classes that have two; at least two, two are left."""
    eligible = np.flatnonzero(np.bincount(dataset.labels) >= 2) if by_class else np.arange(len(dataset))
    count = min(max(2, round(share * len(eligible))), len(eligible) - 2)
    if count < 2:
        raise DatasetError(
            f"there are {len(eligible)} images that can be read; {LEAST_IMAGES} are needed at least, two to learn from "
            "and two to measure on."
        )
    drawn = np.random.default_rng(seed).choice(eligible, count, replace=False)
    return np.isin(dataset.labels if by_class else np.arange(len(dataset)), drawn)


def _readable(dataset: Dataset, bad: dict[str, str], progress: bool) -> Dataset:
    """The images that can be read, two at least; why others cannot is put into `bad`."""
    bad |= {source: str(error) for source, error in unreadable_images(dataset, progress).items()}
    readable = np.array([source not in bad for source in dataset.sources])
    if readable.sum() < 2:
        reason = "".join(f" {source}: {why}" for source, why in list(bad.items())[:1])
        raise DatasetError(
            f"of the {len(dataset)} images of the split {dataset.split!r} {int(readable.sum())} can be read; two to "
            f"learn from and two to measure on are needed.{reason}"
        )
    return dataset if readable.all() else subset(dataset, readable, dataset.split)


def _listed(place: Path, split: str = WHOLE) -> Dataset:
    """The images of a table, or below a folder, where the class of each is the folder that it lies in; "" for none."""
    if table.is_table(place):
        return replace(table.load_unlabelled(split, place), factors={})
    root = place if split == WHOLE else place / split
    paths: Sequence[Path] = list_images(root)
    if not paths:
        raise DatasetError(
            f"{root} holds no images; every image below it would be learnt from, with labels or without."
        )
    names = [path.relative_to(root).as_posix() for path in paths]
    classes, labels = np.unique([name.rpartition("/")[0] for name in names], return_inverse=True)
    return Dataset(FOLDER, split, paths, labels.astype(np.int64), tuple(classes.tolist()), names)

"""Images to learn from, with labels or without, and images to measure on. Loads no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from zoo import data as datasets
from zoo.data import table
from zoo.data.dataset import FOLDER, SPLITS, WHOLE, Dataset, subset, without
from zoo.data.decode import unreadable_images
from zoo.data.folder import MIN_CLASSES, check_share, has_splits, list_images, sources_sha256
from zoo.errors import DatasetError, UsageError
from zoo.evaluation.selection import validation_share
from zoo.evaluation.split import LEAST_TO_SPLIT
from zoo.paths import expand

LEAST_IMAGES = 4
"""Two to learn from and two to measure on."""

BY_CLASS, BY_IMAGE, AS_GIVEN = "class", "image", "given"


@dataclass(frozen=True)
class StudentImages:
    """Images to learn from, whose labels are not used, and images to measure on.

    Attributes:
        labelled: The labels of `test` are classes.
        by: The kind of split: "class", no class is in both parts; "image", at random; "given", by a data set's split,
            the folders train and test, or a table's column split.
        unreadable: Image -> reason, for the images that were left out.
    """

    train: Dataset
    test: Dataset
    labelled: bool
    by: str
    seed: int
    share: float
    unreadable: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the facts that repeat the split and identify its images; `zoo.evaluation.split` reads them."""
        by_class = self.by != BY_IMAGE and self.labelled
        return {
            "by": self.by,
            "seed": self.seed,
            "test_share": self.share,
            "train_images": len(self.train),
            "test_images": len(self.test),
            "train_classes": list(self.train.classes) if by_class else [],
            "test_classes": list(self.test.classes) if by_class else [],
            "images_sha256": sources_sha256([*self.train.sources, *self.test.sources]),
        }


def check_source(path: str | Path | None, dataset: str | None, data: str | Path | None = None) -> None:
    """Check where the student's images come from, before anything is loaded.

    Args:
        path: A folder of images or a table of them.
        dataset: The name of a data set.
        data: The folder of that data set.

    Raises:
        UsageError: If path and dataset are both given, or neither is.
        DatasetError: If the path or the data set does not exist.
    """
    if (path is None) == (dataset is None):
        raise UsageError(
            "name a folder of images or a table of them, or a data set with --dataset; one of the two.",
            code="conflicting-options",
        )
    if dataset is not None:
        datasets.check_dataset(dataset, "train", data)
    elif data is not None:
        raise UsageError(
            "--data is the folder of the data set that --dataset names; give a folder of images as DIR, without "
            "--data.",
            code="conflicting-options",
        )
    else:
        datasets.check_dataset_path(str(path), FOLDER)
        has_splits(str(path))  # raises an error for a file that is not a table


def read_dataset(name: str, data: str | Path | None, seed: int) -> StudentImages:
    """Return a data set's training split to learn from and its test split to measure on."""
    train, test = (datasets.load_dataset(name, split, data) for split in SPLITS)
    return StudentImages(train, test, True, AS_GIVEN, seed, 0.0)


def read_student_images(path: str | Path, share: float = 0.2, seed: int = 0, progress: bool = False) -> StudentImages:
    """Read every image below a folder or of a table (`zoo.data.table`), with labels or without.

    The subfolders `train` and `test`, or the column split, are the two parts if they exist. Otherwise a share is held
    out: of the classes, if every image is in a folder of its class, or has a label, and at least four classes have two
    images; of the images otherwise. Images that cannot be read are left out.

    Args:
        path: The folder or the table.
        share: The share to measure on.
        seed: The seed of the split.
        progress: Show a progress bar.

    Raises:
        DatasetError: If there are too few images.
        UsageError: If the share is not between 0 and 1, or a file is not a table.
    """
    check_share(share)
    source = expand(path)
    unreadable: dict[str, str] = {}
    if has_splits(source):
        train, test = (_readable(_list(source, split), unreadable, progress) for split in SPLITS)
        return StudentImages(train, test, _is_labelled(test, least=2), AS_GIVEN, seed, share, unreadable)
    images = _readable(_list(source), unreadable, progress)
    labelled = _is_labelled(images)
    held_out = _held_out_rows(images, labelled, share, seed)
    train, test = subset(images, ~held_out), subset(images, held_out, "test")
    return StudentImages(train, test, labelled, BY_CLASS if labelled else BY_IMAGE, seed, share, unreadable)


def held_out_to_choose(train: Dataset, labelled: bool, seed: int) -> np.ndarray:
    """Return the mask bool [n] of the images of the training classes that choose the epoch; none without labels.

    Classes of one image are not drawn: they measure nothing.
    """
    eligible = np.flatnonzero(np.bincount(train.labels) >= 2) if labelled and "" not in train.classes else np.array([])
    count = round(validation_share(len(eligible), LEAST_TO_SPLIT) * len(eligible))
    return np.isin(train.labels, np.random.default_rng((seed, 0)).choice(eligible, count, replace=False))


def without_labels(dataset: Dataset, validates: np.ndarray) -> Dataset:
    """Return the same images, each a class of its own, so that batches are drawn evenly from all of them.

    Args:
        dataset: The n images.
        validates: Bool [n], the images that validate and keep their classes.
    """
    n = len(dataset)
    classes = (*dataset.sources, *dataset.classes)
    labels = np.where(validates, n + dataset.labels, np.arange(n))
    return replace(dataset, labels=labels, classes=classes, factors={"validation": validates})


def _is_labelled(dataset: Dataset, least: int = MIN_CLASSES) -> bool:
    """Return whether every image has a class, and `least` classes have two images."""
    return "" not in dataset.classes and int((np.bincount(dataset.labels) >= 2).sum()) >= least


def _held_out_rows(dataset: Dataset, by_class: bool, share: float, seed: int) -> np.ndarray:
    """Return the mask of a share of the images, or of all images of a share of the classes that have two.

    At least two images or classes are held out, and at least two are left.

    Args:
        dataset: The n images.
        by_class: Whether whole classes are held out instead of single images.
        share: The share to hold out, from 0 to 1.
        seed: The seed of the draw.

    Returns:
        The mask of the images that are held out, bool [n].

    Raises:
        DatasetError: If there are too few images or classes (`too-few-samples`).
    """
    eligible = np.flatnonzero(np.bincount(dataset.labels) >= 2) if by_class else np.arange(len(dataset))
    count = min(max(2, round(share * len(eligible))), len(eligible) - 2)
    if count < 2:
        raise DatasetError(
            f"there are {len(eligible)} images that can be read; at least {LEAST_IMAGES} are needed, two to learn from "
            "and two to measure on.",
            code="too-few-samples",
        )
    drawn = np.random.default_rng(seed).choice(eligible, count, replace=False)
    return np.isin(dataset.labels if by_class else np.arange(len(dataset)), drawn)


def _readable(dataset: Dataset, unreadable: dict[str, str], progress: bool) -> Dataset:
    """Return the images that can be read, at least two; put the reasons of the others into `unreadable`."""
    unreadable |= {source: str(error) for source, error in unreadable_images(dataset, progress).items()}
    readable = sum(source not in unreadable for source in dataset.sources)
    if readable < 2:
        reason = "".join(f" {source}: {why}" for source, why in list(unreadable.items())[:1])
        raise DatasetError(
            f"of the {len(dataset)} images of the split {dataset.split!r} {readable} can be read; two to "
            f"learn from and two to measure on are needed.{reason}",
            code="too-few-samples",
        )
    return without(dataset, unreadable)


def _list(path: Path, split: str = WHOLE) -> Dataset:
    """List the images of a table, or below a folder; there the class of an image is its folder, or "" for none."""
    if table.is_table(path):
        return replace(table.load_unlabelled(split, path), factors={})
    root = path if split == WHOLE else path / split
    images: Sequence[Path] = list_images(root, follow_links=True)
    if not images:
        raise DatasetError(
            f"{root} does not hold any images. Put images into it or its subfolders, with labels or without.",
            code="no-images",
        )
    names = [image.relative_to(root).as_posix() for image in images]
    classes, labels = np.unique([name.rpartition("/")[0] for name in names], return_inverse=True)
    coded, own_name = labels.astype(np.int64), path.resolve().name
    return Dataset(FOLDER, split, images, coded, tuple(classes.tolist()), names, own_name=own_name)

"""Folder of images as a data set: an image's class is its subfolder. Also a user's folder to finetune on: unreadable
images are left out and the classes are split into training and test classes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from zoo.console import count, note_once
from zoo.data import table
from zoo.data.dataset import FOLDER, SPLITS, WHOLE, Dataset, subset
from zoo.data.decode import unreadable_images
from zoo.data.images import SUFFIXES
from zoo.data.labels import note_spellings
from zoo.data.listing import left_out_lines, list_files
from zoo.data.names import canonical, escaped
from zoo.errors import DatasetError, UsageError, command, none_readable_message
from zoo.paths import expand


def load(split: str, data: str | Path | None = None) -> Dataset:
    """Read a folder whose subfolders are classes, named relative to it ("birds/wren"), sorted, nested or not.

    Args:
        split: The subfolder `train` or `test`, if `data` has both. Without them the data set is all of `data` for
            every split, "all" included, and its split is "all".
        data: The folder, or a table (CSV) as `zoo.data.table` describes.

    Raises:
        DatasetError: If the folder is missing, empty or unreadable, an image has no class, or there is a single class.
    """
    if data is None:
        raise DatasetError(
            "the data set 'folder' needs a folder, or a table of images and labels (CSV): name it with --data DIR, in "
            "Python data='DIR'.",
            code="missing-value",
        )
    dataset = table.load(split, data) if table.is_table(data) else _load_folder(split, data)
    merge = command("data", FOLDER, "--data", data, "--split", dataset.split, "--out", "merged", "--merge-labels")
    note_spellings(dataset, merge)
    return dataset


def _load_folder(split: str, data: str | Path) -> Dataset:
    root = expand(data)
    if has_splits(root):
        if split == WHOLE:
            raise DatasetError(
                f"{root} has the folders train and test and cannot be read as one; name one of them.",
                code="wrong-split",
            )
        root = root / split
    else:
        split = WHOLE
    paths = list_images(root, follow_links=True)
    names = [path.relative_to(root).as_posix() for path in paths]
    labels, classes = _classes(root, names)
    return Dataset(FOLDER, split, paths, labels, classes, names, own_name=expand(data).resolve().name)


def has_splits(root: str | Path) -> bool:
    """Return whether a folder has the subfolders `train` and `test`, or a table the column `split`."""
    if table.is_table(root):
        return table.has_splits(root)
    return all((expand(root) / name).is_dir() for name in SPLITS)


def test_split_notes(root: str | Path) -> list[str]:
    """Return what a user should know about the test split of a folder or table before a model is trained on it."""
    try:
        test = load(SPLITS[1], root)
        lack = "it has no split test." if test.split == WHOLE else ""
    except DatasetError as error:
        lack = str(error)
    if lack:
        return [
            f"{root}: {lack} The model will not be measured: put other classes into the folder test, or into "
            f"rows whose {table.SPLIT} is test; or measure it on another folder"
        ]
    train = load(SPLITS[0], root)
    if not (shared := sorted({*train.classes} & {*test.classes})):
        return []
    some = ", ".join(shared[:5]) + (", ..." if len(shared) > 5 else "")
    return [
        f"{root} has {count(len(shared), 'class', 'classes')} in both train and test ({some}): the model learns from "
        "them, and scores on them flatter it; only other classes tell how it embeds what it has not seen"
    ]


def has_test_split(root: str | Path) -> bool:
    """Return whether a folder or table has images of the split `test`, or of `validation` in its place."""
    if table.is_table(root):
        return any(row.get(table.SPLIT) == SPLITS[1] for row in table.read_image_rows(root))
    return has_splits(root)


def check_splits(root: str | Path) -> None:
    """Raise `DatasetError` for a folder or table without train and test, and for a table with a class in both.

    A missing folder passes: the function that reads it reports it.
    """
    if table.is_table(root):
        table.check_splits(root)
    if expand(root).is_dir() and not has_splits(root):
        raise DatasetError(
            f"{root} has no folders train and test, and a study measures on classes that it did not train on: move the "
            f"classes' folders into {root}/train and {root}/test.",
            code="wrong-split",
        )


def list_unlabelled(path: str | Path) -> list[Path]:
    """Return every image under a folder, or the training images of a table; labels are not needed.

    Raises:
        ZooError: The errors of `_list_by_class`.
    """
    return [image for image, _ in _list_by_class(path)]


def _list_by_class(path: str | Path) -> list[tuple[Path, str]]:
    """Return the images of `list_unlabelled`, each with its class: its folder or label; "" without one.

    Raises:
        DatasetError: If there are no images, or the folder is missing or unreadable.
        UsageError: If the table is malformed.
    """
    if table.is_table(path):
        images = table.training_images(path)
    else:
        root = expand(path)
        paths = list_images(root, follow_links=True)
        images = [(image, canonical(image.relative_to(root).as_posix().rpartition("/")[0])) for image in paths]
    if not images:
        raise DatasetError(f"{path} holds no images to learn from.", code="no-images")
    return images


def read_by_class(path: str | Path) -> Dataset:
    """Return all images of a folder, or the training images of a table, as a data set; the class "" is unlabelled.

    Raises:
        ZooError: The errors of `_list_by_class`.
    """
    pairs = _list_by_class(path)
    classes, labels = np.unique([name for _, name in pairs], return_inverse=True)
    images = [image for image, _ in pairs]
    sources = [image.as_posix() for image in images]
    own_name = expand(path).resolve().name
    return Dataset(FOLDER, WHOLE, images, labels.astype(np.int64), tuple(classes.tolist()), sources, own_name=own_name)


def list_images(root: str | Path, follow_links: bool = False) -> list[Path]:
    """Return every image under a folder, sorted by path, as `zoo.data.listing.list_files` does.

    What is left out by its name, and what cannot be read, is said on stderr once. Without images the list is empty.

    Args:
        root: The folder.
        follow_links: Whether to follow links that lead out of the folder.

    Raises:
        DatasetError: If the folder is missing or unreadable.
    """
    root = expand(root)
    files = list_files(root, follow_links)
    left_out = files.left_out(root)
    for line in left_out_lines(left_out["unreadable"], left_out["excluded"]):
        note_once(f"{root}: {line}")
    return files.images


def _classes(root: Path, names: Sequence[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return labels, int64 [n], and class names."""
    if not names:
        raise DatasetError(f"{root} holds no images ({', '.join(sorted(SUFFIXES))}).", code="no-images")
    folders = [canonical(escaped(name.rpartition("/")[0])) for name in names]
    if "" in folders:
        stray = names[folders.index("")]
        raise DatasetError(
            f"{root / stray} has no class: put each image into a folder named as its class, {root}/CLASS/.",
            code="invalid-table",
        )
    classes = tuple(sorted(set(folders)))
    if len(classes) == 1:
        raise DatasetError(
            f"{root} holds the single class {classes[0]!r}; two are needed to measure a model, four to train one.",
            code="too-few-classes",
        )
    index = {name: i for i, name in enumerate(classes)}
    return np.array([index[name] for name in folders], dtype=np.int64), classes


def sources_sha256(sources: Iterable[str]) -> str:
    """Return the SHA-256 of images' sources, which tells whether two folders hold the same images."""
    text = "".join(f"{source}\n" for source in sources)
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()  # names of files may be any bytes


MIN_CLASSES = 4
"""Two classes to train on and two to measure on."""


@dataclass(frozen=True)
class TrainingFolder:
    """A user's images to train on: readable ones, of classes with at least two of them.

    Attributes:
        dataset: The images that are used.
        unreadable: Reasons by source of the images that cannot be read.
        alone: Classes with a single readable image, which are left out.
    """

    dataset: Dataset
    unreadable: dict[str, str] = field(default_factory=dict)
    alone: tuple[str, ...] = ()

    def notes(self) -> list[str]:
        """Return a line for each image and class that was left out."""
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
        """Return the record that reproduces and identifies the split; `zoo.evaluation.split` reads it."""
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
    """Read a folder with one subfolder per class, or a table (`zoo.data.table`), and decode each image once.

    Raises:
        DatasetError: If no image can be read, or fewer than four classes have two or more readable images.
        UsageError: If the folder or table is split into train and test already, or the table is malformed.
    """
    root = expand(path)
    if has_splits(root):
        raise UsageError(
            f"{path} is already split into train and test, but this command makes the split itself, by class: name a "
            "folder whose subfolders are the classes, or a table without the column split.",
            code="wrong-split",
        )
    # The test split is measured with every image as a query, even if a table has the column query.
    dataset = replace(load("train", root), factors={})
    unreadable = {source: str(error) for source, error in unreadable_images(dataset, progress).items()}
    readable = np.array([source not in unreadable for source in dataset.sources])
    if not readable.any():
        raise DatasetError(none_readable_message(len(dataset), next(iter(unreadable.values()))), code="no-images")
    counts = np.bincount(dataset.labels[readable], minlength=len(dataset.classes))
    usable = readable & (counts[dataset.labels] >= 2)
    alone = tuple(name for name, count in zip(dataset.classes, counts, strict=True) if count == 1)
    classes = int((counts >= 2).sum())
    if classes < MIN_CLASSES:
        named = ", ".join(alone[:5]) + (f" and {len(alone) - 5} more" if len(alone) > 5 else "")
        single = f" With a single image: {count(len(alone), 'class')} ({named})." if alone else ""
        broken = f" {count(len(unreadable), 'image')} cannot be read." if unreadable else ""
        raise DatasetError(
            f"{path} holds {count(classes, 'class')} of two or more readable images; {MIN_CLASSES} are needed, two to "
            f"train on and two to measure on; two more choose what is kept.{single}{broken} Add "
            "classes, or images to the classes.",
            code="too-few-classes",
        )
    return TrainingFolder(subset(dataset, usable), unreadable, alone)


def check_share(share: float) -> None:
    """Raise `UsageError` unless the share of test classes is between 0 and 1, both excluded."""
    if not 0 < share < 1:
        raise UsageError(f"--test-share lies between 0 and 1, not at {share}.", code="invalid-value")


def split_classes(dataset: Dataset, share: float = 0.3, seed: int = 0) -> ClassSplit:
    """Draw test classes by the seed, and return the two halves.

    Args:
        dataset: At least four classes.
        share: The share of the classes to measure on; at least two classes are drawn, and at least two are left.
        seed: Seed of the draw.

    Raises:
        UsageError: If the share is not between 0 and 1.
    """
    check_share(share)
    classes = len(dataset.classes)
    count = min(max(2, round(share * classes)), classes - 2)
    drawn = np.random.default_rng(seed).choice(classes, count, replace=False)
    is_test = np.isin(dataset.labels, drawn)
    return ClassSplit(subset(dataset, ~is_test, "train"), subset(dataset, is_test, "test"), seed, share)

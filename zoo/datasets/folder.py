"""A plain folder of images as a data set: an image's class is the folder that it lies in, or what a table says."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from zoo.data import table
from zoo.datasets.dataset import SPLITS, WHOLE, Dataset
from zoo.errors import DatasetError
from zoo.images import SUFFIXES
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
    if is_parted(root):
        if split == WHOLE:
            raise DatasetError(f"{root} has the folders train and test, and is no split of its own; name one of them.")
        root = root / split
    else:
        split = WHOLE
    paths = list_images(root)
    names = [path.relative_to(root).as_posix() for path in paths]
    labels, classes = _classes(root, names)
    return Dataset(name="folder", split=split, images=paths, labels=labels, classes=classes, sources=names)


def is_parted(root: str | Path) -> bool:
    """Whether the folder has the subfolders `train` and `test`, or the table a column `split`."""
    if table.is_table(root):
        return table.is_parted(root)
    return all((expand(root) / name).is_dir() for name in SPLITS)


def check_parted(root: str | Path) -> None:
    """Raise `DatasetError` for a folder or table whose classes are not parted into those to train on and those to
    measure on, and for a table of which one is both; not for a folder that is missing, which who reads it says."""
    if table.is_table(root):
        table.check_parted(root)
    if expand(root).is_dir() and not is_parted(root):
        raise DatasetError(
            f"{root} has no folders train and test, and a study measures on classes that it did not train on: move the "
            f"classes' folders into {root}/train and {root}/test."
        )


def list_unlabelled(place: str | Path) -> list[Path]:
    """Every image under a folder, as `list_images` gives them, or those of a table that are to be learnt from.

    Raises `DatasetError` where there are none, and what `list_images` and `table.images_of` raise.
    """
    images = table.images_of(place) if table.is_table(place) else list_images(place)
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


def digest_of(sources: Iterable[str]) -> str:
    """Return the SHA-256 of images' sources, which tells whether two folders hold the same images."""
    text = "".join(f"{source}\n" for source in sources)
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()  # names of files may be any bytes

"""CIFAR-100: small pictures of 100 kinds of things (Krizhevsky 2009, Learning Multiple Layers of Features).

Only the 50,000 images that classification trains on are used, split by class, so that test classes are never seen in
training: of the classes in alphabetical order, the first 50 train and the other 50 test.

They are read from a zip file of PNG files or from the authors' binary archive, whichever is there. Nothing is fetched:
nobody publishes the former, and the authors' page gives no licence.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from zipfile import BadZipFile, ZipFile

import numpy as np

from zoo.datasets.cifar100_binary import ARCHIVE, FOLDER, MD5, URL, read, spoilt
from zoo.datasets.dataset import Dataset
from zoo.datasets.published import Counts
from zoo.errors import DatasetError
from zoo.files import sha256_of
from zoo.images import ImageLike
from zoo.paths import data_roots

FILE = "cifar100-train.zip"
SHA256 = "9eac335d7728e1fa70dd8d1fa869d82c4fcba7f163409932fe41ca9a4b87f33b"
EXPECTED = {"train": Counts(25_000, 50), "test": Counts(25_000, 50)}

_PICKLED = ("cifar-100-python", "cifar-100-python.tar.gz")


def load(
    split: str,
    data: str | Path | None = None,
    expected: Mapping[str, Counts] = EXPECTED,
    sha256: str = SHA256,
    md5: str = MD5,
) -> Dataset:
    """One split of `cifar100-train.zip`, which holds `<class>/<file>.png`: the bytes of 32 x 32 RGB PNG files.

    Else of `cifar-100-binary.tar.gz` or its folder `cifar-100-binary`: uint8 arrays [32, 32, 3], called "apple/00042"
    by their record. Classes and, within them, images are in the order of their names. The official archive for Python
    is a pickle, which is never opened. Raises `DatasetError` if the file is nowhere or another one.
    """
    path = _find(data)
    if path.name == FILE:
        found = sha256_of(path)
        if found != sha256:
            raise _spoilt(path, f"it is not the {FILE} that is known: its sha256 is {found}, expected {sha256}")
        names, images = _read(path, split, expected["train"].classes)
    else:
        names, images = _read_binary(path, split, expected["train"].classes, md5)
    classes, labels = np.unique([name.partition("/")[0] for name in names], return_inverse=True)
    if (counts := Counts(len(images), len(classes))) != expected[split]:
        raise _spoilt(path, f"it holds {counts} for {split}; expected {expected[split]}")
    return Dataset("cifar100", split, images, labels.astype(np.int64), tuple(classes.tolist()), names)


def _read_binary(path: Path, split: str, trains: int, md5: str) -> tuple[list[str], list[ImageLike]]:
    """As `_read`, from the authors' archive."""
    pixels, labels, classes = read(path, md5)
    named = sorted(classes)
    chosen = set(named[:trains] if split == "train" else named[trains:])
    rows = [i for i, label in enumerate(labels.tolist()) if classes[label] in chosen]
    names = {f"{classes[labels[i]]}/{i:05d}": i for i in rows}
    return sorted(names), [np.ascontiguousarray(pixels[names[name]]) for name in sorted(names)]


def _read(path: Path, split: str, trains: int) -> tuple[list[str], list[ImageLike]]:
    """The names and bytes of the split's images; `trains` of the classes are for training."""
    try:
        # About 2 KB an image: all of them are read at once, and no open file is shared between threads.
        with ZipFile(path) as archive:
            names = sorted(name for name in archive.namelist() if name.count("/") == 1 and name.endswith(".png"))
            classes = sorted({name.partition("/")[0] for name in names})
            chosen = set(classes[:trains] if split == "train" else classes[trains:])
            names = [name for name in names if name.partition("/")[0] in chosen]
            return names, [archive.read(name) for name in names]
    except (BadZipFile, OSError) as error:
        raise _spoilt(path, f"it cannot be read: {error}") from None


def _spoilt(path: Path, reason: str) -> DatasetError:
    if path.name != FILE:
        return spoilt(path, reason)
    # The zip is looked for first: the archive beside it would not be read.
    return DatasetError(
        f"{path}: {reason}. Nobody publishes this file: put the right one in its place, or take it away, get {ARCHIVE} "
        f"from {URL} and put that, packed or extracted, into {path.parent}."
    )


def _find(data: str | Path | None) -> Path:
    roots = data_roots(data)
    for root in roots:
        for found in (root / FILE, root / FOLDER, root / ARCHIVE):
            if found.exists():
                return found
    pickled = [str(root / name) for root in roots for name in _PICKLED if (root / name).exists()]
    refused = f" {pickled[0]} is a pickle, which could run any code and isn't opened." if pickled else ""
    raise DatasetError(
        f"neither {FILE} nor {ARCHIVE} is in {' or '.join(map(str, roots))}.{refused} Get the latter from {URL} and "
        "put it, packed or extracted, into a folder that you name with --data or ZOO_DATA; it is not fetched for you, "
        f"as its page gives no licence. {FILE} holds CIFAR-100's 50,000 training images as PNG, <class>/<file>.png, "
        f"sha256 {SHA256}."
    )

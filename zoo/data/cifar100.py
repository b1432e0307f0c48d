"""CIFAR-100: small pictures of 100 kinds of things (Krizhevsky 2009, Learning Multiple Layers of Features).

Only the 50,000 training images of the classification task are used, split by class: of the classes in alphabetical
order, the first 50 train and the other 50 test.

The images are read from a zip file of PNG files or from the authors' binary archive. Neither is downloaded: the former
is not published anywhere, and the authors' page gives no licence.
"""

from __future__ import annotations

import hashlib
import tarfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from zipfile import BadZipFile, ZipFile

import numpy as np

from zoo.data.dataset import Dataset
from zoo.data.images import ImageLike
from zoo.data.official import Counts
from zoo.errors import DatasetError
from zoo.files import sha256_of
from zoo.paths import data_roots

FILE = "cifar100-train.zip"
SHA256 = "9eac335d7728e1fa70dd8d1fa869d82c4fcba7f163409932fe41ca9a4b87f33b"
EXPECTED = {"train": Counts(25_000, 50), "test": Counts(25_000, 50)}

FOLDER = "cifar-100-binary"
ARCHIVE = f"{FOLDER}.tar.gz"
URL = f"https://www.cs.toronto.edu/~kriz/{ARCHIVE}"
MD5 = "03b5dce01913d631647c71ecec9e9cb8"
"""MD5 of the archive, as its page prints it."""

_PICKLED = ("cifar-100-python", "cifar-100-python.tar.gz")

SIDE = 32
RECORD = 2 + 3 * SIDE * SIDE
RECORDS, NAMES = "train.bin", "fine_label_names.txt"


def load(
    split: str,
    data: str | Path | None = None,
    expected: Mapping[str, Counts] = EXPECTED,
    sha256: str = SHA256,
    md5: str = MD5,
) -> Dataset:
    """Return one split; classes and, within them, images are in the order of their names.

    The first of these sources that exists is read: `cifar100-train.zip` with files `<class>/<file>.png`, whose images
    are the bytes of 32 x 32 RGB PNG files; the folder `cifar-100-binary`; `cifar-100-binary.tar.gz`. Images of the
    latter two are uint8 arrays [32, 32, 3], named by class and record ("apple/00042"). The official archive for Python
    is a pickle, which is never opened.

    Args:
        split: "train" or "test".
        data: The only folder to look in, None for `ZOO_DATA` and the download cache.
        expected: Published counts of each split.
        sha256: Expected hash of the zip file.
        md5: Expected hash of the archive.

    Raises:
        DatasetError: If no source exists, or it is damaged or not the expected one.
    """
    path = _find(data)
    if path.name == FILE:
        actual = sha256_of(path)
        if actual != sha256:
            raise _damaged(
                path, "hash-mismatch", f"it is not the expected {FILE}: its sha256 is {actual}, expected {sha256}"
            )
        names, images = _read_zip(path, split, expected["train"].classes)
    else:
        names, images = _read_official(path, split, expected["train"].classes, md5)
    classes, labels = np.unique([name.partition("/")[0] for name in names], return_inverse=True)
    if (counts := Counts(len(images), len(classes))) != expected[split]:
        raise _damaged(path, "damaged-file", f"it holds {counts} for {split}; expected {expected[split]}")
    return Dataset("cifar100", split, images, labels.astype(np.int64), tuple(classes.tolist()), names)


def _read_official(path: Path, split: str, training_classes: int, md5: str) -> tuple[list[str], list[ImageLike]]:
    """Return the names and pixels of the split's images in the authors' archive, as `_read_zip` does."""
    pixels, labels, classes = _read_official_archive(path, md5)
    split_classes = _split_classes(classes, split, training_classes)
    rows = [i for i, label in enumerate(labels.tolist()) if classes[label] in split_classes]
    names = {f"{classes[labels[i]]}/{i:05d}": i for i in rows}
    return sorted(names), [np.ascontiguousarray(pixels[names[name]]) for name in sorted(names)]


def _read_zip(path: Path, split: str, training_classes: int) -> tuple[list[str], list[ImageLike]]:
    """Return the names and bytes of the split's images."""
    try:
        # Images have about 2 KB: all of them are read at once, so that no open file is shared between threads.
        with ZipFile(path) as archive:
            names = sorted(name for name in archive.namelist() if name.count("/") == 1 and name.endswith(".png"))
            split_classes = _split_classes({name.partition("/")[0] for name in names}, split, training_classes)
            names = [name for name in names if name.partition("/")[0] in split_classes]
            return names, [archive.read(name) for name in names]
    except (BadZipFile, OSError) as error:
        raise _damaged(path, "unreadable-file", f"it cannot be read: {error}") from None


def _split_classes(classes: Iterable[str], split: str, training_classes: int) -> set[str]:
    """Return the classes of a split: in alphabetical order, the first `training_classes` are for training."""
    names = sorted(classes)
    return set(names[:training_classes] if split == "train" else names[training_classes:])


def _damaged(path: Path, code: str, reason: str) -> DatasetError:
    """Return the error for a zip file, an archive or its folder that differs from the expected one."""
    # As long as the zip file exists, which is not published anywhere, the archive beside it is not read.
    return DatasetError(
        f"{path}: {reason}. Remove it, get {ARCHIVE} from {URL} and put that, packed or extracted, into {path.parent}.",
        code=code,
    )


def _find(data: str | Path | None) -> Path:
    roots = data_roots(data)
    for root in roots:
        for path in (root / FILE, root / FOLDER, root / ARCHIVE):
            if path.exists():
                return path
    pickled = [str(root / name) for root in roots for name in _PICKLED if (root / name).exists()]
    refused = f" {pickled[0]} is a pickle, which could run any code and is not opened." if pickled else ""
    raise DatasetError(
        f"neither {FILE} nor {ARCHIVE} is in {' or '.join(map(str, roots))}.{refused} Get the latter from {URL} and "
        "put it, packed or extracted, into a folder that you name with --data or ZOO_DATA; it is not downloaded for "
        f"you, as its page gives no licence. {FILE} holds CIFAR-100's 50,000 training images as PNG, "
        f"<class>/<file>.png, sha256 {SHA256}.",
        code="dataset-missing",
    )


def _read_official_archive(path: Path, md5: str = MD5) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Read the training images of the official binary archive.

    A record of `train.bin` is a byte with the coarse label, a byte with the fine label, and the red, green and blue
    planes, row by row.

    Args:
        path: The archive, or the folder to which it was extracted.
        md5: The expected MD5 of the archive.

    Returns:
        The images, uint8 [n, 32, 32, 3], their fine labels, int64 [n], and the names of the labels.

    Raises:
        DatasetError: If the archive is not the published one, a file is missing, or the records are cut off or have a
            label without a name.
    """
    records, text = _read_members(path, md5)
    names = tuple(text.decode("ascii", errors="replace").split())
    if len(records) % RECORD:
        raise _damaged(
            path,
            "damaged-file",
            f"{RECORDS} holds {len(records):,} bytes, which are not complete records of {RECORD:,}",
        )
    rows = np.frombuffer(records, np.uint8).reshape(-1, RECORD)
    labels = rows[:, 1].astype(np.int64)
    if len(rows) and labels.max() >= len(names):
        raise _damaged(
            path, "damaged-file", f"{RECORDS} has class {labels.max()}, but {NAMES} names {len(names)} classes"
        )
    return rows[:, 2:].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1), labels, names


def _read_members(path: Path, md5: str) -> tuple[bytes, bytes]:
    if path.is_dir():
        return _read_folder_member(path, RECORDS), _read_folder_member(path, NAMES)
    try:
        with path.open("rb") as file:
            actual = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if actual != md5:
            raise _damaged(
                path, "hash-mismatch", f"it is not the published archive: its md5 is {actual}, expected {md5}"
            )
        with tarfile.open(path, "r:gz") as archive:
            return _read_archive_member(path, archive, RECORDS), _read_archive_member(path, archive, NAMES)
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise _damaged(path, "unreadable-file", f"it cannot be read ({error})") from None


def _read_folder_member(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except FileNotFoundError:
        raise _damaged(folder, "missing-file", f"{name} is missing") from None
    except OSError as error:
        raise _damaged(folder, "unreadable-file", f"{name} cannot be read ({error.strerror})") from None


def _read_archive_member(path: Path, archive: tarfile.TarFile, name: str) -> bytes:
    try:
        member = archive.extractfile(f"{FOLDER}/{name}")
    except KeyError:
        member = None
    if member is None:
        raise _damaged(path, "missing-file", f"{name} is missing")
    return member.read()

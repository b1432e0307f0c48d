"""CIFAR-100.

CIFAR-100's official binary archive: records of two labels and 3,072 pixels, and the classes' names as text.

CIFAR-100: small pictures of 100 kinds of things (Krizhevsky 2009, Learning Multiple Layers of Features).

Only the 50,000 images that classification trains on are used, split by class, so that test classes are never seen in
training: of the classes in alphabetical order, the first 50 train and the other 50 test.

They are read from a zip file of PNG files or from the authors' binary archive, whichever is there. Nothing is fetched:
nobody publishes the former, and the authors' page gives no licence.
"""

from __future__ import annotations

import hashlib
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from zipfile import BadZipFile, ZipFile

import numpy as np

from zoo.data.dataset import Dataset
from zoo.data.images import ImageLike
from zoo.data.official import Counts
from zoo.errors import DatasetError
from zoo.files import sha256_of
from zoo.paths import data_roots

FOLDER = "cifar-100-binary"
ARCHIVE = f"{FOLDER}.tar.gz"
URL = f"https://www.cs.toronto.edu/~kriz/{ARCHIVE}"
MD5 = "03b5dce01913d631647c71ecec9e9cb8"
"""Of the archive, as its page prints it."""

SIDE = 32
RECORD = 2 + 3 * SIDE * SIDE
RECORDS, NAMES = "train.bin", "fine_label_names.txt"


def read_official_archive(path: Path, md5: str = MD5) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """The images of `train.bin`, uint8 [n, 32, 32, 3], their fine labels, int64 [n], and the names of these.

    path: the archive, which is not extracted to be read, or its extracted folder. A record is a byte of the coarse
    label, one of the fine label, and the red, green and blue planes, row by row. Raises `DatasetError` where the
    archive is another one, a file is missing, or the records are cut off or name no class.
    """
    records, text = _read_members(path, md5)
    names = tuple(text.decode("ascii", errors="replace").split())
    if len(records) % RECORD:
        raise _damaged_archive(
            path, f"{RECORDS} holds {len(records):,} bytes, which are no whole records of {RECORD:,}"
        )
    rows = np.frombuffer(records, np.uint8).reshape(-1, RECORD)
    labels = rows[:, 1].astype(np.int64)
    if len(rows) and labels.max() >= len(names):
        raise _damaged_archive(path, f"{RECORDS} has class {labels.max()}, but {NAMES} names {len(names)} classes")
    return rows[:, 2:].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1), labels, names


def _read_members(path: Path, md5: str) -> tuple[bytes, bytes]:
    if path.is_dir():
        return _read_folder_member(path, RECORDS), _read_folder_member(path, NAMES)
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if found != md5:
            raise _damaged_archive(path, f"it is not the published archive: its md5 is {found}, expected {md5}")
        with tarfile.open(path, "r:gz") as archive:
            return _read_archive_member(path, archive, RECORDS), _read_archive_member(path, archive, NAMES)
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise _damaged_archive(path, f"it cannot be read ({error})") from None


def _read_folder_member(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except FileNotFoundError:
        raise _damaged_archive(folder, f"{name} is missing") from None
    except OSError as error:
        raise _damaged_archive(folder, f"{name} cannot be read ({error.strerror})") from None


def _read_archive_member(path: Path, archive: tarfile.TarFile, name: str) -> bytes:
    try:
        member = archive.extractfile(f"{FOLDER}/{name}")
    except KeyError:
        member = None
    if member is None:
        raise _damaged_archive(path, f"{name} is missing")
    return member.read()


def _damaged_archive(path: Path, reason: str) -> DatasetError:
    """The error for an archive, or its folder, that is there but not as published."""
    return DatasetError(f"{path}: {reason}. Get {ARCHIVE} again from {URL} and put it in its place.")


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
            raise _damaged(path, f"it is not the {FILE} that is known: its sha256 is {found}, expected {sha256}")
        names, images = _read_zip(path, split, expected["train"].classes)
    else:
        names, images = _read_official(path, split, expected["train"].classes, md5)
    classes, labels = np.unique([name.partition("/")[0] for name in names], return_inverse=True)
    if (counts := Counts(len(images), len(classes))) != expected[split]:
        raise _damaged(path, f"it holds {counts} for {split}; expected {expected[split]}")
    return Dataset("cifar100", split, images, labels.astype(np.int64), tuple(classes.tolist()), names)


def _read_official(path: Path, split: str, trains: int, md5: str) -> tuple[list[str], list[ImageLike]]:
    """As `_read`, from the authors' archive."""
    pixels, labels, classes = read_official_archive(path, md5)
    named = sorted(classes)
    chosen = set(named[:trains] if split == "train" else named[trains:])
    rows = [i for i, label in enumerate(labels.tolist()) if classes[label] in chosen]
    names = {f"{classes[labels[i]]}/{i:05d}": i for i in rows}
    return sorted(names), [np.ascontiguousarray(pixels[names[name]]) for name in sorted(names)]


def _read_zip(path: Path, split: str, trains: int) -> tuple[list[str], list[ImageLike]]:
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
        raise _damaged(path, f"it cannot be read: {error}") from None


def _damaged(path: Path, reason: str) -> DatasetError:
    if path.name != FILE:
        return _damaged_archive(path, reason)
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

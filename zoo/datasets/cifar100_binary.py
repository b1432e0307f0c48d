"""CIFAR-100's official binary archive: records of two labels and 3,072 pixels, and the classes' names as text."""

from __future__ import annotations

import hashlib
import tarfile
import zlib
from pathlib import Path

import numpy as np

from zoo.errors import DatasetError

FOLDER = "cifar-100-binary"
ARCHIVE = f"{FOLDER}.tar.gz"
URL = f"https://www.cs.toronto.edu/~kriz/{ARCHIVE}"
MD5 = "03b5dce01913d631647c71ecec9e9cb8"
"""Of the archive, as its page prints it."""

SIDE = 32
RECORD = 2 + 3 * SIDE * SIDE
RECORDS, NAMES = "train.bin", "fine_label_names.txt"


def read(path: Path, md5: str = MD5) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """The images of `train.bin`, uint8 [n, 32, 32, 3], their fine labels, int64 [n], and the names of these.

    path: the archive, which is not extracted to be read, or its extracted folder. A record is a byte of the coarse
    label, one of the fine label, and the red, green and blue planes, row by row. Raises `DatasetError` where the
    archive is another one, a file is missing, or the records are cut off or name no class.
    """
    records, text = _files(path, md5)
    names = tuple(text.decode("ascii", errors="replace").split())
    if len(records) % RECORD:
        raise spoilt(path, f"{RECORDS} holds {len(records):,} bytes, which are no whole records of {RECORD:,}")
    rows = np.frombuffer(records, np.uint8).reshape(-1, RECORD)
    labels = rows[:, 1].astype(np.int64)
    if len(rows) and labels.max() >= len(names):
        raise spoilt(path, f"{RECORDS} has class {labels.max()}, but {NAMES} names {len(names)} classes")
    return rows[:, 2:].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1), labels, names


def _files(path: Path, md5: str) -> tuple[bytes, bytes]:
    if path.is_dir():
        return _of_folder(path, RECORDS), _of_folder(path, NAMES)
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if found != md5:
            raise spoilt(path, f"it is not the published archive: its md5 is {found}, expected {md5}")
        with tarfile.open(path, "r:gz") as archive:
            return _of_archive(path, archive, RECORDS), _of_archive(path, archive, NAMES)
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise spoilt(path, f"it cannot be read ({error})") from None


def _of_folder(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except FileNotFoundError:
        raise spoilt(folder, f"{name} is missing") from None
    except OSError as error:
        raise spoilt(folder, f"{name} cannot be read ({error.strerror})") from None


def _of_archive(path: Path, archive: tarfile.TarFile, name: str) -> bytes:
    try:
        member = archive.extractfile(f"{FOLDER}/{name}")
    except KeyError:
        member = None
    if member is None:
        raise spoilt(path, f"{name} is missing")
    return member.read()


def spoilt(path: Path, reason: str) -> DatasetError:
    """The error for an archive, or its folder, that is there but not as published."""
    return DatasetError(f"{path}: {reason}. Get {ARCHIVE} again from {URL} and put it in its place.")

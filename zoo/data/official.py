"""Official data sets that users download themselves: where to find them, their file lists and published counts, and
the depths K at which papers report recall.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from zoo.data.dataset import Dataset
from zoo.errors import DatasetError
from zoo.paths import data_roots


@dataclass(frozen=True)
class Counts:
    """Number of images and classes of a split."""

    images: int
    classes: int

    def __str__(self) -> str:
        return f"{self.images:,} images of {self.classes:,} classes"


@dataclass(frozen=True)
class OfficialDataset:
    """Data set as its authors offer it.

    Attributes:
        name: Name in `DATASETS`.
        title: The authors' name of it.
        home: Address of its page.
        folders: Names that its folder may have.
        marks: Files or folders; a folder that holds one of them is the data set's.
        archives: Archives in which it comes, each to be extracted in its own folder.
        unfetched: The reason why it is not downloaded for the user, a whole sentence.
    """

    name: str
    title: str
    home: str
    folders: tuple[str, ...]
    marks: tuple[str, ...]
    archives: tuple[str, ...]
    unfetched: str

    def find(self, data: str | Path | None) -> Path:
        """Return its folder: one of `folders` within a data folder, or a data folder itself.

        Args:
            data: The only folder to look in, None for `ZOO_DATA` and the download cache.

        Raises:
            DatasetError: If there is no such folder.
        """
        roots = data_roots(data)
        for root in roots:
            for folder in self.folders:
                if (root / folder).is_dir():
                    return root / folder
            if root.is_dir() and (root.name in self.folders or any((root / mark).exists() for mark in self.marks)):
                return root
        raise DatasetError(
            f"{self.title} is not in {' or '.join(map(str, roots))}: expected the folder {' or '.join(self.folders)}, "
            f"or {' or '.join(self.marks)} in that folder itself.{self._packed(roots)} Get it from {self.home} and "
            f"extract it into a folder that you name with --data or ZOO_DATA. {self.unfetched}",
            code="dataset-missing",
        )

    def damaged(self, code: str, reason: str, near: Path | None = None) -> DatasetError:
        """Return the error for a copy that differs from the published data set.

        Args:
            code: The error's code.
            reason: A whole sentence.
            near: A file or folder of the copy; its archive is looked for beside and above it.
        """
        packed = "" if near is None else self._packed((near, *near.parents[:3]))
        return DatasetError(
            f"{reason}{packed} {self.title} comes from {self.home}; replace this copy by a complete one.", code=code
        )

    def _packed(self, folders: Sequence[Path]) -> str:
        """Return the command that extracts the first archive in the folders, "" without an archive."""
        for path in (folder / name for folder in folders for name in self.archives):
            if path.is_file():
                into = shlex.quote(str(path.parent))
                command = "unzip {} -d {}" if path.suffix == ".zip" else "tar -xzf {} -C {}"
                return f" {path} exists, but is not extracted: {command.format(shlex.quote(str(path)), into)}."
        return ""


_MAX_NAMED = 3
"""Number of missing files that a message names."""


@dataclass(frozen=True)
class Listing:
    """Images of one split as the data set's own list gives them.

    Attributes:
        path: The list, for messages.
        base: The folder of the images.
        names: Paths of the images relative to `base`.
        classes: One integer or string per image; classes are numbered in its sort order.
    """

    path: Path
    base: Path
    names: Sequence[str]
    classes: Sequence[Any]

    @property
    def counts(self) -> Counts:
        """Number of images and classes."""
        return Counts(len(self.names), len(set(self.classes)))


def read_rows(
    source: OfficialDataset, path: Path, kinds: Sequence[Callable[[str], Any]], header: int = 0
) -> list[tuple]:
    """Read the lines of a text file, without empty ones, as tuples of fields.

    Args:
        source: The data set, for messages.
        path: The file; its fields are separated by spaces.
        kinds: The parser of each field (int, str).
        header: Number of lines to skip.

    Raises:
        DatasetError: If the file is missing or unreadable, or a line is malformed.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise source.damaged("missing-file", f"{path} is missing.", path) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise source.damaged("unreadable-file", f"{path} cannot be read: {reason}.") from None
    numbered = [(number, line.split()) for number, line in enumerate(lines, 1) if number > header and line.strip()]
    return [_parse_row(source, path, number, fields, kinds) for number, fields in numbered]


def _parse_row(
    source: OfficialDataset, path: Path, number: int, fields: list[str], kinds: Sequence[Callable[[str], Any]]
) -> tuple:
    try:
        return tuple(kind(field) for kind, field in zip(kinds, fields, strict=True))
    except ValueError:
        line = " ".join(fields)[:80]
        raise source.damaged("damaged-file", f"line {number} of {path} is broken: {line!r}.") from None


def listed_dataset(
    source: OfficialDataset,
    split: str,
    listing: Listing,
    expected: Counts,
    titles: Mapping[Any, str] | None = None,
    factors: Mapping[str, np.ndarray] | None = None,
) -> Dataset:
    """Return the listed images as a data set, in the list's order.

    Args:
        source: The data set.
        split: The split's name.
        listing: The split's images.
        expected: The published counts.
        titles: Names of the classes (default: the classes themselves).
        factors: Factors of the data set.

    Raises:
        DatasetError: If a name leads out of the folder or is listed twice, the counts differ, or a file is missing.
    """
    _check_names(source, listing)
    if (counts := listing.counts) != expected:
        raise source.damaged("damaged-file", f"{listing.path} lists {counts} for {split}; expected {expected}.")
    _check_files(source, listing)
    classes, labels = np.unique(np.array(listing.classes), return_inverse=True)
    return Dataset(
        name=source.name,
        split=split,
        images=[listing.base / name for name in listing.names],
        labels=labels.astype(np.int64),
        classes=tuple(titles[key] if titles is not None else str(key) for key in classes.tolist()),
        sources=listing.names,
        factors=factors or {},
    )


def folder_titles(source: OfficialDataset, listing: Listing) -> dict[int, str]:
    """Return the folder of each class, by class number.

    Raises:
        DatasetError: If a class has images in two folders.
    """
    titles: dict[int, str] = {}
    for name, label in zip(listing.names, listing.classes, strict=True):
        folder = name.rpartition("/")[0]
        if titles.setdefault(label, folder) != folder:
            raise source.damaged(
                "damaged-file",
                f"{listing.path}: class {label} has images in both {titles[label]} and {folder}.",
            )
    return titles


def _check_names(source: OfficialDataset, listing: Listing) -> None:
    for name in listing.names:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or str(path) != name or not path.name or "\0" in name:
            raise source.damaged(
                "unsafe-file", f"{listing.path} lists {name[:80]!r}, which is not a file below {listing.base}."
            )
    if len(set(listing.names)) < len(listing.names):
        twice, _ = Counter(listing.names).most_common(1)[0]
        raise source.damaged("invalid-table", f"{listing.path} lists {twice} twice.")


def _check_files(source: OfficialDataset, listing: Listing) -> None:
    """Raise `DatasetError` that names the first missing files."""
    wanted: dict[str, list[str]] = defaultdict(list)
    for name in listing.names:
        folder, _, file = name.rpartition("/")
        wanted[folder].append(file)
    # Listing a folder once is many times faster than asking for each of its files, above all over a network.
    present = {folder: _files(source, listing.base / folder) for folder in wanted}
    missing = [
        str(PurePosixPath(folder, file)) for folder in wanted for file in wanted[folder] if file not in present[folder]
    ]
    if missing:
        more = " and others" if len(missing) > _MAX_NAMED else ""
        raise source.damaged(
            "missing-file",
            f"{listing.base} lacks {len(missing):,} of the {len(listing.names):,} files that {listing.path} lists: "
            f"{', '.join(missing[:_MAX_NAMED])}{more}. It may have been extracted only in part.",
            listing.base,
        )


def _files(source: OfficialDataset, folder: Path) -> frozenset[str]:
    """Return the names of the files in a folder, none if it does not exist."""
    try:
        with os.scandir(folder) as entries:
            return frozenset(entry.name for entry in entries if entry.is_file())
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()
    except OSError as error:
        raise source.damaged("unreadable-file", f"the folder {folder} cannot be read: {error.strerror}.") from None


RECALL_DEPTHS = {"sop": (1, 10, 100, 1000), "inshop": (1, 10, 20, 30)}
"""Depths K of recall, as the authors of the splits report it (Oh Song et al. 2016; Liu et al. 2016). Data sets that are
not listed: 1, 2, 4, 8."""

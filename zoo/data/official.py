"""What official datasets share: file lists, counts, recall depths.

Data sets that are not downloaded for the user: where they are looked for, and what is said where they fall short.

Data sets that come as a list of files with their classes: the list is read, its files are looked for.

At which K papers report recall, by data set.
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
    """How many images of how many classes a split has as published."""

    images: int
    classes: int

    def __str__(self) -> str:
        return f"{self.images:,} images of {self.classes:,} classes"


@dataclass(frozen=True)
class OfficialDataset:
    """A data set as its authors offer it.

    name: in `DATASETS`. title: what its authors call it. home: the address of its page. folders: names that its folder
    may have. marks: files or folders, any of which shows that a folder is the data set's own. archives: what it comes
    packed in, each to be extracted where it lies. unfetched: why it is not downloaded for the user, a whole sentence.
    """

    name: str
    title: str
    home: str
    folders: tuple[str, ...]
    marks: tuple[str, ...]
    archives: tuple[str, ...]
    unfetched: str

    def find(self, data: str | Path | None) -> Path:
        """Its folder: one of `folders` in a data folder, or a data folder that is it. Raises `DatasetError`."""
        roots = data_roots(data)
        for root in roots:
            for folder in self.folders:
                if (root / folder).is_dir():
                    return root / folder
            if root.is_dir() and (root.name in self.folders or any((root / mark).exists() for mark in self.marks)):
                return root
        raise DatasetError(
            f"{self.title} is not in {' or '.join(map(str, roots))}: expected the folder {' or '.join(self.folders)}, "
            f"or {' or '.join(self.marks)} right there.{self._packed(roots)} Get it from {self.home} and extract it "
            f"into a folder that you name with --data or ZOO_DATA. {self.unfetched}"
        )

    def spoilt(self, reason: str, near: Path | None = None) -> DatasetError:
        """The error for a copy that is there but not as published; `reason` is a whole sentence.

        near: a file or folder of the copy, beside or above which its archive may lie.
        """
        packed = "" if near is None else self._packed((near, *near.parents[:3]))
        return DatasetError(f"{reason}{packed} {self.title} comes from {self.home}; put a whole copy in its place.")

    def _packed(self, folders: Sequence[Path]) -> str:
        """What to do with the first archive that lies in one of the folders; empty where none does."""
        for path in (folder / name for folder in folders for name in self.archives):
            if path.is_file():
                into = shlex.quote(str(path.parent))
                command = "unzip {} -d {}" if path.suffix == ".zip" else "tar -xzf {} -C {}"
                return f" {path} is there, but not extracted: {command.format(shlex.quote(str(path)), into)}."
        return ""

    def check_counts(self, where: Path, part: str, found: Counts, expected: Counts) -> None:
        """Raise `DatasetError` unless a part (a split, or the queries) has as many images and classes as published."""
        if found != expected:
            raise self.spoilt(f"{where} lists {found} for {part}; expected {expected}.")


_MAX_NAMED = 3
"""How many missing files a message names."""


@dataclass(frozen=True)
class Listing:
    """The images of one split as the data set's own list gives them.

    path: the list, for messages. base: the folder that `names` are relative to. classes: one integer or string an
    image, in whose order the classes are numbered.
    """

    path: Path
    base: Path
    names: Sequence[str]
    classes: Sequence[Any]

    @property
    def counts(self) -> Counts:
        return Counts(len(self.names), len(set(self.classes)))


def read_rows(
    source: OfficialDataset, path: Path, kinds: Sequence[Callable[[str], Any]], header: int = 0
) -> list[tuple]:
    """The lines of a text file as fields parted by spaces, one of `kinds` (int, str) for each; empty lines are skipped.

    header: how many lines come before. Raises `DatasetError` naming the file, and the line that is broken.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise source.spoilt(f"{path} is missing.", path) from None
    except (OSError, UnicodeDecodeError) as error:
        raise source.spoilt(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'it is no text'}.") from None
    numbered = [(number, line.split()) for number, line in enumerate(lines, 1) if number > header and line.strip()]
    return [_row(source, path, number, fields, kinds) for number, fields in numbered]


def _row(
    source: OfficialDataset, path: Path, number: int, fields: list[str], kinds: Sequence[Callable[[str], Any]]
) -> tuple:
    try:
        return tuple(kind(field) for kind, field in zip(kinds, fields, strict=True))
    except ValueError:
        raise source.spoilt(f"line {number} of {path} is broken: {' '.join(fields)[:80]!r}.") from None


def listed_dataset(
    source: OfficialDataset,
    split: str,
    listing: Listing,
    expected: Counts,
    titles: Mapping[Any, str] | None = None,
    factors: Mapping[str, np.ndarray] | None = None,
) -> Dataset:
    """The listed images as a data set, in the list's order, once they are known to be as many as published and there.

    titles: class -> its name; by default the class itself is the name. Raises `DatasetError` for a name that leads out
    of the folder or is listed twice, for other counts than `expected`, and for files that are missing.
    """
    _check_names(source, listing)
    source.check_counts(listing.path, split, listing.counts, expected)
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


def _check_names(source: OfficialDataset, listing: Listing) -> None:
    for name in listing.names:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or str(path) != name or not path.name or "\0" in name:
            raise source.spoilt(f"{listing.path} lists {name[:80]!r}, which is no file below {listing.base}.")
    if len(set(listing.names)) < len(listing.names):
        twice, _ = Counter(listing.names).most_common(1)[0]
        raise source.spoilt(f"{listing.path} lists {twice} twice.")


def _check_files(source: OfficialDataset, listing: Listing) -> None:
    """Raise `DatasetError` naming the first of the listed files that are not there."""
    wanted: dict[str, list[str]] = defaultdict(list)
    for name in listing.names:
        folder, _, file = name.rpartition("/")
        wanted[folder].append(file)
    # One listing of a folder is many times faster than asking for each of its files, above all over a network.
    there = {folder: _files(source, listing.base / folder) for folder in wanted}
    lacking = [
        str(PurePosixPath(folder, file)) for folder in wanted for file in wanted[folder] if file not in there[folder]
    ]
    if lacking:
        more = " and others" if len(lacking) > _MAX_NAMED else ""
        raise source.spoilt(
            f"{listing.base} lacks {len(lacking):,} of the {len(listing.names):,} files that {listing.path} lists: "
            f"{', '.join(lacking[:_MAX_NAMED])}{more}. It may have been extracted only in part.",
            listing.base,
        )


def _files(source: OfficialDataset, folder: Path) -> frozenset[str]:
    """The names of the files in `folder`; none where it isn't there."""
    try:
        with os.scandir(folder) as entries:
            return frozenset(entry.name for entry in entries if entry.is_file())
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()
    except OSError as error:
        raise source.spoilt(f"the folder {folder} cannot be read: {error.strerror}.") from None


RECALL_DEPTHS = {"sop": (1, 10, 100, 1000), "inshop": (1, 10, 20, 30)}
"""As the authors of the splits do (Oh Song et al. 2016; Liu et al. 2016). All others: 1, 2, 4, 8."""

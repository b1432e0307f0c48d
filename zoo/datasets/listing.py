"""Data sets that come as a list of files with their classes: the list is read, its files are looked for."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from zoo.datasets.dataset import Dataset
from zoo.datasets.published import Counts, Published

_NAMED = 3
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


def read_rows(source: Published, path: Path, kinds: Sequence[Callable[[str], Any]], header: int = 0) -> list[tuple]:
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


def _row(source: Published, path: Path, number: int, fields: list[str], kinds: Sequence[Callable[[str], Any]]) -> tuple:
    try:
        return tuple(kind(field) for kind, field in zip(kinds, fields, strict=True))
    except ValueError:
        raise source.spoilt(f"line {number} of {path} is broken: {' '.join(fields)[:80]!r}.") from None


def listed_dataset(
    source: Published,
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


def _check_names(source: Published, listing: Listing) -> None:
    for name in listing.names:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or str(path) != name or not path.name or "\0" in name:
            raise source.spoilt(f"{listing.path} lists {name[:80]!r}, which is no file below {listing.base}.")
    if len(set(listing.names)) < len(listing.names):
        twice, _ = Counter(listing.names).most_common(1)[0]
        raise source.spoilt(f"{listing.path} lists {twice} twice.")


def _check_files(source: Published, listing: Listing) -> None:
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
        more = " and others" if len(lacking) > _NAMED else ""
        raise source.spoilt(
            f"{listing.base} lacks {len(lacking):,} of the {len(listing.names):,} files that {listing.path} lists: "
            f"{', '.join(lacking[:_NAMED])}{more}. It may have been extracted only in part.",
            listing.base,
        )


def _files(source: Published, folder: Path) -> frozenset[str]:
    """The names of the files in `folder`; none where it isn't there."""
    try:
        with os.scandir(folder) as entries:
            return frozenset(entry.name for entry in entries if entry.is_file())
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()
    except OSError as error:
        raise source.spoilt(f"the folder {folder} cannot be read: {error.strerror}.") from None

"""Data sets that are not downloaded for the user: where they are looked for, and what is said where they fall short."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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
class Published:
    """A data set as its authors offer it.

    name: in `DATASETS`. title: what its authors call it. home: the address of its page. folders: names that its folder
    may have. marks: files or folders, any of which shows that a folder is the data set's own.
    """

    name: str
    title: str
    home: str
    folders: tuple[str, ...]
    marks: tuple[str, ...]

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
            f"or {' or '.join(self.marks)} right there. Get it from {self.home} and extract it into a folder that you "
            "name with --data or ZOO_DATA."
        )

    def spoilt(self, reason: str) -> DatasetError:
        """The error for a copy that is there but not as published; `reason` is a whole sentence."""
        return DatasetError(f"{reason} {self.title} comes from {self.home}; put a whole copy in its place.")

    def check_counts(self, where: Path, part: str, found: Counts, expected: Counts) -> None:
        """Raise `DatasetError` unless a part (a split, or the queries) has as many images and classes as published."""
        if found != expected:
            raise self.spoilt(f"{where} lists {found} for {part}; expected {expected}.")

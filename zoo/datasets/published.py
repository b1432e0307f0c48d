"""Data sets that are not downloaded for the user: where they are looked for, and what is said where they fall short."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
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

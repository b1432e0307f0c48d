"""Moving of copies into a folder. The best copy of each group stays, and no file is deleted or overwritten."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from serving.duplicates.report import DuplicateReport, ReportedCopy
from serving.gallery.gallery import VectorGallery
from serving.gallery.originals import Originals
from serving.gallery.types import Item
from zoo.console import write_errors
from zoo.errors import UsageError
from zoo.render import write_csv

RECORD = "moved.csv"
"""File in the target folder: where each file came from, where it is, and the best copy, which stayed."""


@dataclass
class MovedCopies:
    """Result of moving.

    Attributes:
        target: The folder.
        moved: Old and new path of each file.
        left: Source of each copy that was not moved, and the reason.
    """

    target: str
    moved: list[tuple[str, str]] = field(default_factory=list)
    left: list[tuple[str, str]] = field(default_factory=list)


def check_target(target: Path, folders: Sequence[Path]) -> Path:
    """Return the absolute path of a folder for copies.

    Raises:
        UsageError: If it is in one of the folders that are compared, from which the next run would read the copies
            (code "overwrites-input"), or is not a folder ("not-writable").
    """
    target = target.expanduser().resolve()
    for folder in folders:
        if target.is_relative_to(folder.expanduser().resolve()):
            raise UsageError(
                f"{target} is inside {folder}, where the next run would find them again. Name a folder elsewhere.",
                code="overwrites-input",
            )
    if os.path.lexists(target) and not target.is_dir():
        raise UsageError(f"{target} is not a folder; name a folder for the copies.", code="not-writable")
    return target


def move_copies(report: DuplicateReport, gallery: VectorGallery, folders: Sequence[Path], target: Path) -> MovedCopies:
    """Move all files that are not the best copy of their group to a folder.

    Its path below the target is its path below its folder. A file is moved only if it is really inside one of the
    folders, if its content is the item's, and if the best copy of its group is there. Links stay.

    Args:
        report: The groups.
        gallery: Their gallery.
        folders: The folders that files may be moved out of.
        target: The folder to move them to.

    Raises:
        UsageError: As of `check_target`; and if the target has a file where one would go (code "already-exists"), or
            cannot be written ("not-writable").
    """
    originals = Originals(folders)
    target = check_target(target, originals.folders)
    result = MovedCopies(str(target))
    moves = list(_moves(report, gallery, originals, target, result))
    taken = [new for _, new, _ in moves if os.path.lexists(new)]
    twice = len({new for _, new, _ in moves}) < len(moves)
    if taken or twice:
        example = f"{taken[0]} exists" if taken else "two files would get one path"
        raise UsageError(f"{example}; nothing was moved. Name a new folder.", code="already-exists")
    with write_errors(target):
        for old, new, best in moves:
            _record(target / RECORD, old, new, best)
            new.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(old, new)
            result.moved.append((str(old), str(new)))
    return result


def _moves(
    report: DuplicateReport, gallery: VectorGallery, originals: Originals, target: Path, result: MovedCopies
) -> Iterator[tuple[Path, Path, Path]]:
    """Yield the old and the new path of each file to move, and the path of its best copy; note the others."""
    for members in report.groups:
        items = gallery.store.items_by_id([copy.item for copy in members])
        best, *others = [(copy, _path(copy, items.get(copy.item), originals)) for copy in members]
        for copy, path in others:
            reason = _reason_to_stay(path, best[1])
            if reason or path is None or best[1] is None:
                result.left.append((copy.source, reason))
            else:
                old, below = originals.place(path)
                yield old, target / below, best[1]


def _reason_to_stay(path: Path | None, best: Path | None) -> str:
    if path is None:
        return "its file was not found in the folders, or has changed"
    if best is None:
        return "the file of the best copy was not found in the folders, or has changed"
    if path.is_symlink() or path.samefile(best):
        return "it is a link"
    return ""


def _path(copy: ReportedCopy, item: Item | None, originals: Originals) -> Path | None:
    """Return the path of a reported file if it has the item's content."""
    found = None if item is None else originals.find(item, copy.source)
    return found[0] if found else None


def _record(path: Path, old: Path, new: Path, best: Path) -> None:
    """Write one move, before it is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    with path.open("a", newline="", encoding="utf-8", errors="surrogateescape") as file:
        head = [("from", "to", "best")] if is_new else []
        write_csv(file, [*head, (str(old), str(new), str(best))])
        file.flush()
        os.fsync(file.fileno())

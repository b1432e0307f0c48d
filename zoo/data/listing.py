"""Listing of a folder: its images, told by suffix or content, and what is left out, each with its reason."""

from __future__ import annotations

import errno
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

from zoo.console import count
from zoo.data.camera import RAW_SUFFIXES
from zoo.data.decoder import BEGINNING_BYTES, begins_as_image
from zoo.data.images import SUFFIXES
from zoo.data.names import escaped
from zoo.errors import DatasetError
from zoo.files import open_at_once
from zoo.paths import expand

EXCLUDED = (
    *(".*", "*.*_original"),  # hidden files; the backups of exiftool
    *("@eaDir", "#recycle", "#snapshot", "@tmp", "@sharebin"),  # Synology
    *(".@__thumb", "@Recycle", "@Recently-Snapshot", "@Transcode"),  # QNAP
    *("$RECYCLE.BIN", "RECYCLER", "System Volume Information", "Thumbs.db"),  # Windows
    *("lost+found", ".thumbnails", ".Trash", ".Trashes", ".Trash-*", ".Spotlight-V100", "__MACOSX"),  # Linux and macOS
)
"""Patterns of the names of files and folders that are left out: thumbnails, bins and backups of other programs."""

NAMED = 10
"""Files and folders of one kind that are named."""

NOT_IMAGE = "it is not an image"


@dataclass
class FolderFiles:
    """Files under a folder, sorted by path, and what was not looked at.

    Attributes:
        images: The images.
        others: Files that are not images, with the reason.
        links: Links that lead out of the folder.
        excluded: Files and folders of the excluded names, each with its pattern.
        unreadable: Folders and files that the system does not let us look at, with its reason.
    """

    images: list[Path] = field(default_factory=list)
    others: list[tuple[Path, str]] = field(default_factory=list)
    links: list[Path] = field(default_factory=list)
    excluded: list[tuple[Path, str]] = field(default_factory=list)
    unreadable: list[tuple[Path, str]] = field(default_factory=list)

    def left_out(self, root: Path) -> dict[str, Any]:
        """Return what was not looked at, by its kind; paths are texts below the folder."""

        def below(path: Path) -> str:
            return escaped(path.relative_to(root).as_posix())

        pairs = {"unreadable": self.unreadable, "excluded": self.excluded, "other_files": self.others}
        listed = {name: [(below(path), reason) for path, reason in paths] for name, paths in pairs.items()}
        return {**listed, "links_left_out": [below(path) for path in self.links]}


def list_files(root: str | Path, follow_links: bool = False, exclude: Sequence[str] = ()) -> FolderFiles:
    """Return the images under a folder, and what is left out.

    Links within the folder are followed, except those that lead back to a folder above them.

    Args:
        root: The folder.
        follow_links: Whether to follow links that lead out of the folder. A folder of somebody else may hold links to
            private files here, so that this is for images that are not shown to others.
        exclude: Patterns of names, or of paths below the folder if they hold a slash, that are left out besides those
            of `EXCLUDED`; one with ! before it is not left out.

    Raises:
        DatasetError: If the folder is missing or unreadable.
    """
    root = expand(root)
    if not root.exists():
        raise DatasetError(f"there is no folder {root}.", code="not-found")
    if not root.is_dir():
        raise DatasetError(f"{root} is not a folder.", code="not-found")
    files, real = FolderFiles(), root.resolve()
    walk = _Walk(root, files, None if follow_links else real, _patterns(exclude))
    waiting: list[tuple[Path, Path, tuple[Path, ...]]] = [(root, real, ())]
    while waiting:
        folder, place, above = waiting.pop()
        if place not in above:
            above = (*above, place)
            waiting += [(path, real_path, above) for path, real_path in walk.look_at(folder, place)]
    if not files.images and files.unreadable and files.unreadable[0][0] == root:
        raise DatasetError(f"the folder {root} cannot be read: {files.unreadable[0][1]}.", code="unreadable-file")
    files.images.sort(key=lambda path: path.parts)
    for listed in (files.others, files.excluded, files.unreadable):
        listed.sort(key=lambda pair: pair[0].parts)
    files.links.sort()
    return files


class _Walk:
    """The look at one folder after the other."""

    def __init__(self, root: Path, files: FolderFiles, inside: Path | None, patterns: Sequence[str]) -> None:
        """Begin. inside: the real folder that no link may lead out of; None for any place."""
        self.root, self.files, self.inside = root, files, inside
        self.names = [pattern for pattern in patterns if "/" not in pattern]
        self.paths = [pattern for pattern in patterns if "/" in pattern]

    def look_at(self, folder: Path, real: Path) -> Iterator[tuple[Path, Path]]:
        """Sort the files of a folder, and yield the folders in it, each with its real path."""
        try:
            with os.scandir(folder) as entries:
                listed = list(entries)
        except OSError as error:
            self.files.unreadable.append((folder, _reason(error)))
            return
        for entry in listed:
            path = folder / entry.name
            if pattern := self._pattern_of(path):
                self.files.excluded.append((path, pattern))
                continue
            try:
                is_folder, is_link = entry.is_dir(), entry.is_symlink()
                if not (is_folder or entry.is_file()):
                    continue
                target = path.resolve() if is_link else real / entry.name
            except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
                if getattr(error, "errno", errno.ELOOP) != errno.ELOOP:
                    self.files.unreadable.append((path, _reason(error)))
                continue
            if is_link and self.inside is not None and not target.is_relative_to(self.inside):
                self.files.links.append(path)
            elif is_folder:
                yield path, target
            elif reason := _reason_against(path):
                self.files.others.append((path, reason))
            else:
                self.files.images.append(path)

    def _pattern_of(self, path: Path) -> str:
        """Return the pattern that leaves a path out, "" if none does."""
        name = path.name.casefold()
        below = path.relative_to(self.root).as_posix().casefold() if self.paths else ""
        matching = (pattern for pattern in self.names if fnmatchcase(name, pattern.casefold()))
        more = (pattern for pattern in self.paths if fnmatchcase(below, pattern.strip("/").casefold()))
        return next(matching, "") or next(more, "")


def _patterns(exclude: Sequence[str]) -> list[str]:
    taken_back = {pattern[1:] for pattern in exclude if pattern.startswith("!")}
    added = [pattern for pattern in exclude if not pattern.startswith("!")]
    return [pattern for pattern in (*EXCLUDED, *added) if pattern not in taken_back]


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def _reason_against(path: Path) -> str:
    """Return why a file is not taken for an image; "" if it is one by its suffix or, with any suffix, its beginning."""
    suffix = path.suffix.lower()
    if suffix in SUFFIXES:
        return ""
    if suffix in RAW_SUFFIXES:
        return "" if _reads_raw() else "it is a raw file, whose preview is read with: pip install 'dml-zoo[raw]'"
    try:
        with open(path, "rb", opener=open_at_once) as file:  # Path.open takes no opener
            return "" if begins_as_image(file.read(BEGINNING_BYTES)) else NOT_IMAGE
    except OSError as error:
        return f"it cannot be read: {_reason(error)}"


@cache
def _reads_raw() -> bool:
    return find_spec("rawpy") is not None


def leads_out(path: Path, root: Path) -> bool:
    """Return whether a path is outside the folder `root`, a real path, once its links are followed."""
    return not path.resolve().is_relative_to(root)


def left_out_lines(
    unreadable: Iterable[tuple[str, str]] = (),
    excluded: Iterable[tuple[str, str]] = (),
    other_files: Sequence[tuple[str, str]] = (),
    links_left_out: Sequence[str] = (),
) -> Iterator[str]:
    """Yield a line for each file and folder that was left out, and one for the rest of many of one kind.

    Args:
        unreadable: Paths below the folder, each with its reason.
        excluded: Those of excluded names, each with its pattern.
        other_files: Those that are not images, each with its reason.
        links_left_out: Links that lead out of the folder.
    """
    yield from (f"left out {path}: {reason}" for path, reason in unreadable)
    groups = defaultdict(list)
    for path, pattern in excluded:
        groups[pattern].append(path)
    for pattern, paths in groups.items():
        yield from (f"left out {path}: excluded by the pattern {pattern}" for path in paths[:NAMED])
        if (more := len(paths) - NAMED) > 0:
            yield f"left out {more:,} more: excluded by the pattern {pattern}"
    if links_left_out:
        names = shortened(links_left_out)
        yield f"{count(len(links_left_out), 'link')} out of the folder left out: {names}; --follow-links follows such"
    if len(other_files) <= NAMED:
        yield from (f"left out {path}: {reason}" for path, reason in other_files)
    else:
        yield f"files of other kinds were not looked at: {other_kinds(other_files)}; --json names all"


def other_kinds(others: Iterable[tuple[str, str]]) -> str:
    """Return a text such as "3 .mov, 2 without a suffix" about files and their reasons, the most frequent first."""
    kinds = Counter(PurePosixPath(path).suffix.lower() for path, _ in others)
    return shortened([f"{number:,} {kind or 'without a suffix'}" for kind, number in kinds.most_common()])


def shortened(texts: Sequence[str], limit: int = 5) -> str:
    """Return the first texts, separated by commas, and the number of the others."""
    return ", ".join([*texts[:limit], *([f"and {len(texts) - limit:,} more"] if len(texts) > limit else [])])

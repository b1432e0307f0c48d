"""The image files that a gallery is made of: where each one lies, what it is called, and what is said of it."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zoo.data.folder import list_files
from zoo.data.images import DEFAULT_LIMITS, SUFFIXES
from zoo.data.table import LabelFile, image_path, is_table
from zoo.errors import ImageError, ImageTooLargeError, UsageError
from zoo.paths import expand

_NAMED = 20
"""So many wrong names are shown."""
_KINDS = 5
"""So many kinds of other files are named."""


@dataclass(frozen=True)
class ImageFile:
    """`source`: what the item is called, for a folder that is indexed the path below it; `label`: None for none."""

    path: Path
    source: str
    label: str | None
    metadata: Mapping[str, Any] = field(default_factory=dict)


def find_images(folder: Path, but: Sequence[Path] = ()) -> tuple[list[ImageFile], dict[str, int]]:
    """The image files below `folder`, as a data set of that folder has them (zoo.data.folder), and how many files
    of other kinds lie there, by their suffix ("" for none), the most frequent first; not `but`, nor what lies below.

    The label is the folder part of the path below `folder`, None for what lies at the top.
    """
    folder = folder.expanduser()
    images, others = list_files(folder)
    known = {path.expanduser().absolute() for path in but}
    others = [path for path in others if known.isdisjoint((path.absolute(), *path.absolute().parents))]
    kinds = dict(Counter(_text(path.suffix.lower()) for path in others).most_common())
    if not images:
        there = f"; there are {other_kinds(kinds)}" if kinds else ""
        raise UsageError(f"{folder} holds no images ({', '.join(sorted(SUFFIXES))}){there}.")
    return [_image_file(folder, path) for path in images], kinds


def listed_images(table: Path, said: LabelFile) -> list[ImageFile]:
    """The images of a table, in its order, with what it says of them.

    An image's source is its path below the table's folder, its full path where it lies elsewhere.
    """
    table = expand(table)
    root = _absolute(table.parent)
    if not said.metadata:
        raise UsageError(f"{table} lists no images.")
    files = []
    for name, metadata in said.metadata.items():
        path = _absolute(image_path(table, name))
        source = path.relative_to(root) if path.is_relative_to(root) else path
        files.append(ImageFile(path, _text(source.as_posix()), (said.labels or {}).get(name), metadata))
    return files


def root_of(place: Path) -> Path:
    """The folder below which sources are looked for: the one that is indexed, or that a table lies in."""
    return place.parent if is_table(place) else place


def other_kinds(kinds: Mapping[str, int]) -> str:
    """As "3 .avif, 2 without a suffix", of the most frequent."""
    shown = [f"{many:,} {kind or 'without a suffix'}" for kind, many in list(kinds.items())[:_KINDS]]
    rest = sum(list(kinds.values())[_KINDS:])
    return ", ".join(shown + ([f"{rest:,} others"] if rest else []))


def folder_of(source: str) -> str | None:
    """The folder part of a path below the folder that is indexed; None for what lies at the top."""
    return source.rpartition("/")[0] or None


def named_images(paths: Sequence[Path], label: str | None, metadata: Mapping[str, Any]) -> list[ImageFile]:
    """Image files as they were named, all with one label. Raises `UsageError` that names all folders and files that are
    not there.
    """
    wrong = [path for path in paths if not path.is_file()]
    if wrong:
        named = ", ".join(f"{one} ({_what(one)})" for one in wrong[:_NAMED])
        more = f", and {len(wrong) - _NAMED:,} more" if len(wrong) > _NAMED else ""
        raise UsageError(f"{len(wrong):,} of the {len(paths):,} named are no image files: {named}{more}.")
    return [ImageFile(path, _text(path.as_posix()), label, metadata) for path in paths]


def _what(path: Path) -> str:
    return "a folder; index it with: zoo index" if path.is_dir() else "there is no such file"


def read_image(path: Path) -> tuple[bytes, str]:
    """What a file holds, and its SHA-256 in hex. Raises `ImageTooLargeError` before it is read, `ImageError` for
    a name that no file can have, and `OSError`."""
    try:
        size = path.stat().st_size
    except ValueError as error:
        raise ImageError(f"no file can have this name: {error}.") from None
    if size > DEFAULT_LIMITS.max_bytes:
        raise ImageTooLargeError(f"the file has {size:,} bytes; at most {DEFAULT_LIMITS.max_bytes:,} are accepted.")
    data = path.read_bytes()
    return data, hashlib.sha256(data).hexdigest()


def _image_file(folder: Path, path: Path) -> ImageFile:
    below = path.relative_to(folder)
    source = _text(below.as_posix())
    return ImageFile(path, source, folder_of(source))


def _absolute(path: Path) -> Path:
    """Without dots; links stay, as names are those that the user knows."""
    return Path(os.path.abspath(path))  # noqa: PTH100


def _text(name: str) -> str:
    """A file name as text that can be stored, also where its bytes are no UTF-8."""
    return os.fsencode(name).decode("utf-8", "replace")

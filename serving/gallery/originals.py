"""The image files that a gallery's items were made of, where they are still there.

A gallery keeps of an image its hash and a thumbnail. The file is looked for by the item's source, below the folders
that were indexed and those that are named, and is taken only where its content has the item's hash: another file that
lies there now is never taken for it. One that has moved within its folder is found again by `zoo index`, which knows
items by their content.
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from serving.gallery.items import Item
from zoo.data.images import DEFAULT_LIMITS

if TYPE_CHECKING:
    from serving.gallery.gallery import Gallery


FOLDERS = "folders"
"""The gallery's state that names the folders that were indexed into it."""


def remember(gallery: Gallery, folder: Path) -> None:
    """Look for originals in this folder later."""
    known, folder = folders_of(gallery), folder.expanduser().resolve()
    if folder not in known:
        gallery.set_state(FOLDERS, json.dumps([str(one) for one in (*known, folder)]))


def folders_of(gallery: Gallery) -> list[Path]:
    """The folders that were indexed, the first one first."""
    return [Path(one) for one in json.loads(gallery.state(FOLDERS) or "[]")]


class Originals:
    """Image files of items. Safe to use from several threads."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = tuple(folders)

    def read(self, item: Item) -> bytes | None:
        """The item's image file; None where no file of its content is found."""
        for path in self._places(Path(item.source)):
            data = _content(path)
            if data is not None and hashlib.sha256(data).hexdigest() == item.content_sha256:
                return data
        return None

    def _places(self, source: Path) -> Iterator[Path]:
        # Clients of a service choose sources too; what they name must not lead out of the folders.
        if source.is_absolute():
            yield source
        elif ".." not in source.parts:
            yield from (folder / source for folder in self.folders)


def _content(path: Path) -> bytes | None:
    """What an ordinary file of a size that images have holds; pipes and devices are not opened."""
    try:
        facts = path.stat()
        if stat.S_ISREG(facts.st_mode) and 0 < facts.st_size <= DEFAULT_LIMITS.max_bytes:
            return path.read_bytes()
    except (OSError, ValueError):  # ValueError: a name that no file can have
        pass
    return None

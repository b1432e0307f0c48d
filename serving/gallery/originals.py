"""Image files of a gallery's items: the folders that it remembers, and the files that are really inside them."""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Self

from serving.gallery.gallery import VectorGallery
from serving.gallery.types import Item, parse_stored
from zoo.data.images import DEFAULT_LIMITS
from zoo.data.listing import leads_out
from zoo.data.names import escaped, unescaped
from zoo.errors import ImageError, ImageTooLargeError

FOLDERS, PLACES = "folders", "places"
"""Keys of the gallery's state with the folders that were indexed, and with those of single files elsewhere."""


def read_image(path: Path) -> tuple[bytes, str]:
    """Return the bytes of a file and their SHA-256 (hex). Pipes, devices, empty and too large files are not read.

    Raises:
        ImageTooLargeError: The file is larger than `DEFAULT_LIMITS` allow.
        ImageError: The name is not a file's.
        OSError: The file cannot be read.
    """
    try:
        status = path.stat()
    except ValueError as error:
        raise ImageError(f"the name cannot be a file's: {error}.") from None
    if not stat.S_ISREG(status.st_mode):
        raise ImageError("it is not a file.")
    if not (size := status.st_size):  # also of some files of the kernel, which would be read for ever
        raise ImageError("the image is empty.", code="unreadable-image")
    if size > DEFAULT_LIMITS.max_bytes:
        raise ImageTooLargeError(f"the file has {size:,} bytes; at most {DEFAULT_LIMITS.max_bytes:,} are accepted.")
    data = path.read_bytes()
    return data, hashlib.sha256(data).hexdigest()


def remember_folder(gallery: VectorGallery, folder: Path) -> None:
    """Note a folder that was indexed, so that original images are found there later."""
    _remember(gallery, FOLDERS, [folder.expanduser().resolve()])


def remember_files(gallery: VectorGallery, paths: Iterable[Path]) -> None:
    """Note the folders of single files, so that these are found later; not those of files in indexed folders."""
    folders = {path.resolve().parent for path in paths}
    indexed = indexed_folders(gallery)
    _remember(gallery, PLACES, [path for path in sorted(folders) if not any(map(path.is_relative_to, indexed))])


def _remember(gallery: VectorGallery, key: str, folders: Sequence[Path]) -> None:
    known = _folders(gallery, key)
    if new := [folder for folder in folders if folder not in known]:
        gallery.store.set_state(key, json.dumps([escaped(str(path)) for path in (*known, *new)]))


def copy_folders(source: VectorGallery, target: VectorGallery) -> None:
    """Note the folders of one gallery in another."""
    for key in (FOLDERS, PLACES):
        _remember(target, key, _folders(source, key))


def indexed_folders(gallery: VectorGallery) -> list[Path]:
    """Return the folders that were indexed, in order."""
    return _folders(gallery, FOLDERS)


def _folders(gallery: VectorGallery, key: str) -> list[Path]:
    text = gallery.store.state(key) or "[]"
    return parse_stored(text, key, gallery.address, lambda paths: [_folder(path) for path in paths])


def _folder(text: str) -> Path:
    """Return a folder that was noted. Its name may be bytes that are not UTF-8."""
    folder = Path(text)
    return folder if folder.exists() else Path(unescaped(text))


class Originals:
    """Image files of items. Safe to use from several threads.

    All code that reads or moves a file by the source of an item finds it here. Clients of a service, and other people's
    galleries, choose sources: only a file that is really inside one of the folders, with its links followed, is found.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self.folders = tuple(folder.expanduser().resolve() for folder in folders)

    @classmethod
    def of(cls, gallery: VectorGallery, folders: Sequence[Path] = ()) -> Self:
        """Return the image files of a gallery's items in these folders and in those that it remembers."""
        return cls([*folders, *indexed_folders(gallery), *_folders(gallery, PLACES)])

    def find(self, item: Item, source: str | None = None) -> tuple[Path, bytes] | None:
        """Return path and bytes of the file with an item's content, at `source` (default: the item's); None without."""
        text = item.source if source is None else source
        for folder, name in product(self.folders, dict.fromkeys((text, unescaped(text)))):
            with suppress(ImageError, OSError, RuntimeError, ValueError):  # loops of links, names that no file has
                path = folder / name
                if all(leads_out(path, inside) for inside in self.folders):
                    continue
                data, content = read_image(path)
                if content == item.content_sha256:
                    return path, data
        return None

    def place(self, path: Path) -> tuple[Path, Path]:
        """Return the real path of a file that was found, and its path below its folder."""
        real = path.resolve()
        return real, next(real.relative_to(folder) for folder in self.folders if real.is_relative_to(folder))

    def read(self, item: Item) -> bytes | None:
        """Return the item's image file; None where no file has its content."""
        found = self.find(item)
        return found[1] if found else None

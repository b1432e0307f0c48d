"""Matching of image files with the items of a gallery: by key, by path, and by content where a file has moved."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

from serving.gallery.image_files import ImageFile
from serving.gallery.types import ItemPlace, folder_path
from zoo.data.names import unescaped


class Matcher:
    """Finds the items whose image a file is. Each item is found for one file only.

    A file with a key is the item of that key, or the one at its path that has none. A file without is every item at
    its path: several products may share a picture. A file at a new path is an item whose file is gone, or which never
    had one, as an image that a client has added: one with the same content, or else with the same name and picture, as
    of a file that was both moved and edited.
    """

    def __init__(self, places: Sequence[ItemPlace], files: Iterable[ImageFile] = (), follow_keys: bool = False) -> None:
        """Prepare.

        Args:
            places: The places of all items.
            files: The files of the run, whose places are not gone.
            follow_keys: Whether an item whose key no file has is that of the only new key at its path.
        """
        self.places = places
        files = list(files)
        self._paths, self._keys = {file.place for file in files}, {file.key for file in files if file.key is not None}
        self._by_key = {place.key: place for place in places if place.key is not None}
        self._by_path, self._by_source, self._by_content = (defaultdict[str, list[ItemPlace]](list) for _ in range(3))
        self._folders: dict[str, str] = {}
        for place in places:
            self._by_content[place.content_sha256].append(place)
            if place.folder is None:
                continue
            if (path := self._path(place)) is not None:
                self._by_path[path].append(place)
            if not self._folder(place):
                self._by_source[place.source].append(place)
        new = (file.place for file in files if file.key is not None and file.key not in self._by_key)
        self._new_keys = Counter(new if follow_keys else ())
        self.found: set[int] = set()
        self._folder_of = {place.id: place.folder for place in places}

    def at_place(self, file: ImageFile, content: str = "") -> list[ItemPlace]:
        """Return the items at a file's place; `content`: its SHA-256, which tells items of one path apart."""
        if file.key is not None and (known := self._by_key.get(file.key)):
            return self._claimed([known])
        # The second is of a folder that was moved or mounted elsewhere, and of an import on another machine.
        both = self._by_path[file.place], self._by_source[file.source]
        found = (self._of_file(places, file, content) or self._with_former_key(places, file) for places in both)
        return self._claimed(next(filter(None, found), []))

    def _with_former_key(self, places: Sequence[ItemPlace], file: ImageFile) -> list[ItemPlace]:
        """Return the item at a file's path whose key the file's new one has replaced, if there is only one such."""
        former = [place for place in places if place.id not in self.found and place.key not in self._keys]
        return former if file.key is not None and self._new_keys[file.place] == len(former) == 1 else []

    def folder_of(self, item: int) -> str | None:
        """Return the folder of an item that was found."""
        return self._folder_of[item]

    def moved(
        self, file: ImageFile, content: str, shows: Callable[[ItemPlace], bool] = lambda place: False
    ) -> list[ItemPlace]:
        """Return the items that have followed a file to a new place.

        Args:
            file: The file.
            content: Its SHA-256.
            shows: Says whether an item has the picture of the file.
        """
        name = _name(file.source)
        candidates = [place for place in self._by_content[content] if self._may_follow(place, file)]
        if not candidates:
            named = self._gone.get(name, ())
            candidates = [place for place in named if shows(place) and self._may_follow(place, file)]
        if not candidates:
            return []
        best = min(candidates, key=lambda place: (_name(place.source) != name, place.id))
        path = self._path(best)
        together = [place for place in candidates if path and place.key is not None and self._path(place) == path]
        return self._claimed(together if file.key is None and best in together else [best])

    @cached_property
    def _gone(self) -> dict[str, list[ItemPlace]]:
        """The items whose file has left its place, by the name of the file."""
        gone = defaultdict[str, list[ItemPlace]](list)
        for place in self.places:
            if place.folder is not None and self._is_gone(place):
                gone[_name(place.source)].append(place)
        return gone

    def _may_follow(self, place: ItemPlace, file: ImageFile) -> bool:
        """Return whether an item may be that of a file elsewhere: its own file is gone, and its key is free."""
        is_free = place.key is None or (file.key is None and place.key not in self._keys)
        return place.id not in self.found and is_free and self._is_gone(place)

    def _of_file(self, places: Sequence[ItemPlace], file: ImageFile, content: str) -> list[ItemPlace]:
        """Return those of the items at one path that a file is."""
        free = [place for place in places if place.id not in self.found]
        # Without a key of its own, only one of them is this file.
        plain = sorted((place.content_sha256 != content, place.id) for place in free if place.key is None)
        keyed = [place.id for place in free if place.key is not None] if file.key is None else []
        wanted = {*keyed, *(number for _, number in plain[:1])}
        return [place for place in free if place.id in wanted]

    def _claimed(self, places: list[ItemPlace]) -> list[ItemPlace]:
        self.found.update(place.id for place in places)
        return places

    def _is_gone(self, place: ItemPlace) -> bool:
        """Return whether an item has no file at its place."""
        path = self._path(place)
        return path is None or (path not in self._paths and not _exists(path))

    def _path(self, place: ItemPlace) -> str | None:
        """Return the full path of an item's file; None without one, or if its folder is not of this machine."""
        if not place.folder:
            return None
        return os.path.join(self._folder(place) or folder_path(place.folder), place.source)  # noqa: PTH118

    def _folder(self, place: ItemPlace) -> str:
        """Return the folder of an item, which may have become a link to its new place; "" where it is missing."""
        uri = place.folder or ""
        if uri not in self._folders:
            path = folder_path(uri) if uri else ""
            self._folders[uri] = os.path.realpath(path) if os.path.isdir(path) else ""  # noqa: PTH112
        return self._folders[uri]


def _name(source: str) -> str:
    return source.rpartition("/")[2]


def _exists(path: str) -> bool:
    return any(map(os.path.lexists, {path, unescaped(path)}))

"""Copies of one item, found at once: its nearest embeddings and hashes, confirmed by the same rule as all others."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from serving.duplicates.alignment import GreyPicture
from serving.duplicates.pictures import PictureTable
from serving.duplicates.rule import RULE, Evidence, confirm, confirm_nearest
from serving.gallery.gallery import VectorGallery, check_folder
from serving.gallery.store import Store
from serving.gallery.types import ItemCopy
from zoo.data.perceptual_hash import HASH_BYTES, hamming, mirror_hash
from zoo.errors import command

NEAR = 30
"""Candidates by each of the two searches."""

SAME_IMAGE = Evidence(1.0, 0, False, False)
"""Evidence of two items that show one image."""


@dataclass(frozen=True)
class Copy:
    """An item that is a copy of another, and why."""

    item: int
    evidence: Evidence


class HashList:
    """The hashes of a gallery's images in memory, 40 bytes each; it follows what is added and removed."""

    def __init__(self, store: Store) -> None:
        self.store, self._table, self._change = store, PictureTable(store), 0
        self._ids, self._hashes = np.empty(0, np.int64), np.empty((0, HASH_BYTES), np.uint8)

    def near(self, picture: np.ndarray) -> list[int]:
        """Return the images whose hashes, or their mirror images, are within the radius of candidates."""
        self._follow()
        distances = np.minimum(hamming(self._hashes, picture), hamming(self._hashes, mirror_hash(picture)))
        order = np.argsort(distances, kind="stable")[: NEAR + 1]
        return self._ids[order[distances[order] <= RULE.candidate_distance]].tolist()

    def _follow(self) -> None:
        change = self.store.change()
        if change == self._change:
            return
        ids, hashes = self._table.hashes_since(self._change)
        gone = np.concatenate([ids, self._table.removed_since(self._change)])
        kept = ~np.isin(self._ids, gone)
        self._ids = np.concatenate([self._ids[kept], ids])
        self._hashes = np.concatenate([self._hashes[kept], hashes])
        self._change = change


class CopyFinder:
    """Finds copies of items in a gallery that is in use. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hashes: HashList | None = None

    def copies_of(self, gallery: VectorGallery, item: int) -> list[Copy]:
        """Return the copies of an item, the nearest first; other items with the same image are among them.

        Raises:
            ItemNotFoundError: If there is no such item.
            UsageError: If the gallery is in Milvus (code "not-available").
        """
        store = folder_store(gallery)
        table, vector = PictureTable(store), store.embedding(item)
        content = store.contents_of([item]).get(item, 0)
        evidence = {content: SAME_IMAGE, **self._near(gallery, table, content, vector)}
        shown = store.items_of(list(evidence), exclude=[item])
        copies = [Copy(other.id, evidence[image]) for image, items in shown.items() for other in items]
        return sorted(copies, key=lambda copy: (copy.evidence.distance, copy.item))

    def _near(
        self, gallery: VectorGallery, table: PictureTable, content: int, vector: np.ndarray
    ) -> dict[int, Evidence]:
        """Return the images that are confirmed as copies of an image, float32 [dim]."""
        picture = _hash(table, content)
        if picture is None:
            return {}
        similarities, ids = gallery.neighbours(vector[None], NEAR + 1)
        similar = [other for other in ids[0][similarities[0] >= RULE.similarity].tolist() if other != content]
        close = [other for other in self._close(table.store, picture) if other != content]
        known, vectors = table.store.content_embeddings(sorted({*similar, *close}))
        cosines, hashes = dict(zip(known, (vectors @ vector).tolist(), strict=True)), table.hashes(known)
        read = lru_cache(lambda image: GreyPicture(table.picture(image)))

        def check(other: int, is_near: bool) -> Evidence | None:
            pictures = partial(read, content), partial(read, other)
            return confirm(min(1.0, cosines[other]), (picture, hashes[other]), pictures, is_near)

        similar, close = ([other for other in others if other in hashes] for others in (similar, close))
        return dict(confirm_nearest(similar, close, check))

    def items_of(self, gallery: VectorGallery, item: int, mirrored: bool = True) -> list[ItemCopy]:
        """Return the copies of an item with what is known of them. mirrored: whether mirror images are among them.

        Raises:
            ZooError: As `copies_of`.
        """
        found = {copy.item: copy.evidence for copy in self.copies_of(gallery, item)}
        evidence = {other: why for other, why in found.items() if mirrored or not why.mirrored}
        table, items = PictureTable(folder_store(gallery)), gallery.store.items_by_id(list(evidence))
        contents = table.store.contents_of(list(items))
        measures = table.measures(list(contents.values()))
        copies = []
        for other, why in evidence.items():
            if other in items:  # not removed meanwhile
                sides = measures.get(contents.get(other, 0))
                width, height = (None, None) if sides is None else (sides.width, sides.height)
                copies.append(ItemCopy(**vars(items[other]), **vars(why), width=width, height=height))
        return copies

    def copies_of_new(self, gallery: VectorGallery, items: Sequence[int]) -> dict[int, list[Copy]]:
        """Return the copies of each of the items that has any."""
        found = {item: self.copies_of(gallery, item) for item in items}
        return {item: copies for item, copies in found.items() if copies}

    def _close(self, store: Store, picture: np.ndarray) -> list[int]:
        with self._lock:
            if self._hashes is None or self._hashes.store is not store:
                self._hashes = HashList(store)
            return self._hashes.near(picture)


def folder_store(gallery: VectorGallery) -> Store:
    """Return the store of a gallery in a folder. Raises `UsageError` for one in Milvus (code "not-available")."""
    check_folder(gallery.address, f"copy it into one: {command('gallery', 'backend', gallery.address, 'FOLDER')}")
    assert isinstance(gallery.store, Store)
    return gallery.store


def _hash(table: PictureTable, item: int) -> np.ndarray | None:
    """Return the hash of an item; None for one without a picture."""
    return table.hashes([item]).get(item)

"""Perceptual hashes, sizes and confirmed copies of a gallery's images, in its SQLite file.

All ids here are those of images (`Store.contents_of`), which are compared once, however many items show them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from serving.duplicates.rule import RULE, Evidence
from serving.gallery.store import Store
from serving.gallery.types import LISTED, THUMBNAIL_LIMITS, Thumbnail, blobs_to_vectors, parse_stored
from zoo.data.images import open_image
from zoo.data.perceptual_hash import HASH_BYTES
from zoo.errors import GalleryError

PAGE = 4000
"""Images that are read at a time."""

COMPARED = "copies"
"""Key of the gallery's state with the model, the rule and the change number up to which the table of copies is whole.
"""


@dataclass(frozen=True)
class Pictures:
    """Images with what tells copies: ids, ascending, int64 [n], vectors, float32 [n, dim], hashes, uint8 [n, 32]."""

    ids: np.ndarray
    vectors: np.ndarray
    hashes: np.ndarray


@dataclass(frozen=True)
class Pair:
    """Two images, `first` with the smaller id, that were confirmed as copies of one picture."""

    first: int
    second: int
    evidence: Evidence


@dataclass(frozen=True)
class Measures:
    """Sides of an image in pixels, and its sharpness; None for what is not known.

    of_file: whether the sharpness is that of the image file, not of the thumbnail.
    """

    width: int | None
    height: int | None
    sharpness: float | None
    of_file: bool = True


class PictureTable:
    """The tables of hashes and copies of an open store. Safe to use from several threads."""

    def __init__(self, store: Store) -> None:
        self.store, self._database = store, store.database
        self._query = store.database.query

    def unknown(self) -> int:
        """Return the number of items without a picture that could be hashed, as those of `zoo index --vectors`."""
        hashed = "content IN (SELECT content FROM pictures WHERE hash IS NOT NULL)"
        return int(self._query(f"SELECT count(*) FROM items WHERE NOT {hashed}")[0][0])

    def pages(self, since: int = 0) -> Iterator[Pictures]:
        """Yield all images with a hash that were added after change `since`, by id, perhaps with later additions."""
        last = 0
        sql = (
            "SELECT id, embedding, hash FROM contents JOIN pictures ON pictures.content = id "
            "JOIN embeddings ON embeddings.content = id "
            "WHERE id > ? AND change > ? AND hash IS NOT NULL ORDER BY id LIMIT ?"
        )
        while True:
            with self._database.snapshot(check_model=True):
                rows = self._query(sql, last, since, PAGE)
            if not rows:
                return
            ids, blobs, hashes = zip(*rows, strict=True)
            yield Pictures(np.array(ids), blobs_to_vectors(blobs, self.store.dim, self.store.path), _hashes(hashes))
            last = ids[-1]

    def count(self, since: int = 0) -> int:
        """Return the number of images that were added after change `since`."""
        return int(self._query("SELECT count(*) FROM contents WHERE change > ?", since)[0][0])

    def hashes(self, ids: Sequence[int]) -> dict[int, np.ndarray]:
        """Return the hash, uint8 [32], of those of the images that have one."""
        rows = self._query(f"SELECT content, hash FROM pictures WHERE content IN {LISTED}", json.dumps(list(ids)))
        rows = [row for row in rows if row[1] is not None]
        return {item: vector for (item, _), vector in zip(rows, _hashes([blob for _, blob in rows]), strict=True)}

    def hashes_since(self, change: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids, int64 [n], and hashes, uint8 [n, 32], of the images that were added after a change."""
        rows = self._query(
            "SELECT content, hash FROM contents JOIN pictures ON content = id WHERE change > ? AND hash IS NOT NULL",
            change,
        )
        return np.array([row[0] for row in rows], np.int64), _hashes([row[1] for row in rows])

    def removed_since(self, change: int) -> np.ndarray:
        """Return the ids, int64 [n], of the images that were removed after a change."""
        removed = self._query("SELECT content FROM removals WHERE change > ?", change)
        return np.array([row[0] for row in removed], np.int64)

    def thumbnail(self, content: int) -> Image.Image:
        """Return the thumbnail of an image. Raises `ImageError` if it cannot be decoded."""
        rows = self._query("SELECT media_type, data FROM thumbnails WHERE content = ?", content)
        data = Thumbnail(rows[0][1], rows[0][0]).data if rows else b""
        return open_image(data, THUMBNAIL_LIMITS)

    def picture(self, content: int) -> Image.Image:
        """Return the grey thumbnail of an image; errors as of `thumbnail`."""
        return self.thumbnail(content).convert("L")

    # Confirmed copies

    def compared(self) -> int:
        """Return the change number up to which the table of copies is whole for the gallery's model, 0 if it is not."""

        def change(known: Any) -> int:
            same = (known.get("model"), known.get("rule")) == (self.store.fingerprint, RULE.name)
            return int(known["change"]) if same else 0

        return parse_stored(self.store.state(COMPARED) or "{}", COMPARED, self.store.path, change)

    def set_compared(self, change: int) -> None:
        """Note that all images up to a change were compared with each other."""
        state = {"model": self.store.fingerprint, "rule": RULE.name, "change": change}
        self.store.set_state(COMPARED, json.dumps(state))

    def forget(self) -> None:
        """Delete the table of copies."""
        with self._database.transaction() as db:
            db.execute("DELETE FROM copies")
            db.execute("DELETE FROM state WHERE key = ?", (COMPARED,))

    def add_pairs(self, pairs: Iterable[Pair]) -> None:
        """Write confirmed pairs; those of images that were removed meanwhile are left out."""
        rows = [(pair.first, pair.second, *pair.evidence.row()) for pair in pairs]
        with self._database.transaction(check_model=True) as db:
            db.executemany(
                "INSERT OR REPLACE INTO copies SELECT ?1, ?2, ?3, ?4, ?5, ?6 "
                "WHERE ?1 IN (SELECT id FROM contents) AND ?2 IN (SELECT id FROM contents)",
                rows,
            )

    def pairs(self, mirrored: bool = False) -> list[Pair]:
        """Return all confirmed pairs by id; with `mirrored`, mirror images too."""
        rows = self._query("SELECT * FROM copies WHERE mirrored <= ? ORDER BY first, second", mirrored)
        return [Pair(first, second, Evidence.of_row(row)) for first, second, *row in rows]

    # Sizes and sharpness

    def measures(self, ids: Sequence[int]) -> dict[int, Measures]:
        """Return the measures of those of the images that are in the table."""
        columns = "content, width, height, sharpness"
        rows = self._query(f"SELECT {columns} FROM pictures WHERE content IN {LISTED}", json.dumps(list(ids)))
        return {item: Measures(*values) for item, *values in rows}

    def set_measures(self, measures: dict[int, Measures]) -> None:
        """Write measures of image files; those of thumbnails are left out, as the file may be found later."""
        rows: list[Any] = [
            (one.width, one.height, one.sharpness, content) for content, one in measures.items() if one.of_file
        ]
        with self._database.transaction() as db:
            db.executemany("UPDATE pictures SET width = ?, height = ?, sharpness = ? WHERE content = ?", rows)


def _hashes(blobs: Sequence[bytes]) -> np.ndarray:
    """Return hashes, uint8 [n, 32]. Raises `GalleryError` (code "damaged-gallery") if one has another size."""
    if not all(isinstance(blob, bytes) and len(blob) == HASH_BYTES for blob in blobs):
        raise GalleryError(f"a perceptual hash has not {HASH_BYTES} bytes.", code="damaged-gallery")
    return np.frombuffer(b"".join(blobs), np.uint8).reshape(-1, HASH_BYTES)

"""Another model for a gallery that is in use: all items embedded beside the present embeddings, then exchanged.

Whatever is added, removed or described meanwhile is taken up by the store's change number, the last of it within the
very transaction in which the embeddings change places. Each batch is kept as it is made, so that a run that was broken
off goes on where it was. Until the exchange nothing of what is served changes, and after it the old embeddings stay, to
be gone back to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import numpy as np
from tqdm import tqdm

from serving.gallery.binding import MODEL
from serving.gallery.compaction import alone
from serving.gallery.gallery import STORE
from serving.gallery.items import Item
from serving.gallery.originals import Originals
from serving.gallery.rows import blob_of
from serving.gallery.shadow import Made
from serving.gallery.store import Store
from zoo.data.decode import map_in_threads
from zoo.data.images import open_image
from zoo.data.preprocessing import to_pixels
from zoo.errors import GalleryError, ImageError, ZooError
from zoo.files import write_bytes
from zoo.models.load import Embedder

AHEAD = 256
"""At most this many images are decoded ahead of the network."""

LAST = 16
"""So many items that came last may be embedded while writers wait."""


@dataclass(frozen=True)
class Missing:
    """An item that cannot be embedded, and why."""

    item: int
    source: str
    reason: str


Outcome = tuple[list[Made], list[Missing]]
Make = Callable[[Iterable[Sequence[Item]]], Iterator[Outcome]]
"""Embeds batch after batch: what was made of each, and what of it cannot be."""


class MissingError(GalleryError):
    """Some items cannot be embedded by the new model."""

    def __init__(self, missing: Sequence[Missing]) -> None:
        self.missing = tuple(missing)
        one = missing[0]
        super().__init__(
            f"{len(missing):,} items cannot be embedded, as {one.source!r} (id {one.item}): {one.reason}. Name the "
            "folders where their images lie, or say what becomes of them (--missing)."
        )


class Rebuild:
    """Fills the other slot of the gallery `path`, and exchanges the two.

    token: the slot's, as it was begun (serving.gallery.shadow). `make` embeds.
    """

    def __init__(
        self, path: Path, store: Store, token: str, make: Make, batch_size: int = 64, progress: bool = False
    ) -> None:
        self.path, self.store, self.token, self.make = path, store, token, make
        self.batch_size, self.progress = batch_size, progress
        self.settled, self.made = 0, 0
        self._missing: dict[int, Missing] = {}

    def fill(self) -> None:
        """Embed what lacks, until next to nothing does. Raises `GalleryError` where it cannot be kept."""
        shadow = self.store.shadow
        with tqdm(unit="image", desc="embed", disable=not self.progress) as bar:
            while True:
                number, ids = shadow.lacking(self.settled)
                bar.total = bar.n + len(ids)
                for made, missing in self.make(self._batches(ids)):
                    shadow.put(self.token, made)
                    self._count(made, missing)
                    bar.update(len(made) + len(missing))
                shadow.settle(self.token, number)
                self.settled = number
                if len(ids) <= LAST:
                    return

    def missing(self) -> list[Missing]:
        """The items that cannot be embedded, of those that are still there."""
        there = self.store.items_by_id(list(self._missing))
        return [one for item_id, one in self._missing.items() if item_id in there]

    def swap(self, drop: bool = False) -> None:
        """Let the two models change places; drop: remove what the new one cannot embed.

        Raises `MissingError` where there is something and `drop` is not set, and `GalleryError`; nothing has changed
        then.
        """
        with alone(self.path, wait=True):  # nobody names a generation of the old model meanwhile
            while not self._exchanged(drop):
                self.fill()
        self._copy_model()

    def _exchanged(self, drop: bool) -> bool:
        try:
            with self.store.shadow.exchanging(self.token) as exchange:
                _, ids = self.store.shadow.lacking(self.settled)
                if len(ids) > LAST:
                    raise _TooManyError
                for made, missing in self.make(self._batches(ids)):
                    exchange.put(made)
                    self._count(made, missing)
                left = self.missing()
                if left and not drop:
                    raise MissingError(left)
                exchange.drop([one.item for one in left])
        except _TooManyError:
            return False
        return True

    def _copy_model(self) -> None:
        with Store(self.path / STORE).closing() as store:
            if store.model is not None:
                write_bytes(self.path / MODEL, (store.model + "\n").encode())

    def _batches(self, ids: Sequence[int]) -> Iterator[list[Item]]:
        for start in range(0, len(ids), self.batch_size):
            yield list(self.store.items_by_id(ids[start : start + self.batch_size]).values())

    def _count(self, made: Sequence[Made], missing: Sequence[Missing]) -> None:
        self.made += len(made)
        self._missing |= {one.item: one for one in missing}


class _TooManyError(Exception):
    pass


class Pictures:
    """Embeds items by their image files; where these are not found, by thumbnails that are as good or are allowed.

    A thumbnail that is a PNG is the image pixel by pixel (serving.gallery.thumbnails). `thumbnails`: a smaller one
    will do as well.
    """

    def __init__(self, store: Store, embedder: Embedder, originals: Originals, thumbnails: bool = False) -> None:
        """`store`: an open one of its own, as the pictures are read in threads."""
        self.store, self.embedder, self.originals, self.thumbnails = store, embedder, originals, thumbnails

    def make(self, batches: Iterable[Sequence[Item]]) -> Iterator[Outcome]:
        """A `Make`. The next batch is decoded in threads while one is embedded."""
        numbered = ((number, item) for number, items in enumerate(batches) for item in items)
        for _, group in groupby(map_in_threads(self._numbered_picture, numbered, AHEAD), key=itemgetter(0)):
            pictures: list[tuple[Item, np.ndarray, bool]] = []
            missing = []
            for _, item, picture in group:
                if isinstance(picture, ZooError):
                    missing.append(Missing(item.id, item.source, str(picture)))
                else:
                    pictures.append((item, *picture))
            yield self._embedded(pictures), missing

    def _embedded(self, found: Sequence[tuple[Item, np.ndarray, bool]]) -> list[Made]:
        if not found:
            return []
        vectors = self.embedder.embed_pixels(np.stack([pixels for _, pixels, _ in found])).astype(np.float32)
        return [
            Made(item.id, blob_of(vector, self.embedder.dim, item.source), small)
            for (item, _, small), vector in zip(found, vectors, strict=True)
        ]

    def _numbered_picture(self, numbered: tuple[int, Item]) -> tuple[int, Item, tuple[np.ndarray, bool] | ZooError]:
        """Return the number of the item's batch, the item, and its picture or why it has none."""
        try:
            return *numbered, self._picture(numbered[1])
        except ZooError as error:
            return *numbered, error

    def _picture(self, item: Item) -> tuple[np.ndarray, bool]:
        """Pixels, and whether they are of a smaller picture. Raises `GalleryError` or `ImageError`."""
        data, small = self.originals.read(item), False
        if data is None:
            thumbnail = self.store.thumbnail(item.id)
            data, small = thumbnail.data, thumbnail.media_type != "image/png"
            if small and not self.thumbnails:
                raise ImageError("no file of its content was found, and its thumbnail is smaller than the image")
        how = self.embedder.preprocessing
        return to_pixels(open_image(data, draft=how.resize), how), small

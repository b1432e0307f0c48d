"""Change of a gallery's model: embed all items again, compare, swap and roll back.

The gallery is served and changed meanwhile. Each batch is stored when it is done, so that an interrupted run continues.
The last changes are embedded within the transaction of the swap. The old embeddings stay for a rollback.

A rule decides about items whose image file is missing: `refuse` the swap and name them, embed the `thumbnail` (at most
256 pixels, lossy), or `drop` them from the gallery for good.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from serving.gallery.evaluate import METRICS, model_change_steps, report
from serving.gallery.gallery import MODEL, STORE, Gallery, model_json, parse_model
from serving.gallery.index_files import compaction_lock
from serving.gallery.indexing import Originals, folders_of
from serving.gallery.search import calibrate_gallery, calibration_of
from serving.gallery.staging import REPLACED, StagedEmbedding
from serving.gallery.store import Store
from serving.gallery.types import IndexStats, Item, vector_to_blob
from zoo.data.decode import map_in_threads
from zoo.data.images import open_image
from zoo.data.preprocessing import to_pixels
from zoo.errors import (
    EvaluationError,
    GalleryError,
    ImageError,
    ModelChangedError,
    ModelMismatchError,
    UsageError,
    ZooError,
)
from zoo.files import write_bytes
from zoo.models.card import Card
from zoo.models.load import Embedder, load

AHEAD = 256
"""At most this many images are decoded ahead of the network."""

LAST = 16
"""So many items that came last may be embedded while writers wait."""

RULES = ("refuse", "thumbnail", "drop")
MARGIN = 0.01
"""By how much a score may be lower for the model still to be called not worse."""

NOTICE = 3.0
"""Seconds between the announcement of a swap and the swap; services look every second (serving.renewing)."""


@dataclass(frozen=True)
class Missing:
    """An item that cannot be embedded, and why."""

    item: int
    source: str
    reason: str


Outcome = tuple[list[StagedEmbedding], list[Missing]]
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

    token: the slot's, as it was begun (serving.gallery.staging). `make` embeds.
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
        staging = self.store.staging
        with tqdm(unit="image", desc="embed", disable=not self.progress) as bar:
            while True:
                number, ids = staging.missing(self.settled)
                bar.total = bar.n + len(ids)
                for made, missing in self.make(self._batches(ids)):
                    staging.put(self.token, made)
                    self._count(made, missing)
                    bar.update(len(made) + len(missing))
                staging.mark_embedded(self.token, number)
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
        with compaction_lock(self.path, wait=True):  # nobody names a generation of the old model meanwhile
            while not self._exchanged(drop):
                self.fill()
        self._copy_model()

    def _exchanged(self, drop: bool) -> bool:
        try:
            with self.store.staging.exchange(self.token) as exchange:
                _, ids = self.store.staging.missing(self.settled)
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

    def _count(self, made: Sequence[StagedEmbedding], missing: Sequence[Missing]) -> None:
        self.made += len(made)
        self._missing |= {one.item: one for one in missing}


class Pictures:
    """Embeds items by their image files; where these are not found, by thumbnails that are as good or are allowed.

    A thumbnail that is a PNG is the image pixel by pixel (serving.gallery.types). `thumbnails`: a smaller one
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

    def _embedded(self, found: Sequence[tuple[Item, np.ndarray, bool]]) -> list[StagedEmbedding]:
        if not found:
            return []
        vectors = self.embedder.embed_pixels(np.stack([pixels for _, pixels, _ in found])).astype(np.float32)
        return [
            StagedEmbedding(item.id, vector_to_blob(vector, self.embedder.dim, item.source), small)
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


@dataclass(frozen=True)
class Compared:
    """Both models on the labelled items.

    rows: as `serving.gallery.evaluate.report` gives them, the present model first; empty, with the `reason`,
    where nothing could be measured. index: how the new one is searched.
    """

    rows: list[dict[str, Any]]
    reason: str | None
    index: IndexStats

    def not_worse(self, margin: float = MARGIN) -> bool:
        """Whether it is shown that no score falls by more than `margin`: the 95 % intervals of all differences, over
        classes, lie above -margin. Not so where there are no labels, or too few to say.
        """
        if not self.rows:
            return False
        losses = self.rows[1]["loss"]["intervals"]
        return all(name in losses and losses[name][1] <= margin for name in METRICS)

    def undecided(self) -> str | None:
        """Why nothing can be said of which model is better; None where something can."""
        if not self.rows:
            return "nothing could be compared"
        if not all(name in self.rows[1]["loss"]["intervals"] for name in METRICS):
            return "items of one label alone say nothing of others"
        return None


class Upgrade:
    """`embed`, `compare` if wanted, `swap`. What was done of it before is not done again."""

    def __init__(self, path: Path, embedder: Embedder, rebuild: Rebuild, rule: str) -> None:
        """Use `upgrading`."""
        self.path, self.embedder, self._rebuild, self.rule = path, embedder, rebuild, rule
        self._announced: float | None = None

    def embed(self) -> list[Missing]:
        """Embed all that the new model has not embedded; what it cannot."""
        self._rebuild.fill()
        return self._rebuild.missing()

    @property
    def made(self) -> int:
        return self._rebuild.made

    def from_thumbnails(self) -> int:
        """How many items the new model knows by smaller pictures only."""
        return self._rebuild.store.staging.from_thumbnails()

    def compare(self, queries: int = 2000) -> Compared:
        """Write the new model's index, measure both models, and calibrate the new one where the present one is."""
        with Gallery.open(self.path) as before, Gallery.open(self.path, other=True) as after:
            if after.index.is_due() or not after.index.stats().generation:
                after.index.compact()
            try:
                rows, reason = report(model_change_steps(before, after, queries), joined=True), None
                if calibration_of(before) is not None:
                    calibrate_gallery(after)
            except EvaluationError as error:
                rows, reason = [], str(error)
            return Compared(rows, reason, after.index.stats())

    @contextmanager
    def announced(self) -> Iterator[None]:
        """Services that run are told that a swap may come within the block, and load the model meanwhile."""
        staging, token = self._rebuild.store.staging, self._rebuild.token
        staging.announce(token)
        self._announced = time.monotonic()
        try:
            yield
        finally:
            with suppress(ModelChangedError):  # the swap has taken the announcement with it
                staging.announce(token, coming=False)

    def swap(self, notice: float = NOTICE) -> None:
        """From now on the gallery is the new model's; not earlier than `notice` seconds after it was announced.

        Raises `MissingError` by the rule "refuse".
        """
        if self._announced is not None:
            time.sleep(max(0.0, self._announced + notice - time.monotonic()))
        self._rebuild.swap(drop=self.rule == "drop")


@contextmanager
def upgrading(
    path: Path,
    embedder: Embedder,
    model_ref: str,
    folders: Sequence[Path] = (),
    rule: str = "refuse",
    batch_size: int = 64,
    progress: bool = False,
) -> Iterator[Upgrade]:
    """Begin, or go on, to give the gallery `path` another model, which is loaded by `model_ref`.

    folders: where image files lie, besides the folders that were indexed. Embeddings of a third model, begun or kept
    to be gone back to, are let go. Raises `UsageError` for the model that the gallery has, and `GalleryError`.
    """
    if rule not in RULES or batch_size < 1:
        raise UsageError(f"missing images: one of {', '.join(RULES)}; batches of at least 1.")
    with Gallery.open(path) as gallery:
        known, card, ref = folders_of(gallery), gallery.card, gallery.model_ref
    if card.fingerprint == embedder.card.fingerprint:
        raise UsageError(f"{path} is embedded by {card.name} ({card.fingerprint[:12]}) already.")
    with Store(path / STORE).closing() as store, Store(path / STORE).closing() as reader:
        new = embedder.card
        token = store.staging.begin(model_json(card, ref), model_json(new, model_ref), new.fingerprint, new.dim)
        pictures = Pictures(reader, embedder, Originals([*folders, *known]), rule == "thumbnail")
        yield Upgrade(path, embedder, Rebuild(path, store, token, pictures.make, batch_size, progress), rule)


def replaced(path: Path) -> tuple[Card, str]:
    """The model that can be gone back to, and how it is loaded. Raises `UsageError` where there is none."""
    with Store(path / STORE).closing() as store:
        slot = store.staging.slot()
    if slot is None or slot.role != REPLACED:
        raise UsageError(f"{path} keeps no embeddings of a model that it had before; there is nothing to go back to.")
    return parse_model(slot.model, path / STORE)


def load_replaced(
    path: Path, model: str | None, runtime: str = "onnx", precision: str = "fp32"
) -> tuple[Embedder, str]:
    """The model that can be gone back to, as `zoo.load` loads it; `model`: where it lies now, if it has moved."""
    card, ref = replaced(path)
    embedder = load(model or ref, runtime=runtime, precision=precision)
    if embedder.card.fingerprint != card.fingerprint:
        raise ModelMismatchError(
            f"{model or ref} is {embedder.card.name} ({embedder.card.fingerprint[:12]}), but {path} had {card.name} "
            f"({card.fingerprint[:12]}) before. Name that one with --model."
        )
    return embedder, ref


def discard(path: Path) -> None:
    """Let go of the other model's embeddings, of a rebuild that was begun or of the model before."""
    Gallery.open(path).close()
    with Store(path / STORE).closing() as store:
        store.staging.discard()


class _TooManyError(Exception):
    pass

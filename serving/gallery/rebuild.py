"""Change of a gallery's model: embed all items again, compare, swap and roll back.

The gallery is served and changed meanwhile. Each batch is stored when it is done, so that an interrupted run continues.
The last changes are embedded within the transaction of the swap. The old embeddings stay for a rollback.

A rule decides about items whose image file is missing: `refuse` the swap and name them, embed the `thumbnail` (at most
256 pixels, lossy), or `drop` them from the gallery for good.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from serving.gallery.calibration import calibrate_gallery, stored_calibration
from serving.gallery.evaluate import METRIC_TITLES, METRICS, model_change_steps, report
from serving.gallery.gallery import STORE, VectorGallery, check_exists, check_folder
from serving.gallery.index_files import compaction_lock
from serving.gallery.originals import Originals
from serving.gallery.staging import REPLACED, StagedEmbedding, Staging
from serving.gallery.store import MODEL, Store
from serving.gallery.types import NO_PICTURE, IndexStats, Item, model_json, parse_model, vector_to_blob
from zoo.console import Progress
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
    command,
)
from zoo.evaluation.split import LearntOverlap, learnt_classes
from zoo.evaluation.statistics import BETTER, WORSE
from zoo.files import write_bytes
from zoo.models.load import Embedder, load
from zoo.models.registry import cached_folder

DECODED_AHEAD = 256
"""Greatest number of images decoded ahead of the network."""

LAST = 16
"""Greatest number of new items that are embedded while writers wait."""

RULES = ("refuse", "thumbnail", "drop")
MARGIN = 0.01
"""Greatest loss of a score of a model that counts as not worse."""

NOTICE = 3.0
"""Seconds between the announcement of a swap and the swap; services check every second (serving.model_swap)."""


@dataclass(frozen=True)
class ShownImage:
    """An image, by its number in the gallery, and the items that show it."""

    id: int
    items: tuple[Item, ...]


@dataclass(frozen=True)
class MissingItem:
    """An item that cannot be embedded, because its image cannot, and why."""

    image: int
    item: int
    source: str
    reason: str


Outcome = tuple[list[StagedEmbedding], list[MissingItem]]
EmbedImages = Callable[[Iterable[Sequence[ShownImage]]], Iterator[Outcome]]
"""Embeds batches of images: yields, per batch, the embeddings and the items that have none."""


class MissingItemsError(GalleryError):
    """Items that the new model cannot embed."""

    code = "missing-items"

    def __init__(self, missing: Sequence[MissingItem]) -> None:
        self.missing = tuple(missing)
        first = missing[0]
        super().__init__(
            f"{len(missing):,} items cannot be embedded, for example {first.source!r} (id {first.item}): "
            f"{first.reason}. Name the folders of their images, or choose what happens to them with --missing."
        )


class Rebuild:
    """Embedding of all items into the second slot of a gallery, which is then swapped with the first."""

    def __init__(
        self,
        items: Store,
        staging: Staging,
        token: str,
        embed: EmbedImages,
        batch_size: int = 64,
        progress: bool = False,
    ) -> None:
        """Prepare a rebuild of `items` into the slot `staging`, which has this token."""
        self.items, self.staging, self.token, self.embed = items, staging, token, embed
        self.batch_size, self.progress = batch_size, progress
        self.settled, self.embedded = 0, 0
        self._missing: dict[int, MissingItem] = {}

    def fill(self) -> None:
        """Embed missing items until at most `LAST` are new. Raises `GalleryError`."""
        with Progress("embed", shown=self.progress) as bar:
            while True:
                number, ids = self.staging.missing(self.settled)
                bar.expect(len(ids))
                for count in self._embed(ids):
                    bar.update(count)
                self.staging.mark_embedded(self.token, number)
                self.settled = number
                if len(ids) <= LAST:
                    return

    def missing(self) -> list[MissingItem]:
        """Return the items that cannot be embedded and are still in the gallery."""
        present = self.items.items_of(list(self._missing))
        return [item for image, item in self._missing.items() if present.get(image)]

    def _embed(self, ids: Sequence[int]) -> Iterator[int]:
        """Embed images and write their embeddings; yield the number of images of each batch."""
        starts = range(0, len(ids), self.batch_size)
        batches = (self._images(ids[start : start + self.batch_size]) for start in starts)
        for made, missing in self.embed(batches):
            self.staging.put(self.token, made)
            self.embedded += len(made)
            self._missing |= {item.image: item for item in missing}
            yield len(made) + len(missing)

    def _images(self, ids: Sequence[int]) -> list[ShownImage]:
        return [ShownImage(image, tuple(items)) for image, items in self.items.items_of(ids).items() if items]

    def _left(self, drop: bool) -> list[int]:
        """Return the images that cannot be embedded. Raises `MissingItemsError` unless they may be dropped."""
        if (left := self.missing()) and not drop:
            raise MissingItemsError(left)
        return [item.image for item in left]

    def swap(self, drop: bool = False) -> None:
        """Swap the slots.

        Args:
            drop: Whether to remove items that the new model cannot embed.

        Raises:
            MissingItemsError: There are such items and `drop` is not set. Nothing has changed then.
            GalleryError: The swap failed. Nothing has changed then.
        """
        path = self.items.path.parent
        with compaction_lock(path, wait=True):  # no index of the old model is published meanwhile
            while not self._try_swap(drop):
                self.fill()
        with closing(Store(path / STORE)) as store:
            if store.model is not None:
                write_bytes(path / MODEL, (store.model + "\n").encode())

    def _try_swap(self, drop: bool) -> bool:
        try:
            with self.staging.exchange(self.token) as remove:
                _, ids = self.staging.missing(self.settled)
                if len(ids) > LAST:
                    raise _TooManyError
                for _ in self._embed(ids):
                    pass
                remove(self._left(drop))
        except _TooManyError:
            return False
        return True


class _ImageEmbedder:
    """Embedding of images by the files of their items, or by their thumbnails where the files are missing.

    A PNG thumbnail is the image pixel by pixel (serving.gallery.types) and always serves; a smaller one if allowed.
    """

    def __init__(self, items: Store, embedder: Embedder, originals: Originals, thumbnails: bool = False) -> None:
        """Prepare; `items` is not shared, as threads read it; `thumbnails`: whether smaller ones serve."""
        self.items, self.embedder, self.originals, self.thumbnails = items, embedder, originals, thumbnails

    def embed(self, batches: Iterable[Sequence[ShownImage]]) -> Iterator[Outcome]:
        """Embed batches of images; threads decode the next batch meanwhile. An `EmbedImages`."""
        numbered = ((number, image) for number, images in enumerate(batches) for image in images)
        pictured = map_in_threads(self._numbered_picture, numbered, DECODED_AHEAD)
        for _, group in groupby(pictured, key=itemgetter(0)):
            outcomes = [(image, picture) for _, image, picture in group]
            missing = [
                MissingItem(image.id, image.items[0].id, image.items[0].source, str(error))
                for image, error in outcomes
                if isinstance(error, ZooError)
            ]
            yield (
                self._embedded([(image, *made) for image, made in outcomes if not isinstance(made, ZooError)]),
                missing,
            )

    def _embedded(self, pictures: Sequence[tuple[ShownImage, np.ndarray, bool]]) -> list[StagedEmbedding]:
        if not pictures:
            return []
        vectors = self.embedder.embed_pixels(np.stack([pixels for _, pixels, _ in pictures])).astype(np.float32)
        return [
            StagedEmbedding(image.id, vector_to_blob(vector, self.embedder.dim, image.items[0].source), small)
            for (image, _, small), vector in zip(pictures, vectors, strict=True)
        ]

    def _numbered_picture(
        self, numbered: tuple[int, ShownImage]
    ) -> tuple[int, ShownImage, tuple[np.ndarray, bool] | ZooError]:
        """Return the number of the batch, the image, and its picture or the error."""
        try:
            return *numbered, self._picture(numbered[1])
        except ZooError as error:
            return *numbered, error

    def _picture(self, image: ShownImage) -> tuple[np.ndarray, bool]:
        """Return pixels, and whether they are of a thumbnail. Raises `GalleryError` or `ImageError`."""
        small, data = False, next(filter(None, map(self.originals.read, image.items)), None)
        if data is None:
            thumbnail = self.items.thumbnail(image.items[0].id)
            if thumbnail == NO_PICTURE:
                raise ImageError("only its embedding is known, and no image")
            data, small = thumbnail.data, thumbnail.media_type != "image/png"
            if small and not self.thumbnails:
                raise ImageError("its image file is missing, and its thumbnail is smaller than the image")
        preprocessing = self.embedder.preprocessing
        return to_pixels(open_image(data, draft=preprocessing.resize), preprocessing), small


@dataclass(frozen=True)
class ModelComparison:
    """Two models of a gallery, measured on its labelled items.

    Attributes:
        rows: Rows of `serving.gallery.evaluate.report`, the present model first; empty if nothing can be measured.
        reason: Why nothing can be measured.
        index: Index of the new model.
        models: Names and fingerprints of both.
        learnt: Labels that one of them learnt from, which do not search.
        learnt_by_name: Those of `learnt` of which only the name is known, because their model records no images.
        date: Of the measurement.
        uncalibrated: Why p_same is not fitted for the new model, though it is for the present one.
    """

    rows: list[dict[str, Any]]
    reason: str | None
    index: IndexStats
    models: tuple[dict[str, Any], dict[str, Any]]
    date: str
    learnt: tuple[str, ...] = ()
    learnt_by_name: tuple[str, ...] = ()
    uncalibrated: str | None = None

    def not_worse(self, margin: float = MARGIN) -> bool:
        """Return whether no score falls by more than `margin`, by the 95 % intervals of the differences over classes.

        Without labels, or with too few, the answer is no.
        """
        if not self.rows:
            return False
        losses = self.rows[1]["loss"]["intervals"]
        return all(name in losses and losses[name][1] <= margin for name in METRICS)

    def is_worse(self) -> bool:
        """Return whether a score of the new model is shown to be worse, and none to be better, as `verdict` says."""
        if self.undecided() is not None:
            return False
        words = self.rows[1]["loss"]["verdicts"].values()
        return WORSE in words and BETTER not in words

    def verdict(self) -> str:
        """Return where the new model is better or worse, by tests of the paired differences over classes."""
        words = self.rows[1]["loss"]["verdicts"]
        names = {word: [METRIC_TITLES[name] for name in METRICS if words[name] == word] for word in (BETTER, WORSE)}
        parts = [f"{word} in {' and '.join(found)}" for word, found in names.items() if found]
        return " and ".join(parts) or "not shown to be better or worse"

    def undecided(self) -> str | None:
        """Return why the models cannot be compared; None where they can."""
        if not self.rows:
            return "nothing could be compared"
        if not all(name in self.rows[1]["loss"]["intervals"] for name in METRICS):
            return "items of a single label do not tell about others"
        return None


def _calibrate_as(before: VectorGallery, after: VectorGallery) -> str | None:
    """Calibrate the new model's gallery if the present one is; return why it cannot be."""
    if stored_calibration(before) is not None:
        try:
            calibrate_gallery(after)
        except EvaluationError as error:
            return str(error)
    return None


class Upgrade:
    """Change of a gallery's model: `embed`, `compare` if wanted, `swap`. Steps that were done are not repeated."""

    def __init__(self, path: str | Path, embedder: Embedder, rebuild: Rebuild, rule: str) -> None:
        """Use `begin_upgrade`."""
        self.path, self.embedder, self.rebuild, self.rule = path, embedder, rebuild, rule
        self._announced: float | None = None

    def embed(self) -> list[MissingItem]:
        """Embed all items that the new model has not embedded; return those that it cannot."""
        self.rebuild.fill()
        return self.rebuild.missing()

    def compare(self, queries: int = 2000) -> ModelComparison:
        """Write the new model's index, measure both models, and calibrate the new one if the present one is."""
        with VectorGallery.open(self.path) as before, VectorGallery.open(self.path, other=True) as after:
            if after.index.is_due() or not after.index.stats().generation:
                after.index.compact()
            overlap = self._learnt_labels(before)
            learnt = overlap.learnt
            try:
                rows, reason = report(model_change_steps(before, after, queries, learnt), joined=True), None
            except EvaluationError as error:
                rows, reason = [], str(error)
            uncalibrated = _calibrate_as(before, after)
            date = datetime.now(UTC).isoformat(timespec="seconds")
            models = before.card.identity, after.card.identity
            return ModelComparison(
                rows, reason, after.index.stats(), models, date, learnt, overlap.by_name, uncalibrated
            )

    def _learnt_labels(self, gallery: VectorGallery) -> LearntOverlap:
        """Return the gallery's labels that the present or the new model learnt from, by images where they are known."""
        contents: defaultdict[str, list[str]] = defaultdict(list)
        for content, label in gallery.store.contents():
            if label is not None:
                contents[label].append(content)
        present = cached_folder(gallery.model_ref)
        overlap = learnt_classes(self.embedder.folder).among(contents)
        return overlap.joined(learnt_classes(present).among(contents)) if present else overlap

    @contextmanager
    def announced(self) -> Iterator[None]:
        """Announce a swap within the block, so that running services load the model."""
        staging, token = self.rebuild.staging, self.rebuild.token
        staging.announce(token)
        self._announced = time.monotonic()
        try:
            yield
        finally:
            with suppress(ModelChangedError):  # the swap removes the announcement
                staging.announce(token, coming=False)

    def swap(self, notice: float = NOTICE) -> None:
        """Swap the models, at least `notice` seconds after the announcement.

        Raises:
            MissingItemsError: Items cannot be embedded, and the rule is "refuse".
        """
        if self._announced is not None:
            time.sleep(max(0.0, self._announced + notice - time.monotonic()))
        self.rebuild.swap(drop=self.rule == "drop")


@contextmanager
def begin_upgrade(
    path: str | Path,
    embedder: Embedder,
    model_ref: str,
    folders: Sequence[Path] = (),
    rule: str = "refuse",
    batch_size: int = 64,
    progress: bool = False,
) -> Iterator[Upgrade]:
    """Begin or continue to give a gallery another model. What a rebuild by a third model has made is discarded.

    Args:
        path: The gallery folder.
        embedder: The new model.
        model_ref: Name or folder that loads it again.
        folders: Folders of image files, besides those that were indexed.
        rule: Treatment of missing images, one of `RULES`.
        batch_size: Items per batch.
        progress: Whether to show a progress bar.

    Raises:
        UsageError: The gallery has this model already or keeps a third one for a rollback (`already-exists`), or is in
            Milvus (`not-available`).
        GalleryError: The gallery is damaged.
    """
    if rule not in RULES or batch_size < 1:
        raise UsageError(
            f"the rule for missing images is one of {', '.join(RULES)}, and a batch has at least 1 image.",
            code="unknown-name",
        )
    folder = check_rebuilds(path, model_ref)
    with VectorGallery.open(folder) as gallery:
        originals, card, ref, slot = (
            Originals.of(gallery, folders),
            gallery.card,
            gallery.model_ref,
            gallery.store.slot(),
        )
    if card.fingerprint == embedder.card.fingerprint:
        raise UsageError(
            f"{path} has this model already: {card.name} ({card.fingerprint[:12]}).", code="already-exists"
        )
    if slot is not None and slot.role == REPLACED and slot.fingerprint != embedder.card.fingerprint:
        previous, _ = parse_model(slot.model, path)
        raise UsageError(
            f"{path} keeps the embeddings by {previous.name} ({slot.fingerprint[:12]}) for a rollback, and a rebuild "
            f"by {embedder.card.name} would replace them. Return to {previous.name}: "
            f"{command('gallery', 'rollback', path)}; or delete them first: "
            f"{command('gallery', 'rollback', path, '--discard')}",
            code="already-exists",
        )
    new, thumbnails = embedder.card, rule == "thumbnail"
    with closing(Store(folder / STORE)) as store, closing(Store(folder / STORE)) as reader:
        token = store.staging.begin(model_json(card, ref), model_json(new, model_ref), new.fingerprint, new.dim)
        embed = _ImageEmbedder(reader, embedder, originals, thumbnails).embed
        rebuild = Rebuild(store, store.staging, token, embed, batch_size, progress)
        yield Upgrade(folder, embedder, rebuild, rule)


def check_rebuilds(path: str | Path, model_ref: str = "MODEL") -> Path:
    """Return the folder of a gallery that can be given another model.

    Raises:
        UsageError: If the gallery is in Milvus (code "not-available").
    """
    index = command("index", model_ref, "DIR", "--out", "milvus://HOST:PORT/NAME")
    return check_folder(path, f"index the images by the other model into a new collection, and serve that: {index}")


def discard_other(path: str | Path) -> None:
    """Delete the embeddings by another model that a gallery keeps, if any."""
    folder = check_rebuilds(path)
    check_exists(folder)
    with closing(Store(folder / STORE)) as store:
        store.discard_other()


def load_previous_model(
    path: str | Path, model: str | None, runtime: str = "onnx", precision: str = "fp32"
) -> tuple[Embedder, str]:
    """Load the model for a rollback; return it, and the name or folder that loads it. `model`: where it has moved to.

    Raises:
        UsageError: The gallery keeps no embeddings of a previous model, or is in Milvus (`not-available`).
        ModelMismatchError: `model` is another model.
    """
    with VectorGallery.open(check_rebuilds(path)) as gallery:
        slot = gallery.store.slot()
    if slot is None or slot.role != REPLACED:
        raise UsageError(
            f"{path} keeps no embeddings of a previous model, so it cannot be rolled back.", code="no-other-model"
        )
    card, ref = parse_model(slot.model, path)
    ref = model or ref
    embedder = load(ref, runtime=runtime, precision=precision).matching(card)
    if embedder.card.fingerprint != card.fingerprint:
        raise ModelMismatchError(
            f"{ref} is {embedder.card.name} ({embedder.card.fingerprint[:12]}), but the previous model of "
            f"{path} is {card.name} ({card.fingerprint[:12]}). Name that one with --model.",
            code="other-model",
        )
    return embedder, ref


class _TooManyError(Exception):
    pass

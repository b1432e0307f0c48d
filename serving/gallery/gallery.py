"""Galleries of vectors: items, embeddings and an index, bound to one model, in a folder or in Milvus.

Milvus is `serving.gallery.backends`. A folder holds:

gallery.sqlite    items and embeddings (serving.gallery.store)
index-*           index (serving.gallery.index_files), derived from the store; may be deleted at any time
model.json        card of the model, and the name or path that it was loaded from

Once a rebuild has begun, the store names the model, because a transaction changes it; model.json is then a copy.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from serving.gallery import schema
from serving.gallery.filters import EVERYTHING, Filter
from serving.gallery.index import NO_ROW, Neighbours
from serving.gallery.index_files import LiveIndex
from serving.gallery.store import MODEL, Store, store_model
from serving.gallery.tune import measure_recall, sample_index
from serving.gallery.types import (
    ALL_FIELDS,
    LABEL,
    AddResult,
    Hit,
    Item,
    ItemPlace,
    ItemUpdate,
    NewItem,
    PutResult,
    is_address,
    parse_model,
    rank_hits,
)
from zoo.errors import (
    GalleryError,
    GalleryExistsError,
    GalleryNotFoundError,
    ItemConflictError,
    ItemNotFoundError,
    ModelMismatchError,
    UsageError,
    check_at_least,
    command,
    nearest,
)
from zoo.files import atomic_folder, write_json
from zoo.models.card import Card

if TYPE_CHECKING:
    from serving.gallery.backends.milvus import MilvusStore
    from serving.gallery.backends.milvus_index import MilvusIndex

STORE = "gallery.sqlite"

MAX_NOTES, COMPARED_NAMES, MAX_NAME = 3, 2000, 80
"""Unknown names that `filter_notes` reports, known ones that it compares with each, and characters that it shows."""

SEARCHES = 5
"""Times that a search is repeated while other processes remove or replace what it finds."""

EQUAL = 1e-6
"""Difference of similarities below which two rows of an index may be of one image."""

TUNING_ITEMS = 100_000
"""With more items, an approximate index is worth building."""


class VectorGallery:
    """An open gallery without its model, safe to use from several threads; it sees what other processes add and remove.

    Items are added and removed through the gallery, which then compacts its index. They are read and described through
    its store. `MilvusStore` and `MilvusIndex` have the methods of `Store` and `LiveIndex` that callers use.

    Attributes:
        address: Folder of the gallery, or its address in Milvus.
        store: The items.
        index: The index, which is tuned and compacted through it.
        card: Card of the model.
        model_ref: Name or path by which `zoo.load` loads the model.
    """

    def __init__(
        self,
        address: str | Path,
        store: Store | MilvusStore,
        index: LiveIndex | MilvusIndex,
        card: Card,
        model_ref: str,
    ) -> None:
        """Use `VectorGallery.open` or `VectorGallery.create`."""
        self.address, self.store, self.index, self.card, self.model_ref = str(address), store, index, card, model_ref
        self._changed = False

    @classmethod
    def create(cls, path: str | Path, model_card: Card, model_ref: str) -> VectorGallery:
        """Make an empty gallery for one model, and open it.

        Args:
            path: A folder, or an address in Milvus.
            model_card: Card of the model.
            model_ref: Name or path by which `zoo.load` loads it.

        Raises:
            GalleryExistsError: If it exists and is not an empty folder.
            GalleryError: If it cannot be written (code "not-writable").
        """
        if is_address(path):
            from serving.gallery.backends import milvus

            milvus.create_store(str(path), model_card, model_ref).close()
            return cls.open(path)
        path = Path(path)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise GalleryExistsError(f"{path} exists and is not empty. Name a new folder for the gallery.")
        try:
            with atomic_folder(path) as folder:
                schema.create(folder / STORE, model_card.dim, model_card.fingerprint)
                write_json(folder / MODEL, {"ref": model_ref, "card": model_card.to_json()})
        except OSError as error:
            raise GalleryError(f"{path} cannot be written: {error.strerror}.", code="not-writable") from None
        return cls.open(path)

    @classmethod
    def open(cls, path: str | Path, other: bool = False, device: str = "cpu") -> VectorGallery:
        """Open a gallery.

        If it is given another model while it is open, operations on embeddings raise `ModelChangedError`; open it again
        then.

        Args:
            path: A folder, or an address in Milvus.
            other: Whether to read it as it would be with the second model that it has embeddings of
                (serving.gallery.staging), without the items that this model has not embedded.
            device: Where to search: cpu, or a GPU (cuda, cuda:N) if FAISS supports it.

        Raises:
            GalleryNotFoundError: If there is no gallery.
            GalleryError: If it is damaged.
        """
        if is_address(path):
            from serving.gallery.backends.milvus import open_store
            from serving.gallery.backends.milvus_index import MilvusIndex

            if other:
                message = f"{path} is in Milvus, and holds the embeddings of one model."
                raise GalleryError(message, code="no-other-model")
            milvus_store = open_store(str(path))
            return cls(path, milvus_store, MilvusIndex(milvus_store), milvus_store.card, milvus_store.model_ref)
        path = Path(path)
        check_exists(path)
        store = Store(path / STORE, other)
        try:
            card, model_ref = store_model(store)
            if (store.fingerprint, store.dim) != (card.fingerprint, card.dim):
                message = f"{path / MODEL} is not the card of the model that embedded this gallery."
                raise GalleryError(message, code="other-model")
            return cls(path, store, LiveIndex(path, store, device), card, model_ref)
        except BaseException:
            store.close()
            raise

    def close(self) -> None:
        """Close the store, after a compaction if the changes made here are worth it.

        After `index.compact_in_background`, close does not compact, so that a service ends at once.
        """
        if self._changed:
            self.index.finish()
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def check_model(self, card: Card, ref: str = "MODEL") -> None:
        """Raise `ModelMismatchError` unless this is the card of the gallery's model. ref: how the model was named."""
        if card.fingerprint != self.card.fingerprint:
            cut = card.name == self.card.name and card.dim != self.card.dim  # one model, at two lengths
            have, given = (
                f"{one.name} ({one.fingerprint[:12]}{f', {one.dim:,} numbers' if cut else ''})"
                for one in (self.card, card)
            )
            load = f"Take --dim {self.card.dim}" if cut else f"Load {self.model_ref!r}"
            dim = ["--dim", card.dim] if cut else []
            rebuild = command("gallery", "rebuild", self.address, "--model", ref, *dim)
            other = "" if is_address(self.address) else f", or give this one the other model: {rebuild}"
            raise ModelMismatchError(
                f"{self.address} was embedded by {have}, not by {given}, whose embeddings cannot be compared. {load}, "
                f"index into a new gallery{other or '.'}"
            )

    def other_model(self) -> tuple[Card, str, str] | None:
        """Return the card and the reference of the second model that the gallery has embeddings of, and their role.

        The role is "rebuilt" for a rebuild, complete or not, and "replaced" for the previous model.
        """
        slot = self.store.slot()
        return (*parse_model(slot.model, self.address), slot.role) if slot else None

    def coming(self) -> tuple[Card, str] | None:
        """Return the card and the reference of the model that a rebuild has announced."""
        slot = self.store.slot()
        return parse_model(slot.model, self.address) if slot and slot.coming else None

    def add(self, items: Sequence[NewItem]) -> AddResult:
        """Add all items, or none, as `Store.add`. When it returns, they are on disk and the next search finds them.

        Raises:
            ItemConflictError: If a key is another image's.
        """
        self._changed = True
        return self.store.add(items)

    def put(self, items: Sequence[NewItem]) -> list[PutResult]:
        """Create the items with these keys, or give them these images and descriptions.

        The next search finds an item by the vector of its new image.

        Raises:
            UsageError: If an item has no key, or not a valid one (code "invalid-item"). Nothing is written then.
        """
        self._changed = True
        return self.store.put(items)

    def update(self, updates: Sequence[ItemUpdate]) -> dict[int, ItemConflictError]:
        """Give items other places, descriptions and images, as `Store.update`."""
        self._changed = True
        return self.store.update(updates)

    def remove(self, ids: Sequence[int], remember: bool = False) -> int:
        """Remove those of the items that exist, and return their number.

        remember: note their places, so that an indexed folder does not bring them back.
        """
        self._changed = True
        return self.store.remove(ids, remember)

    def describe_key(self, key: str, /, **values: Any) -> tuple[Item, int]:
        """Describe the item with a key as `Store.describe` does; another process may replace it meanwhile.

        Return the item and the number of the change.
        """
        while True:
            item = self.store.item_of_key(key)
            try:
                change = self.store.describe(item.id, **values)
                return self.store.item(item.id), change
            except ItemNotFoundError:  # replaced or removed by another process
                continue

    def remove_key(self, key: str) -> int:
        """Remove the item with a key for good, or raise `ItemNotFoundError`. Return its id."""
        while True:
            item = self.store.item_of_key(key)
            if self.remove([item.id], remember=True):
                return item.id

    def note_removed(self, removed: Sequence[ItemPlace]) -> None:
        """Note places whose items another gallery removed for good, unless an item here or another note has them."""
        if not removed:
            return
        items = self.store.places()
        keys = {place.key for place in items} - {None}
        files = {(place.source, place.folder) for place in items if place.folder is not None}
        plain = {(place.source, place.folder) for place in items if place.folder is not None and place.key is None}
        noted = {(place.source, place.key, place.folder) for place in self.store.removed_places()}

        def is_known(place: ItemPlace) -> bool:
            at_file = (place.source, place.folder) in (files if place.key is None else plain)
            return at_file or place.key in keys or (place.source, place.key, place.folder) in noted

        self.store.note_removed([place for place in removed if not is_known(place)])

    def search(
        self,
        vectors: np.ndarray,
        k: int,
        exclude_ids: Sequence[int] = (),
        exact: bool = False,
        selection: Filter = EVERYTHING,
    ) -> list[list[Hit]]:
        """Return the nearest images to each vector, best first, equal ones in the order of their ids.

        A hit is the best described item of its image, and names the other ones.

        Args:
            vectors: Unit vectors, float32 [q, dim].
            k: Number of hits per vector; there are fewer if fewer images match.
            exclude_ids: Items to leave out.
            exact: Whether to compare all items, even if the gallery was tuned for an approximate index. Similarities
                are always exact.
            selection: Filter of items.

        Raises:
            UsageError: If k or the vectors are not valid (code "invalid-value").
        """
        check_at_least("k", k, 1)
        excluded = set(exclude_ids)
        asked, attempts = k + len(excluded) + self.index.repeats, 0
        while True:
            similarities, ids = self.neighbours(vectors, asked, exact, selection)
            contents = sorted(set(ids.ravel().tolist()) - {NO_ROW})
            items = self.store.items_of(contents, selection, sorted(excluded))
            hits = [rank_hits(*row, items) for row in zip(similarities, ids, strict=True)]
            if ids.shape[1] >= asked and any(
                last != NO_ROW and (len(row) < k or (self.index.repeats and row[k - 1].similarity - least < EQUAL))
                for row, last, least in zip(hits, ids[:, -1].tolist(), similarities[:, -1].tolist(), strict=True)
            ):
                asked *= 2  # more items of one image may come than were asked for
                continue
            attempts += 1
            # Images that are missing were replaced since, and their items are found by the new ones.
            if len(items) == len(contents) or attempts == SEARCHES:
                return [row[:k] for row in hits]

    def neighbours(
        self, vectors: np.ndarray, k: int, exact: bool = False, selection: Filter = EVERYTHING
    ) -> Neighbours:
        """Return similarities and images of the nearest, as the index has them (`Store.contents_of`)."""
        check_at_least("k", k, 1)
        if vectors.ndim != 2 or vectors.shape[1] != self.card.dim or not np.isfinite(vectors).all():
            message = f"queries must be finite float32 [q, {self.card.dim}], not {list(vectors.shape)}."
            raise UsageError(message, code="invalid-value")
        return self.index.search(vectors, k, exact, selection)

    def recall(self, k: int = 10) -> float | None:
        """Measure the share of the `k` nearest others of sampled items that search finds; None below two items."""
        index = self.index.current()
        sample = sample_index(index, k)
        return measure_recall(index, sample) if sample else None


def is_gallery(address: str | Path) -> bool:
    """Return whether a gallery is in a folder, or at an address in Milvus."""
    if is_address(address):
        from serving.gallery.backends import milvus

        return milvus.exists(str(address))
    return (Path(address) / STORE).is_file()


def check_exists(address: str | Path) -> None:
    """Raise `GalleryNotFoundError` if there is no gallery."""
    if not is_gallery(address):
        problem = "is not a gallery" if is_address(address) or Path(address).exists() else "does not exist"
        make = command("index", "MODEL", "DIR", "--out", address)
        raise GalleryNotFoundError(f"{address} {problem}. Make a gallery with: {make}")


def check_folder(address: str | Path, advice: str) -> Path:
    """Return the folder of a gallery.

    Raises:
        UsageError: If it is in Milvus (code "not-available").
    """
    if is_address(address):
        message = f"{address} is in Milvus, and this is for a gallery in a folder; {advice}"
        raise UsageError(message, code="not-available")
    return Path(address)


def delete_gallery(address: str | Path) -> None:
    """Delete a gallery that is not open."""
    if is_address(address):
        from serving.gallery.backends import milvus

        milvus.drop(str(address))
    else:
        shutil.rmtree(address)


def model_at(address: str | Path) -> tuple[Card, str]:
    """Return the card and the reference of a gallery's model, without opening its index."""
    if is_address(address):
        from serving.gallery.backends import milvus

        return milvus.model_at(str(address))
    path = Path(address)
    with closing(Store(path / STORE)) as store:
        return store_model(store)


def tuning_advice(gallery: VectorGallery) -> str | None:
    """Return a sentence about a large gallery that was never tuned, None for others."""
    items = gallery.store.count()
    if items <= TUNING_ITEMS or gallery.store.state("plan") is not None or is_address(gallery.address):
        return None
    return (
        f"never tuned: each search compares all {items:,} items. A faster index that finds 99 % of the nearest: "
        f"{command('gallery', 'tune', gallery.address)}"
    )


def filter_notes(gallery: VectorGallery, selection: Filter, found: bool) -> list[str]:
    """Return a sentence about each label that no item has, with the most similar labels.

    If nothing was found, return sentences about unknown keys of metadata too.
    """
    store = gallery.store
    unknown = list(islice((label for label in selection.labels if not store.items(0, 1, Filter((label,)))), MAX_NOTES))
    labels = [label for label, _ in store.overview.labels(COMPARED_NAMES)[1]] if unknown else []
    notes = [f"No item has the label {_with_hint(label, labels)}" for label in unknown]
    if found or not selection.where:
        return notes
    return [*notes, *_unknown_keys(gallery, selection.where)]


def shown_notes(
    gallery: VectorGallery, group_by: str | None, fields: Iterable[str] = (), grouped: int | None = None
) -> list[str]:
    """Return a sentence about each key that results are grouped by or show and no item has, and about missing groups.

    grouped: the number of nearest images among which there were fewer groups than asked for.
    """
    named = [*fields, *([] if group_by in (None, LABEL) else [str(group_by)])]
    notes = _unknown_keys(gallery, dict.fromkeys(name for name in named if name != ALL_FIELDS))
    if grouped is None:
        return notes
    missing = f"The {grouped:,} nearest images have no other value of {group_by}; a filter finds those of others."
    return [*notes, missing]


def _unknown_keys(gallery: VectorGallery, names: Iterable[str]) -> list[str]:
    """Return a sentence about each of the keys that no item's metadata have."""
    names = list(names)
    if not names:
        return []
    keys, everything = gallery.store.overview.keys(COMPARED_NAMES), gallery.store.count() <= COMPARED_NAMES
    subject = "No item has" if everything else f"None of the first {COMPARED_NAMES:,} items has"
    unknown = islice((name for name in names if name not in keys), MAX_NOTES)
    return [f"{subject} metadata called {_with_hint(name, keys)}" for name in unknown]


def _with_hint(name: str, known: Iterable[str]) -> str:
    short = name[:MAX_NAME]
    return f"{short!r}.{nearest(short, known)}"

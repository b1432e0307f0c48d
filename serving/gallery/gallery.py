"""A gallery: items, embeddings and an index, bound to one model; in a folder, or in Milvus (serving.gallery.backends).

gallery.sqlite    the items and their embeddings (serving.gallery.store)
index-*           the index (serving.gallery.index_files), derived from the store; may be deleted at any time
model.json        the card of the model, and the name or path that it was loaded from

Once a rebuild has begun, the store names the model, because it changes within a transaction; model.json is then a copy.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np

from serving.gallery import schema
from serving.gallery.backends.milvus_client import is_address
from serving.gallery.feedback import Marks
from serving.gallery.filters import EVERYTHING, Filter
from serving.gallery.index import KINDS, Neighbours
from serving.gallery.index_files import GenerationFacts, LiveIndex
from serving.gallery.staging import Slot
from serving.gallery.store import Overview, Store
from serving.gallery.tune import IndexMeasurement, SearchableIndex, measure_recall, sample_index
from serving.gallery.types import (
    UNCHANGED,
    Added,
    Hit,
    IndexStats,
    Item,
    ItemUpdate,
    NewItem,
    Stats,
    Thumbnail,
    Unchanged,
    parse_model,
    rank_hits,
    read_model,
)
from zoo.errors import (
    GalleryError,
    GalleryExistsError,
    GalleryNotFoundError,
    ModelMismatchError,
    UsageError,
    nearest,
)
from zoo.files import atomic_folder, write_json
from zoo.models.card import Card

MODEL = "model.json"
STORE = "gallery.sqlite"
NOTED, COMPARED, LONGEST = 3, 2000, 80
"""So many unknown names are noted, each beside those of so many labels or items, and shown up to so many characters."""

TUNING_ITEMS = 100_000
"""With more items an approximate index is worth its making."""


def store_model(folder: Path, store: Store) -> tuple[Card, str]:
    """The card of the model of a gallery whose store is open, and how the model is loaded."""
    return read_model(folder / MODEL) if store.model is None else parse_model(store.model, store.path)


class GalleryStore(Protocol):
    """Items of a gallery, their embeddings, thumbnails and marks. `serving.gallery.store.Store` documents the methods.

    was_rebuilt: whether the gallery may have had another model before. slot: the embeddings by another model.
    """

    @property
    def marks(self) -> Marks: ...
    @property
    def overview(self) -> Overview: ...
    @property
    def was_rebuilt(self) -> bool: ...

    def close(self) -> None: ...
    def check_current(self) -> None: ...
    def slot(self) -> Slot | None: ...
    def discard_other(self) -> None: ...
    def evaluation_lock(self) -> AbstractContextManager[None]: ...

    def add(self, items: Sequence[NewItem]) -> Added: ...
    def remove(self, ids: Sequence[int]) -> int: ...
    def update(self, places: Sequence[ItemUpdate]) -> None: ...
    def describe(
        self,
        item_id: int,
        label: str | Unchanged | None = UNCHANGED,
        metadata: Mapping[str, Any] | Unchanged = UNCHANGED,
    ) -> int: ...

    def change(self) -> int: ...
    def count(self, label: str | None = None, selection: Filter = EVERYTHING) -> int: ...
    def stats(self) -> Stats: ...
    def item(self, item_id: int) -> Item: ...
    def items(
        self, offset: int = 0, limit: int = 50, label: str | None = None, selection: Filter = EVERYTHING
    ) -> list[Item]: ...
    def items_by_id(self, ids: Sequence[int]) -> dict[int, Item]: ...
    def item_of_content(self, content_sha256: str) -> Item | None: ...
    def sample(self, n: int, seed: int | None = None) -> list[Item]: ...
    def labels(self) -> dict[int, str | None]: ...
    def ids_by_content(self) -> dict[str, int]: ...
    def sources_by_content(self) -> dict[str, str]: ...
    def thumbnail(self, item_id: int) -> Thumbnail: ...
    def embedding(self, item_id: int) -> np.ndarray: ...
    def embeddings(self, ids: Sequence[int]) -> tuple[list[int], np.ndarray]: ...
    def from_thumbnails(self, ids: Sequence[int]) -> set[int]: ...
    def rows(self) -> Iterator[tuple[Item, np.ndarray, Thumbnail]]: ...

    def state(self, key: str) -> str | None: ...
    def set_state(self, key: str, value: str) -> None: ...
    def fact(self, key: str) -> str | None: ...
    def set_fact(self, key: str, value: str) -> None: ...


class GalleryIndex(Protocol):
    """Search over the embeddings of a gallery. `serving.gallery.index_files.LiveIndex` documents each method."""

    def close(self) -> None: ...
    def search(
        self, vectors: np.ndarray, k: int, exact: bool = False, selection: Filter = EVERYTHING
    ) -> Neighbours: ...
    def current(self) -> SearchableIndex: ...
    def stats(self) -> IndexStats: ...
    def is_due(self) -> bool: ...
    def compact(self) -> GenerationFacts | None: ...
    def compact_in_background(self) -> None: ...
    def finish(self) -> None: ...
    def tune(
        self, recall: float, k: int = 10, kinds: Sequence[str] = tuple(KINDS)
    ) -> tuple[GenerationFacts | None, list[tuple[str, IndexMeasurement | None]]]: ...


class Gallery:
    """An open gallery, safe to use from several threads. A search sees what other processes have added and removed.

    address: the gallery's folder, or its address in Milvus. store: the items, to be read and described. index: what
    searches them. card: the model's. model_ref: the name or path by which `zoo.load` loads the model. Items are added
    and removed through the gallery, which then compacts.
    """

    def __init__(
        self, address: str | Path, store: GalleryStore, index: GalleryIndex, card: Card, model_ref: str
    ) -> None:
        """Use `Gallery.open` or `Gallery.create`."""
        self.address, self.store, self.index, self.card, self.model_ref = str(address), store, index, card, model_ref
        self._wrote = False

    @classmethod
    def create(cls, path: str | Path, model_card: Card, model_ref: str) -> Gallery:
        """Make an empty gallery for one model. `model_ref` is the name or path that `zoo.load` takes for it.

        path: a folder, or an address in Milvus. Raises `GalleryExistsError` if it exists and is not an empty folder.
        """
        if is_address(path):
            from serving.gallery.backends import milvus

            milvus.create_store(str(path), model_card, model_ref).close()
            return cls.open(path)
        path = Path(path)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise GalleryExistsError(f"{path} exists and is not empty; a new gallery needs a folder of its own.")
        try:
            with atomic_folder(path) as folder:
                schema.create(folder / STORE, model_card.dim, model_card.fingerprint)
                write_json(folder / MODEL, {"ref": model_ref, "card": model_card.to_json()})
        except OSError as error:
            raise GalleryError(f"{path} cannot be made: {error.strerror}.") from None
        return cls.open(path)

    @classmethod
    def open(cls, path: str | Path, other: bool = False, device: str = "cpu") -> Gallery:
        """Open the gallery in a folder, or at an address in Milvus.

        Raises `GalleryNotFoundError`, or `GalleryError` that says what is damaged.

        A gallery that is given another model while it is open raises `ModelChangedError` at all that has to do with
        embeddings; open it again then. other: as it would be with the other model that its store holds embeddings of
        (serving.gallery.staging): items that these lack are not there. It is for reading. device: what its index is
        searched on: cpu, or a GPU (cuda, cuda:N) where the FAISS that is installed sees one.
        """
        if is_address(path):
            from serving.gallery.backends import milvus

            opened = milvus.open_store(str(path), other)
            return cls(path, opened, milvus.MilvusIndex(opened), opened.card, opened.model_ref)
        path = Path(path)
        check_exists(path)
        store = Store(path / STORE, other)
        try:
            card, model_ref = store_model(path, store)
            if (store.fingerprint, store.dim) != (card.fingerprint, card.dim):
                raise GalleryError(f"{path / MODEL} is not the card of the model that embedded this gallery.")
            return cls(path, store, LiveIndex(path, store, device), card, model_ref)
        except BaseException:
            store.close()
            raise

    def close(self) -> None:
        """Let go of the store; compact before if what was written here makes it worth while.

        Not so with `compact_in_background`: a service ends at once, and what it leaves to do is done when it is back.
        """
        if self._wrote:
            self.index.finish()
        self.index.close()
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def check_model(self, card: Card, ref: str = "MODEL") -> None:
        """Raise `ModelMismatchError` unless this is the card of the gallery's own model; `ref`: how it was named."""
        if card.fingerprint != self.card.fingerprint:
            raise ModelMismatchError(
                f"{self.address} was embedded by {self.card.name} ({self.card.fingerprint[:12]}), not by {card.name} "
                f"({card.fingerprint[:12]}): their vectors cannot be compared. Load {self.model_ref!r} as it was, "
                f"index into a new gallery, or give this one the other model: zoo gallery rebuild {self.address} "
                f"--model {ref}"
            )

    def closer(self) -> Callable[[], None]:
        """What lets go of store and index, without holding on to the gallery."""
        index, store = self.index, self.store

        def close() -> None:
            index.close()
            store.close()

        return close

    def other_model(self) -> tuple[Card, str] | None:
        """The card of the model that the gallery holds other embeddings of, and what they are: "rebuilt", all or a part
        of what a rebuild makes, or "replaced", of the model before. None where there are none.
        """
        slot = self.store.slot()
        return (parse_model(slot.model, self.address)[0], slot.role) if slot else None

    def coming(self) -> tuple[Card, str] | None:
        """The model that a rebuild is about to give the gallery, and how it is loaded; None where none is."""
        slot = self.store.slot()
        return parse_model(slot.model, self.address) if slot and slot.coming else None

    def add(self, items: Sequence[NewItem]) -> Added:
        """Add all of `items`, or none. Once this returns they are on disk and the next search finds them.

        Raises `ItemConflictError` for a key that is another image's, or an image that is there under another key.
        """
        self._wrote = True
        return self.store.add(items)

    def remove(self, ids: Sequence[int]) -> int:
        """Remove items by id and return how many there were; ids that do not exist are passed over."""
        self._wrote = True
        return self.store.remove(ids)

    def search(
        self,
        vectors: np.ndarray,
        k: int,
        exclude_ids: Sequence[int] = (),
        exact: bool = False,
        selection: Filter = EVERYTHING,
    ) -> list[list[Hit]]:
        """The `k` nearest items to each unit row of `vectors`, float32 [q, dim], best first.

        Similarities are exact; so is the choice of items, unless the gallery was tuned for an approximate index and
        `exact` is not set. Equal similarities come in the order of the ids. Fewer than `k` where the gallery has fewer.
        """
        excluded = set(exclude_ids) if k > 0 else set()
        similarities, ids = self.neighbours(vectors, k + len(excluded), exact, selection)
        items = self.store.items_by_id(sorted(set(ids.ravel().tolist()) - excluded))
        return [rank_hits(*row, items)[:k] for row in zip(similarities, ids, strict=True)]

    def neighbours(
        self, vectors: np.ndarray, k: int, exact: bool = False, selection: Filter = EVERYTHING
    ) -> Neighbours:
        """What `search` finds, as arrays: similarities float32 [q, k] and ids int64 [q, k], best first.

        Of what `selection` lets through; places that nothing took are -inf and -1.
        """
        if k < 1:
            raise UsageError(f"k must be at least 1, not {k}.")
        if vectors.ndim != 2 or vectors.shape[1] != self.card.dim or not np.isfinite(vectors).all():
            raise UsageError(f"a query is finite float32 [q, {self.card.dim}], not {list(vectors.shape)}.")
        return self.index.search(vectors, k, exact, selection)

    def recall(self, k: int = 10) -> float | None:
        """The part of the `k` nearest others of sampled items that a search finds now; None below two items."""
        index = self.index.current()
        sample = sample_index(index, k)
        return measure_recall(index, sample) if sample else None


def is_gallery(address: str | Path) -> bool:
    """Whether a gallery is in a folder, or at an address in Milvus."""
    if is_address(address):
        from serving.gallery.backends import milvus

        return milvus.exists(str(address))
    return (Path(address) / STORE).is_file()


def model_at(address: str | Path) -> tuple[Card, str]:
    """The card of the model that a gallery has now, and how it is loaded; its index is not opened."""
    if is_address(address):
        from serving.gallery.backends import milvus

        return milvus.model_at(str(address))
    path = Path(address)
    with Store(path / STORE).closing() as store:
        return store_model(path, store)


def delete_gallery(address: str | Path) -> None:
    """Delete a gallery that is not open."""
    if is_address(address):
        from serving.gallery.backends import milvus

        milvus.drop(str(address))
    else:
        shutil.rmtree(address)


def check_exists(address: str | Path) -> None:
    """Raise `GalleryNotFoundError` where there is no gallery."""
    if not is_gallery(address):
        what = "holds no gallery" if is_address(address) or Path(address).exists() else "is not there"
        raise GalleryNotFoundError(f"{address} {what}. Make a gallery with: zoo index MODEL DIR --out {address}")


def check_folder(address: str | Path, advice: str) -> Path:
    """Return the folder of a gallery. Raises `UsageError` (code "not-for-milvus") for one in Milvus."""
    if is_address(address):
        message = f"{address} is in Milvus, and this is for a gallery in a folder; {advice}"
        raise UsageError(message, code="not-for-milvus")
    return Path(address)


def tuning_advice(gallery: Gallery) -> str | None:
    """A sentence of a gallery that is searched exactly only because nobody has selection otherwise; None of others."""
    items = gallery.store.count()
    if items <= TUNING_ITEMS or gallery.store.state("plan") is not None or is_address(gallery.address):
        return None
    return (
        f"never tuned: each search looks at all {items:,} items. A faster index that finds 99 % of the nearest: "
        f"zoo gallery tune {gallery.address}"
    )


def filter_notes(gallery: Gallery, selection: Filter, found: bool) -> list[str]:
    """Of each label that no item has a sentence, with the nearest that there are; where nothing was found, also of each
    key that the metadata of the first items have not. Of the first few of both."""
    absent = list(islice((label for label in selection.labels if not gallery.store.items(0, 1, label)), NOTED))
    known = [label for label, _ in gallery.store.overview.labels(COMPARED)[1]] if absent else []
    said = [f"No item has the label {_named(label, known)}" for label in absent]
    if found or not selection.where:
        return said
    keys = gallery.store.overview.keys(COMPARED)
    whose = "No item has" if gallery.store.count() <= COMPARED else f"None of the first {COMPARED:,} items has"
    missing = islice((key for key in selection.where if key not in keys), NOTED)
    return [*said, *(f"{whose} metadata called {_named(key, keys)}" for key in missing)]


def _named(name: str, known: Iterable[str]) -> str:
    short = name[:LONGEST]
    return f"{short!r}.{nearest(short, known)}"

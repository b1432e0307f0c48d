"""A gallery folder: items, embeddings and an index, bound to one model.

gallery.sqlite    the items and their embeddings (serving.gallery.store)
index-*           the index (serving.gallery.index_files), derived from the store; may be deleted at any time
model.json        the card of the model, and the name or path that it was loaded from

Once a rebuild has begun, the store names the model, because it changes within a transaction; model.json is then a copy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from serving.gallery import schema
from serving.gallery.backends import backend_of, open_index
from serving.gallery.backends.milvus import MilvusIndex
from serving.gallery.feedback import Marks
from serving.gallery.filters import EVERYTHING, Filter
from serving.gallery.index import KINDS, Index, kind_of
from serving.gallery.index_files import Facts
from serving.gallery.store import Overview, Store
from serving.gallery.tune import Measured, recall_of, sample_in
from serving.gallery.types import (
    AS_IT_IS,
    Added,
    Hit,
    IndexStats,
    Item,
    Kept,
    NewItem,
    Place,
    Stats,
    Thumbnail,
    hits_of,
)
from zoo.errors import (
    CardError,
    GalleryError,
    GalleryExistsError,
    GalleryNotFoundError,
    ModelMismatchError,
    UsageError,
    nearest,
)
from zoo.files import atomic_folder, write_json
from zoo.models.card import Card, card_from_json

MODEL = "model.json"
STORE = "gallery.sqlite"
NOTED, COMPARED, LONGEST = 3, 2000, 80
"""So many unknown names are noted, each beside those of so many labels or items, and shown up to so many characters."""

LARGE = 100_000
"""With more items an approximate index is worth its making."""


def model_of(folder: Path, store: Store) -> tuple[Card, str]:
    """The card of the model of a gallery whose store is open, and how the model is loaded."""
    return read_model(folder / MODEL) if store.model is None else parsed_model(store.model, store.path)


def model_text(card: Card, model_ref: str) -> str:
    """What `read_model` reads."""
    return json.dumps({"ref": model_ref, "card": card.to_json()}, indent=2, ensure_ascii=False)


def read_model(path: Path) -> tuple[Card, str]:
    """The card in a model.json, and how the model is loaded. Raises `GalleryError` naming what is wrong."""
    try:
        return parsed_model(path.read_text(encoding="utf-8"), path)
    except (OSError, ValueError) as error:
        raise GalleryError(f"{path} does not name the gallery's model: {error}.") from None


def parsed_model(text: str, path: Path) -> tuple[Card, str]:
    """As `read_model`, of the text; `path`: where it comes from."""
    try:
        values = json.loads(text)
        return card_from_json(values["card"]), str(values["ref"])
    except (ValueError, KeyError, TypeError, CardError) as error:
        raise GalleryError(f"{path} does not name the gallery's model: {error}.") from None


class Gallery:
    """An open gallery, safe to use from several threads. A search sees what other processes have added and removed."""

    def __init__(self, path: Path, store: Store, card: Card, model_ref: str, device: str = "cpu") -> None:
        """Use `Gallery.open` or `Gallery.create`."""
        self.path, self.card, self.model_ref = path, card, model_ref
        self._store, self._live, self._wrote = store, open_index(path, store, device), False

    @classmethod
    def create(cls, path: str | Path, model_card: Card, model_ref: str) -> Gallery:
        """Make an empty gallery for one model. `model_ref` is the name or path that `zoo.load` takes for it.

        Raises `GalleryExistsError` if `path` exists and is not an empty folder.
        """
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
        """Open a gallery folder. Raises `GalleryNotFoundError`, or `GalleryError` that says what is damaged.

        A gallery that is given another model while it is open raises `ModelChangedError` at all that has to do with
        embeddings; open it again then. other: as it would be with the other model that its store holds embeddings of
        (serving.gallery.staging): items that these lack are not there. It is for reading. device: what its index is
        searched on: cpu, or a GPU (cuda, cuda:N) where the FAISS that is installed sees one.
        """
        path = Path(path)
        check_there(path)
        store = Store(path / STORE, other)
        try:
            card, model_ref = model_of(path, store)
            if (store.fingerprint, store.dim) != (card.fingerprint, card.dim):
                raise GalleryError(f"{path / MODEL} is not the card of the model that embedded this gallery.")
            return cls(path, store, card, model_ref, device)
        except BaseException:
            store.close()
            raise

    def close(self) -> None:
        """Let go of the store; compact before if what was written here makes it worth while.

        Not so with `compact_in_background`: a service ends at once, and what it leaves to do is done when it is back.
        """
        if self._wrote:
            self._live.finish()
        self._live.close()
        self._store.close()

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
                f"{self.path} was embedded by {self.card.name} ({self.card.fingerprint[:12]}), not by {card.name} "
                f"({card.fingerprint[:12]}): their vectors cannot be compared. Load {self.model_ref!r} as it was, "
                f"index into a new gallery, or give this one the other model: zoo gallery rebuild {self.path} "
                f"--model {ref}"
            )

    def check_current(self) -> None:
        """Raise `ModelChangedError` where the gallery was given another model since it was opened: cheap."""
        self._store.position()

    @property
    def was_rebuilt(self) -> bool:
        """Whether a rebuild was ever begun: embeddings that others have kept may be of another model since."""
        return self._store.model is not None

    def closer(self) -> Callable[[], None]:
        """What lets go of store and index, without holding on to the gallery."""
        live, store = self._live, self._store

        def close() -> None:
            live.close()
            store.close()

        return close

    def other_model(self) -> tuple[Card, str] | None:
        """The card of the model that the gallery holds other embeddings of, and what they are: "rebuilt", all or a part
        of what a rebuild makes, or "replaced", of the model before. None where there are none.
        """
        slot = self._store.shadow.slot()
        return (parsed_model(slot.model, self.path)[0], slot.role) if slot else None

    def coming(self) -> tuple[Card, str] | None:
        """The model that a rebuild is about to give the gallery, and how it is loaded; None where none is."""
        slot = self._store.shadow.slot()
        return parsed_model(slot.model, self.path) if slot and slot.coming else None

    def add(self, items: Sequence[NewItem]) -> Added:
        """Add all of `items`, or none. Once this returns they are on disk and the next search finds them.

        Raises `ItemConflictError` for a key that is another image's, or an image that is there under another key.
        """
        self._wrote = True
        return self._store.add(items)

    def remove(self, ids: Sequence[int]) -> int:
        """Remove items by id and return how many there were; ids that do not exist are passed over."""
        self._wrote = True
        return self._store.remove(ids)

    def move(self, places: Sequence[Place]) -> None:
        """Give items another source and label, or metadata too; all of them, or none."""
        self._store.move(places)

    def describe(
        self, item_id: int, label: str | Kept | None = AS_IT_IS, metadata: Mapping[str, Any] | Kept = AS_IT_IS
    ) -> int:
        """Give an item another label, other metadata, or both; the number of this change. Raises `ItemNotFoundError`.

        What is not given stays as it is, whatever others write meanwhile.
        """
        return self._store.describe(item_id, label, metadata)

    def search(
        self,
        vectors: np.ndarray,
        k: int,
        exclude_ids: Sequence[int] = (),
        exact: bool = False,
        chosen: Filter = EVERYTHING,
    ) -> list[list[Hit]]:
        """The `k` nearest items to each unit row of `vectors`, float32 [q, dim], best first.

        Similarities are exact; so is the choice of items, unless the gallery was tuned for an approximate index and
        `exact` is not set. Equal similarities come in the order of the ids. Fewer than `k` where the gallery has fewer.
        """
        excluded = set(exclude_ids) if k > 0 else set()
        similarities, ids = self.neighbours(vectors, k + len(excluded), exact, chosen)
        items = self._store.items_by_id(sorted(set(ids.ravel().tolist()) - excluded))
        return [hits_of(*row, items)[:k] for row in zip(similarities, ids, strict=True)]

    def neighbours(
        self, vectors: np.ndarray, k: int, exact: bool = False, chosen: Filter = EVERYTHING
    ) -> tuple[np.ndarray, np.ndarray]:
        """What `search` finds, as arrays: similarities float32 [q, k] and ids int64 [q, k], best first.

        Of what `chosen` lets through; places that nothing took are -inf and -1.
        """
        if k < 1:
            raise UsageError(f"k must be at least 1, not {k}.")
        if vectors.ndim != 2 or vectors.shape[1] != self.card.dim or not np.isfinite(vectors).all():
            raise UsageError(f"a query is finite float32 [q, {self.card.dim}], not {list(vectors.shape)}.")
        return self._live.current().search(vectors, k, exact, self._store.matching.ids(chosen) if chosen else None)

    def recall(self, k: int = 10) -> float | None:
        """The part of the `k` nearest others of sampled items that a search finds now; None below two items."""
        index = self._live.current()
        sample = sample_in(index, k)
        return recall_of(index, sample) if sample else None

    def labels(self) -> dict[int, str | None]:
        """The label of every item by its id, in the order of the ids."""
        return self._store.labels()

    def ids_by_content(self) -> dict[str, int]:
        """The id of every item by the SHA-256 (hex) of its file."""
        return self._store.ids_by_content()

    def item(self, item_id: int) -> Item:
        """Raises `ItemNotFoundError`."""
        return self._store.item(item_id)

    def items(
        self, offset: int = 0, limit: int = 50, label: str | None = None, chosen: Filter = EVERYTHING
    ) -> list[Item]:
        """Items in the order of their ids, of those that `chosen` lets through; with `label`, of that label alone."""
        return self._store.items(offset, limit, label, chosen)

    def sample(self, n: int, seed: int | None = None) -> list[Item]:
        """`n` different items from all over the gallery, in random order; all of them where there are fewer."""
        return self._store.sample(n, seed)

    def thumbnail(self, item_id: int) -> Thumbnail:
        """Raises `ItemNotFoundError`."""
        return self._store.thumbnail(item_id)

    def embedding(self, item_id: int) -> np.ndarray:
        """The item's unit embedding, float32 [dim]. Raises `ItemNotFoundError`."""
        return self._store.embedding(item_id)

    def embeddings(self, ids: Sequence[int]) -> tuple[list[int], np.ndarray]:
        """Those of the ids that there still are, in their order, and their unit embeddings, float32 [n, dim]."""
        return self._store.embeddings(ids)

    def from_thumbnails(self, ids: Sequence[int]) -> set[int]:
        """Those of the ids whose embedding is of the item's thumbnail, as its image was not at hand."""
        return self._store.from_thumbnails(ids)

    def item_of_content(self, content_sha256: str) -> Item | None:
        """The item of the image file with this SHA-256 (hex), if the gallery has it."""
        return self._store.item_of_content(content_sha256)

    def sources_by_content(self) -> dict[str, str]:
        """The source of every item, by the SHA-256 (hex) of its file, in the order of the ids."""
        return self._store.sources_by_content()

    @property
    def overview(self) -> Overview:
        """Counts over all items."""
        return self._store.overview

    @property
    def marks(self) -> Marks:
        """What users have said of results."""
        return self._store.marks

    def state(self, key: str) -> str | None:
        """What `set_state` kept of the gallery under this key, whichever model it has."""
        return self._store.state(key)

    def set_state(self, key: str, value: str) -> None:
        self._store.set_state(key, value)

    def fact(self, key: str) -> str | None:
        """What `set_fact` kept under this key, which was found out with the gallery's model and goes with it."""
        return self._store.fact(key)

    def set_fact(self, key: str, value: str) -> None:
        self._store.set_fact(key, value)

    def count(self, label: str | None = None, chosen: Filter = EVERYTHING) -> int:
        return self._store.count(label, chosen)

    def change(self) -> int:
        """The number of the last change: cheap, where `stats` counts items and labels."""
        return self._store.change()

    def stats(self) -> Stats:
        return self._store.stats()

    def index(self) -> Index | MilvusIndex:
        """What is searched, as it is after the last change; it is kept up as long as the gallery is open."""
        return self._live.current()

    def index_stats(self) -> IndexStats:
        return self._live.stats()

    def compact(self) -> Facts | None:
        """Write the next generation of the index now; None for an empty gallery.

        Searches and writes go on meanwhile, here and in other processes. Raises `GalleryError` where it cannot be
        written; the gallery is then as it was.
        """
        return self._live.compact()

    def is_due(self) -> bool:
        """Whether a compaction is worth its time now."""
        return self._live.is_due()

    def compact_in_background(self) -> None:
        """From now on a search that finds a compaction due has it done in a thread, by one process of all."""
        self._live.compact_in_background()

    def tune(
        self, recall: float, k: int = 10, kinds: Sequence[str] = tuple(KINDS)
    ) -> tuple[Facts | None, list[tuple[str, Measured | None]]]:
        """Search from now on with a fast kind of index that finds `recall` of the `k` nearest, exactly on a near tie.

        Measured on the gallery's own vectors, each of which searches all others. Returns what was chosen, None for an
        empty gallery, and what was measured of every kind, None for one that was out of the question.
        """
        if not 0 < recall <= 1 or k < 1:
            raise UsageError(f"recall is a fraction up to 1 and k at least 1, not {recall} and {k}.")
        return self._live.tune(recall, k, [kind for kind in kinds if kind_of(kind)])


def is_gallery(path: Path) -> bool:
    return (path / STORE).is_file()


def model_at(path: Path) -> tuple[Card, str]:
    """The card of the model that a gallery has now, and how it is loaded; its index is not opened."""
    with Store(path / STORE).closing() as store:
        return model_of(path, store)


def check_there(path: Path) -> None:
    """Raise `GalleryNotFoundError` for a folder that is no gallery."""
    if not is_gallery(path):
        what = "holds no gallery" if path.exists() else "is not there"
        raise GalleryNotFoundError(f"{path} {what}. Make a gallery with: zoo index MODEL DIR --out {path}")


def untuned(gallery: Gallery) -> str | None:
    """A sentence of a gallery that is searched exactly only because nobody has chosen otherwise; None of others."""
    items = gallery.count()
    if items <= LARGE or gallery.state("plan") is not None or backend_of(gallery.path) != "faiss":
        return None
    return (
        f"never tuned: each search looks at all {items:,} items. A faster index that finds 99 % of the nearest: "
        f"zoo gallery tune {gallery.path}"
    )


def notes(gallery: Gallery, chosen: Filter, found: bool) -> list[str]:
    """Of each label that no item has a sentence, with the nearest that there are; where nothing was found, also of each
    key that the metadata of the first items have not. Of the first few of both."""
    absent = list(islice((label for label in chosen.labels if not gallery.items(0, 1, label)), NOTED))
    known = [label for label, _ in gallery.overview.labels(COMPARED)[1]] if absent else []
    said = [f"No item has the label {_named(label, known)}" for label in absent]
    if found or not chosen.where:
        return said
    keys = gallery.overview.keys(COMPARED)
    whose = "No item has" if gallery.count() <= COMPARED else f"None of the first {COMPARED:,} items has"
    missing = islice((key for key in chosen.where if key not in keys), NOTED)
    return [*said, *(f"{whose} metadata called {_named(key, keys)}" for key in missing)]


def _named(name: str, known: Iterable[str]) -> str:
    short = name[:LONGEST]
    return f"{short!r}.{nearest(short, known)}"

"""Collections of the service, and the dependencies of its routes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, TypeVar
from urllib.parse import unquote_to_bytes

from anyio import to_thread
from fastapi import Depends, Path, Request
from fastapi.routing import APIRoute
from pydantic.fields import FieldInfo

from serving.duplicates.lookup import CopyFinder
from serving.errors import RefusedError, invalid
from serving.forms import check_parameters, query_values
from serving.gallery import VectorGallery
from serving.gallery.map import Atlas
from serving.gallery.search import Models, Searcher
from serving.keys import Keys, unauthorised
from serving.limits import CpuQueue
from serving.metrics import stage
from serving.model_swap import CurrentSearcher
from serving.schemas import CollectionInfo, ItemId, ItemKey
from serving.settings import COLLECTION_NAME, COLLECTIONS, GALLERY, GalleryAddress, Settings
from zoo.errors import UsageError

COLLECTIONS_PATH = "/collections"
NAMED = 10
"""Largest number of collections that a refusal names."""

T = TypeVar("T")


class Collection:
    """A served gallery with its name ("" at the root), its keys, its map and its hashes. Safe to use from threads."""

    def __init__(self, name: str, current: CurrentSearcher, keys: Keys | None = None) -> None:
        self.name, self.current, self.keys = name, current, keys or Keys()
        self.atlas, self.copies = Atlas(), CopyFinder()

    @property
    def path(self) -> str:
        """The prefix of its routes."""
        return f"{COLLECTIONS_PATH}/{self.name}" if self.name else ""

    @property
    def gallery(self) -> VectorGallery:
        """The gallery with the model that was loaded last; it may have another one by now."""
        return self.current.searcher.gallery

    async def call(self, work: Callable[[Searcher], T]) -> T:
        """Run `work` in a thread, again if the gallery was given another model meanwhile."""
        return await to_thread.run_sync(self.current.run, work)

    def is_ready(self) -> bool:
        """Return whether the model embeds its golden image as it should and the gallery is searched."""
        try:
            return self.current.run(Searcher.is_ready)
        except RefusedError:
            return False

    def thumbnail_path(self, item_id: int) -> str:
        """Return the path of an item's thumbnail at the service."""
        return f"{self.path}/items/{item_id}/thumbnail"

    def info(self) -> CollectionInfo:
        """Return a row of GET /collections. It may load the model."""
        searcher = self.current.latest()
        card = searcher.embedder.card
        items = searcher.gallery.store.count()
        return CollectionInfo(name=self.name or None, path=f"{self.path}/", items=items, model=card.name, dim=card.dim)


class Collections:
    """One collection at the root, or several with names."""

    def __init__(self, collections: Sequence[Collection]) -> None:
        self.all = tuple(collections)
        self._by_name = {collection.name: collection for collection in collections}

    @classmethod
    def load(cls, settings: Settings) -> Collections:
        """Return the collections that the settings name; their galleries are opened at first use.

        Without a gallery in the settings, the one collection raises `UsageError` when it is opened.
        """
        models = Models(precision=settings.precision or "fp32", device=settings.device or None, or_fp32=True)

        def open_gallery(address: GalleryAddress, model: str | None = None) -> Searcher:
            return Searcher.open(address.gallery, model, settings.limits, models, stage)

        def collection(address: GalleryAddress) -> Collection:
            # The gallery itself knows how to load a model that it is given later.
            first, later = partial(open_gallery, address, address.model), partial(open_gallery, address)
            return Collection(address.name, CurrentSearcher(first, later, models), Keys.load(settings, address.name))

        if not settings.addresses:
            return cls([Collection("", CurrentSearcher(_no_gallery), Keys.load(settings))])
        return cls([collection(address) for address in settings.addresses])

    @property
    def root(self) -> Collection | None:
        """The collection at the root; None if all have names."""
        return self._by_name.get("")

    @property
    def are_guarded(self) -> bool:
        """True if every collection needs a key for reading."""
        return all(collection.keys.read for collection in self.all)

    def find(self, path: str, key: Callable[[], str | None]) -> Collection | None:
        """Return the collection that a path is about; None for the service's own paths.

        A key that may not read a collection does not learn that it exists: it gets the same answer at a name that there
        is not.

        Args:
            path: The path of the request.
            key: Function that returns the request's key.

        Raises:
            RefusedError: 401 for a collection that the key may not read; 404 for an unknown name, if the key may read
                every collection.
        """
        name = _name_in(path)
        if name is None or (self.root and not name):
            return self.root
        found = self._by_name.get(name) if not self.root else None
        if found is not None and (not found.keys.read or found.keys.may_read(key())):
            return found
        if found is not None or (self._has_secrets(name) and len(self.readable(key())) < len(self.all)):
            raise unauthorised(key(), "read", f"the collection {name[:80]!r}")
        raise self._no_such(name, key())

    def find_open(self, path: str) -> tuple[Collection | None, str]:
        """Return the collection of a path that needs no key, if it has no read keys, and the prefix of its routes.

        Raises:
            RefusedError: 404 for an unknown name, if no collection has read keys.
        """
        name = _name_in(path)
        if name is None or (self.root and not name):
            return self.root, ""
        found = self._by_name.get(name) if not self.root else None
        if found is None and not self._has_secrets(name):
            raise self._no_such(name)
        return found if found is not None and not found.keys.read else None, f"{COLLECTIONS_PATH}/{name}"

    def _has_secrets(self, name: str) -> bool:
        """Return whether a collection of such a name may be a secret."""
        has_keys = not self.root and any(collection.keys.read for collection in self.all)
        return has_keys and re.fullmatch(COLLECTION_NAME, name) is not None

    def _no_such(self, name: str, key: str | None = None) -> RefusedError:
        if self.root:
            choice = ": the service has one gallery, without a name, at /search, /items and so on."
        else:
            names = [collection.name for collection in self.readable(key)]
            more = ", ..." if len(names) > NAMED else ""
            listed = f" Collections: {', '.join(names[:NAMED])}{more}." if names else ""
            choice = f"; GET {COLLECTIONS_PATH} lists those that your key may read.{listed}"
        return RefusedError(404, "no_such_collection", f"There is no collection {name[:80]!r} here{choice}")

    def readable(self, key: str | None) -> list[Collection]:
        """Return the collections that the key may read."""
        return [collection for collection in self.all if collection.keys.may_read(key)]

    def knows(self, key: str) -> bool:
        """Return whether any collection has this key; the time that it takes does not depend on which."""
        return sum(collection.keys.has(key) for collection in self.all) > 0

    def open(self) -> None:
        """Open all galleries, load their models and watch for new ones. Raises the error of the first that fails."""
        for collection in self.all:
            collection.current.start()

    def is_ready(self) -> bool:
        """Return whether every collection embeds and finds its golden image."""
        return all(collection.is_ready() for collection in self.all)

    def close(self) -> None:
        """Close all galleries."""
        for collection in self.all:
            collection.current.close()

    def __str__(self) -> str:
        return "; ".join(_summary(collection) for collection in self.all)


def _name_in(path: str) -> str | None:
    """Return the name in a path /collections/NAME/...; None in other paths."""
    if not path.startswith(f"{COLLECTIONS_PATH}/"):
        return None
    return path.removeprefix(f"{COLLECTIONS_PATH}/").partition("/")[0]


def _summary(collection: Collection) -> str:
    count, model = collection.gallery.store.count(), collection.current.searcher.embedder
    variant = "" if model.precision == "fp32" else f" in {model.precision}"
    images = f"{count:,} {'image' if count == 1 else 'images'}, embedded by {model.card.name}{variant}"
    return f"{collection.name}: {images}" if collection.name else images


def _no_gallery() -> Searcher:
    raise UsageError(
        f"{GALLERY} must name the gallery folder to serve, or {COLLECTIONS} several.", code="missing-value"
    )


# Dependencies of routes. They are async because FastAPI runs other functions in threads.


async def _collection(request: Request) -> Collection:
    return request.state.collection


async def _collections(request: Request) -> Collections:
    return request.app.state.collections


async def _settings(request: Request) -> Settings:
    return request.app.state.settings


async def _cpu_queue(request: Request) -> CpuQueue:
    return request.app.state.cpu_queue


async def _parameters(request: Request) -> None:
    """Refuse an unknown query parameter, and one that is given twice, of which FastAPI would take the last."""
    route = request.scope["route"]
    # The readers of forms check the parameters of routes that declare none.
    if request.query_params and (route.dependant.query_params or not route.openapi_extra):
        check_parameters(query_values(request), _query_fields(route))


def _query_fields(route: APIRoute) -> dict[str, FieldInfo]:
    """Return the query parameters of a route; they are the fields of a model."""
    models: list[Any] = [parameter.field_info.annotation for parameter in route.dependant.query_params]
    return {name: field for model in models for name, field in model.model_fields.items()}


async def _item_key(request: Request, key: Annotated[ItemKey, Path()]) -> str:
    """Return the key in the path.

    A path that is not UTF-8 is refused, because servers replace its bytes; so is a last line feed, which routes ignore.
    """
    try:
        unquote_to_bytes(request.scope.get("raw_path") or b"").decode()
    except UnicodeDecodeError:
        raise invalid("key", "percent-encoded UTF-8") from None
    if not request.scope["path"].endswith(key):
        raise invalid("key", "a text without control characters")
    return key


CollectionDep = Annotated[Collection, Depends(_collection)]
CollectionsDep = Annotated[Collections, Depends(_collections)]
SettingsDep = Annotated[Settings, Depends(_settings)]
CpuQueueDep = Annotated[CpuQueue, Depends(_cpu_queue)]
ItemIdDep = Annotated[ItemId, Path(alias="id")]
ItemKeyDep = Annotated[str, Depends(_item_key)]
KNOWN_PARAMETERS = Depends(_parameters)

"""Endpoints of the service: collections, or a model without a gallery; and the dependencies of its routes."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import unquote_to_bytes

from anyio import to_thread
from fastapi import Depends, Path, Request
from fastapi.routing import APIRoute
from pydantic.fields import FieldInfo

from serving.errors import RefusedError, invalid
from serving.forms import check_parameters, query_values
from serving.gallery import VectorGallery
from serving.gallery.encoder import Encoder
from serving.gallery.map import Atlas
from serving.gallery.search import Models, Searcher
from serving.keys import Keys, unauthorised
from serving.limits import CpuQueue
from serving.metrics import stage
from serving.model_swap import CurrentSearcher
from serving.schemas import CollectionInfo, ItemId, ItemKey
from serving.settings import COLLECTION_NAME, COLLECTIONS, GALLERY, GalleryAddress, Settings
from zoo.errors import UsageError
from zoo.models.load import Embedder

if TYPE_CHECKING:
    from serving.duplicates.lookup import CopyFinder

COLLECTIONS_PATH = "/collections"
NAMED = 10
"""Largest number of collections that a refusal names."""

T = TypeVar("T")


class Endpoint(ABC):
    """Model that answers below a path, with its name ("" at the root) and its keys. Safe to use from threads."""

    def __init__(self, name: str, keys: Keys | None = None) -> None:
        self.name, self.keys = name, keys or Keys()

    @property
    def path(self) -> str:
        """The prefix of its routes."""
        return f"{COLLECTIONS_PATH}/{self.name}" if self.name else ""

    @abstractmethod
    def encoder(self) -> Encoder:
        """Return the model that it has now; this may load it."""

    @abstractmethod
    def start(self) -> None:
        """Load what is needed to answer. Raises the error of what cannot be loaded."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Return whether the model embeds its golden image as it should and can be used."""

    @abstractmethod
    def close(self) -> None:
        """Close what is open."""


class BareModel(Endpoint):
    """A served model without a gallery."""

    def __init__(self, open_encoder: Callable[[], Encoder], keys: Keys | None = None) -> None:
        super().__init__("", keys)
        self._open = cache(open_encoder)

    def encoder(self) -> Encoder:
        return self._open()

    def start(self) -> None:
        self.encoder().check_texts()

    def is_ready(self) -> bool:
        return self.encoder().is_ready()

    def close(self) -> None:
        pass

    def __str__(self) -> str:
        return f"embeds by {_model_summary(self.encoder().embedder)}"


class Collection(Endpoint):
    """A served gallery with its model, its map and its hashes."""

    def __init__(self, name: str, current: CurrentSearcher, keys: Keys | None = None) -> None:
        super().__init__(name, keys)
        self.current, self.atlas = current, Atlas()

    @property
    def gallery(self) -> VectorGallery:
        """The gallery with the model that was loaded last; it may have another one by now."""
        return self.current.searcher.gallery

    @cached_property
    def copies(self) -> CopyFinder:
        """The finder of copies, which is imported at its first use: many services find none, and it takes memory."""
        from serving.duplicates.lookup import CopyFinder

        return CopyFinder()

    async def call(self, work: Callable[[Searcher], T]) -> T:
        """Run `work` in a thread, again if the gallery was given another model meanwhile."""
        return await to_thread.run_sync(self.current.run, work)

    def encoder(self) -> Encoder:
        return self.current.latest()

    def start(self) -> None:
        self.current.start()

    def is_ready(self) -> bool:
        try:
            return self.current.run(Searcher.is_ready)
        except RefusedError:
            return False

    def close(self) -> None:
        self.current.close()

    def thumbnail_path(self, item_id: int) -> str:
        """Return the path of an item's thumbnail at the service."""
        return f"{self.path}/items/{item_id}/thumbnail"

    def info(self) -> CollectionInfo:
        """Return a row of GET /collections. It may load the model."""
        searcher = self.current.latest()
        card = searcher.embedder.card
        items = searcher.gallery.store.count()
        return CollectionInfo(name=self.name or None, path=f"{self.path}/", items=items, model=card.name, dim=card.dim)

    def __str__(self) -> str:
        count = self.gallery.store.count()
        images = f"{count:,} {'image' if count == 1 else 'images'}, "
        text = f"{images}embedded by {_model_summary(self.current.searcher.embedder)}"
        return f"{self.name}: {text}" if self.name else text


class Collections:
    """One endpoint at the root, or several collections with names."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self.all = tuple(endpoints)
        self._by_name = {endpoint.name: endpoint for endpoint in endpoints}

    @classmethod
    def load(cls, settings: Settings) -> Collections:
        """Return what the settings name; galleries and models are opened at first use.

        Without a gallery or a model in the settings, the one collection raises `UsageError` when it is opened.
        """
        models = Models(precision=settings.precision or "fp32", device=settings.device or None, or_fp32=True)

        def open_gallery(address: GalleryAddress, model: str | None = None) -> Searcher:
            return Searcher.open(address.gallery, model, settings.limits, models, stage)

        def collection(address: GalleryAddress) -> Collection:
            # The gallery itself knows how to load a model that it is given later.
            first, later = partial(open_gallery, address, address.model), partial(open_gallery, address)
            return Collection(address.name, CurrentSearcher(first, later, models), Keys.load(settings, address.name))

        if settings.embed:
            return cls(
                [BareModel(lambda: Encoder(models.open(settings.embed), settings.limits, stage), Keys.load(settings))]
            )
        if not settings.addresses:
            return cls([Collection("", CurrentSearcher(_no_gallery), Keys.load(settings))])
        return cls([collection(address) for address in settings.addresses])

    @property
    def have_galleries(self) -> bool:
        """False if a model is served without a gallery."""
        return all(isinstance(endpoint, Collection) for endpoint in self.all)

    @property
    def galleries(self) -> list[Collection]:
        """The endpoints that have a gallery."""
        return [endpoint for endpoint in self.all if isinstance(endpoint, Collection)]

    @property
    def root(self) -> Endpoint | None:
        """The endpoint at the root; None if all have names."""
        return self._by_name.get("")

    @property
    def are_guarded(self) -> bool:
        """True if every collection needs a key for reading."""
        return all(collection.keys.read for collection in self.all)

    def find(self, path: str, key: Callable[[], str | None]) -> Endpoint | None:
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

    def find_open(self, path: str) -> tuple[Endpoint | None, str]:
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

    def readable(self, key: str | None) -> list[Endpoint]:
        """Return the collections that the key may read."""
        return [collection for collection in self.all if collection.keys.may_read(key)]

    def knows(self, key: str) -> bool:
        """Return whether any collection has this key; the time that it takes does not depend on which."""
        return sum(collection.keys.has(key) for collection in self.all) > 0

    def open(self) -> None:
        """Open all galleries, load the models and watch for new ones. Raises the error of the first that fails."""
        for endpoint in self.all:
            endpoint.start()

    def is_ready(self) -> bool:
        """Return whether every collection embeds and finds its golden image."""
        return all(collection.is_ready() for collection in self.all)

    def close(self) -> None:
        """Close all galleries."""
        for endpoint in self.all:
            endpoint.close()

    def __str__(self) -> str:
        return "; ".join(map(str, self.all))


def _name_in(path: str) -> str | None:
    """Return the name in a path /collections/NAME/...; None in other paths."""
    if not path.startswith(f"{COLLECTIONS_PATH}/"):
        return None
    return path.removeprefix(f"{COLLECTIONS_PATH}/").partition("/")[0]


def _model_summary(model: Embedder) -> str:
    return model.card.name if model.precision == "fp32" else f"{model.card.name} in {model.precision}"


def _no_gallery() -> Searcher:
    raise UsageError(
        f"{GALLERY} must name the gallery folder to serve, or {COLLECTIONS} several.", code="missing-value"
    )


# Dependencies of routes. They are async because FastAPI runs other functions in threads.


async def _endpoint(request: Request) -> Any:
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


EndpointDep = Annotated[Endpoint, Depends(_endpoint)]
CollectionDep = Annotated[Collection, Depends(_endpoint)]
CollectionsDep = Annotated[Collections, Depends(_collections)]
SettingsDep = Annotated[Settings, Depends(_settings)]
CpuQueueDep = Annotated[CpuQueue, Depends(_cpu_queue)]
ItemIdDep = Annotated[ItemId, Path(alias="id")]
ItemKeyDep = Annotated[str, Depends(_item_key)]
KNOWN_PARAMETERS = Depends(_parameters)

"""Collections of the service, and what a route takes from its request: collection, settings, parameters, images."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Annotated, Any, TypeVar, get_origin
from urllib.parse import parse_qsl

from anyio import to_thread
from fastapi import Depends, Path, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.datastructures import FormData, UploadFile

from serving.auth import Keys
from serving.errors import RefusedError, invalid, too_large
from serving.gallery import Gallery
from serving.gallery.map import Atlas
from serving.gallery.search import Models, Searcher
from serving.limits import CpuQueue
from serving.metrics import stage
from serving.model_swap import CurrentSearcher
from serving.schemas import CollectionInfo, ItemId
from serving.settings import COLLECTIONS, GALLERY, GalleryAddress, Settings
from zoo.errors import UsageError

COLLECTIONS_PATH = "/collections"
JSON, FORM, MULTIPART = "application/json", "application/x-www-form-urlencoded", "multipart/form-data"
RAW_TYPES = ("application/octet-stream", "image/")
MAX_FIELDS = 32
MAX_QUERY_BYTES = 2**20
"""Largest size of a body that holds parameters and no image."""
NAMED = 10
"""Largest number of collections that a refusal names."""

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


class Collection:
    """A served gallery with its name ("" at the root), its keys and its map. Safe to use from several threads."""

    def __init__(self, name: str, current: CurrentSearcher, keys: Keys | None = None) -> None:
        self.name, self.current, self.keys, self.atlas = name, current, keys or Keys(), Atlas()

    @property
    def path(self) -> str:
        """The prefix of its routes."""
        return f"{COLLECTIONS_PATH}/{self.name}" if self.name else ""

    @property
    def gallery(self) -> Gallery:
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

    def find(self, path: str, key: str | None = None) -> Collection | None:
        """Return the collection that a path is about; None for the service's own paths.

        Raises:
            RefusedError: 404 for an unknown name; the message names the collections that the key may read.
        """
        if not path.startswith(f"{COLLECTIONS_PATH}/"):
            return self.root
        name = path.removeprefix(f"{COLLECTIONS_PATH}/").partition("/")[0]
        if self.root and not name:
            return self.root
        if self.root or name not in self._by_name:
            message = f"There is no collection {name[:80]!r} here{self._choice(key)}"
            raise RefusedError(404, "no_such_collection", message)
        return self._by_name[name]

    def _choice(self, key: str | None) -> str:
        if self.root:
            return ": the service has one gallery, without a name, at /search, /items and so on."
        names = [collection.name for collection in self.readable(key)]
        more = ", ..." if len(names) > NAMED else ""
        listed = f" Collections: {', '.join(names[:NAMED])}{more}." if names else ""
        return f"; GET {COLLECTIONS_PATH} lists those that your key may read.{listed}"

    def readable(self, key: str | None) -> list[Collection]:
        """Return the collections that the key may read."""
        return [collection for collection in self.all if collection.keys.may_read(key)]

    def knows(self, key: str) -> bool:
        """Return whether any collection has this key; the time that it takes does not depend on which."""
        return sum(collection.keys.has(key) for collection in self.all) > 0

    def open(self) -> None:
        """Open all galleries, load their models and watch for new ones. Raises the error of the first that fails."""
        for collection in self.all:
            collection.gallery.index.compact_in_background()
            collection.current.searcher.check_texts()
            collection.current.watch()

    def is_ready(self) -> bool:
        """Return whether every collection embeds and finds its golden image."""
        return all(collection.is_ready() for collection in self.all)

    def close(self) -> None:
        """Close all galleries."""
        for collection in self.all:
            collection.current.close()

    def __str__(self) -> str:
        return "; ".join(_summary(collection) for collection in self.all)


def _summary(collection: Collection) -> str:
    count, model = collection.gallery.store.count(), collection.current.searcher.embedder
    variant = "" if model.precision == "fp32" else f" in {model.precision}"
    images = f"{count:,} {'image' if count == 1 else 'images'}, embedded by {model.card.name}{variant}"
    return f"{collection.name}: {images}" if collection.name else images


def _no_gallery() -> Searcher:
    raise UsageError(f"{GALLERY} must name the gallery folder to serve, or {COLLECTIONS} several.", code="no-gallery")


# Dependencies of routes. They are async because FastAPI runs other functions in threads.


async def _collection(request: Request) -> Collection:
    return request.state.collection


async def _collections(request: Request) -> Collections:
    return request.app.state.collections


async def _settings(request: Request) -> Settings:
    return request.app.state.settings


async def _cpu_queue(request: Request) -> CpuQueue:
    return request.app.state.cpu_queue


async def _single_values(request: Request) -> None:
    """Refuse a parameter that is given twice, of which FastAPI would take the last; labels may repeat."""
    for name in request.query_params:
        if name != "label" and len(request.query_params.getlist(name)) > 1:
            raise invalid(name, "given once")


CollectionDep = Annotated[Collection, Depends(_collection)]
CollectionsDep = Annotated[Collections, Depends(_collections)]
SettingsDep = Annotated[Settings, Depends(_settings)]
CpuQueueDep = Annotated[CpuQueue, Depends(_cpu_queue)]
ItemIdDep = Annotated[ItemId, Path(alias="id")]
SINGLE_VALUES = Depends(_single_values)


# Parameters and images of a request


@dataclass(frozen=True)
class UploadedImage:
    """Image file of a request: the client's name of it, "" in a raw body, and its bytes."""

    name: str
    data: bytes


Values = dict[str, list[Any]]
"""Every value of each parameter."""


async def read_images(request: Request, model: type[M]) -> tuple[M, tuple[UploadedImage, ...]]:
    """Return the parameters in the query string and in a multipart form, and the images of the form or the raw body.

    Raises:
        RefusedError: If the body is of another type, or the form has a file in another field.
        RequestValidationError: If a parameter is wrong.
    """
    values, media_type = _query_values(request), _media_type(request)
    if media_type == MULTIPART:
        settings: Settings = request.app.state.settings
        async with request.form(max_files=settings.max_images, max_fields=MAX_FIELDS) as form:
            images = await _form_images(form, values)
        return _validated(model, values), images
    body = await request.body()
    if body and media_type and not media_type.startswith(RAW_TYPES):
        raise RefusedError(
            415,
            "unsupported_media_type",
            f"The content type {media_type[:80]} is not accepted. Send the image as multipart/form-data in the field "
            "'image', or as the raw body with an image/... content type.",
        )
    return _validated(model, values), (UploadedImage("", body),) if body else ()


async def read_query(request: Request, model: type[M]) -> tuple[M, tuple[UploadedImage, ...]]:
    """Return parameters and images as `read_images` does, or the parameters of a JSON object or a urlencoded form."""
    media_type = _media_type(request)
    if media_type not in (JSON, FORM):
        return await read_images(request, model)
    body = await request.body()
    if len(body) > MAX_QUERY_BYTES:
        raise too_large(MAX_QUERY_BYTES)
    values = _query_values(request)
    for name, value in _json_values(body, model) if media_type == JSON else _form_values(body):
        values.setdefault(name, []).append(value)
    return _validated(model, values), ()


def checked_images(images: tuple[UploadedImage, ...]) -> tuple[UploadedImage, ...]:
    """Return the images. Raises `RefusedError` (400) if no image has any bytes."""
    if any(image.data for image in images):
        return images
    if images:
        raise RefusedError(400, "no_image", "The image is empty.")
    message = "The request holds no image. Send it in the field 'image' of a form, curl -F image=@FILE, or as the body."
    raise RefusedError(400, "no_image", message)


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _query_values(request: Request) -> Values:
    return {name: list(request.query_params.getlist(name)) for name in request.query_params}


@cache
def _lists(model: type[BaseModel]) -> set[str]:
    """Return the parameters that may have several values."""
    return {name for name, field in model.model_fields.items() if get_origin(field.annotation) is list}


def _validated(model: type[M], values: Values) -> M:
    lists = _lists(model)
    single = {name: value if name in lists or len(value) > 1 else value[0] for name, value in values.items()}
    try:
        return model.model_validate(single)
    except ValidationError as error:
        problems = [{**problem, "loc": ("query", *problem["loc"])} for problem in error.errors()]
        raise RequestValidationError(problems) from None


async def _form_images(form: FormData, values: Values) -> tuple[UploadedImage, ...]:
    """Return the files of the form, and add its fields to the values."""
    images = []
    for name, value in form.multi_items():
        if isinstance(value, UploadFile) and name == "image":
            images.append(UploadedImage(value.filename or "", await value.read()))
        elif isinstance(value, str) and name != "image":
            values.setdefault(name, []).append(value)
        elif name == "image":
            message = "The field 'image' holds a text and not a file: curl -F image=@FILE, with the @, sends the file."
            raise RefusedError(400, "no_image", message)
        else:
            names = ", ".join(sorted(set(form)))[:200]
            raise RefusedError(400, "no_image", f"The form has no file in the field 'image'; it has: {names}.")
    return tuple(images)


def _json_values(body: bytes, model: type[BaseModel]) -> Iterator[tuple[str, Any]]:
    """Yield the members of a JSON object, each member of the lists by itself; null is a parameter that is not given."""
    try:
        members = json.loads(body)
        # JSON may hold one half of a surrogate pair, which neither the gallery nor an answer can.
        json.dumps(members, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        members = None
    if not isinstance(members, dict):
        message = 'The body is not a JSON object, as {"text": "a red chair", "k": 5}.'
        raise RefusedError(400, "invalid_json", message)
    lists = _lists(model)
    for name, value in members.items():
        if name in lists and isinstance(value, list):
            yield from ((name, member) for member in value)
        elif value is not None:
            yield name, value


def _form_values(body: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict")
    except ValueError:
        message = (
            f"The body is not a form in UTF-8 of at most {MAX_FIELDS} fields. Send an image with curl -F image=@FILE, "
            "or with the header Content-Type: application/octet-stream."
        )
        raise RefusedError(400, "invalid_form", message) from None

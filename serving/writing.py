"""POST /items, PATCH and DELETE /items/{id}: what changes the gallery. All of it needs a write key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import numpy as np
from anyio import to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from serving.answers import item_json
from serving.asking import checked_images
from serving.collection import collection_of
from serving.gallery import UNCHANGED, Gallery, Item, NewItem
from serving.gallery.search import Searcher
from serving.gallery.types import MAX_DEPTH, decode_image, metadata_json, utc_now
from serving.metrics import stage
from serving.refusals import as_json
from serving.uploads import (
    MAX_TEXT,
    File,
    Upload,
    check_names,
    invalid,
    is_unicode,
    item_id,
    json_object,
    read_upload,
    text_of,
    truth,
)
from zoo.errors import ImageError, ItemNotFoundError

PARAMETERS = frozenset({"label", "source", "metadata", "update", "key"})
MAX_KEY = 200
MAX_METADATA = 16_000
DESCRIPTION_BYTES = 64 * 2**10


@dataclass(frozen=True)
class _Described:
    """What the request says of all its images; `update`: also of those that are there already; `key`: of the one."""

    label: str | None
    source: str | None
    metadata: Mapping[str, Any]
    update: bool
    key: str | None


async def add(request: Request) -> Response:
    """Add images. One that is there already, by its content, is answered with the item that it is.

    A key, of one image alone, is refused (409) where it is another image's, so that sending it again is safe.
    Where that has another label or other metadata the answer says so; with update=true it gets those of the request.
    """
    with stage("read"):
        upload = await read_upload(request, request.app.state.configuration.max_images)
    check_names(upload.values, PARAMETERS)
    described = _Described(
        text_of(upload.one("label"), "label"),
        text_of(upload.one("source"), "source"),
        _metadata(json_object(upload.one("metadata"), "metadata")),
        truth(upload.one("update"), "update"),
        _key(upload),
    )
    collection = collection_of(request)
    searcher = collection.searcher
    made: dict[int, NewItem] = {}
    refused = []
    files, cores = checked_images(upload), request.app.state.cores
    for number, file in enumerate(files):
        try:
            run = cores.run_aside if number else cores.run
            made[number] = await run(_new_item, searcher, file, described)
        except ImageError as error:
            refused.append({"number": number, "name": file.name[:MAX_TEXT], **as_json(error)})
            if len(upload.files) == 1:
                raise

    def store(present: Searcher) -> Response:
        if present is searcher:
            return _store(present.gallery, collection.path, made, refused, described)
        # The gallery was given another model since they were embedded.
        again = {number: _new_item(present, files[number], described) for number in made}
        return _store(present.gallery, collection.path, again, refused, described)

    return await to_thread.run_sync(collection.steadily, store)


async def describe(request: Request) -> Response:
    """Change an item's label or metadata; what the body does not name stays. gallery_change: this one's number."""
    wanted, collection = item_id(request.path_params["id"]), collection_of(request)
    gallery = collection.gallery
    values = _description(await request.body())

    def change() -> dict[str, Any]:
        number = gallery.store.describe(wanted, **values)
        return {**item_json(gallery.store.item(wanted), collection.path), "gallery_change": number}

    return JSONResponse(await to_thread.run_sync(change))


async def remove(request: Request) -> Response:
    wanted, gallery = item_id(request.path_params["id"]), collection_of(request).gallery
    if not await to_thread.run_sync(gallery.remove, [wanted]):
        raise ItemNotFoundError(f"the gallery has no item {wanted}.")
    return JSONResponse({"removed": wanted})


def _new_item(searcher: Searcher, file: File, described: _Described) -> NewItem:
    with stage("decode"):
        pixels, thumbnail = decode_image(file.data, searcher.embedder.preprocessing, searcher.limits)
    with stage("embed"):
        embedding = searcher.embedder.embed_pixels(pixels[None])[0]
    digest = hashlib.sha256(file.data).hexdigest()
    source = described.source or file.name[:MAX_TEXT] or digest[:16]
    return NewItem(
        source, embedding.astype(np.float32), thumbnail, digest, described.label, described.metadata, key=described.key
    )


def _store(
    gallery: Gallery,
    path: str,
    made: Mapping[int, NewItem],
    refused: list[dict[str, Any]],
    described: _Described,
) -> Response:
    with stage("write"):
        added = gallery.add(list(made.values()))
        known = [(number, _kept(gallery, one, made[number])) for number, one in zip(made, added.ids, strict=True)]
        differing = [pair for pair in known if pair[1].differs(described.label, described.metadata)]
        if described.update and differing:
            for _, item in differing:
                with suppress(ItemNotFoundError):  # somebody else has just removed it
                    gallery.store.describe(item.id, described.label or UNCHANGED, described.metadata or UNCHANGED)
            known = [(number, _kept(gallery, item.id, made[number])) for number, item in known]
    told = [_differing_json(*pair, described) for pair in differing]
    items = [item_json(item, path) for _, item in known]
    answer = {"new": added.new, "items": items, "refused": refused, "differing": told}
    if refused and not made:
        return JSONResponse({**_none_added(refused), **answer}, HTTPStatus.UNPROCESSABLE_ENTITY)
    return JSONResponse(answer, HTTPStatus.CREATED if added.new else HTTPStatus.OK)


def _kept(gallery: Gallery, item: int, given: NewItem) -> Item:
    """The item; as it was given, where somebody has removed it since."""
    try:
        return gallery.store.item(item)
    except ItemNotFoundError:
        known = given.source, given.label, dict(given.metadata), given.content_sha256
        return Item(item, *known, utc_now(), gallery.store.change(), given.key)


def _none_added(refused: list[dict[str, Any]]) -> dict[str, Any]:
    """An error like all others, for who looks at nothing else: the first image's, and how many there are."""
    first = refused[0]["error"]
    message = f"None of the {len(refused)} images was added. Of the first: {first['message']}"
    return {"error": {**first, "message": message}}


def _differing_json(number: int, item: Item, described: _Described) -> dict[str, Any]:
    has = f"label {item.label}" if item.label else "no label"
    if described.label in (None, item.label):
        has = "other metadata"
    then = "it is as given now" if described.update else "it stays as it is; send update=true to change it"
    message = f"Already there as item {item.id} with {has}; {then}."
    return {"number": number, "id": item.id, "label": item.label, "updated": described.update, "message": message}


def _description(body: bytes) -> dict[str, Any]:
    if len(body) > DESCRIPTION_BYTES:
        raise invalid("body", f"at most {DESCRIPTION_BYTES:,} bytes")
    try:
        values = json.loads(body)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict) or not values or not values.keys() <= {"label", "metadata"}:
        raise invalid("body", 'a JSON object with "label" (a text or null), "metadata" (an object), or both')
    if "label" in values:
        if not isinstance(values["label"], str | None):
            raise invalid("label", "a text or null")
        values["label"] = text_of(values["label"], "label")
    if "metadata" in values:
        if not isinstance(values["metadata"], dict):
            raise invalid("metadata", "a JSON object")
        values["metadata"] = _metadata(values["metadata"])
    return values


def _key(upload: Upload) -> str | None:
    key = text_of(upload.one("key"), "key", MAX_KEY)
    if key is not None and len(upload.files) > 1:
        raise invalid("key", "given for one image, and not for several")
    return key


def _metadata(values: dict[str, Any]) -> dict[str, Any]:
    try:
        text = metadata_json(values)
    except ValueError:
        expected = f"a JSON object without NaN, infinity, whole numbers beyond 64 bits and more than {MAX_DEPTH} levels"
        raise invalid("metadata", expected) from None
    if len(json.dumps(values)) > MAX_METADATA or not is_unicode(text):
        raise invalid("metadata", f"a JSON object of at most {MAX_METADATA:,} characters of valid Unicode")
    return values

"""POST /items, PATCH and DELETE /items/{id}: what changes the gallery. All of it needs a write key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import numpy as np
from anyio import to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from serving.answers import item_json
from serving.asking import checked_images
from serving.collection import Collection, collection_of
from serving.gallery import NewItem
from serving.gallery.decoding import decode
from serving.metrics import stage
from serving.refusals import as_json
from serving.searcher import Searcher
from serving.uploads import File, invalid, item_id, json_object, read_upload
from zoo.errors import ImageError, ItemNotFoundError

PARAMETERS = frozenset({"label", "source", "metadata"})
MAX_TEXT, MAX_METADATA = 1000, 16_000
DESCRIPTION_BYTES = 64 * 2**10


@dataclass(frozen=True)
class _Described:
    label: str | None
    source: str | None
    metadata: Mapping[str, Any]


async def add(request: Request) -> Response:
    """Add images. One that is there already, by its content, is answered with the item that it is."""
    with stage("read"):
        upload = await read_upload(request, request.app.state.configuration.max_images)
    upload.check_names(PARAMETERS)
    described = _Described(
        _text(upload.one("label"), "label"),
        _text(upload.one("source"), "source"),
        _metadata(json_object(upload.one("metadata"), "metadata")),
    )
    collection = collection_of(request)
    searcher = collection.searcher
    made, refused = [], []
    for number, file in enumerate(checked_images(upload)):
        try:
            made.append(await to_thread.run_sync(_new_item, searcher, file, described, limiter=request.app.state.cores))
        except ImageError as error:
            refused.append({"number": number, "name": file.name[:MAX_TEXT], **as_json(error)})
            if len(upload.files) == 1:
                raise
    return await to_thread.run_sync(_store, collection, made, refused)


async def describe(request: Request) -> Response:
    """Change an item's label or metadata; what the body does not name stays."""
    wanted, collection = item_id(request.path_params["id"]), collection_of(request)
    gallery = collection.gallery
    values = _description(await request.body())

    def change() -> dict[str, Any]:
        item = gallery.item(wanted)
        label, metadata = values.get("label", item.label), values.get("metadata", item.metadata)
        gallery.describe(wanted, label, metadata)
        return item_json(gallery.item(wanted), collection.path)

    return JSONResponse(await to_thread.run_sync(change))


async def remove(request: Request) -> Response:
    wanted, gallery = item_id(request.path_params["id"]), collection_of(request).gallery
    if not await to_thread.run_sync(gallery.remove, [wanted]):
        raise ItemNotFoundError(f"the gallery has no item {wanted}.")
    return JSONResponse({"removed": wanted})


def _new_item(searcher: Searcher, file: File, described: _Described) -> NewItem:
    with stage("decode"):
        pixels, thumbnail = decode(file.data, searcher.embedder.preprocessing, searcher.limits)
    with stage("embed"):
        embedding = searcher.embedder.embed_pixels(pixels[None])[0]
    digest = hashlib.sha256(file.data).hexdigest()
    source = described.source or file.name[:MAX_TEXT] or digest[:16]
    return NewItem(source, embedding.astype(np.float32), thumbnail, digest, described.label, described.metadata)


def _store(collection: Collection, made: list[NewItem], refused: list[dict[str, Any]]) -> Response:
    with stage("write"):
        added = collection.gallery.add(made)
        items = [item_json(collection.gallery.item(one), collection.path) for one in added.ids]
    status = HTTPStatus.CREATED if added.new else HTTPStatus.OK
    if refused and not made:
        status = HTTPStatus.UNPROCESSABLE_ENTITY
    return JSONResponse({"new": added.new, "items": items, "refused": refused}, status)


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
        values["label"] = _text(values["label"], "label")
    if "metadata" in values:
        if not isinstance(values["metadata"], dict):
            raise invalid("metadata", "a JSON object")
        values["metadata"] = _metadata(values["metadata"])
    return values


def _text(text: str | None, name: str) -> str | None:
    if text is not None and (len(text) > MAX_TEXT or not text.isprintable() or not _is_unicode(text)):
        raise invalid(name, f"a text of at most {MAX_TEXT} characters that can be printed")
    return text or None


def _metadata(values: dict[str, Any]) -> dict[str, Any]:
    try:
        text = json.dumps(values, allow_nan=False)
    except (ValueError, RecursionError):
        raise invalid("metadata", "a JSON object without NaN or infinity") from None
    if len(text) > MAX_METADATA or not _is_unicode(json.dumps(values, ensure_ascii=False)):
        raise invalid("metadata", f"a JSON object of at most {MAX_METADATA:,} characters of valid Unicode")
    return values


def _is_unicode(text: str) -> bool:
    """JSON may hold half of a surrogate pair, which no file can be written with."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

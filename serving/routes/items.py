"""Items of a collection, its labels and metadata."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.convertors import StringConvertor, register_url_convertor

from serving.dependencies import Collection, CollectionDep, CpuQueueDep, ItemIdDep, SettingsDep
from serving.errors import MAX_ANSWER, RefusedError, answer_too_large, error_json, invalid
from serving.forms import UploadedImage, checked_images, read_request
from serving.gallery import UNCHANGED, Item, NewItem, VectorGallery
from serving.gallery.gallery import filter_notes
from serving.gallery.search import Searcher
from serving.gallery.types import NO_PICTURE, decode_image, is_address, name_as_source, no_item, utc_now
from serving.metrics import stage
from serving.openapi import IMAGES, READING, WRITING, form_operation, refusals
from serving.schemas import (
    MAX_TEXT,
    AddedItem,
    AddedItems,
    ChangedItem,
    ChangeParameters,
    CountParameters,
    Differing,
    DuplicateItem,
    DuplicateItems,
    DuplicateParameters,
    ErrorBody,
    ErrorDetail,
    ItemChange,
    ItemDescription,
    ItemInfo,
    ItemPage,
    ItemParameters,
    LabelCount,
    LabelCounts,
    MetadataCount,
    MetadataCounts,
    NearDuplicate,
    NewItemParameters,
    NoneAdded,
    RefusedImage,
    Removed,
)
from zoo.errors import ImageError, ItemNotFoundError

A = TypeVar("A", bound=BaseModel)


class _ItemConvertor(StringConvertor):
    """Part of a path that may be an item's id: /items/bulk takes no other method than its own."""

    regex = "(?!bulk(?:/|$))[^/]+"


register_url_convertor("item", _ItemConvertor())
router = APIRouter(strict_content_type=False)
NAMED = 5
"""Copies that a warning names."""

PICTURE = {"schema": {"type": "string", "format": "binary"}}


class EmbeddedImage(NamedTuple):
    """Item of an image, and what was assumed about its file."""

    item: NewItem
    notes: tuple[str, ...] = ()


@router.get(
    "/items",
    summary="The gallery's items, page by page, or a random sample of them",
    response_model_exclude_unset=True,
    responses=READING,
)
async def items(
    request: Request, collection: CollectionDep, parameters: Annotated[ItemParameters, Query()]
) -> ItemPage:
    """Return items by id. notes names labels that no item has and, without items, unknown keys of where."""
    sample, offset, limit = parameters.sample, parameters.offset, parameters.limit
    if sample is not None and len(request.query_params) > 1:
        raise invalid("sample", "given alone: it is a sample of all items")
    chosen = parameters.selection

    def page(searcher: Searcher) -> ItemPage:
        gallery = searcher.gallery
        if sample is not None:
            rows = [item_info(item, collection) for item in gallery.store.sample(sample)]
            return ItemPage(total=gallery.store.count(), items=rows)
        rows = [item_info(item, collection) for item in gallery.store.items(offset, limit, chosen)]
        total = gallery.store.count(chosen)
        hints = filter_notes(gallery, chosen, total > 0) if chosen else []
        return ItemPage(total=total, offset=offset, limit=limit, items=rows, notes=hints)

    return await collection.call(page)


@router.get("/items/{id:item}", summary="One item", responses=READING | refusals(404))
async def item(collection: CollectionDep, item_id: ItemIdDep) -> ItemInfo:
    return await collection.call(lambda searcher: item_info(searcher.gallery.store.item(item_id), collection))


@router.get(
    "/items/{id:item}/thumbnail",
    summary="A small picture of the item",
    response_class=Response,
    responses=READING
    | refusals(404)
    | {
        200: {"description": "The picture", "content": {"image/png": PICTURE, "image/jpeg": PICTURE}},
        304: {"description": "The picture is the one of the given If-None-Match"},
    },
)
async def thumbnail(request: Request, collection: CollectionDep, item_id: ItemIdDep, settings: SettingsDep) -> Response:
    found = await collection.call(lambda searcher: searcher.gallery.store.item(item_id))
    # A browser asks each time, because another gallery may be served at this address later.
    headers = {
        "ETag": f'"{found.content_sha256}"',
        "Cache-Control": "private, no-cache",
        "Content-Security-Policy": "sandbox; default-src 'none'",
    }
    if settings.allowed_origins:  # `serving.auth` refuses the pictures of other pages
        headers["Cross-Origin-Resource-Policy"] = "cross-origin"
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    try:
        picture = await collection.call(lambda searcher: searcher.gallery.store.thumbnail(item_id))
    except ImageError:
        raise RefusedError(404, "no_thumbnail", f"The stored picture of item {item_id} is not a PNG or JPEG.") from None
    if picture == NO_PICTURE:
        raise RefusedError(404, "no_thumbnail", f"Of item {item_id} only the embedding is known.")
    return Response(picture.data, media_type=picture.media_type, headers=headers)


@router.get("/items/{id:item}/duplicates", summary="Copies of an item's picture", responses=READING | refusals(404))
async def duplicates(
    collection: CollectionDep,
    item_id: ItemIdDep,
    parameters: Annotated[DuplicateParameters, Query()],
    cpu_queue: CpuQueueDep,
) -> DuplicateItems:
    """Return the items that show the same picture: resized, recompressed, cropped, framed, with text, or mirrored.

    Both the embeddings and the perceptual hashes must be near.
    """

    def find(searcher: Searcher) -> DuplicateItems:
        from serving.duplicates.lookup import folder_store
        from serving.duplicates.pictures import PictureTable

        copies = collection.copies.items_of(searcher.gallery, item_id, parameters.mirrored)
        rows = [DuplicateItem(**vars(copy), thumbnail=collection.thumbnail_path(copy.id)) for copy in copies]
        without_hash = PictureTable(folder_store(searcher.gallery)).unknown()
        return DuplicateItems(id=item_id, duplicates=rows, without_hash=without_hash)

    return await cpu_queue.run(collection.current.run, find)


@router.get("/labels", summary="The labels and how many items have each, the most frequent first", responses=READING)
async def labels(collection: CollectionDep, parameters: Annotated[CountParameters, Query()]) -> LabelCounts:
    def read(searcher: Searcher) -> LabelCounts:
        total, rows = searcher.gallery.store.overview.labels(parameters.limit)
        labels = [LabelCount(label=label, items=count) for label, count in rows]
        return _bounded(LabelCounts(total=total, labels=labels))

    return await collection.call(read)


@router.get("/metadata", summary="Metadata of the items by key and value, the most frequent first", responses=READING)
async def metadata(collection: CollectionDep, parameters: Annotated[CountParameters, Query()]) -> MetadataCounts:
    def read(searcher: Searcher) -> MetadataCounts:
        total, rows = searcher.gallery.store.overview.metadata(parameters.limit)
        values = [MetadataCount(key=key, value=value, items=count) for key, value, count in rows]
        return _bounded(MetadataCounts(total=total, values=values))

    return await collection.call(read)


def _bounded(answer: A) -> A:
    """Return an answer that is not too large, or raise `RefusedError`."""
    if len(answer.model_dump_json()) > MAX_ANSWER:
        raise answer_too_large("fewer rows")
    return answer


@router.post(
    "/items",
    summary="Add images",
    status_code=201,
    response_model=AddedItems,
    openapi_extra=form_operation(NewItemParameters),
    responses=IMAGES
    | WRITING
    | refusals(409)
    | {
        200: {"model": AddedItems, "description": "All images were already there"},
        422: {"model": NoneAdded | ErrorBody, "description": "Refused: invalid, or no image can be read"},
    },
)
async def add(request: Request, collection: CollectionDep, cpu_queue: CpuQueueDep) -> Any:
    """Add images with one description; needs a write key.

    An image whose content is already there is answered with its item. If that item has another label or other metadata,
    differing names it, and with update it gets those of the request. refused names images that cannot be read, and the
    others are added. With a key, an image can be sent again and is added once; for another image that key is refused
    (409). Several keys may have one image: each is an item.
    """
    with stage("read"):
        described, files = await read_request(request, NewItemParameters)
    images = checked_images(files)
    if described.key is not None and len(images) > 1:
        raise invalid("key", "given for one image, and not for several")
    embedded_by = collection.current.searcher
    added: dict[int, EmbeddedImage] = {}
    refused: list[RefusedImage] = []
    for number, image in enumerate(images):
        run = cpu_queue.run_aside if number else cpu_queue.run
        try:
            added[number] = await run(embedded_image, embedded_by, image, described, described.key)
        except ImageError as error:
            if len(images) == 1:
                raise
            detail = ErrorDetail(**error_json(error)["error"])
            refused.append(RefusedImage(number=number, name=image.name[:MAX_TEXT], error=detail))

    def store(searcher: Searcher) -> AddedItems:
        same_model = searcher is embedded_by
        new = added
        if not same_model:
            new = {number: embedded_image(searcher, images[number], described, described.key) for number in added}
        return _store(searcher.gallery, collection, new, refused, described)

    # Finding copies of a new item takes longer than embedding it.
    answer = await cpu_queue.run_aside(collection.current.run, store)
    status = 422 if isinstance(answer, NoneAdded) else 201 if answer.new else 200
    return JSONResponse(answer.model_dump(), status)


@router.patch(
    "/items/{id:item}", summary="Change an item's label, metadata or key", responses=WRITING | refusals(404, 409)
)
async def change(
    collection: CollectionDep, item_id: ItemIdDep, values: ItemChange, parameters: Annotated[ChangeParameters, Query()]
) -> ChangedItem:
    """Change what the body names; needs a write key. gallery_change is the number of this change, as in GET /stats.

    The metadata are merged into those of the item, and null removes a key (RFC 7396); with replace they are all that is
    left.
    """
    changed = values.values(parameters.replace)

    def describe(searcher: Searcher) -> ChangedItem:
        number = searcher.gallery.store.describe(item_id, **changed)
        return ChangedItem(**vars(item_info(searcher.gallery.store.item(item_id), collection)), gallery_change=number)

    return await collection.call(describe)


@router.delete("/items/{id:item}", summary="Remove an item", responses=WRITING | refusals(404))
async def remove(collection: CollectionDep, item_id: ItemIdDep) -> Removed:
    """Remove an item; needs a write key. zoo index does not bring it back without --readd."""
    if not await collection.call(lambda searcher: searcher.gallery.remove([item_id], remember=True)):
        raise no_item(item_id)
    return Removed(removed=item_id)


def item_info(item: Item, collection: Collection) -> ItemInfo:
    """Return an item as answers show it."""
    return ItemInfo(**vars(item), thumbnail=collection.thumbnail_path(item.id))


def embedded_image(
    searcher: Searcher, image: UploadedImage, described: ItemDescription, key: str | None = None
) -> EmbeddedImage:
    """Decode and embed an image. Raises `ImageError`."""
    with stage("decode"):
        pixels, thumbnail, notes, _ = decode_image(image.data, searcher.embedder.preprocessing, searcher.limits)
    with stage("embed"):
        embedding = searcher.embedder.embed_pixels(pixels[None])[0].astype(np.float32)
    digest = hashlib.sha256(image.data).hexdigest()
    source = described.source or name_as_source(image.name or key or digest[:16])
    item = NewItem(source, embedding, thumbnail, digest, described.label, described.metadata, key=key)
    return EmbeddedImage(item, notes)


def _store(
    gallery: VectorGallery,
    collection: Collection,
    new: Mapping[int, EmbeddedImage],
    refused: list[RefusedImage],
    described: NewItemParameters,
) -> AddedItems:
    """Add the items, update those that were there if this is asked for, and return the answer."""
    with stage("write"):
        before = gallery.store.change()
        added = gallery.add([image.item for image in new.values()])
        known = {
            number: stored_item(gallery, item_id, new[number].item)
            for number, item_id in zip(new, added.ids, strict=True)
        }
        label, metadata = described.label, described.metadata
        differing = {number: item for number, item in known.items() if item.differs(label, metadata)}
        if described.update and differing:
            for item in differing.values():
                with suppress(ItemNotFoundError):  # removed by another client
                    gallery.store.describe(item.id, label or UNCHANGED, metadata or UNCHANGED)
            known = {number: stored_item(gallery, item.id, new[number].item) for number, item in known.items()}
    answer = AddedItems(
        new=added.new,
        items=[
            AddedItem(**vars(item_info(item, collection)), notes=new[number].notes) for number, item in known.items()
        ],
        refused=refused,
        differing=[_differing(number, item, described) for number, item in differing.items()],
        near_duplicates=[
            warning
            for number, item in known.items()
            if described.duplicates and item.change > before and not is_address(gallery.address)
            for warning in _near_duplicates(gallery, collection, number, item)
        ],
    )
    if new or not refused:
        return answer
    first = refused[0].error
    message = f"None of the {len(refused)} images was added. Of the first: {first.message}"
    return NoneAdded(error=ErrorDetail(code=first.code, message=message), **vars(answer))


def stored_item(gallery: VectorGallery, item_id: int, new: NewItem) -> Item:
    """Return the item; as it was sent, if another client has removed it meanwhile."""
    try:
        return gallery.store.item(item_id)
    except ItemNotFoundError:
        metadata = dict(new.metadata)
        return Item(
            item_id, new.source, new.label, metadata, new.content_sha256, utc_now(), gallery.store.change(), new.key
        )


def _near_duplicates(
    gallery: VectorGallery, collection: Collection, number: int, item: Item
) -> Iterator[NearDuplicate]:
    """Yield a warning if an item looks like a copy of others."""
    with stage("find"), suppress(ItemNotFoundError):  # removed by another client
        of = [copy.item for copy in collection.copies.copies_of(gallery, item.id)]
        if of:
            named = ", ".join(map(str, of[:NAMED])) + (", ..." if len(of) > NAMED else "")
            message = f"Added as item {item.id}; it looks like a copy of {named}. See /items/{item.id}/duplicates."
            yield NearDuplicate(number=number, id=item.id, of=of, message=message)


def _differing(number: int, item: Item, described: NewItemParameters) -> Differing:
    has = f"label {item.label}" if item.label else "no label"
    if described.label in (None, item.label):
        has = "other metadata"
    outcome = "it was updated" if described.update else "it was not changed; send update=true to change it"
    message = f"Already there as item {item.id} with {has}; {outcome}."
    return Differing(number=number, id=item.id, label=item.label, updated=described.update, message=message)

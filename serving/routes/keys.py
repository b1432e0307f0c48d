"""Items by the key that their user gave them.

The routes come before those of `serving.routes.items`, because a key may be any text: "thumbnail", for example.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse
from pydantic import TypeAdapter

from serving.dependencies import CollectionDep, CpuQueueDep, ItemKeyDep
from serving.errors import RefusedError
from serving.forms import checked_images, read_request
from serving.gallery.search import Searcher
from serving.metrics import stage
from serving.openapi import IMAGES, READING, WRITING, form_operation, refusals
from serving.routes.items import embedded_image, item_info, stored_item
from serving.schemas import ChangedItem, ChangeParameters, ItemChange, ItemDescription, ItemInfo, PutItem, Removed

router = APIRouter(strict_content_type=False)
PATH = "/items/by-key/{key:path}"
PUT_ITEM = TypeAdapter(PutItem)


@router.get(PATH, summary="The item with a key", responses=READING | refusals(404))
async def keyed_item(collection: CollectionDep, key: ItemKeyDep) -> ItemInfo:
    return await collection.call(lambda searcher: item_info(searcher.gallery.store.item_of_key(key), collection))


@router.put(
    PATH,
    summary="Create or replace the item with a key",
    status_code=200,
    response_model=PutItem,
    openapi_extra=form_operation(ItemDescription),
    responses=IMAGES | WRITING | {201: {"model": PutItem, "description": "The key is new"}},
)
async def put_item(request: Request, collection: CollectionDep, cpu_queue: CpuQueueDep, key: ItemKeyDep) -> Any:
    """Create or replace image, label and metadata of a key, and nothing if they are the same; needs a write key.

    The item keeps its id; the next search finds it by the embedding of its new image. Several keys may have one image.
    A label or metadata that are not sent are removed; PATCH keeps them.
    """
    with stage("read"):
        described, files = await read_request(request, ItemDescription)
    images = checked_images(files)
    if len(images) > 1:
        raise RefusedError(400, "too_many_images", "A key names one image, and the request holds several.")
    embedded_by = collection.current.searcher
    made = await cpu_queue.run(embedded_image, embedded_by, images[0], described, key)

    def put(searcher: Searcher) -> PutItem:
        new = made if searcher is embedded_by else embedded_image(searcher, images[0], described, key)
        with stage("write"):
            (result,) = searcher.gallery.put([new.item])
        found = stored_item(searcher.gallery, result.id, new.item)
        return PutItem(**vars(item_info(found, collection)), notes=new.notes, status=result.status)

    answer = await collection.call(put)
    return JSONResponse(PUT_ITEM.dump_python(answer), 201 if answer.status == "created" else 200)


@router.patch(
    PATH, summary="Change the label, metadata or key of the item with a key", responses=WRITING | refusals(404, 409)
)
async def change_keyed(
    collection: CollectionDep, key: ItemKeyDep, values: ItemChange, parameters: Annotated[ChangeParameters, Query()]
) -> ChangedItem:
    """Change what the body names; needs a write key. gallery_change is the number of this change, as in GET /stats.

    The metadata are merged into those of the item, and null removes a key (RFC 7396); with replace they are all that is
    left.
    """
    changed = values.values(parameters.replace)

    def describe(searcher: Searcher) -> ChangedItem:
        gallery = searcher.gallery
        item, number = gallery.describe_key(key, **changed)
        return ChangedItem(**vars(item_info(item, collection)), gallery_change=number)

    return await collection.call(describe)


@router.delete(PATH, summary="Remove the item with a key", responses=WRITING | refusals(404))
async def remove_keyed(collection: CollectionDep, key: ItemKeyDep) -> Removed:
    """Remove the item; needs a write key. removed is its id. zoo index does not bring it back without --readd."""
    return Removed(removed=await collection.call(lambda searcher: searcher.gallery.remove_key(key)))

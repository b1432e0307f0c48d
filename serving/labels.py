"""GET /labels and GET /metadata: what can be filtered by, and how many items there are of each."""

from __future__ import annotations

from typing import Any

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse

from serving.collection import collection_of
from serving.gallery import Gallery
from serving.uploads import check_names, whole_number

MOST, DEFAULT = 10_000, 1000


def _limit(request: Request) -> int:
    check_names(request.query_params, ("limit",))
    return whole_number(request.query_params, "limit", DEFAULT, 1, MOST)


async def show(request: Request) -> JSONResponse:
    limit = _limit(request)
    return JSONResponse(await to_thread.run_sync(counts, collection_of(request).gallery, limit))


async def metadata(request: Request) -> JSONResponse:
    limit = _limit(request)
    total, found = await to_thread.run_sync(collection_of(request).gallery.store.overview.metadata, limit)
    values = [{"key": key, "value": value, "items": items} for key, value, items in found]
    return JSONResponse({"total": total, "values": values})


def counts(gallery: Gallery, limit: int = DEFAULT) -> dict[str, Any]:
    """{"total": how many labels there are, "labels": [{"label", "items"}]}, the most frequent first."""
    total, found = gallery.store.overview.labels(limit)
    return {"total": total, "labels": [{"label": label, "items": items} for label, items in found]}

"""GET /labels: the gallery's labels and how many items have each."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse

from serving.collection import collection_of
from serving.gallery import Gallery
from serving.gallery.connection import connect
from serving.gallery.gallery import STORE
from serving.uploads import whole_number

MOST, DEFAULT = 10_000, 1000

_COUNTS = """
SELECT label, count(*) AS items, count(*) OVER () AS total FROM items WHERE label IS NOT NULL
GROUP BY label ORDER BY items DESC, label LIMIT ?
"""


async def show(request: Request) -> JSONResponse:
    limit = whole_number(request.query_params, "limit", DEFAULT, 1, MOST)
    return JSONResponse(await to_thread.run_sync(counts, collection_of(request).gallery, limit))


def counts(gallery: Gallery, limit: int = DEFAULT) -> dict[str, Any]:
    """{"total": how many labels there are, "labels": [{"label", "items"}]}, the most frequent first."""
    # On a connection of its own: searches need not wait while all items are counted.
    with closing(connect(gallery.path / STORE)) as db:
        rows = db.execute(_COUNTS, (limit,)).fetchall()
    labels = [{"label": label, "items": items} for label, items, _ in rows]
    return {"total": rows[0][2] if rows else 0, "labels": labels}

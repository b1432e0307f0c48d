"""GET /changes: what changed in a collection, with embeddings, for a service that follows it."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response

from serving.collection import collection_of
from serving.following.bounds import DIGEST, LAST_NUMBER, MEDIA_TYPE, ROWS, digest_of
from serving.following.wire import written
from serving.gallery.backends import shared_backend
from serving.gallery.binding import model_text
from serving.refusals import RefusedError
from serving.searcher import Searcher
from serving.uploads import whole_number
from zoo.errors import FollowingError

PART_BYTES = 4 * 2**20
"""Of the rows of one answer, about."""


async def changes(request: Request) -> Response:
    """Rows that were written after the number `after` of the journal, in the order of their numbers.

    Nothing is handed out where `history` is another one than the gallery's: what was read of that one is to be
    forgotten, and all of this one read from 0. Content-Digest (RFC 9530) is of the body.
    """
    values = request.query_params
    after = whole_number(values, "after", 0, 0, LAST_NUMBER)
    limit = whole_number(values, "limit", ROWS, 1, ROWS)
    read = partial(_written, after, limit, values.get("history"))
    body = await to_thread.run_sync(collection_of(request).steadily, read)
    headers = {DIGEST: digest_of(body), "Cache-Control": "no-store"}
    return Response(body, media_type=MEDIA_TYPE, headers=headers)


def _written(after: int, limit: int, history: str | None, searcher: Searcher) -> bytes:
    gallery = searcher.gallery
    backend = shared_backend(gallery.path)
    if backend is not None:
        gallery.index_stats()  # brings the collection up to date, which followers search as it is
    try:
        part = gallery.history.since(after, limit, PART_BYTES, history)
    except FollowingError as error:
        raise RefusedError(HTTPStatus.CONFLICT, "cannot_be_followed", str(error)) from None
    return written(part, None if after else model_text(gallery.card, gallery.model_ref), backend)

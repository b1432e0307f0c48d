"""POST and GET /feedback, DELETE /feedback/{id}: users say which results are right, of the query's class.

The query of a mark is an item, by its id; or an image that was sent, by its content_sha256, embedding and fingerprint,
as POST /embed gives them; an embedding of a model that the gallery had before is refused. Of such an image no more is
kept than its hash and its name. Writing needs a write key.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import numpy as np
from anyio import to_thread
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from serving.answers import thumbnail_path
from serving.collection import Collection, collection_of
from serving.gallery import Gallery
from serving.gallery.feedback import Mark, MarkFilter, QueryImage
from serving.gallery.search import Searcher
from serving.refusals import RefusedError
from serving.uploads import check_names, invalid, item_id, text_of, whole_number

VERDICTS = {"right": True, "wrong": False}
BYTES = 2**18
MOST = 200
"""Marks on a page of GET /feedback."""
CONTRADICTIONS = 50

_NEEDED = {"content_sha256", "embedding"}
_SENT = _NEEDED | {"fingerprint", "source"}
_SHA256 = re.compile(r"[0-9a-f]{64}")
_BODY = 'a JSON object of "query", "item" and "verdict"'
_QUERY = (
    'the id of an item, or {"content_sha256", "embedding", "fingerprint", "source"} of an image, as POST /embed gives '
    "the first three"
)


@dataclass(frozen=True)
class _Said:
    """`fingerprint`: of the model that embedded a query that was sent; None where that is not said."""

    query: int | QueryImage
    item: int
    same: bool
    fingerprint: str | None = None


async def mark(request: Request) -> Response:
    """Mark a pair; 201 for a new mark, 200 where it takes the place of an older one of the pair."""
    said, collection = _said(await request.body()), collection_of(request)

    def put(searcher: Searcher) -> tuple[Mark, bool]:
        _check_model(said, searcher.gallery)
        return searcher.gallery.store.marks.put(said.query, said.item, said.same)

    made, new = await to_thread.run_sync(collection.steadily, put)
    return JSONResponse(mark_json(made, collection.path), HTTPStatus.CREATED if new else HTTPStatus.OK)


def _check_model(said: _Said, gallery: Gallery) -> None:
    """Refuse an embedding of another model; one that does not say whose it is may only be the model's own where the
    gallery never had another.
    """
    if not isinstance(said.query, QueryImage) or (said.fingerprint is None and not gallery.store.was_rebuilt):
        return
    if said.fingerprint != gallery.card.fingerprint:
        whose = "is of another model" if said.fingerprint else "may be of another model"
        message = (
            f"The query's embedding {whose} than the gallery has now, {gallery.card.name}. Embed the image again (POST "
            "/embed), and send the fingerprint of that answer too."
        )
        raise RefusedError(HTTPStatus.CONFLICT, "model_changed", message)


async def show(request: Request) -> Response:
    """Marks in the order in which they were first made; of one query, result or verdict, where these are given."""
    check_names(request.query_params, ("offset", "limit", "query", "item", "verdict"))
    return JSONResponse(await to_thread.run_sync(_page, collection_of(request), request.query_params))


async def undo(request: Request) -> Response:
    wanted = item_id(request.path_params["id"], "mark")

    def remove(searcher: Searcher) -> bool:
        return searcher.gallery.store.marks.remove(wanted)

    if not await to_thread.run_sync(collection_of(request).steadily, remove):
        raise RefusedError(HTTPStatus.NOT_FOUND, "no_such_mark", f"There is no mark {wanted}.")
    return JSONResponse({"removed": wanted})


def mark_json(mark: Mark, path: str) -> dict[str, Any]:
    """path: of the collection (`Collection.path`)."""
    asked = {
        "id": mark.query_item,
        "content_sha256": mark.query,
        "source": mark.query_source,
        "label": mark.query_label,
        "thumbnail": None if mark.query_item is None else thumbnail_path(mark.query_item, path),
    }
    result = {
        "id": mark.item,
        "content_sha256": mark.content_sha256,
        "source": mark.source,
        "label": mark.label,
        "thumbnail": thumbnail_path(mark.item, path),
    }
    verdict = "right" if mark.same else "wrong"
    measured = {"similarity": mark.similarity, "model": mark.model, "marked_at": mark.marked_at}
    return {"id": mark.id, "query": asked, "result": result, "verdict": verdict, **measured}


def report(gallery: Gallery, path: str) -> dict[str, Any]:
    """What the marks say of the search: how many, the part that is right, and where they contradict the labels."""
    counts = gallery.store.marks.counts()
    total, contradicting = gallery.store.marks.contradictions(CONTRADICTIONS)
    return {
        "right": counts.right,
        "wrong": counts.wrong,
        "precision": counts.right / counts.total if counts.total else None,
        "contradict_labels": total,
        "contradictions": [mark_json(one, path) for one in contradicting],
    }


def _page(collection: Collection, values: QueryParams) -> dict[str, Any]:
    gallery = collection.gallery
    offset, limit = whole_number(values, "offset", 0, 0, 10**15 - 1), whole_number(values, "limit", 50, 1, MOST)
    chosen = _chosen(gallery, values)
    counts, marks = gallery.store.marks.counts(chosen), gallery.store.marks.page(offset, limit, chosen)
    page = {"total": counts.total, "right": counts.right, "wrong": counts.wrong, "offset": offset, "limit": limit}
    return {**page, "marks": [mark_json(one, collection.path) for one in marks]}


def _chosen(gallery: Gallery, values: QueryParams) -> MarkFilter:
    verdict, query, item = values.get("verdict"), values.get("query"), values.get("item")
    if verdict is not None and verdict not in VERDICTS:
        raise invalid("verdict", f"one of {', '.join(VERDICTS)}")
    if query is not None and not _SHA256.fullmatch(query):
        query = gallery.store.item(item_id(query)).content_sha256
    return MarkFilter(query, None if item is None else item_id(item), None if verdict is None else VERDICTS[verdict])


def _said(body: bytes) -> _Said:
    if len(body) > BYTES:
        raise invalid("body", f"at most {BYTES:,} bytes")
    try:
        values = json.loads(body)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict) or values.keys() != {"query", "item", "verdict"}:
        raise invalid("body", _BODY)
    if not isinstance(values["verdict"], str) or values["verdict"] not in VERDICTS:
        raise invalid("verdict", f"one of {', '.join(VERDICTS)}")
    if not _is_id(values["item"]):
        raise invalid("item", "the id of an item")
    query, verdict = values["query"], VERDICTS[values["verdict"]]
    if _is_id(query):
        return _Said(query, values["item"], verdict)
    return _Said(_sent(query), values["item"], verdict, query.get("fingerprint"))


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _sent(value: Any) -> QueryImage:
    if not isinstance(value, dict) or not _NEEDED <= value.keys() <= _SENT:
        raise invalid("query", _QUERY)
    if not isinstance(value.get("fingerprint", ""), str):
        raise invalid("query", _QUERY)
    digest, source, embedding = value["content_sha256"], value.get("source", ""), _embedding(value["embedding"])
    if not isinstance(digest, str) or not _SHA256.fullmatch(digest) or not isinstance(source, str):
        raise invalid("query", _QUERY)
    return QueryImage(digest, embedding, text_of(source, "source") or "")


def _embedding(value: Any) -> np.ndarray:
    """From base64 of float32, little-endian, or a list of numbers."""
    try:
        if isinstance(value, str):
            return np.frombuffer(base64.b64decode(value, validate=True), "<f4")
        if isinstance(value, list) and all(isinstance(one, int | float) for one in value):
            with np.errstate(over="ignore"):
                return np.array(value, np.float64).astype(np.float32)
    except (ValueError, OverflowError):
        pass
    raise invalid("query", _QUERY)

"""Relevance feedback: users mark results as right (of the query's class) or wrong.

The query of a mark is an item, or an image that was sent, by its content_sha256, embedding and fingerprint as POST
/embed gives them. Of such an image only the hash and the name are kept.
"""

from __future__ import annotations

import base64
import re
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Path, Query, Response
from pydantic import BeforeValidator, WithJsonSchema

from serving.dependencies import Collection, CollectionDep
from serving.errors import RefusedError, invalid
from serving.gallery import Gallery
from serving.gallery.feedback import Mark, MarkFilter, QueryImage
from serving.gallery.search import Searcher
from serving.openapi import READING, WRITING, refusals
from serving.parameters import parse_item_id
from serving.schemas import (
    SHA256,
    MarkedImage,
    MarkInfo,
    MarkPage,
    MarkParameters,
    MarksReport,
    NewMark,
    Removed,
)
from serving.schemas import SentQuery as QueryBody

router = APIRouter(strict_content_type=False)
MAX_CONTRADICTIONS = 50


def _mark_id(value: Any) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", value, re.ASCII):
        raise RefusedError(404, "no_such_mark", "No mark has this id; ids are whole numbers.")
    return int(value)


MarkId = Annotated[int, BeforeValidator(_mark_id), WithJsonSchema({"type": "integer"}), Path(alias="id")]


@router.post(
    "/feedback",
    summary="Mark a result right, of the query's class, or wrong",
    status_code=201,
    responses=WRITING
    | refusals(404, 409)
    | {200: {"model": MarkInfo, "description": "The mark replaces an older one of the pair"}},
)
async def mark(collection: CollectionDep, body: NewMark, response: Response) -> MarkInfo:
    """Mark a pair; a mark of the same pair is replaced. Needs a write key.

    query: the id of an item, or content_sha256, embedding and fingerprint of an image as POST /embed gives them.
    Without a fingerprint the embedding is accepted if the gallery never had another model. Marks are used for
    calibration and evaluation; they go when one of their items is removed.
    """
    query = body.query if isinstance(body.query, int) else _sent_query(body.query)

    def put(searcher: Searcher) -> tuple[Mark, bool]:
        if not isinstance(body.query, int):
            _check_model(body.query.fingerprint, searcher.gallery)
        return searcher.gallery.store.marks.put(query, body.item, body.verdict == "right")

    made, is_new = await collection.call(put)
    response.status_code = 201 if is_new else 200
    return mark_of(made, collection)


def _sent_query(query: QueryBody) -> QueryImage:
    embedding = query.embedding
    if not isinstance(embedding, str):
        with np.errstate(over="ignore"):
            return QueryImage(query.content_sha256, np.array(embedding).astype(np.float32), query.source or "")
    try:
        vector = np.frombuffer(base64.b64decode(embedding, validate=True), "<f4")
    except ValueError:
        raise invalid("query", "an image with an embedding in base64 of float32, or as numbers") from None
    return QueryImage(query.content_sha256, vector, query.source or "")


def _check_model(fingerprint: str | None, gallery: Gallery) -> None:
    """Raise `RefusedError` (409) for an embedding that another model may have made."""
    if fingerprint == gallery.card.fingerprint or (fingerprint is None and not gallery.store.was_rebuilt):
        return
    origin = "is of another model" if fingerprint else "may be of another model"
    message = (
        f"The query's embedding {origin} than the gallery has now, {gallery.card.name}. Embed the image again (POST "
        "/embed), and send the fingerprint of that answer too."
    )
    raise RefusedError(409, "model_changed", message)


@router.get(
    "/feedback",
    summary="Marked results in the order in which they were first marked, page by page",
    responses=READING | refusals(404),
)
async def marks(collection: CollectionDep, parameters: Annotated[MarkParameters, Query()]) -> MarkPage:
    def page(searcher: Searcher) -> MarkPage:
        selection = _selection(searcher.gallery, parameters)
        counts = searcher.gallery.store.marks.counts(selection)
        rows = searcher.gallery.store.marks.page(parameters.offset, parameters.limit, selection)
        return MarkPage(
            total=counts.total,
            right=counts.right,
            wrong=counts.wrong,
            offset=parameters.offset,
            limit=parameters.limit,
            marks=[mark_of(row, collection) for row in rows],
        )

    return await collection.call(page)


def _selection(gallery: Gallery, parameters: MarkParameters) -> MarkFilter:
    query = parameters.query
    if query is not None and not re.fullmatch(SHA256, query):
        query = gallery.store.item(parse_item_id(query)).content_sha256
    return MarkFilter(query, parameters.item, None if parameters.verdict is None else parameters.verdict == "right")


@router.delete("/feedback/{id}", summary="Remove a mark", responses=WRITING | refusals(404))
async def unmark(collection: CollectionDep, mark_id: MarkId) -> Removed:
    """Remove a mark; needs a write key."""
    if not await collection.call(lambda searcher: searcher.gallery.store.marks.remove(mark_id)):
        raise RefusedError(404, "no_such_mark", f"There is no mark {mark_id}.")
    return Removed(removed=mark_id)


def mark_of(mark: Mark, collection: Collection) -> MarkInfo:
    """Return a mark as answers show it."""
    query = MarkedImage(
        id=mark.query_item,
        content_sha256=mark.query,
        source=mark.query_source,
        label=mark.query_label,
        thumbnail=None if mark.query_item is None else collection.thumbnail_path(mark.query_item),
    )
    result = MarkedImage(
        id=mark.item,
        content_sha256=mark.content_sha256,
        source=mark.source,
        label=mark.label,
        thumbnail=collection.thumbnail_path(mark.item),
    )
    return MarkInfo(
        id=mark.id,
        query=query,
        result=result,
        verdict="right" if mark.same else "wrong",
        similarity=mark.similarity,
        model=mark.model,
        marked_at=mark.marked_at,
    )


def marks_report(gallery: Gallery, collection: Collection) -> MarksReport:
    """Return the numbers of marks, the share of right ones, and those that contradict the labels."""
    counts = gallery.store.marks.counts()
    total, contradicting = gallery.store.marks.contradictions(MAX_CONTRADICTIONS)
    return MarksReport(
        right=counts.right,
        wrong=counts.wrong,
        precision=counts.right / counts.total if counts.total else None,
        contradict_labels=total,
        contradictions=[mark_of(mark, collection) for mark in contradicting],
    )

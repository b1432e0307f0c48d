"""Many items in one request, by key: POST /items/bulk."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from anyio import to_thread
from fastapi import APIRouter, Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from serving.dependencies import CollectionDep, CpuQueueDep, SettingsDep
from serving.errors import RefusedError, error_json, invalid
from serving.forms import UploadedImage
from serving.gallery import NewItem
from serving.gallery.search import Searcher
from serving.gallery.types import PutResult, name_as_source, vector_item
from serving.limits import CpuQueue
from serving.metrics import stage
from serving.openapi import WRITING, refusals
from serving.routes.items import new_item
from serving.schemas import (
    MAX_LINES,
    BulkAnswer,
    BulkLine,
    BulkParameters,
    BulkResult,
    ErrorDetail,
    ItemDescription,
    ItemKey,
)
from zoo.errors import ImageError, UsageError

router = APIRouter(strict_content_type=False)
NDJSON = ("application/x-ndjson", "application/ndjson", "application/jsonl", "application/octet-stream")
SCHEMA = {
    "type": "string",
    "description": "A JSON object per line: key; image (base64 of its file) or vector (numbers, or base64 of float32); "
    "label, metadata and source if there are any",
}
BODY = {
    "requestBody": {
        "required": True,
        "content": {NDJSON[0]: {"schema": SCHEMA}, NDJSON[-1]: {"schema": {**SCHEMA, "format": "binary"}}},
    }
}


@dataclass(frozen=True)
class _Line:
    """A line that could be read, with the file of its image, or its vector of any length."""

    number: int
    values: BulkLine
    image: UploadedImage | None
    vector: np.ndarray | None


class _Keyed(BaseModel):
    """Key of a line that is refused for its other values."""

    key: ItemKey


Outcomes = dict[int, BulkResult]
"""Outcomes by line."""


@router.post(
    "/items/bulk",
    summary="Create or replace many items by key",
    openapi_extra=BODY,
    responses=WRITING | refusals(400, 408, 409, 413, 415, 504),
)
async def put_many(
    request: Request,
    collection: CollectionDep,
    cpu_queue: CpuQueueDep,
    settings: SettingsDep,
    parameters: Annotated[BulkParameters, Query()],
) -> BulkAnswer:
    """Put each line as PUT /items/by-key/KEY does, all good lines in one transaction; needs a write key.

    A bad line has an error among the results, and the others are written. Of two lines with one key the later one
    counts. Sending the request again changes nothing. Vectors need the fingerprint of the model that made them, which
    must be the gallery's (409); one that is not of unit length is scaled.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in NDJSON:
        message = f"The content type {media_type[:80]!r} is not accepted. Send lines of JSON as {NDJSON[0]}."
        raise RefusedError(415, "unsupported_media_type", message)
    with stage("read"):
        body = await request.body()
        lines, outcomes = await to_thread.run_sync(_read_lines, body)
    images = [line for line in lines if line.image is not None]
    if len(images) > settings.max_images:
        raise RefusedError(400, "too_many_images", f"A request may hold at most {settings.max_images} images.")
    if len(images) < len(lines) and parameters.fingerprint is None:
        raise invalid("fingerprint", "given for vectors: that of the model which made them, as POST /embed shows it")
    embedded_by = collection.current.searcher
    made = await _embedded(cpu_queue, embedded_by, images, outcomes)

    def put(searcher: Searcher) -> Outcomes:
        card = searcher.gallery.card
        if parameters.fingerprint not in (None, card.fingerprint):
            message = f"The vectors are of another model than the gallery has, {card.name} ({card.fingerprint})."
            raise RefusedError(409, "model_changed", message)
        present = made if searcher is embedded_by else {line.number: _of_image(searcher, line) for line in images}
        return _put(searcher, lines, present)

    outcomes |= await collection.call(put)
    results = [outcomes[number] for number in sorted(outcomes)]
    counts = Counter(result.status for result in results)
    return BulkAnswer(
        created=counts["created"],
        replaced=counts["replaced"],
        updated=counts["updated"],
        unchanged=counts["unchanged"],
        refused=counts["refused"],
        results=results,
    )


def _read_lines(body: bytes) -> tuple[list[_Line], Outcomes]:
    """Return the lines that can be read, and the outcomes of the others. Empty lines are left out."""
    rows = [(number, row) for number, row in enumerate(body.split(b"\n"), 1) if row.strip()]
    if not rows:
        raise RefusedError(400, "no_lines", "The body has no lines; each is a JSON object with a key.")
    if len(rows) > MAX_LINES:
        raise RefusedError(400, "too_many_lines", f"A request may hold at most {MAX_LINES:,} lines.")
    lines, outcomes = list[_Line](), Outcomes()
    for number, row in rows:
        key = None
        try:
            values = BulkLine.model_validate_json(row)
            key = values.key
            lines.append(_Line(number, values, _image_of(values), _vector_of(values)))
        except ValidationError as error:
            problems = [{**problem, "loc": ("body", *problem["loc"])} for problem in error.errors()]
            outcomes[number] = _refused(number, _key_of(row), RequestValidationError(problems))
        except RefusedError as error:
            outcomes[number] = _refused(number, key, error)
    return lines, outcomes


def _key_of(row: bytes) -> str | None:
    """Return the key of a line that is refused for other reasons; None if it has no valid one."""
    try:
        return _Keyed.model_validate_json(row).key
    except ValidationError:
        return None


def _image_of(values: BulkLine) -> UploadedImage | None:
    if values.image is None:
        return None
    return UploadedImage("", _decoded(values.image, "image", "base64 of an image file"))


def _vector_of(values: BulkLine) -> np.ndarray | None:
    if isinstance(values.vector, str):
        data = _decoded(values.vector, "vector", "numbers, or base64 of float32")
        if len(data) % 4:
            raise invalid("vector", "base64 of float32, little-endian")
        return np.frombuffer(data, "<f4")
    return None if values.vector is None else np.array([float(number) for number in values.vector], np.float64)


def _decoded(text: str, name: str, expected: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise invalid(name, expected) from None


async def _embedded(
    cpu_queue: CpuQueue, searcher: Searcher, images: Sequence[_Line], outcomes: Outcomes
) -> dict[int, NewItem | ImageError]:
    """Return the items of images by line, or why an image cannot be read."""
    made: dict[int, NewItem | ImageError] = {}
    for count, line in enumerate(images):
        run = cpu_queue.run_aside if count else cpu_queue.run
        made[line.number] = await run(_of_image, searcher, line)
    return made


def _of_image(searcher: Searcher, line: _Line) -> NewItem | ImageError:
    values = line.values
    described = ItemDescription(label=values.label, source=values.source, metadata=values.metadata)
    try:
        return new_item(searcher, line.image or UploadedImage("", b""), described, values.key)
    except ImageError as error:
        return error


def _put(searcher: Searcher, lines: Sequence[_Line], made: Mapping[int, NewItem | ImageError]) -> Outcomes:
    items, outcomes = dict[int, NewItem](), Outcomes()
    for line in lines:
        values = line.values
        try:
            item = made.get(line.number)
            if line.vector is not None:
                dim, source = searcher.gallery.card.dim, values.source or name_as_source(values.key)
                item = vector_item(values.key, line.vector, dim, source, values.label, values.metadata)
            if isinstance(item, ImageError):
                raise item
            assert item is not None
            items[line.number] = item
        except (ImageError, UsageError) as error:
            outcomes[line.number] = _refused(line.number, values.key, error)
    with stage("write"):
        results: Sequence[PutResult] = searcher.gallery.put(list(items.values())) if items else ()
    for (number, item), result in zip(items.items(), results, strict=True):
        reason = None if result.error is None else _detail(result.error)
        outcomes[number] = BulkResult(line=number, key=item.key, status=result.status, id=result.id, error=reason)
    return outcomes


def _refused(number: int, key: str | None, error: Exception) -> BulkResult:
    return BulkResult(line=number, key=key, status="refused", error=_detail(error))


def _detail(error: Exception) -> ErrorDetail:
    values: dict[str, Any] = error_json(error)["error"]
    return ErrorDetail(**values)

"""Many items in one request, by key: POST /items/bulk."""

from __future__ import annotations

import base64
import math
import sys
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
from serving.forms import MAX_VALUES, UploadedImage, image_of_text
from serving.gallery.search import Searcher
from serving.gallery.types import PutResult, name_as_source, unit_vector, vector_item
from serving.limits import FORM_BYTES, CpuQueue
from serving.metrics import stage
from serving.openapi import WRITING, refusals
from serving.routes.items import EmbeddedImage, embedded_image
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
from serving.settings import Settings
from zoo.errors import ImageError, UsageError

router = APIRouter(strict_content_type=False)
NDJSON = ("application/x-ndjson", "application/ndjson", "application/jsonl", "application/octet-stream")
PART_BYTES = 2**20
"""Bytes of a body that are read at a time."""
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
    """A line that could be read, with the file of its image or its unit vector. Its text is not kept."""

    number: int
    key: str
    label: str | None
    source: str | None
    metadata: dict[str, Any]
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
    embedded_by = collection.current.searcher
    reader = _Reader(settings, embedded_by.gallery.card.dim)
    with stage("read"):
        await _read(request, reader)
    lines, outcomes = reader.lines, reader.outcomes
    images = [line for line in lines if line.image is not None]
    if len(images) < len(lines) and parameters.fingerprint is None:
        raise invalid("fingerprint", "given for vectors: that of the model which made them, as POST /embed shows it")
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


async def _read(request: Request, reader: _Reader) -> None:
    """Read the body in parts, which take turns with those of other requests. Raises `RefusedError` as the reader."""
    part = bytearray()
    async for data in request.stream():
        part += data
        if len(part) >= PART_BYTES:
            await to_thread.run_sync(reader.feed, bytes(part))
            part.clear()
    await to_thread.run_sync(reader.feed, bytes(part))
    await to_thread.run_sync(reader.end)


class _Reader:
    """Reads lines as they arrive, and keeps of each what will be written: bytes of images, unit vectors, metadata.

    A body of the default size takes at most 200 MB: JSON is about 25 times as large once it is read, if it is full of
    small values. So a line of more than `MAX_VALUES` values is refused before it is read, and a request is whose
    metadata have more of them in all.
    """

    def __init__(self, settings: Settings, dim: int) -> None:
        self.dim, self.max_images = dim, settings.max_images
        self.max_bytes = settings.max_bytes * 4 // 3 + FORM_BYTES  # of one line, whose image is base64
        self.lines, self.outcomes = list[_Line](), Outcomes()
        self.number, self.count, self.images, self.values = 1, 0, 0, 0
        self.row, self.is_long = bytearray(), False

    def feed(self, part: bytes) -> None:
        """Read a part of the body. Raises `RefusedError` (400) if the request has too many lines, images or values."""
        start = 0
        while (end := part.find(b"\n", start)) >= 0:
            self._extend(part[start:end])
            self._end_line()
            start = end + 1
        self._extend(part[start:])

    def end(self) -> None:
        """Read the last line. Raises `RefusedError` as `feed`, or if there are no lines."""
        self._end_line()
        if not self.count:
            raise RefusedError(400, "no_lines", "The body has no lines; each is a JSON object with a key.")

    def _extend(self, data: bytes) -> None:
        self.is_long |= len(self.row) + len(data) > self.max_bytes
        if self.is_long:
            self.row.clear()
        else:
            self.row += data

    def _end_line(self) -> None:
        row, is_long = self.row, self.is_long
        number, self.number = self.number, self.number + 1
        self.row, self.is_long = bytearray(), False
        is_empty = not is_long and not row.strip()
        self.count += not is_empty
        if self.count > MAX_LINES or number > 2 * MAX_LINES:
            raise RefusedError(400, "too_many_values", f"A request may hold at most {MAX_LINES:,} lines.")
        if is_empty:
            return
        values = row.count(b",") + row.count(b":")
        if is_long or values > MAX_VALUES:
            message = f"A line may have {self.max_bytes:,} bytes and {MAX_VALUES:,} values."
            self.outcomes[number] = _refused(number, None, RefusedError(413, "line_too_large", message))
            return
        self._read_line(number, row, values)

    def _read_line(self, number: int, row: bytearray, values: int) -> None:
        key = None
        try:
            line = BulkLine.model_validate_json(row)
            key = line.key
            vector = None if line.vector is None else unit_vector(_numbers(line.vector), self.dim)
            image = None if line.image is None else UploadedImage("", image_of_text(line.image))
            self.lines.append(_Line(number, key, line.label, line.source, line.metadata, image, vector))
        except ValidationError as error:
            self.outcomes[number] = _invalid(number, row, error)
            return
        except (RefusedError, UsageError) as error:
            self.outcomes[number] = _refused(number, key, error)
            return
        self.images += image is not None
        self.values += values - (len(line.vector) if isinstance(line.vector, list) else 0)
        if self.images > self.max_images:
            raise RefusedError(400, "too_many_images", f"A request may hold at most {self.max_images} images.")
        if self.values > MAX_VALUES:
            message = f"The metadata of a request may have at most {MAX_VALUES:,} values."
            raise RefusedError(400, "too_many_values", message)


def _invalid(number: int, row: bytearray, error: ValidationError) -> BulkResult:
    """Return the outcome of a line with wrong values.

    The problems refer to the frame of the caller: there, as a variable, they would keep the line until the next garbage
    collection.
    """
    problems = [{**problem, "loc": ("body", *problem["loc"])} for problem in error.errors(include_input=False)]
    return _refused(number, _key_of(row), RequestValidationError(problems))


def _key_of(row: bytearray) -> str | None:
    """Return the key of a line that is refused for other reasons; None if it has no valid one."""
    try:
        return _Keyed.model_validate_json(row).key
    except ValidationError:
        return None


def _numbers(vector: str | list[float | int]) -> np.ndarray:
    """Return the numbers of a vector. Raises `RefusedError` if it is a text and not base64 of float32."""
    if isinstance(vector, list):
        return np.array([math.inf if abs(number) > sys.float_info.max else number for number in vector], np.float64)
    try:
        data = base64.b64decode(vector, validate=True)
    except ValueError:
        raise invalid("vector", "numbers, or base64 of float32") from None
    if len(data) % 4:
        raise invalid("vector", "base64 of float32, little-endian")
    return np.frombuffer(data, "<f4")


async def _embedded(
    cpu_queue: CpuQueue, searcher: Searcher, images: Sequence[_Line], outcomes: Outcomes
) -> dict[int, EmbeddedImage | ImageError]:
    """Return the items of images by line, or why an image cannot be read."""
    made: dict[int, EmbeddedImage | ImageError] = {}
    for count, line in enumerate(images):
        run = cpu_queue.run_aside if count else cpu_queue.run
        made[line.number] = await run(_of_image, searcher, line)
    return made


def _of_image(searcher: Searcher, line: _Line) -> EmbeddedImage | ImageError:
    described = ItemDescription(label=line.label, source=line.source, metadata=line.metadata)
    try:
        return embedded_image(searcher, line.image or UploadedImage("", b""), described, line.key)
    except ImageError as error:
        return error


def _put(searcher: Searcher, lines: Sequence[_Line], made: Mapping[int, EmbeddedImage | ImageError]) -> Outcomes:
    images, outcomes = dict[int, EmbeddedImage](), Outcomes()
    for line in lines:
        try:
            image = made.get(line.number)
            if line.vector is not None:
                dim, source = searcher.gallery.card.dim, line.source or name_as_source(line.key)
                image = EmbeddedImage(vector_item(line.key, line.vector, dim, source, line.label, line.metadata))
            if isinstance(image, ImageError):
                raise image
            assert image is not None
            images[line.number] = image
        except (ImageError, UsageError) as error:
            outcomes[line.number] = _refused(line.number, line.key, error)
    with stage("write"):
        results: Sequence[PutResult] = searcher.gallery.put([image.item for image in images.values()]) if images else ()
    for (number, (item, notes)), result in zip(images.items(), results, strict=True):
        outcomes[number] = BulkResult(line=number, key=item.key, status=result.status, id=result.id, notes=notes)
    return outcomes


def _refused(number: int, key: str | None, error: Exception) -> BulkResult:
    return BulkResult(line=number, key=key, status="refused", error=_detail(error))


def _detail(error: Exception) -> ErrorDetail:
    values: dict[str, Any] = error_json(error)["error"]
    return ErrorDetail(**values)

"""OpenAI's API: POST /v1/embeddings and GET /v1/models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from anyio import to_thread
from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from serving.dependencies import CpuQueueDep, EndpointDep, SettingsDep
from serving.errors import RefusedError, error_json, invalid
from serving.forms import check_json_size, check_parameters, in_thread_if_large, query_values, read_body
from serving.gallery.encoder import Encoder
from serving.limits import CpuQueue
from serving.metrics import stage
from serving.openai_shapes import (
    Content,
    Embedding,
    EmbeddingList,
    EmbeddingRequest,
    ModelList,
    ModelObject,
    OpenAIError,
    Usage,
)
from serving.openapi import json_operation, refusals
from serving.routes.embed import encoded_rows, rows_of_numbers
from serving.schemas import MAX_QUERY_TEXT
from zoo.errors import ImageError, TextError
from zoo.models.card import Card
from zoo.models.load import Embedder, prefix
from zoo.models.text_tower import Tokens, no_text_tower

router = APIRouter()

BATCH = 64
"""Images or texts that the network gets at a time, as `Embedder.embed` does."""
OWNER = "dml-zoo"


@dataclass
class Embedded:
    """Unit embedding of each content, float32 [n, dim]; whether a text lost its end, by its number; tokens of all."""

    rows: np.ndarray
    truncated: dict[int, bool]
    tokens: int = 0


@router.post(
    "/v1/embeddings",
    summary="The embeddings of images and texts, as OpenAI's API",
    response_model=EmbeddingList,
    openapi_extra=json_operation(EmbeddingRequest),
    responses=refusals(400, 401, 404, 408, 413, 422, 429, 503, 504, model=OpenAIError),
)
async def embeddings(
    request: Request, endpoint: EndpointDep, cpu_queue: CpuQueueDep, settings: SettingsDep
) -> Response:
    """Return unit vectors of images, and of texts if the model has a text tower, as OpenAI's clients read them.

    An image is a data URI or base64, in input or as a part {"type": "image_url", "image_url": {"url": "data:..."}}; an
    address is refused, since the service fetches nothing. A request with an image that cannot be read is refused, and
    param names the image. dimensions shortens the embeddings of models whose numbers are in order of importance.
    """
    with stage("read"):
        check_parameters(query_values(request), {})
        body = await read_body(request)
        asked = await in_thread_if_large(len(body), _read, body)
    encoder = await to_thread.run_sync(endpoint.encoder)
    card = encoder.embedder.card
    if asked.model is not None and asked.model != card.name:
        message = f"The model {asked.model[:80]!r} is not served here; this one is: {card.name}."
        raise RefusedError(404, "model_not_found", message, parameter="model")
    check_dimensions(asked.dimensions, encoder.embedder)
    contents = await in_thread_if_large(len(body), asked.contents, card.text is not None)
    del body
    check_contents(contents, card, settings.max_images)
    embedded = await embed_contents(encoder, contents, cpu_queue)
    return Response(_answer(asked, embedded, card).model_dump_json(), media_type="application/json")


@router.get(
    "/v1/models",
    summary="The served model, as OpenAI's API",
    responses=refusals(401, 422, 429, 503, model=OpenAIError),
)
async def openai_models(endpoint: EndpointDep) -> ModelList:
    return ModelList(data=[await _model(endpoint)])


@router.get(
    "/v1/models/{name:path}",
    summary="The served model by its name, as OpenAI's API",
    responses=refusals(401, 404, 422, 429, 503, model=OpenAIError),
)
async def openai_model(endpoint: EndpointDep, name: str) -> ModelObject:
    served = await _model(endpoint)
    if name != served.id:
        raise RefusedError(404, "model_not_found", f"The served model is {served.id}.", parameter="model")
    return served


async def _model(endpoint: EndpointDep) -> ModelObject:
    encoder = await to_thread.run_sync(endpoint.encoder)
    card = encoder.embedder.card
    created = int((encoder.embedder.folder / "card.json").stat().st_mtime)
    modalities: Any = ["image", "text"] if card.text else ["image"]
    return ModelObject(
        id=card.name, created=created, owned_by=OWNER, dim=card.dim, fingerprint=card.fingerprint, modalities=modalities
    )


def _read(body: bytes) -> EmbeddingRequest:
    """Return the request. Raises `RequestValidationError`, which does not keep its values."""
    check_json_size(body)
    try:
        return EmbeddingRequest.model_validate_json(body)
    except ValidationError as error:
        problems = error.errors(include_input=False, include_url=False)
    raise RequestValidationError([{**problem, "loc": ("body", *problem["loc"])} for problem in problems])


def check_dimensions(dimensions: int | None, embedder: Embedder) -> None:
    """Refuse a number of dimensions that the model does not have."""
    if dimensions is None or dimensions == embedder.dim:
        return
    name = embedder.card.name
    if not embedder.is_ordered:
        raise invalid("dimensions", f"{embedder.dim}: shorter embeddings of {name} would lose what they know")
    if dimensions > embedder.dim:
        raise invalid("dimensions", f"at most {embedder.dim}, all that {name} has")


def check_contents(contents: Sequence[Content], card: Card, max_images: int) -> None:
    """Refuse too many images, empty ones, texts that are too long, and texts without a text tower."""
    if sum(content.image is not None for content in contents) > max_images:
        message = f"A request may hold at most {max_images} images (--max-images)."
        raise RefusedError(400, "too_many_images", message, parameter="input")
    for content in contents:
        if content.image is not None and not content.image:
            raise _refused(content, "no_image", "the image is empty.")
        if content.text is None:
            continue
        if card.text is None:
            raise _refused(content, "no_text_tower", f"{no_text_tower(card.name)}.")
        if len(content.text) > MAX_QUERY_TEXT:
            raise _refused(content, "text_too_long", f"a text has at most {MAX_QUERY_TEXT:,} characters.")


def _refused(content: Content, code: str, message: str) -> RefusedError:
    return RefusedError(400, code, f"Of {content.place}: {message}", parameter=content.place)


async def embed_contents(encoder: Encoder, contents: Sequence[Content], cpu_queue: CpuQueue) -> Embedded:
    """Return the embeddings, whose bits are those of `Embedder.embed` and `embed_text` for the same batch.

    Raises:
        RefusedError: For the first image or text that cannot be read.
    """
    embedded = Embedded(np.empty((len(contents), encoder.embedder.dim), np.float32), {})
    run = cpu_queue.run
    for batch in _batches((number, content) for number, content in enumerate(contents) if content.text is None):
        pixels = []
        for _, content in batch:
            pixels.append(await run(_pixels, encoder, content))
            run = cpu_queue.run_aside
        embedded.rows[[number for number, _ in batch]] = await run(encoder.embed_pixels, np.stack(pixels))
    for batch in _batches((number, content) for number, content in enumerate(contents) if content.text is not None):
        await run(_embed_texts, encoder, batch, embedded)
        run = cpu_queue.run_aside
    return embedded


def _batches(contents: Iterable[tuple[int, Content]]) -> Iterator[list[tuple[int, Content]]]:
    """Yield as many contents as the network gets at a time, each with its number in the request."""
    source = iter(contents)
    while batch := list(islice(source, BATCH)):
        yield batch


def _pixels(encoder: Encoder, content: Content) -> np.ndarray:
    try:
        return encoder.pixels(content.image or b"")
    except ImageError as error:
        refusal = error_json(error)["error"]
        raise _refused(content, refusal["code"], refusal["message"]) from None


def _embed_texts(encoder: Encoder, batch: Sequence[tuple[int, Content]], embedded: Embedded) -> None:
    tower = encoder.embedder.text_tower
    parts = []
    for number, content in batch:
        try:
            tokens = tower.tokens([content.text or ""])
        except TextError as error:
            raise _refused(content, "invalid_text", str(error)) from None
        embedded.truncated[number] = tokens.truncated[0]
        parts.append(tokens)
    tokens = Tokens(np.concatenate([part.ids for part in parts]), np.concatenate([part.mask for part in parts]), ())
    embedded.tokens += int(tokens.mask.sum())
    with stage("embed"):
        embedded.rows[[number for number, _ in batch]] = tower.embed(tokens)


def _answer(asked: EmbeddingRequest, embedded: Embedded, card: Card) -> EmbeddingList:
    rows = embedded.rows
    if asked.dimensions is not None:
        rows = prefix(rows, asked.dimensions)
    values: Any = encoded_rows(rows) if asked.encoding_format == "base64" else rows_of_numbers(rows)
    data = [
        Embedding(index=number, embedding=value, truncated=embedded.truncated.get(number, False))
        for number, value in enumerate(values)
    ]
    return EmbeddingList(
        data=data, model=card.name, usage=Usage(prompt_tokens=embedded.tokens, total_tokens=embedded.tokens)
    )

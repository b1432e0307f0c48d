"""POST /embed."""

from __future__ import annotations

import base64
from io import BytesIO
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response

from serving.dependencies import CpuQueueDep, EndpointDep
from serving.errors import RefusedError, error_json
from serving.forms import UploadedImage, checked_images, read_request
from serving.gallery.encoder import Encoder
from serving.metrics import stage
from serving.openapi import IMAGES, form_operation
from serving.schemas import EmbeddingFormat, EmbeddingsAnswer, EmbedParameters
from zoo.errors import ImageError
from zoo.models.card import Card

router = APIRouter()

NPY = {
    "description": "The embeddings",
    "headers": {
        "X-Model": {"description": "npy: the model's name", "schema": {"type": "string"}},
        "X-Model-Fingerprint": {"description": "npy: its fingerprint, as in JSON", "schema": {"type": "string"}},
    },
    "content": {"application/x-npy": {"schema": {"type": "string", "format": "binary"}}},
}


@router.post(
    "/embed",
    summary="The embeddings of images",
    response_model=EmbeddingsAnswer,
    openapi_extra=form_operation(EmbedParameters),
    responses=IMAGES | {200: NPY},
)
async def embed(request: Request, endpoint: EndpointDep, cpu_queue: CpuQueueDep) -> Any:
    """Return unit vectors in the order of the images.

    base64: of float32, little-endian; npy: one NumPy array as the body, with its model in the headers X-Model and
    X-Model-Fingerprint.
    """
    with stage("read"):
        parameters, files = await read_request(request, EmbedParameters)
    images = checked_images(files)

    def embed_first() -> tuple[Encoder, np.ndarray]:
        encoder = endpoint.encoder()
        return encoder, encoder.embed(images[0].data, parameters.crop)

    rows: list[np.ndarray] = []
    try:
        # All images of a request are embedded by one model, even if the gallery gets another one meanwhile.
        encoder, row = await cpu_queue.run(embed_first)
        rows.append(row)
        for image in images[1:]:
            row = await cpu_queue.run_aside(encoder.embed, image.data, parameters.crop)
            rows.append(row)
    except ImageError as error:
        raise _with_number(error, len(rows), images[len(rows)]) from None
    return _answer(np.concatenate(rows), parameters.format, encoder.embedder.card)


def _with_number(error: ImageError, number: int, image: UploadedImage) -> RefusedError:
    refusal = error_json(error)["error"]
    name = f" ({image.name[:80]})" if image.name else ""
    return RefusedError(422, refusal["code"], f"Of image {number + 1}{name}: {refusal['message']}")


def _answer(rows: np.ndarray, form: EmbeddingFormat, card: Card) -> Response | EmbeddingsAnswer:
    if form == "npy":
        out = BytesIO()
        np.save(out, rows.astype("<f4"), allow_pickle=False)
        headers = {"X-Model": card.name, "X-Model-Fingerprint": card.fingerprint}
        return Response(out.getvalue(), media_type="application/x-npy", headers=headers)
    values: Any = encoded_rows(rows) if form == "base64" else rows_of_numbers(rows)
    return EmbeddingsAnswer(model=card.name, fingerprint=card.fingerprint, dim=card.dim, embeddings=values)


def encoded_rows(rows: np.ndarray) -> list[str]:
    """Return base64 of each row of float32, little-endian."""
    return [base64.b64encode(row.tobytes()).decode() for row in rows.astype("<f4")]


def rows_of_numbers(rows: np.ndarray) -> list[list[float]]:
    """Return rows of float32 as numbers in few digits; nine identify a float32."""
    return [[float(f"{value:.9g}") for value in row] for row in rows.astype(np.float32).tolist()]

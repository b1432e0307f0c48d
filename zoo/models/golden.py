"""Golden images: a few decoded images with their embeddings, which prove a model folder after any move."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from safetensors.numpy import load, save_file

from zoo.data.preprocessing import to_pixels
from zoo.errors import ModelFolderError
from zoo.files import atomic_path, read_bytes
from zoo.models.card import Card

GOLDEN_FILE = "golden.safetensors"

MAX_GOLDEN_BYTES = 64 * 2**20
"""Largest file of golden images or texts; ours have less than 2 MB."""

LENGTH_TOLERANCE = 1e-3
"""The largest allowed distance of an embedding's length from 1; float16 arithmetic rounds by less."""


def write_golden(
    folder: Path, card: Card, images: Sequence[np.ndarray], run: Callable[[np.ndarray], np.ndarray]
) -> None:
    """Store images with the embeddings that a model gives them.

    Args:
        folder: The model folder.
        card: Its card.
        images: uint8 [H, W, 3] each, before preprocessing.
        run: Maps preprocessed pixels uint8 [n, h, w, c] to embeddings float32 [n, dim].
    """
    pixels = np.stack([to_pixels(image, card.preprocessing) for image in images])
    tensors = {f"image_{i}": np.ascontiguousarray(image) for i, image in enumerate(images)}
    with atomic_path(folder / GOLDEN_FILE) as temporary:
        save_file({**tensors, "embeddings": run(pixels)}, temporary)


def draw_images(count: int = 4, seed: int = 0) -> list[np.ndarray]:
    """Return drawn images uint8 [H, W, 3] of several shapes, for models that come without images."""
    random = np.random.default_rng(seed)
    return [_draw_image(160 + 32 * (i % 3), 192 - 16 * (i % 2), random) for i in range(count)]


def _draw_image(width: int, height: int, random: np.random.Generator) -> np.ndarray:
    from PIL import ImageDraw  # with its fonts, which no reader of golden images needs

    corners = random.integers(0, 256, (2, 2, 3), dtype=np.uint8)
    image = Image.fromarray(corners).resize((width, height), Image.Resampling.BILINEAR)
    pen = ImageDraw.Draw(image)
    for _ in range(12):
        (x, y), size = random.uniform(0, (width, height)), random.uniform(6, 40)
        pen.ellipse((x - size, y - size, x + size, y + size), fill=tuple(int(v) for v in random.integers(0, 256, 3)))
    noise = random.normal(0, 6, (height, width, 3))
    return np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8)


def read_golden(folder: Path) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the golden images and their embeddings, as `read_proof`: uint8 [H, W, 3] or [H, W] each."""
    return read_proof(folder / GOLDEN_FILE, "image", (2, 3))


def golden_pixels(folder: Path, card: Card) -> np.ndarray:
    """Return the golden images as the model's pixels, uint8 [n, h, w, c]."""
    return np.stack([to_pixels(image, card.preprocessing) for image in read_golden(folder)[0]])


def read_proof(path: Path, kind: str, dimensions: Collection[int]) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the inputs in a file of golden inputs, and their embeddings.

    Args:
        path: The file.
        kind: "image" or "text": its tensors are image_0, image_1 and so on, and the embeddings.
        dimensions: The numbers of dimensions that an input may have.

    Returns:
        At least one input, uint8, and embeddings float32 [n, dim] of unit length.

    Raises:
        ModelFolderError: `unreadable-file` for a file that is missing, cut or too large, `damaged-file` for contents
            that would let any model pass.
    """
    try:
        tensors = load(read_bytes(path, MAX_GOLDEN_BYTES))
        embeddings = tensors.pop("embeddings")
        inputs = [tensors[f"{kind}_{i}"] for i in range(len(tensors))]
    except Exception as error:  # safetensors raises its own type
        raise ModelFolderError(f"{path} cannot be read: {error}", code="unreadable-file") from None
    if problem := next(_problems(kind, inputs, embeddings, dimensions), None):
        raise ModelFolderError(
            f"{path} proves nothing: {problem}. Download the model folder again.", code="damaged-file"
        )
    return inputs, embeddings


def _problems(
    kind: str, inputs: Sequence[np.ndarray], embeddings: np.ndarray, dimensions: Collection[int]
) -> Iterator[str]:
    if not inputs:
        yield f"it has no {kind}"
    for number, array in enumerate(inputs):
        if not (array.dtype == np.uint8 and array.ndim in dimensions and array.size):
            yield f"{kind}_{number} is {array.dtype} {list(array.shape)}, expected uint8"
    if not (embeddings.dtype == np.float32 and embeddings.ndim == 2 and len(embeddings) == len(inputs)):
        yield f"its embeddings are {embeddings.dtype} {list(embeddings.shape)}, expected float32 [{len(inputs)}, dim]"
    else:
        for number, length in enumerate(np.linalg.norm(embeddings, axis=1)):
            if not abs(length - 1) <= LENGTH_TOLERANCE:  # false for NaN
                yield f"embedding {number} has the length {length:.3g}, expected 1"

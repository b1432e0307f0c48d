"""Golden images: a few undecoded pictures and their embeddings, which prove a model folder after any move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from safetensors.numpy import load_file, save_file

from zoo.data.preprocessing import to_pixels
from zoo.errors import ModelFolderError
from zoo.files import atomic_path
from zoo.models.card import Card

GOLDEN_FILE = "golden.safetensors"

LENGTH_TOLERANCE = 1e-3
"""How far from 1 the length of a golden embedding may be: float16 arithmetic rounds by less."""


def write_golden(
    folder: Path, card: Card, images: Sequence[np.ndarray], run: Callable[[np.ndarray], np.ndarray]
) -> None:
    """Store images (uint8 [H, W, 3], before preprocessing) with the embeddings that `run` gives them."""
    pixels = np.stack([to_pixels(image, card.preprocessing) for image in images])
    tensors = {f"image_{i}": np.ascontiguousarray(image) for i, image in enumerate(images)}
    with atomic_path(folder / GOLDEN_FILE) as temporary:
        save_file({**tensors, "embeddings": run(pixels)}, temporary)


def draw_images(count: int = 4, seed: int = 0) -> list[np.ndarray]:
    """Drawn pictures uint8 [H, W, 3] of several shapes, for models that come without images."""
    draw = np.random.default_rng(seed)
    return [_picture(160 + 32 * (i % 3), 192 - 16 * (i % 2), draw) for i in range(count)]


def _picture(width: int, height: int, draw: np.random.Generator) -> np.ndarray:
    corners = draw.integers(0, 256, (2, 2, 3), dtype=np.uint8)
    image = Image.fromarray(corners).resize((width, height), Image.Resampling.BILINEAR)
    pen = ImageDraw.Draw(image)
    for _ in range(12):
        (x, y), size = draw.uniform(0, (width, height)), draw.uniform(6, 40)
        pen.ellipse((x - size, y - size, x + size, y + size), fill=tuple(int(v) for v in draw.integers(0, 256, 3)))
    noise = draw.normal(0, 6, (height, width, 3))
    return np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8)


def read_golden(folder: Path) -> tuple[list[np.ndarray], np.ndarray]:
    """The images and their embeddings float32 [n, dim], n >= 1, rows of unit length.

    Raises `ModelFolderError` where the file is missing, cut or holds anything else: it proves a model, so that what
    would let any model pass is refused.
    """
    path = folder / GOLDEN_FILE
    try:
        tensors = load_file(path)
        embeddings = tensors.pop("embeddings")
        images = [tensors[f"image_{i}"] for i in range(len(tensors))]
    except Exception as error:  # safetensors raises its own type
        raise ModelFolderError(f"{path} cannot be read: {error}") from None
    if why := _wrong_images(images) or _wrong_rows(embeddings, len(images)):
        raise ModelFolderError(f"{path} proves nothing: {why} Get the model folder anew.")
    return images, embeddings


def _wrong_images(images: Sequence[np.ndarray]) -> str:
    if not images:
        return "it holds no image, expected at least one."
    odd = [i for i, image in enumerate(images) if image.dtype != np.uint8 or image.ndim not in (2, 3) or not image.size]
    return f"image_{odd[0]} is no picture, expected uint8 [h, w, 3]." if odd else ""


def _wrong_rows(embeddings: np.ndarray, count: int) -> str:
    if embeddings.dtype != np.float32 or embeddings.ndim != 2 or len(embeddings) != count:
        got = f"{embeddings.dtype} {list(embeddings.shape)}"
        return f"its embeddings are {got}, expected float32 [{count}, dim], one row an image."
    length = np.linalg.norm(embeddings.astype(np.float64), axis=1)
    unit = np.abs(length - 1) <= LENGTH_TOLERANCE  # false for NaN
    return "" if unit.all() else f"embedding {int(np.argmin(unit))} is not of unit length, or not finite."

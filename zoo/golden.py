"""Golden images: a few undecoded pictures and their embeddings, which prove a model folder after any move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from zoo.cards import Card
from zoo.errors import ModelFolderError
from zoo.files import atomic_path
from zoo.preprocessing import to_pixels

FILE = "golden.safetensors"


def write_golden(
    folder: Path, card: Card, images: Sequence[np.ndarray], run: Callable[[np.ndarray], np.ndarray]
) -> None:
    """Store images (uint8 [H, W, 3], before preprocessing) with the embeddings that `run` gives them."""
    pixels = np.stack([to_pixels(image, card.preprocessing) for image in images])
    tensors = {f"image_{i}": np.ascontiguousarray(image) for i, image in enumerate(images)}
    with atomic_path(folder / FILE) as temporary:
        save_file({**tensors, "embeddings": run(pixels)}, temporary)


def read_golden(folder: Path) -> tuple[list[np.ndarray], np.ndarray]:
    """The images and their embeddings float32 [n, dim]. Raises `ModelFolderError` where the file is missing or cut."""
    try:
        tensors = load_file(folder / FILE)
        return [tensors[f"image_{i}"] for i in range(len(tensors) - 1)], tensors["embeddings"]
    except Exception as error:  # safetensors raises its own type
        raise ModelFolderError(f"{folder / FILE} cannot be read: {error}") from None

"""What `zoo.load` returns: images in, unit vectors out, the same for every runtime."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from zoo.cards import Card
from zoo.data.preprocessing import Preprocessing
from zoo.errors import ImageError, ModelFolderError, UsageError
from zoo.paths import is_folder

if TYPE_CHECKING:
    from zoo.data.images import ImageLike
    from zoo.text import TextTower


@dataclass(frozen=True)
class Embedder:
    """A loaded model. `run` maps pixels uint8 [n, crop, crop, channels] to unit rows float32 [n, dim]."""

    card: Card
    folder: Path
    runtime: str
    precision: str
    device: str
    run: Callable[[np.ndarray], np.ndarray]

    @property
    def dim(self) -> int:
        return self.card.dim

    @property
    def preprocessing(self) -> Preprocessing:
        return self.card.preprocessing

    def embed(
        self, images: ImageLike | Iterable[ImageLike], batch_size: int = 64, progress: bool = False
    ) -> np.ndarray:
        """Unit embeddings, float32 [n, dim], of paths, file bytes, PIL images or uint8 arrays [H, W(, C)].

        A single image gives one row; an array of four dimensions is a batch of images. Iterators are consumed batch
        by batch. Raises `ImageError` naming the first image that cannot be used.
        """
        return self._embed(_as_iterable(images), batch_size, progress, None)

    def embed_readable(
        self, images: Iterable[ImageLike], batch_size: int = 64, progress: bool = False
    ) -> tuple[np.ndarray, dict[int, ImageError]]:
        """As `embed`, of the images that can be read; and what is wrong with each of the others, by its place."""
        unreadable: dict[int, ImageError] = {}
        return self._embed(_as_iterable(images), batch_size, progress, unreadable), unreadable

    def embed_pixels(self, pixels: np.ndarray) -> np.ndarray:
        """Unit embeddings, float32 [n, dim], of preprocessed pixels, uint8 [n, crop, crop, channels].

        Raises `ModelFolderError` where the network gives others than the card says.
        """
        if pixels.dtype != np.uint8 or pixels.shape[1:] != self.preprocessing.shape:
            raise UsageError(
                f"{self.card.name} takes uint8 pixels [n, {', '.join(map(str, self.preprocessing.shape))}], "
                f"not {pixels.dtype} {list(pixels.shape)}."
            )
        rows = self.run(pixels)
        if rows.shape != (len(pixels), self.dim):
            raise ModelFolderError(
                f"{self.card.name} gives {list(rows.shape)} for {len(pixels)} images, and its card says dim "
                f"{self.dim}: it is of another network. Get the model folder anew from where it came from."
            )
        return rows

    @cached_property
    def text_tower(self) -> TextTower:
        """Read on its first use. Raises `NoTextTowerError`, a `TextError`, where the model has none."""
        from zoo.text import open_tower

        return open_tower(self.folder, self.card, self.device if self.runtime == "onnx" else None)

    def embed_text(self, texts: str | Iterable[str], batch_size: int = 64) -> np.ndarray:
        """Unit embeddings, float32 [n, dim], of texts, in the space of the images'; one text gives one row.

        What a text has beyond the tower's length (`card.text.length` tokens) is left out; `text_tower.tokens` says of
        which. Raises `NoTextTowerError` where the model has no text tower, and `TextError` naming the first text that
        is empty or no text.
        """
        from zoo.text import embed_texts

        return embed_texts(self.text_tower, texts, batch_size, self.dim)

    def _embed(
        self, images: Iterable[ImageLike], batch_size: int, progress: bool, unreadable: dict[int, ImageError] | None
    ) -> np.ndarray:
        if batch_size < 1:
            raise UsageError(f"batch_size must be at least 1, not {batch_size}.")
        rows = [self.embed_pixels(pixels) for pixels in self._batches(images, batch_size, progress, unreadable)]
        return np.concatenate(rows) if rows else np.empty((0, self.dim), np.float32)

    def _batches(
        self, images: Iterable[ImageLike], batch_size: int, progress: bool, unreadable: dict[int, ImageError] | None
    ) -> Iterable[np.ndarray]:
        from zoo.data.decode import batches  # Pillow is read while a graph is opened (zoo.loading)

        total = len(images) if isinstance(images, Sized) else None
        source = batches(images, self.preprocessing, batch_size, unreadable=unreadable)
        if not progress:
            return source
        return _with_progress(source, total)


def _as_iterable(images: ImageLike | Iterable[ImageLike]) -> Iterable[ImageLike]:
    if isinstance(images, str | os.PathLike) and is_folder(images):
        raise UsageError(
            f"{os.fspath(images)!r} is a folder, and embed takes images: paths of image files, bytes, PIL images or "
            "uint8 arrays. All images of a folder are embedded by: from zoo.data.folder import list_images; "
            f"model.embed(list_images({os.fspath(images)!r}))"
        )
    from PIL import Image

    single = isinstance(images, str | bytes | bytearray | os.PathLike | Image.Image)
    if single or (isinstance(images, np.ndarray) and images.ndim < 4):
        return [cast("ImageLike", images)]
    if not isinstance(images, Iterable):
        raise UsageError(f"embed takes images or an iterable of images, not {type(images).__name__}.")
    return cast("Iterable[ImageLike]", images)


def _with_progress(source: Iterable[np.ndarray], total: int | None) -> Iterable[np.ndarray]:
    from tqdm.auto import tqdm

    with tqdm(total=total, unit="image", desc="embed") as bar:
        for pixels in source:
            yield pixels
            bar.update(len(pixels))

"""A gallery together with the model that embedded it: what the command line and the service search with."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from serving.gallery import Gallery, Hit
from serving.metrics import stage
from zoo.embedder import Embedder
from zoo.errors import ModelFolderError
from zoo.golden import FILE, read_golden
from zoo.images import DEFAULT_LIMITS, ImageLike, Limits
from zoo.loading import load
from zoo.preprocessing import to_pixels
from zoo.verify import FLOORS


class Searcher:
    """Finds the items of `gallery` nearest to an image. Safe to use from several threads with the ONNX runtime."""

    def __init__(self, gallery: Gallery, embedder: Embedder, limits: Limits = DEFAULT_LIMITS) -> None:
        """Raises `ModelMismatchError` unless the gallery was embedded by this very model."""
        gallery.check_model(embedder.card)
        self.gallery, self.embedder, self.limits = gallery, embedder, limits
        self._probe, self._expected = self._golden()
        if not self.is_ready():
            raise ModelFolderError(
                f"{embedder.card.name} does not give its golden image the embedding it should. Check it: "
                f"zoo verify {embedder.folder}"
            )

    @classmethod
    def open(
        cls, path: str | Path, runtime: str = "onnx", model: str | None = None, limits: Limits = DEFAULT_LIMITS
    ) -> Searcher:
        """Open a gallery and load its model; `model`: where that model lies now, if it has moved."""
        gallery = Gallery.open(path)
        try:
            return cls(gallery, load(model or gallery.model_ref, runtime=runtime), limits)
        except BaseException:
            gallery.close()
            raise

    def close(self) -> None:
        self.gallery.close()

    def embed(self, image: ImageLike) -> np.ndarray:
        """The image's unit embedding, float32 [1, dim]. Raises `ImageError`."""
        with stage("decode"):
            pixels = to_pixels(image, self.embedder.preprocessing, self.limits)
        with stage("embed"):
            return self.embedder.embed_pixels(pixels[None])

    def by_image(self, image: ImageLike, k: int) -> list[Hit]:
        """The `k` items nearest to an image. Raises `ImageError`."""
        embedding = self.embed(image)
        with stage("find"):
            return self.gallery.search(embedding, k)[0]

    def by_item(self, item_id: int, k: int) -> list[Hit]:
        """The `k` items nearest to an item, itself left out. Raises `ItemNotFoundError`."""
        with stage("find"):
            return self.gallery.search(self.gallery.embedding(item_id)[None], k, exclude_ids=[item_id])[0]

    def is_ready(self) -> bool:
        """Whether a golden image still goes all the way: decoded, embedded to the vector it should be, searched."""
        embedding = self.embed(self._probe)
        self.gallery.search(embedding, 1)
        return float(embedding[0] @ self._expected) >= FLOORS[self.embedder.precision]

    def _golden(self) -> tuple[bytes, np.ndarray]:
        """An image file and the embedding float32 [dim] it must have; without a golden file, the one it has now."""
        if (self.embedder.folder / FILE).is_file():
            images, embeddings = read_golden(self.embedder.folder)
            return _png(images[0]), embeddings[0]
        noise = _png(np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8))
        return noise, self.embed(noise)[0]


def _png(image: np.ndarray) -> bytes:
    out = BytesIO()
    Image.fromarray(image).save(out, "PNG")
    return out.getvalue()

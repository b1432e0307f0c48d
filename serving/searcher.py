"""A gallery together with the model that embedded it: what the command line and the service search with."""

from __future__ import annotations

import math
import threading
import time
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from serving.finding import Ask, Box, find
from serving.gallery import Gallery, Hit
from serving.gallery.filters import EVERYTHING, Filter
from serving.metrics import stage
from serving.models import Models
from zoo.data.images import DEFAULT_LIMITS, ImageLike, Limits, open_image
from zoo.data.preprocessing import to_pixels
from zoo.errors import ModelFolderError
from zoo.evaluation.calibration import Calibration
from zoo.models.golden import GOLDEN_FILE, read_golden
from zoo.models.load import Embedder
from zoo.models.results import GOLDEN_FLOORS
from zoo.models.text_tower import read_golden_text

MAX_DRAFT = 2**16
READY_SECONDS = 1.0


class Searcher:
    """Finds the items of `gallery` nearest to an image. Safe to use from several threads with the ONNX runtime."""

    def __init__(self, gallery: Gallery, embedder: Embedder, limits: Limits = DEFAULT_LIMITS) -> None:
        """Raises `ModelMismatchError` unless the gallery was embedded by this very model."""
        gallery.check_model(embedder.card)
        self.gallery, self.embedder, self.limits = gallery, embedder, limits
        self._probe, self._expected = self._golden()
        self._looking, self._looked = threading.Lock(), (-math.inf, False)
        if not self.is_ready():
            raise ModelFolderError(
                f"{embedder.card.name} does not give its golden image the embedding it should. Check it: "
                f"zoo verify {embedder.folder}"
            )

    @classmethod
    def open(
        cls,
        path: str | Path,
        model: str | None = None,
        limits: Limits = DEFAULT_LIMITS,
        models: Models | None = None,
    ) -> Searcher:
        """Open a gallery and load its model, one of `models` where that has it already.

        model: where that model lies now, if it has moved. The gallery's index is searched on what they run on.
        """
        models = models or Models()
        gallery = Gallery.open(path, device=models.device)
        try:
            return cls(gallery, models.of(gallery, model), limits)
        except BaseException:
            gallery.close()
            raise

    def close(self) -> None:
        self.gallery.close()

    def embed(self, image: ImageLike, crop: Box | None = None) -> np.ndarray:
        """The image's unit embedding, float32 [1, dim]; of a part of it, where `crop` says so. Raises `ImageError`."""
        with stage("decode"):
            pixels = to_pixels(self._part(image, crop), self.embedder.preprocessing, self.limits)
        with stage("embed"):
            return self.embedder.embed_pixels(pixels[None])

    def embed_text(self, text: str) -> tuple[np.ndarray, bool]:
        """The text's unit embedding, float32 [1, dim], and whether its end was left out.

        Raises `NoTextTowerError` where the model embeds images alone, and `TextError` for a text with nothing in it.
        """
        with stage("embed"):
            tower = self.embedder.text_tower
            tokens = tower.tokens([text])
            return tower.embed(tokens), tokens.truncated[0]

    def check_texts(self) -> None:
        """Read the model's text tower, where it has one, which else the first query waits for, and try it.

        Raises `ModelFolderError` where a golden text does not get the embedding it should.
        """
        if self.embedder.card.text is None:
            return
        texts, expected = read_golden_text(self.embedder.folder)
        if float(self.embed_text(texts[0])[0][0] @ expected[0]) < GOLDEN_FLOORS["int8"]:
            raise ModelFolderError(
                f"{self.embedder.card.name} does not give its golden text the embedding it should. Check it: "
                f"zoo verify {self.embedder.folder}"
            )

    def by_image(self, image: ImageLike, k: int, chosen: Filter = EVERYTHING) -> list[Hit]:
        """The `k` items nearest to an image. Raises `ImageError`."""
        return self.search(self.embed(image), Ask(k, chosen=chosen))

    def by_item(self, item_id: int, k: int, chosen: Filter = EVERYTHING) -> list[Hit]:
        """The `k` items nearest to an item, itself left out. Raises `ItemNotFoundError`."""
        return self.search(self.gallery.embedding(item_id)[None], Ask(k, chosen=chosen), item_id)

    def by_text(self, text: str, k: int, chosen: Filter = EVERYTHING) -> tuple[list[Hit], bool]:
        """The `k` items nearest to a text, and whether its end was left out. Raises `TextError`."""
        embedding, truncated = self.embed_text(text)
        return self.search(embedding, Ask(k, chosen=chosen)), truncated

    def search(
        self, embedding: np.ndarray, ask: Ask, leave_out: int | None = None, calibration: Calibration | None = None
    ) -> list[Hit]:
        """What `ask` wants of the nearest to a unit row, float32 [1, dim]; the item `leave_out` is not among them.

        Raises `UsageError` for a `min_p` without the gallery's calibration.
        """
        with stage("find"):
            return find(self.gallery, embedding, ask, () if leave_out is None else (leave_out,), calibration)

    def is_ready(self) -> bool:
        """Whether a golden image still goes all the way: decoded, embedded to the vector it should be, searched.

        Anybody may ask, without a key and as often as they like; it is looked at once a second at most.
        """
        with self._looking:
            looked, was = self._looked
            if time.monotonic() - looked > READY_SECONDS:
                was = False
                try:
                    was = self._goes_all_the_way()
                finally:
                    self._looked = time.monotonic(), was
        return was

    def _goes_all_the_way(self) -> bool:
        embedding = self.embed(self._probe)
        self.gallery.search(embedding, 1)
        return float(embedding[0] @ self._expected) >= GOLDEN_FLOORS[self.embedder.precision]

    def _part(self, image: ImageLike, crop: Box | None) -> ImageLike:
        if crop is None:
            return image
        left, top, right, bottom = crop
        # As many pixels must be left of the part as the network wants of a whole image.
        draft = math.ceil(self.embedder.preprocessing.resize / min(right - left, bottom - top))
        whole = open_image(image, self.limits, min(draft, MAX_DRAFT))
        x, y = np.array([left, right]) * whole.width, np.array([top, bottom]) * whole.height
        box = int(x[0]), int(y[0]), max(int(x[0]) + 1, round(x[1])), max(int(y[0]) + 1, round(y[1]))
        return whole.crop(box)

    def _golden(self) -> tuple[bytes, np.ndarray]:
        """An image file and the embedding float32 [dim] it must have; without a golden file, the one it has now."""
        if (self.embedder.folder / GOLDEN_FILE).is_file():
            images, embeddings = read_golden(self.embedder.folder)
            return _png(images[0]), embeddings[0]
        noise = _png(np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8))
        return noise, self.embed(noise)[0]


def _png(image: np.ndarray) -> bytes:
    out = BytesIO()
    Image.fromarray(image).save(out, "PNG")
    return out.getvalue()

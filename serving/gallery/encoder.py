"""Encoder: a loaded model that embeds images and texts within the limits of a service, tried with golden ones."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from io import BytesIO

import numpy as np
from PIL import Image

from serving.gallery.types import Box
from zoo.data.images import DEFAULT_LIMITS, ImageLike, Limits, open_image
from zoo.data.preprocessing import to_pixels
from zoo.errors import ModelFolderError, command
from zoo.models.golden import GOLDEN_FILE, read_golden
from zoo.models.load import Embedder, prefix
from zoo.models.results import GOLDEN_FLOORS
from zoo.models.text_tower import read_golden_text

Timer = Callable[[str], AbstractContextManager[None]]
"""Times a named stage of a request (decode, embed, find)."""

MAX_DRAFT = 2**16
READY_SECONDS = 1.0


def untimed(stage: str) -> AbstractContextManager[None]:
    """Time nothing: the default `Timer`."""
    return nullcontext()


class Encoder:
    """Loaded model. Safe to use from several threads with the ONNX runtime."""

    def __init__(self, embedder: Embedder, limits: Limits = DEFAULT_LIMITS, timer: Timer = untimed) -> None:
        """Try a golden image.

        Raises:
            ModelFolderError: The golden image does not get its embedding.
        """
        self.embedder, self.limits, self._timer = embedder, limits, timer
        self._golden_image, self._golden_embedding = self._golden()
        self._ready_lock, self._last_check = threading.Lock(), (-math.inf, False)
        if not self.is_ready():
            raise ModelFolderError(
                f"{embedder.card.name} does not give its golden image the expected embedding. Check the model: "
                f"{command('verify', embedder.folder)}",
                code="golden-mismatch",
            )

    def pixels(self, image: ImageLike, crop: Box | None = None, limits: Limits | None = None) -> np.ndarray:
        """Return the preprocessed pixels, uint8 [crop, crop, channels], of an image or of the part in `crop`.

        `limits` replaces the bounds of query images. Raises `ImageError`.
        """
        limits = limits or self.limits
        with self._timer("decode"):
            return to_pixels(self._cropped(image, crop, limits), self.embedder.preprocessing, limits)

    def embed_pixels(self, pixels: np.ndarray) -> np.ndarray:
        """Return the unit embeddings, float32 [n, dim], of preprocessed pixels, uint8 [n, crop, crop, channels]."""
        with self._timer("embed"):
            return self.embedder.embed_pixels(pixels)

    def embed(self, image: ImageLike, crop: Box | None = None, limits: Limits | None = None) -> np.ndarray:
        """Return the unit embedding, float32 [1, dim], of an image or of the part in `crop`; see `pixels`."""
        return self.embed_pixels(self.pixels(image, crop, limits)[None])

    def embed_text(self, text: str) -> tuple[np.ndarray, bool]:
        """Return the unit embedding, float32 [1, dim], of a text, and whether the text was truncated.

        Raises:
            NoTextTowerError: The model embeds images only.
            TextError: The text is empty.
        """
        with self._timer("embed"):
            tower = self.embedder.text_tower
            tokens = tower.tokens([text])
            return tower.embed(tokens), tokens.truncated[0]

    def check_texts(self) -> None:
        """Load the model's text tower, if it has one, and try its first golden text.

        Raises:
            ModelFolderError: The golden text does not get its embedding.
        """
        if self.embedder.card.text is None:
            return
        texts, expected = read_golden_text(self.embedder.folder)
        if float(self.embed_text(texts[0])[0][0] @ expected[0]) < GOLDEN_FLOORS["int8"]:
            raise ModelFolderError(
                f"{self.embedder.card.name} does not give its golden text the expected embedding. Check the model: "
                f"{command('verify', self.embedder.folder)}"
            )

    def is_ready(self) -> bool:
        """Return whether a golden image is decoded, embedded to its vector and used.

        Probes ask without a key and as often as they like, so the result holds for a second.
        """
        with self._ready_lock:
            checked, ready = self._last_check
            if time.monotonic() - checked > READY_SECONDS:
                ready = False
                try:
                    embedding = self.embed(self._golden_image, limits=DEFAULT_LIMITS)
                    self._use(embedding)
                    cosine = float(embedding[0] @ self._golden_embedding)
                    ready = cosine >= GOLDEN_FLOORS[self.embedder.precision]
                finally:
                    self._last_check = time.monotonic(), ready
        return ready

    def _use(self, embedding: np.ndarray) -> None:
        """Do with the golden embedding, float32 [1, dim], what is done with others: nothing here."""

    def _cropped(self, image: ImageLike, crop: Box | None, limits: Limits) -> ImageLike:
        if crop is None:
            return image
        left, top, right, bottom = crop
        # The part must keep as many pixels as the network wants of a whole image.
        draft = min(self.embedder.preprocessing.resize / min(right - left, bottom - top), MAX_DRAFT)
        picture = open_image(image, limits, math.ceil(draft))
        x, y = np.array([left, right]) * picture.width, np.array([top, bottom]) * picture.height
        return picture.crop((int(x[0]), int(y[0]), max(int(x[0]) + 1, round(x[1])), max(int(y[0]) + 1, round(y[1]))))

    def _golden(self) -> tuple[bytes, np.ndarray]:
        """Return an image file and its expected embedding, float32 [dim]; without a golden file, today's."""
        if (self.embedder.folder / GOLDEN_FILE).is_file():
            images, embeddings = read_golden(self.embedder.folder)
            return _png(images[0]), prefix(embeddings, self.embedder.dim)[0]
        noise = _png(np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8))
        return noise, self.embed(noise, limits=DEFAULT_LIMITS)[0]


def _png(image: np.ndarray) -> bytes:
    out = BytesIO()
    Image.fromarray(image).save(out, "PNG")
    return out.getvalue()

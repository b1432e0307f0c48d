"""From images to the uint8 pixels that every runtime takes: the one path that training, export and serving share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from zoo.errors import CardError

if TYPE_CHECKING:
    from PIL import Image

    from zoo.data.images import ImageLike, Limits


INTERPOLATIONS = ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos")

MAX_STATISTIC, MIN_STD = 1e4, 1e-4
"""Of preprocessing, on the scale 0..1: what lies beyond is no statistic of pixels, and gives infinity or NaN."""


@dataclass(frozen=True)
class Preprocessing:
    """How an image becomes the network's pixels: short side to `resize`, centre square of `crop`, `mode` L or RGB.

    `mean` and `std` hold one value a channel on the scale 0..1; the network itself applies them, so that every
    runtime takes plain uint8 pixels.
    """

    resize: int
    crop: int
    mode: str = "RGB"
    interpolation: str = "bilinear"
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        if self.mode not in ("L", "RGB"):
            raise CardError(f"preprocessing.mode is {self.mode!r}; expected 'L' (grey) or 'RGB'.")
        if not (len(self.mean) == len(self.std) == self.channels):
            raise CardError(f"preprocessing.mean and .std need {self.channels} value(s) for mode {self.mode}.")
        self._check_range("mean", "numbers", -MAX_STATISTIC)
        self._check_range("std", "positive numbers", MIN_STD)
        if not 1 <= self.crop <= self.resize <= 4096:
            raise CardError(f"preprocessing needs 1 <= crop <= resize <= 4096, not {self.crop} and {self.resize}.")
        if self.interpolation not in INTERPOLATIONS:
            raise CardError(
                f"preprocessing.interpolation is {self.interpolation!r}; expected one of {', '.join(INTERPOLATIONS)}."
            )

    def _check_range(self, key: str, kind: str, least: float) -> None:
        values: tuple[float, ...] = getattr(self, key)
        if not all(least <= value <= MAX_STATISTIC for value in values):  # which NaN is not either
            raise CardError(
                f"preprocessing.{key} is {list(values)}; expected {kind} from {least:g} to {MAX_STATISTIC:g}, on "
                "the scale 0 to 1 of the pixels."
            )

    @property
    def channels(self) -> int:
        return 1 if self.mode == "L" else 3

    @property
    def shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of one preprocessed image."""
        return self.crop, self.crop, self.channels


def to_pixels(source: ImageLike, how: Preprocessing, limits: Limits | None = None) -> np.ndarray:
    """Return one image as uint8 [crop, crop, channels]. Raises `ImageError` for an image that cannot be decoded.

    limits: of the file and its pixels (default: `zoo.data.images.DEFAULT_LIMITS`).
    """
    from zoo.data.images import DEFAULT_LIMITS, open_image

    image = open_image(source, limits or DEFAULT_LIMITS, draft=how.resize).convert(how.mode)
    image = _centre_square(image, how)
    return np.asarray(image, dtype=np.uint8).reshape(how.shape)


def _centre_square(image: Image.Image, how: Preprocessing) -> Image.Image:
    """The centre crop of the image after its short side became `resize`.

    Cropped in the source's coordinates and resized in one step: a 1 x 100,000,000 image never becomes a wide one.
    """
    from PIL import Image

    side = min(image.size) * how.crop / how.resize
    left, top = (image.width - side) / 2, (image.height - side) / 2
    box = left, top, left + side, top + side
    return image.resize((how.crop, how.crop), Image.Resampling[how.interpolation.upper()], box=box)

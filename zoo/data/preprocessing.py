"""Preprocessing of images to the uint8 pixels that every runtime takes; training, export and serving share it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from zoo.errors import CardError, UsageError

if TYPE_CHECKING:
    from zoo.data.images import ImageLike, Limits


INTERPOLATIONS = ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos")

# Bounds of mean and std on the pixel scale 0..1: values beyond them would give infinity or NaN.
MAX_STATISTIC, MIN_STD = 1e4, 1e-4
TOLERANCE = 1e-3
"""Largest difference between two statements of one mean or standard deviation."""


@dataclass(frozen=True)
class Preprocessing:
    """Preprocessing of a model: resize the short side or both, cut the centre square, convert to grey or RGB.

    Attributes:
        resize: Short side in pixels after resizing; with `squeeze` both sides.
        crop: Side of the centre square in pixels.
        mode: "L" (grey) or "RGB".
        interpolation: One of `INTERPOLATIONS`.
        mean: Mean of each channel on the scale 0..1. The network applies `mean` and `std` itself, so that every runtime
            takes plain uint8 pixels.
        std: Standard deviation of each channel on the scale 0..1.
        squeeze: Resize both sides to `resize`, of images of any proportions (Elezi et al. 2020, The Group Loss,
            section 4.1); False keeps them.
    """

    resize: int
    crop: int
    mode: str = "RGB"
    interpolation: str = "bilinear"
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    squeeze: bool = False

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
        if not all(least <= value <= MAX_STATISTIC for value in values):  # false for NaN, too
            raise CardError(
                f"preprocessing.{key} is {list(values)}; expected {kind} from {least:g} to {MAX_STATISTIC:g}, on "
                "the scale 0 to 1 of the pixels."
            )

    def to_json(self) -> dict[str, Any]:
        """Return the fields; `squeeze` only where it is true, so that the fingerprints of older models stay valid."""
        facts = asdict(self)
        if not self.squeeze:
            del facts["squeeze"]
        return facts

    @property
    def square(self) -> dict[str, Any]:
        """The part of an image that the network sees, as `zoo.data.decoder.centre_square` takes it."""
        names = ("mode", "resize", "crop", "interpolation", "squeeze")
        return {name: getattr(self, name) for name in names}

    @property
    def channels(self) -> int:
        """Number of channels."""
        return 1 if self.mode == "L" else 3

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape (height, width, channels) of one preprocessed image."""
        return self.crop, self.crop, self.channels


def per_channel(values: Sequence[float], channels: int) -> tuple[float, ...]:
    """Return the mean or the standard deviation of each channel, of which one number states all.

    Raises:
        UsageError: `invalid-value` for another number of values, or values beyond the scale 0 to 1.
    """
    result = tuple(values) * channels if len(values) == 1 else tuple(values)
    if len(result) != channels or not all(abs(value) <= 1 for value in result):
        raise UsageError(
            f"mean and std have 1 or {channels} numbers on the scale 0 to 1, not "
            f"{', '.join(f'{value:.4g}' for value in values)}: divide numbers on the scale of 255 by 255.",
            code="invalid-value",
        )
    return result


def same_statistics(first: Sequence[float], second: Sequence[float]) -> bool:
    """Return whether two statements of a mean or standard deviation agree."""
    return all(abs(a - b) <= TOLERANCE for a, b in zip(first, second, strict=True))


def to_pixels(source: ImageLike, preprocessing: Preprocessing, limits: Limits | None = None) -> np.ndarray:
    """Return the preprocessed pixels of one image.

    Args:
        source: The image.
        preprocessing: The model's preprocessing.
        limits: Limits on the file and its pixels (default: `zoo.data.images.DEFAULT_LIMITS`).

    Returns:
        uint8 [crop, crop, channels].

    Raises:
        ImageError: If the image cannot be decoded.
    """
    from PIL import Image

    from zoo.data.decoder import centre_square
    from zoo.data.images import DEFAULT_LIMITS, open_file, open_image

    limits, square = limits or DEFAULT_LIMITS, preprocessing.square
    if isinstance(source, np.ndarray | Image.Image):
        image = centre_square(open_image(source, limits), square)
    else:  # cut by the process that decodes, so that fewer pixels are passed on
        image = open_file(source, limits, preprocessing.resize, square).image
    return np.asarray(image, dtype=np.uint8).reshape(preprocessing.shape)

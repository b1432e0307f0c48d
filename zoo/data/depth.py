"""Depth of images: 8 bits from the 10 to 32 bits, or the floats, that cameras and instruments write.

The type of such numbers does not say what is white: a camera of 12 bits writes 0 to 4,095 into 16 bits, and counts come
as floats. So white is the end of the range that the data reach, and a note says which.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from PIL import Image

RANGES = (255, 1023, 4095, 16_383, 65_535)
"""Ends of the ranges of 8, 10, 12, 14 and 16 bits."""
LEAST_COUNT = 64
"""Floats above 1 and up to here are not counts: their highest is white, as of a picture with lights beyond 1."""

_TILE = 512


class NotFiniteError(Exception):
    """A pixel is NaN or infinite."""


def scaled(image: Image.Image, states_range: bool = False) -> tuple[Image.Image, str]:
    """Return an image of mode I;16, I or F in 8 bits, and a note about its range; "" if that is the type's.

    Args:
        image: The image.
        states_range: Whether the file says what white is, so that the numbers are 0 to 65,535.

    Raises:
        NotFiniteError: If a pixel is NaN or infinite.
    """
    low, high = (0.0, float(RANGES[-1])) if states_range and image.mode != "F" else _extremes(image)
    black, white = min(0.0, low), _white(image.mode, low, high)
    factor = 255 / (white - black) if white > black else 0.0
    pixels = np.empty((image.height, image.width), np.uint8)
    for left, top, values in _tiles(image):
        height, width = values.shape
        pixels[top : top + height, left : left + width] = np.clip(np.rint((values - black) * factor), 0, 255)
    is_usual = (black, white) == (0.0, _usual_white(image.mode))
    return Image.fromarray(pixels), "" if is_usual else _note(black, white)


def rgb_to_8bit(high: Image.Image, low: Image.Image) -> tuple[Image.Image, str]:
    """Return an image of 16-bit colours in 8 bits, and a note about its range.

    Args:
        high: The high bytes of the colours, mode RGB.
        low: The low bytes.
    """
    most = max(256 * float(upper.max()) + 255 for _, _, upper in _tiles(high))
    white = float(next(end for end in RANGES if most <= end))
    image = Image.new("RGB", high.size)
    for left, top, upper in _tiles(high):
        height, width = upper.shape[:2]
        lower = np.asarray(low.crop((left, top, left + width, top + height))).astype(np.float64)
        part = np.clip(np.rint((256 * upper + lower) * (255 / white)), 0, 255)
        image.paste(Image.fromarray(part.astype(np.uint8)), (left, top))
    return image, _note(0.0, white)


def _note(black: float, white: float) -> str:
    return f"its numbers are taken as {black:,.6g} (black) to {white:,.6g} (white), the range that they reach"


def _usual_white(mode: str) -> float:
    """Return the number that is white by the type of the pixels."""
    return 1.0 if mode == "F" else float(RANGES[-1])


def _white(mode: str, low: float, high: float) -> float:
    """Return the number that is white: 1, the end of a range of bits, or the highest one."""
    if low == high == 0:
        return _usual_white(mode)
    if mode == "F" and low >= 0 and high <= 1:
        return 1.0
    if low < 0 or high > RANGES[-1] or (mode == "F" and high <= LEAST_COUNT):
        return high
    return float(next(end for end in RANGES if high <= end))


def _extremes(image: Image.Image) -> tuple[float, float]:
    low, high = math.inf, -math.inf
    for _, _, values in _tiles(image):
        low, high = min(low, float(values.min())), max(high, float(values.max()))
        if not np.isfinite(values).all():
            raise NotFiniteError
    return low, high


def _tiles(image: Image.Image) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield (left, top, float64 [h, w] or [h, w, 3]) of each tile: a large image in float64 would take 800 MB."""
    for top in range(0, image.height, _TILE):
        for left in range(0, image.width, _TILE):
            box = left, top, min(left + _TILE, image.width), min(top + _TILE, image.height)
            yield left, top, np.asarray(image.crop(box)).astype(np.float64)

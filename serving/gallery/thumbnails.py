"""Small pictures of the items, for people to look at."""

from __future__ import annotations

import math
from dataclasses import dataclass
from io import BytesIO

from PIL import Image

SIDE = 256
"""The longest side of a thumbnail in pixels."""

LOSSLESS_SIDE = 128
"""Up to this side a picture is kept pixel by pixel: JPEG would smear it and save nothing."""


@dataclass(frozen=True)
class Thumbnail:
    data: bytes
    media_type: str


def side_needed(size: tuple[int, int]) -> int:
    """The shortest side that a decoded image of that full size needs for its thumbnail to lose nothing."""
    if max(size) <= SIDE:
        return min(size)
    return math.ceil(SIDE * min(size) / max(size))


def make_thumbnail(image: Image.Image) -> Thumbnail:
    """The thumbnail of an upright 8-bit image of mode L or RGB, as `zoo.data.images.open_image` gives it."""
    if max(image.size) <= LOSSLESS_SIDE:
        return _encode(image, "PNG", optimize=True)
    small = image.copy()
    small.thumbnail((SIDE, SIDE), Image.Resampling.HAMMING)
    return _encode(small, "JPEG", quality=85)


def _encode(image: Image.Image, kind: str, **options: int) -> Thumbnail:
    out = BytesIO()
    # A fresh image carries no EXIF, GPS position or comment of the original.
    clean = Image.new(image.mode, image.size)
    clean.paste(image)
    clean.save(out, kind, **options)
    return Thumbnail(out.getvalue(), Image.MIME[kind])

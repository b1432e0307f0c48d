"""What a new item's image file becomes: the network's pixels and a thumbnail, decoded once where that will do."""

from __future__ import annotations

from io import BytesIO

import numpy as np
from PIL import Image

from serving.gallery.thumbnails import Thumbnail, make_thumbnail, side_needed
from zoo.data.images import DEFAULT_LIMITS, FORMATS, Limits, open_image
from zoo.data.preprocessing import Preprocessing, to_pixels

_JPEG = b"\xff\xd8"


def decode(data: bytes, how: Preprocessing, limits: Limits = DEFAULT_LIMITS) -> tuple[np.ndarray, Thumbnail]:
    """Pixels uint8 [crop, crop, channels] and the thumbnail. Raises `ImageError`."""
    image = open_image(data, limits, draft=how.resize)
    pixels = to_pixels(image, how, limits)
    if not data.startswith(_JPEG):  # no other kind is decoded smaller than it is
        return pixels, make_thumbnail(image)
    with Image.open(BytesIO(data), formats=FORMATS) as header:
        needed = side_needed(header.size)
    # Decoded again only where the image is too small as it was decoded for the model.
    return pixels, make_thumbnail(image if min(image.size) >= needed else open_image(data, limits, draft=needed))

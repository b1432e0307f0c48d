"""Images as clients send them: files, and images in memory as PNG."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image as Pillow

from zoo.data.images import open_image
from zoo.errors import GalleryError, UsageError

MAX_IMAGES, MAX_BYTES = 32, 24 * 2**20  # of one request, within the defaults of the service

Image = bytes | str | Path | Pillow.Image | np.ndarray
"""The bytes or the path of an image file, a PIL image, or a uint8 array [H, W], [H, W, 1], [H, W, 3] or [H, W, 4]."""
Images = Image | Iterable[Image]
"""One image or several. An array of four dimensions is several images."""


class SentImage(NamedTuple):
    """Image file. `name` is "" for an image in memory."""

    name: str
    data: bytes

    @property
    def sent_name(self) -> str:
        """The name of the file in a form. An image in memory has the name that the service would give it."""
        return self.name or hashlib.sha256(self.data).hexdigest()[:16]


def listed_images(images: Images) -> list[Any]:
    if isinstance(images, np.ndarray):
        return list(images) if images.ndim == 4 else [images]
    return list(images) if isinstance(images, Iterable) and not isinstance(images, Image) else [images]


def images_by_request(images: Sequence[Image]) -> Iterator[tuple[int, list[SentImage]]]:
    """Yield the files of each request, with the number of images of the requests before it."""
    start, size, files = 0, 0, list[SentImage]()
    for image in images:
        file = encode_image(image)
        if files and (len(files) == MAX_IMAGES or size + len(file.data) > MAX_BYTES):
            yield start, files
            start, size, files = start + len(files), 0, []
        files.append(file)
        size += len(file.data)
    yield start, files


def encode_image(image: Image) -> SentImage:
    if isinstance(image, bytes):
        return SentImage("", image)
    if isinstance(image, Pillow.Image | np.ndarray):
        png, pixels = BytesIO(), np.asarray(open_image(image))
        Pillow.fromarray(pixels).save(png, "PNG")  # only the pixels: no EXIF, no comments
        return SentImage("", png.getvalue())
    if not isinstance(image, str | Path):
        kinds = "a path, the bytes of an image file, a PIL image or a uint8 array"
        raise UsageError(f"an image must be {kinds}, not a {type(image).__name__}.", code="not-an-image")
    try:
        return SentImage(Path(image).name, Path(image).read_bytes())
    except OSError as error:
        reason = error.strerror
    except ValueError as error:  # a name that no file can have
        reason = str(error)
    raise GalleryError(f"{image} cannot be read: {reason}.", code="unreadable-file")

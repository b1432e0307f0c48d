"""Images as they are sent: read from where they lie, or encoded, and several in parts that one request may hold."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image as Pillow

from zoo.data.images import open_image
from zoo.errors import GalleryError, ServiceError, UsageError

Image = bytes | str | Path | Pillow.Image | np.ndarray
"""The bytes or the path of an image file, or an image in memory, as `zoo.models.load.Embedder` takes it: a PIL image or
a uint8 array [H, W], [H, W, 1], [H, W, 3] or [H, W, 4]."""
Images = Image | Sequence[Image]
"""One or several; an array of four dimensions is several."""
Files = list[tuple[str, tuple[str, bytes, str]]]
MOST, MOST_BYTES = 32, 24 * 2**20
"""Images and their bytes that are sent in one request, of several: what a service takes by default, and room beside."""


def groups(images: Images) -> Iterator[tuple[int, Images]]:
    """Several images in parts that a service takes in one request, unless it was told to take less; in order, each with
    the number of images before it.
    """
    many = several(images)
    if is_one(images) or not many:
        yield 0, images
        return
    part: list[Image] = []
    start, size = 0, 0
    for image in many:
        own = _size(image)
        if part and (len(part) == MOST or size + own > MOST_BYTES):
            yield start, part
            start, size, part = start + len(part), 0, []
        part.append(image)
        size += own
    yield start, part


def is_one(images: Images) -> bool:
    return images.ndim != 4 if isinstance(images, np.ndarray) else isinstance(images, Image)


def several(images: Images) -> Sequence[Image]:
    if isinstance(images, np.ndarray):
        return list(images) if images.ndim == 4 else [images]
    if isinstance(images, Image):
        return [images]
    if not isinstance(images, Iterable):
        raise _no_image(images)
    return images


def name_of(image: Image) -> str:
    """The name of an image file; "" of what has none."""
    return "" if isinstance(image, bytes | Pillow.Image | np.ndarray) else Path(image).name


@contextmanager
def placed(start: int, part: Images) -> Iterator[None]:
    """Has the refusal of a later part say which images it is of: the service counts each part's from 1."""
    try:
        yield
    except ServiceError as error:
        if not start:
            raise
        which = f"Of images {start + 1} to {start + len(several(part))}, sent together"
        raise ServiceError(f"{which}: {error}", error.status, error.code) from None


def check_key(images: Images, key: str | None) -> None:
    """Raise `UsageError` for a key of several images: the service would refuse it, but not of parts of one image."""
    if key is not None and len(several(images)) > 1:
        raise UsageError(f"a key is of a single image, not of {len(several(images))}; add them one by one.")


def files_of(images: Sequence[Image]) -> Files:
    return [_file(image) for image in images]


def _file(image: Image) -> tuple[str, tuple[str, bytes, str]]:
    data = _bytes(image)
    # A file without a name is no file in a form; the service calls one that came alone by its content, too.
    name = name_of(image) or hashlib.sha256(data).hexdigest()[:16]
    return "image", (name, data, "application/octet-stream")


def _size(image: Image) -> int:
    """In bytes, of one in memory those of its pixels, of which a PNG has hardly more; 0 of what cannot be read, which
    is said when it is."""
    if isinstance(image, np.ndarray):
        return image.size
    if isinstance(image, Pillow.Image):
        return image.width * image.height * 3
    try:
        return len(image) if isinstance(image, bytes) else Path(image).stat().st_size
    except (OSError, TypeError, ValueError):
        return 0


def _as_png(image: Pillow.Image | np.ndarray) -> bytes:
    """The pixels that the embedder would see, upright and of 8 bits, without loss. Raises `ImageError`."""
    file = BytesIO()
    upright = np.asarray(open_image(image))
    Pillow.fromarray(upright).save(file, "PNG")  # of the pixels alone: what else the image says of itself stays here
    return file.getvalue()


def _bytes(image: Image) -> bytes:
    if isinstance(image, bytes):
        return image
    if isinstance(image, Pillow.Image | np.ndarray):
        return _as_png(image)
    try:
        return Path(image).read_bytes()
    except TypeError:
        raise _no_image(image) from None
    except OSError as error:
        reason = error.strerror
    except ValueError as error:  # a name that no file can have
        reason = str(error)
    raise GalleryError(f"{image} cannot be read: {reason}.")


def _no_image(image: object) -> UsageError:
    return UsageError(
        f"an image is a path, the bytes of an image file, a PIL image or a uint8 array, not a {type(image).__name__}."
    )

"""Images as they are sent: read from where they lie, and several in parts that one request may hold."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from zoo.errors import GalleryError, ServiceError, UsageError

Image = bytes | str | Path
"""An image file: its bytes, or where it lies."""
Files = list[tuple[str, tuple[str, bytes, str]]]
MOST, MOST_BYTES = 32, 24 * 2**20
"""Images and their bytes that are sent in one request, of several: what a service takes by default, and room beside."""


def groups(images: Image | Sequence[Image]) -> Iterator[tuple[int, Image | Sequence[Image]]]:
    """Several images in parts that a service takes in one request, unless it was told to take less; in order, each with
    the number of images before it.
    """
    if isinstance(images, Image) or not images:
        yield 0, images
        return
    part: list[Image] = []
    start, size = 0, 0
    for image in images:
        own = _size(image)
        if part and (len(part) == MOST or size + own > MOST_BYTES):
            yield start, part
            start, size, part = start + len(part), 0, []
        part.append(image)
        size += own
    yield start, part


def several(images: Image | Sequence[Image]) -> Sequence[Image]:
    return [images] if isinstance(images, Image) else images


@contextmanager
def placed(start: int, part: Image | Sequence[Image]) -> Iterator[None]:
    """Has the refusal of a later part say which images it is of: the service counts each part's from 1."""
    try:
        yield
    except ServiceError as error:
        if not start:
            raise
        which = f"Of images {start + 1} to {start + len(several(part))}, sent together"
        raise ServiceError(f"{which}: {error}", error.status, error.code) from None


def check_key(images: Image | Sequence[Image], key: str | None) -> None:
    """Raise `UsageError` for a key of several images: the service would refuse it, but not of parts of one image."""
    if key is not None and len(several(images)) > 1:
        raise UsageError(f"a key is of a single image, not of {len(several(images))}; add them one by one.")


def files_of(images: Sequence[Image]) -> Files:
    return [_file(image) for image in images]


def _file(image: Image) -> tuple[str, tuple[str, bytes, str]]:
    data = _bytes(image)
    # A file without a name is no file in a form; the service calls one that came alone by its content, too.
    name = hashlib.sha256(data).hexdigest()[:16] if isinstance(image, bytes) else Path(image).name
    return "image", (name, data, "application/octet-stream")


def _size(image: Image) -> int:
    """In bytes; 0 of what cannot be read, which is said when it is."""
    try:
        return len(image) if isinstance(image, bytes) else Path(image).stat().st_size
    except (OSError, TypeError, ValueError):
        return 0


def _bytes(image: Image) -> bytes:
    if isinstance(image, bytes):
        return image
    try:
        return Path(image).read_bytes()
    except TypeError:
        raise UsageError(
            f"an image is a path or the bytes of an image file, not a {type(image).__name__}; "
            "of one in memory, send the bytes that it is saved as."
        ) from None
    except OSError as error:
        reason = error.strerror
    except ValueError as error:  # a name that no file can have
        reason = str(error)
    raise GalleryError(f"{image} cannot be read: {reason}.")

"""Images as clients send them: files, and images in memory as PNG."""

import base64
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
from PIL import Image as Pillow

from serving.gallery.types import check_key
from zoo.data.images import DEFAULT_LIMITS, ImageLike, open_image
from zoo.errors import GalleryError, ImageError, UsageError

MAX_IMAGES, MAX_BYTES, MAX_LINES = 32, 24 * 2**20, 10_000  # of one request, within the defaults of the service
QUERY_BYTES, QUERY_SIDE = 8 * 2**20, 1280
"""Bytes of a file above which a smaller picture is sent as a query, and the pixels of its short side."""

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


def encode_image(image: ImageLike) -> SentImage:
    if isinstance(image, bytes):
        return SentImage("", image)
    if isinstance(image, Pillow.Image | np.ndarray):
        png, pixels = BytesIO(), np.asarray(open_image(image))
        Pillow.fromarray(pixels).save(png, "PNG")  # only the pixels: no EXIF, no comments
        return SentImage("", png.getvalue())
    if not isinstance(image, str | os.PathLike):
        kinds = "a path, the bytes of an image file, a PIL image or a uint8 array"
        raise UsageError(f"an image must be {kinds}, not a {type(image).__name__}.", code="unreadable-image")
    try:
        return SentImage(Path(image).name, Path(image).read_bytes())
    except OSError as error:
        reason = error.strerror
    except ValueError as error:  # a name that no file can have
        reason = str(error)
    raise GalleryError(f"{image} cannot be read: {reason}.", code="unreadable-file")


def images_by_request(
    images: Sequence[Image], encode: Callable[[Image], SentImage] = encode_image
) -> Iterator[tuple[int, list[SentImage]]]:
    """Yield the files of each request, with the number of images of the requests before it."""
    start, size, files = 0, 0, list[SentImage]()
    for image in images:
        file = encode(image)
        if files and (len(files) == MAX_IMAGES or size + len(file.data) > MAX_BYTES):
            yield start, files
            start, size, files = start + len(files), 0, []
        files.append(file)
        size += len(file.data)
    yield start, files


def encode_query(image: ImageLike) -> SentImage:
    """Return the file of an image to search by or to embed; of a large one, a smaller picture."""
    file = encode_image(image)
    return shrunk(file) if len(file.data) > QUERY_BYTES else file


def shrunk(file: SentImage) -> SentImage:
    """Return a JPEG of an image file whose short side has `QUERY_SIDE` pixels, or the file if that is smaller."""
    try:
        picture = open_image(file.data, replace(DEFAULT_LIMITS, max_bytes=len(file.data)), draft=QUERY_SIDE)
    except ImageError:
        return file  # the service says what is wrong with it
    scale = min(1.0, QUERY_SIDE / min(picture.size))
    width, height = (max(1, round(scale * side)) for side in picture.size)
    out = BytesIO()
    picture.resize((width, height), Pillow.Resampling.BICUBIC, reducing_gap=3.0).save(
        out, "JPEG", quality=95, subsampling=0
    )
    return SentImage(file.name, out.getvalue()) if len(out.getvalue()) < len(file.data) else file


def bulk_bodies(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, bytes]]:
    """Yield the body of each request of rows by key, with the number of the rows of the requests before it."""
    start, images, size, lines = 0, 0, 0, list[bytes]()
    for row in rows:
        line = _bulk_line(row)
        full = len(lines) == MAX_LINES or images == MAX_IMAGES or size + len(line) > MAX_BYTES
        if lines and full:
            yield start, b"\n".join(lines)
            start, images, size, lines = start + len(lines), 0, 0, []
        lines.append(line)
        images, size = images + ("image" in row), size + len(line) + 1
    if lines:
        yield start, b"\n".join(lines)


def _bulk_line(row: Mapping[str, Any]) -> bytes:
    values = {name: value for name, value in row.items() if value is not None}
    if "image" in values:
        file = encode_image(values["image"])
        values["image"] = base64.b64encode(file.data).decode()
        values.setdefault("source", file.name or values.get("key"))
    if "vector" in values:
        vector = np.asarray(values["vector"])
        if vector.dtype.kind not in "fiu":
            raise UsageError(f"a vector has numbers, not {vector.dtype}.", code="invalid-value")
        values["vector"] = base64.b64encode(vector.astype("<f4").tobytes()).decode()
    try:
        return json.dumps(values, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"the row {row.get('key')!r} cannot be written as JSON: {error}.", code="invalid-value"
        ) from None


def item_path(item: int | str) -> str:
    """Return the path of an item. A key is one segment: its slashes and dots are encoded, and so never resolved."""
    if isinstance(item, str):
        return f"/items/by-key/{quote(check_key(item), safe='').replace('.', '%2E')}"
    return f"/items/{item}"

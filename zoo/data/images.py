"""Opening of untrusted images: bounded before decoding, with a defined result for every PIL mode.

- EXIF orientation is applied.
- Alpha (RGBA, LA, PA, palette transparency) is composited over white.
- Palettes become RGB; 1-bit and grey become grey; CMYK, YCbCr, LAB and HSV become RGB.
- 16-bit grey is scaled to 8 bits by 255 / 65535; 32-bit integers are taken as 0..65535, floats as 0..1 (or as 0..255 if
  a pixel is above 1).
- The first frame of an animation is taken.

Limits on bytes and pixels do not bound the decoding time, so files that are built to keep a decoder busy are refused
too: a progressive JPEG of 24 megapixels takes 3 ms for each scan of 39 bytes, so that a file of 20 MB would keep a core
busy for half an hour. Millions of markers, chunks and comments cost the interpreter a microsecond each or, if it joins
them one by one, quadratic time.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from zoo.errors import ImageError, ImageTooLargeError

ImageLike = str | os.PathLike[str] | bytes | Image.Image | np.ndarray
"""A path, the bytes of an image file, a PIL image, or a uint8 array [H, W], [H, W, 1], [H, W, 3] or [H, W, 4]."""

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""The formats that are decoded; untrusted bytes do not reach Pillow's rarer plugins."""

SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm"}
)
"""Suffixes of the files that count as images when a folder is read."""


@dataclass(frozen=True)
class Limits:
    """Limits on an image, checked before any pixel is decoded."""

    max_bytes: int = 64 * 2**20
    max_pixels: int = 80_000_000  # below the 89 million at which Pillow itself begins to warn


DEFAULT_LIMITS = Limits()

_TILE = 512


def open_image(source: ImageLike, limits: Limits = DEFAULT_LIMITS, draft: int | None = None) -> Image.Image:
    """Decode an image to an upright 8-bit image of mode L or RGB.

    Besides the decoded image, the conversions need at most 5 bytes per pixel (9 for palettes with transparency).

    Args:
        source: The image. PIL images and arrays are never changed.
        limits: Limits on the file and its pixels.
        draft: The shortest side, in pixels, that is large enough: a JPEG may then be decoded at 1/2, 1/4 or 1/8 of its
            size. This holds for paths and bytes only. The caller's own PIL image of a JPEG is decoded at full size, so
            its pixels may differ a little from those of its path.

    Raises:
        ImageTooLargeError: If the image has more bytes or pixels than allowed.
        ImageError: If it is missing, in an unknown format, damaged or costly. Bad input never raises anything else.
    """
    if isinstance(source, np.ndarray):
        return _from_array(source, limits)
    name = describe(source)
    try:
        image = source if isinstance(source, Image.Image) else _open_file(source, limits)
        if image.width * image.height > limits.max_pixels:
            raise ImageTooLargeError(
                f"{name} has {image.width} x {image.height} pixels; at most {limits.max_pixels:,} are accepted."
            )
        if draft is not None and image.format == "JPEG" and image is not source:
            image.draft("RGB" if image.mode not in ("L", "CMYK") else None, (draft, draft))
        image.load()
        if image is source:
            image = ImageOps.exif_transpose(image)  # a copy
        else:
            ImageOps.exif_transpose(image, in_place=True)
        return _to_8bit(image)
    except ImageError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):  # the warning where warnings are errors
        raise ImageTooLargeError(f"{name} claims to have too many pixels to be decoded.") from None
    except (FileNotFoundError, IsADirectoryError) as error:
        problem = (
            "is a folder; name the image files in it" if isinstance(error, IsADirectoryError) else "does not exist"
        )
        raise ImageError(f"{name} {problem}.", code="no-such-image") from None
    except UnidentifiedImageError:
        raise ImageError(
            f"{name} is in none of the formats that are read ({', '.join(FORMATS)}).", code="unknown-format"
        ) from None
    except Exception as error:  # Pillow's decoders raise nearly anything on damaged data
        raise ImageError(f"{name} cannot be decoded: {error or type(error).__name__}.", code="undecodable") from None


def describe(source: Any) -> str:
    """Return the name of an image in an error message."""
    if isinstance(source, str | os.PathLike):
        return f"image {os.fspath(source)!r}"
    name = getattr(source, "filename", "") if isinstance(source, Image.Image) else ""
    return f"image {name!r}" if name else "the image"


def _open_file(source: Any, limits: Limits) -> Image.Image:
    if isinstance(source, bytes | bytearray | memoryview):
        data = bytes(source)
        size = len(data)
    elif isinstance(source, str | os.PathLike):
        size = Path(source).stat().st_size
    else:
        raise ImageError(
            f"an image is a path, bytes, a PIL image or a uint8 array, not {type(source).__name__}.",
            code="not-an-image",
        )
    if size == 0:
        raise ImageError(f"{describe(source)} is empty.", code="empty-image")
    if size > limits.max_bytes:
        raise ImageTooLargeError(f"{describe(source)} has {size:,} bytes; at most {limits.max_bytes:,} are accepted.")
    data = data if isinstance(source, bytes | bytearray | memoryview) else Path(source).read_bytes()
    check_cost(data)
    return Image.open(ReadLimitedFile(data), formats=FORMATS)


def _from_array(array: np.ndarray, limits: Limits) -> Image.Image:
    grey = array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 1)
    if array.dtype != np.uint8 or not (grey or (array.ndim == 3 and array.shape[2] in (3, 4))) or array.size == 0:
        raise ImageError(
            "an array is an image if it is uint8 of shape [H, W], [H, W, 1], [H, W, 3] or [H, W, 4], "
            f"not {array.dtype} {list(array.shape)}.",
            code="not-an-image",
        )
    if array.shape[0] * array.shape[1] > limits.max_pixels:
        raise ImageTooLargeError(
            f"the array has {array.shape[0]} x {array.shape[1]} pixels; at most {limits.max_pixels:,} are accepted."
        )
    # A copy, since Pillow may share the array's memory.
    return _to_8bit(Image.fromarray(np.array(array[..., 0] if array.ndim == 3 and grey else array, order="C")))


def _to_8bit(image: Image.Image) -> Image.Image:
    """Convert an image of any mode to 8 bits, mode L or RGB, without alpha."""
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        return _scale_to_8bit(image)
    if "transparency" in image.info or image.mode in ("RGBA", "LA", "PA", "La", "RGBa"):
        return _over_white(image)
    return in_mode(image, "L" if image.mode in ("1", "L") else "RGB")


def in_mode(image: Image.Image, mode: str) -> Image.Image:
    """Return an image in a mode; the image itself if it has it, since Pillow's `convert` would copy its pixels."""
    return image if image.mode == mode else image.convert(mode)


def _over_white(image: Image.Image) -> Image.Image:
    mode = "LA" if image.mode in ("LA", "La") else "RGBA"  # premultiplied alpha converts to its own kind only
    if image.mode != mode:
        image = image.convert(mode)
    white = Image.new("RGB", image.size, "white")
    white.paste(image, mask=image)
    return white


def _scale_to_8bit(image: Image.Image) -> Image.Image:
    scale = _float_scale(image) if image.mode == "F" else 255 / 65535
    scaled = np.empty((image.height, image.width), np.uint8)
    for left, top, values in _tiles(image):
        height, width = values.shape
        scaled[top : top + height, left : left + width] = np.clip(np.rint(values * scale), 0, 255)
    return Image.fromarray(scaled)


def _float_scale(image: Image.Image) -> float:
    highest = max(float(values.max()) if np.isfinite(values).all() else np.inf for _, _, values in _tiles(image))
    if highest == np.inf:
        raise ImageError(f"{describe(image)} holds NaN or infinite pixels.", code="not-finite")
    return 255.0 if highest <= 1 else 1.0


def _tiles(image: Image.Image) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield (left, top, float64 [h, w]) of each tile: a whole large image in float64 would take 640 MB."""
    for top in range(0, image.height, _TILE):
        for left in range(0, image.width, _TILE):
            box = left, top, min(left + _TILE, image.width), min(top + _TILE, image.height)
            yield left, top, np.asarray(image.crop(box)).astype(np.float64)


MAX_JPEG_PARTS = {
    # Encoders write about ten. libtiff has the same limit for JPEGs in a TIFF.
    "scans": (b"\xff\xda", 100),
    # One is usual; an MPO file has one per picture.
    "EXIF segments": (b"Exif\0\0", 20),
    "Photoshop resources": (b"8BIM", 5000),
}
"""Parts of a JPEG whose cost adds up: the bytes with which each begins, and the most that are accepted."""

# Pillow reads a file piece by piece, at some microseconds each; a run-length encoded BMP needs two reads per run.
MAX_READS, MAX_BMP_READS = 50_000, 400_000
# A large file may be read more often. ffmpeg writes the smallest pieces: PNGs in 4 kB, with four reads each.
BYTES_PER_READ = 500

# Limits of a portable map (PPM, PGM, PBM) that holds its numbers as text.
MAX_PLAIN_BYTES, MAX_PLAIN_COMMENTS = 2**20, 20


class ReadLimitedFile(BytesIO):
    """File in memory that raises `ImageError` after a maximum number of reads."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.left = max(MAX_BMP_READS if data.startswith(b"BM") else MAX_READS, len(data) // BYTES_PER_READ)

    def read(self, size: int | None = -1) -> bytes:
        self.left -= 1
        if self.left < 0:
            raise ImageError("the image consists of too many pieces to be read.", code="too-many-parts")
        return super().read(size)


def check_cost(data: bytes) -> None:
    """Raise `ImageError` for a file whose pieces would take longer to read than its pixels to decode."""
    if data.startswith(b"\xff\xd8"):
        for name, (prefix, limit) in MAX_JPEG_PARTS.items():
            # Half the time of bytes.count, and ends at the limit.
            if sum(1 for _ in islice(re.finditer(re.escape(prefix), data), limit + 1)) > limit:
                raise ImageError(
                    f"the image has more than the {limit:,} {name} that are accepted.", code="too-many-parts"
                )
    if data[:2] in (b"P1", b"P2", b"P3") and (len(data) > MAX_PLAIN_BYTES or data.count(b"#") > MAX_PLAIN_COMMENTS):
        raise ImageError(
            f"the image is a plain portable map of more than {MAX_PLAIN_BYTES:,} bytes or {MAX_PLAIN_COMMENTS} "
            "comments; save it as a binary one, or as PNG.",
            code="too-many-parts",
        )

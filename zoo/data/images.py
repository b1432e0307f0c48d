"""Open an image safely.

What reading an image file may cost beside its pixels: files built to keep a decoder busy are refused.

A limit on bytes and pixels does not bound the time: a progressive JPEG of 24 megapixels takes 3 ms for a scan that is
39 bytes long, so that one of 20 MB keeps a core for half an hour; markers, chunks and comments by the million cost the
interpreter a microsecond each or, where they are joined one to the next, the square of it.

One way to turn a user's image into pixels: bounded before decoding, every PIL mode defined.

- EXIF orientation is applied.
- Alpha (RGBA, LA, PA, palette transparency) is composited over white.
- Palettes become RGB; 1-bit and grey become grey; CMYK, YCbCr, LAB and HSV become RGB.
- 16-bit grey is scaled to 8 bits by 255 / 65535; 32-bit integers and floats are taken as 0..65535 and 0..1
  (or as 0..255 where a float image goes past 1).
- Of an animation the first frame counts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from zoo.errors import ImageError, ImageTooLargeError

MAX_JPEG_PARTS = {
    # Encoders write about ten. libtiff draws the line there too, for the JPEGs within a TIFF.
    "scans": (b"\xff\xda", 100),
    # One is usual, some more for the further pictures of an MPO file.
    "EXIF segments": (b"Exif\0\0", 20),
    "Photoshop resources": (b"8BIM", 5000),
}
"""What a JPEG may hold of things that add up: how each begins, and how many there may be."""

MAX_READS, MAX_BMP_READS = 50_000, 400_000
"""By which Pillow takes a file piece by piece, some microseconds each; a BMP of runs needs two for each of them."""
BYTES_PER_READ = 500
"""Of a large file, which may be read more often. ffmpeg makes the smallest pieces, PNGs in 4 kB of four reads each."""

MAX_PLAIN_BYTES, MAX_PLAIN_COMMENTS = 2**20, 20
"""Of a portable map (PPM, PGM, PBM) whose numbers are written out."""


class ReadLimitedFile(BytesIO):
    """A file in memory that can be read so many times; then it raises `ImageError`."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.left = max(MAX_BMP_READS if data.startswith(b"BM") else MAX_READS, len(data) // BYTES_PER_READ)

    def read(self, size: int | None = -1) -> bytes:
        self.left -= 1
        if self.left < 0:
            raise ImageError("the image is made of too many pieces to be read.")
        return super().read(size)


def check_cost(data: bytes) -> None:
    """Raise `ImageError` for a file whose pieces would take longer to read than its pixels to decode."""
    if data.startswith(b"\xff\xd8"):
        for name, (begins, most) in MAX_JPEG_PARTS.items():
            if (count := data.count(begins)) > most:
                raise ImageError(f"the image has {count:,} {name}; at most {most:,} are read.")
    if data[:2] in (b"P1", b"P2", b"P3") and (len(data) > MAX_PLAIN_BYTES or data.count(b"#") > MAX_PLAIN_COMMENTS):
        raise ImageError(
            f"the image is a plain portable map of more than {MAX_PLAIN_BYTES:,} bytes or {MAX_PLAIN_COMMENTS} "
            "comments; write it as a binary one, or as PNG."
        )


ImageLike = str | os.PathLike[str] | bytes | Image.Image | np.ndarray
"""A path, the bytes of an image file, a PIL image, or a uint8 array [H, W], [H, W, 1], [H, W, 3] or [H, W, 4]."""

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""The formats that are decoded; Pillow's rarer plugins are not reached by untrusted bytes."""

SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm"}
)
"""File names that count as images when a folder is read."""


@dataclass(frozen=True)
class Limits:
    """What is refused before a pixel is decoded."""

    max_bytes: int = 64 * 2**20
    max_pixels: int = 80_000_000  # below the 89 million at which Pillow itself begins to warn


DEFAULT_LIMITS = Limits()

_TILE = 512


def open_image(source: ImageLike, limits: Limits = DEFAULT_LIMITS, draft: int | None = None) -> Image.Image:
    """Decode `source` to an upright 8-bit image of mode L or RGB.

    `draft`: the shortest side that is still enough; a JPEG may then be decoded at 1/2, 1/4 or 1/8 of its size. This
    holds for paths and bytes; PIL images and arrays are taken as they are and never changed, so that a JPEG opened by
    the caller is decoded whole and its pixels may differ a little from those of its path.

    Beside the decoded image the conversions take at most 5 bytes a pixel (9 for palettes with transparency).
    Raises `ImageError` (`ImageTooLargeError`) naming what is wrong; never anything else for bad input.
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
        raise ImageTooLargeError(f"{name} claims too many pixels to be decoded.") from None
    except (FileNotFoundError, IsADirectoryError) as error:
        what = "is a folder; name the image files in it" if isinstance(error, IsADirectoryError) else "does not exist"
        raise ImageError(f"{name} {what}.") from None
    except UnidentifiedImageError:
        raise ImageError(f"{name} is in none of the formats that are read ({', '.join(FORMATS)}).") from None
    except Exception as error:  # Pillow's decoders raise nearly anything on damaged data
        raise ImageError(f"{name} cannot be decoded: {error or type(error).__name__}.") from None


def describe(source: Any) -> str:
    """How an error message calls an image."""
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
        raise ImageError(f"an image is a path, bytes, a PIL image or a uint8 array, not {type(source).__name__}.")
    if size == 0:
        raise ImageError(f"{describe(source)} is empty.")
    if size > limits.max_bytes:
        raise ImageTooLargeError(f"{describe(source)} has {size:,} bytes; at most {limits.max_bytes:,} are accepted.")
    data = data if isinstance(source, bytes | bytearray | memoryview) else Path(source).read_bytes()
    check_cost(data)
    return Image.open(ReadLimitedFile(data), formats=FORMATS)


def _from_array(array: np.ndarray, limits: Limits) -> Image.Image:
    grey = array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 1)
    if array.dtype != np.uint8 or not (grey or (array.ndim == 3 and array.shape[2] in (3, 4))) or array.size == 0:
        raise ImageError(
            "an array is an image when it is uint8 of shape [H, W], [H, W, 1], [H, W, 3] or [H, W, 4], "
            f"not {array.dtype} {list(array.shape)}."
        )
    if array.shape[0] * array.shape[1] > limits.max_pixels:
        raise ImageTooLargeError(f"the array has {array.shape[0]} x {array.shape[1]} pixels.")
    return _to_8bit(Image.fromarray(np.ascontiguousarray(array[..., 0] if array.ndim == 3 and grey else array)))


def _to_8bit(image: Image.Image) -> Image.Image:
    """An 8-bit image of mode L or RGB without alpha, whatever the mode was."""
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        return _scale_to_8bit(image)
    if "transparency" in image.info or image.mode in ("RGBA", "LA", "PA", "La", "RGBa"):
        return _over_white(image)
    if image.mode in ("1", "L"):
        return image.convert("L")
    return image.convert("RGB")


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
        raise ImageError(f"{describe(image)} holds NaN or infinite pixels.")
    return 255.0 if highest <= 1 else 1.0


def _tiles(image: Image.Image) -> Iterator[tuple[int, int, np.ndarray]]:
    """(left, top, float64 [h, w]) piece by piece: all of a large image in float64 would take 640 MB."""
    for top in range(0, image.height, _TILE):
        for left in range(0, image.width, _TILE):
            box = left, top, min(left + _TILE, image.width), min(top + _TILE, image.height)
            yield left, top, np.asarray(image.crop(box)).astype(np.float64)

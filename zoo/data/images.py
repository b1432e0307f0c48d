"""Opening of images: files are decoded by other processes within bounds, to a defined result for every kind of image.

`zoo.data.decoder` says what the bounds are and what an image becomes.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from zoo.console import note
from zoo.data import decoder, decoder_pool
from zoo.data.decoder import FORMATS, DecodedFile, in_mode
from zoo.errors import ImageError, ImageTooLargeError
from zoo.files import open_at_once

__all__ = ["DEFAULT_LIMITS", "FORMATS", "SUFFIXES", "ImageLike", "Limits", "in_mode", "open_image"]

ImageLike = str | os.PathLike[str] | bytes | Image.Image | np.ndarray
"""A path, the bytes of an image file, a PIL image, or a uint8 array [H, W], [H, W, 1], [H, W, 3] or [H, W, 4]."""

SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".avif", ".heic", ".heif", ".hif"}
    | {".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm"}
)
"""Suffixes of the files that count as images when a folder is read; others do by their first bytes."""


@dataclass(frozen=True)
class Limits:
    """Limits on an image, checked before any pixel is decoded."""

    max_bytes: int = 64 * 2**20
    max_pixels: int = 210_000_000  # of a JPEG; `decoder.WHOLE_PIXELS` of what cannot be decoded at a fraction


DEFAULT_LIMITS = Limits()


def open_image(source: ImageLike, limits: Limits = DEFAULT_LIMITS, draft: int | None = None) -> Image.Image:
    """Decode an image to an upright 8-bit image of mode L or RGB.

    Args:
        source: The image. Files are decoded by another process. PIL images and arrays are converted here, and never
            changed.
        limits: Limits on the file and its pixels.
        draft: The shortest side, in pixels, that is large enough: a JPEG may then be decoded at 1/2, 1/4 or 1/8 of its
            size. This holds for paths and bytes only. The caller's own PIL image of a JPEG is decoded at full size, so
            its pixels may differ a little from those of its path.

    Raises:
        ImageTooLargeError: If the image has more bytes or pixels than allowed, or takes too much memory.
        ImageError: If it is missing, in an unknown format, damaged or takes too long. Bad input never raises anything
            else.
    """
    if isinstance(source, np.ndarray):
        return _from_array(source, limits)
    if isinstance(source, Image.Image):
        return _from_pil(source, limits)
    return open_file(source, limits, draft).image


def open_file(
    source: str | os.PathLike[str] | bytes,
    limits: Limits = DEFAULT_LIMITS,
    draft: int | None = None,
    square: dict[str, Any] | None = None,
) -> DecodedFile:
    """Return the image in a file as `open_image` does, or a square of it, with what else is known about it.

    A note about a file that has a name is said on stderr, the first time.
    """
    name = _describe(source)
    decoded = decoder_pool.decode(_read(source, limits), decoder_pool.Job(name, limits.max_pixels, draft, square))
    if not isinstance(source, bytes):
        _say(name, decoded.notes)
    return decoded


_SAID = set[str]()


def _say(name: str, notes: Iterable[str]) -> None:
    for text in notes:
        if text not in _SAID:
            _SAID.add(text)
            note(f"{name}: {text} (said once; other files may be like it)")


def _describe(source: Any) -> str:
    """Return the name of an image in an error message."""
    if isinstance(source, str | os.PathLike):
        return f"image {os.fspath(source)!r}"
    name = getattr(source, "filename", "") if isinstance(source, Image.Image) else ""
    return f"image {name!r}" if name else "the image"


def _read(source: Any, limits: Limits) -> bytes:
    """Return the bytes of a file."""
    if isinstance(source, bytes | bytearray | memoryview):
        data, size = bytes(source), len(source)
    elif isinstance(source, str | os.PathLike):
        data, size = _read_path(source, limits.max_bytes)
    else:
        message = f"an image is a path, bytes, a PIL image or a uint8 array, not {type(source).__name__}."
        raise ImageError(message, code="unreadable-image")
    if size > limits.max_bytes:
        setting = "the limit max_bytes; of a service --max-bytes"
        message = f"{_describe(source)} has {size:,} bytes; at most {limits.max_bytes:,} are accepted ({setting})."
        raise ImageTooLargeError(message)
    if not data:
        raise ImageError(f"{_describe(source)} is empty.", code="unreadable-image")
    return data


def _read_path(path: str | os.PathLike[str], max_bytes: int) -> tuple[bytes, int]:
    """Return the content of a file, of a larger one its beginning, and its size in bytes."""
    try:
        with open(path, "rb", opener=open_at_once) as file:  # Path.open takes no opener
            facts = os.fstat(file.fileno())
            if not (stat.S_ISREG(facts.st_mode) or stat.S_ISDIR(facts.st_mode)):
                raise ImageError(f"{_describe(path)} is not a file.", code="not-found")
            data = file.read(min(facts.st_size, max_bytes) + 1)
            return data, max(len(data), facts.st_size)
    except FileNotFoundError:
        raise ImageError(f"{_describe(path)} does not exist.", code="not-found") from None
    except IsADirectoryError:
        message = f"{_describe(path)} is a folder; name the image files in it."
        raise ImageError(message, code="not-found") from None
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        raise ImageError(f"{_describe(path)} cannot be read: {error}.", code="unreadable-image") from None


def _from_pil(source: Image.Image, limits: Limits) -> Image.Image:
    name = _describe(source)
    try:
        decoder.check_size(source, name, limits.max_pixels)
        source.load()
        notes: list[str] = []
        made = decoder.to_8bit(ImageOps.exif_transpose(source), name, notes)  # exif_transpose returns a copy
        _say(name, notes)
        return made
    except Exception as error:  # Pillow's decoders raise nearly anything on damaged data
        refusal = error if isinstance(error, decoder.Refusal) else decoder.refusal_of(error, name)
        raise decoder_pool.error_of(refusal.code, refusal.message) from None


def _from_array(array: np.ndarray, limits: Limits) -> Image.Image:
    grey = array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 1)
    if array.dtype != np.uint8 or not (grey or (array.ndim == 3 and array.shape[2] in (3, 4))) or array.size == 0:
        raise ImageError(
            "an array is an image if it is uint8 of shape [H, W], [H, W, 1], [H, W, 3] or [H, W, 4], "
            f"not {array.dtype} {list(array.shape)}.",
            code="unreadable-image",
        )
    if array.shape[0] * array.shape[1] > limits.max_pixels:
        raise ImageTooLargeError(
            f"the array has {array.shape[0]} x {array.shape[1]} pixels; at most {limits.max_pixels:,} are accepted."
        )
    # A copy, since Pillow may share the array's memory.
    return decoder.to_8bit(
        Image.fromarray(np.array(array[..., 0] if array.ndim == 3 and grey else array, order="C")), "", []
    )

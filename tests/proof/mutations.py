"""Kinds of damage to an image file, as Hypothesis strategies over real files of eight formats."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from io import BytesIO

import numpy as np
import pillow_heif
from hypothesis import strategies as st
from PIL import Image

from tests.serving import toys

pillow_heif.register_heif_opener()

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "AVIF", "HEIF")
EXTREMES = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF)
HEADER = 64
"""Size of the header: magic number, sizes and first lengths."""


@cache
def seeds() -> dict[str, tuple[bytes, ...]]:
    """Return valid files of each format: grey, palette, alpha, 16 bits, progressive, animated, EXIF."""
    rng = np.random.default_rng(0)
    rgb = toys.picture(1, rng, 48)
    grey, palette, bits, alpha = rgb.convert("L"), rgb.convert("P"), rgb.convert("1"), rgb.convert("RGBA")
    alpha.putalpha(toys.picture(2, rng, 48).convert("L"))
    deep = Image.fromarray(rng.integers(0, 2**16, (40, 40), np.uint16))
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a description"
    frames = {"save_all": True, "append_images": [toys.picture(number, rng, 48) for number in range(3)]}
    ways: dict[str, list[tuple[Image.Image, dict[str, object]]]] = {
        "JPEG": [
            (rgb, {"quality": 80}),
            (rgb, {"progressive": True, "exif": exif, "comment": b"a comment"}),
            (rgb.convert("CMYK"), {}),
            (grey, {"restart_marker_blocks": 2}),
        ],
        "PNG": [(rgb, {}), (alpha, {"exif": exif}), (deep, {}), (palette, {}), (rgb, frames)],
        "WEBP": [(rgb, {}), (alpha, {"lossless": True, "exif": exif}), (rgb, frames)],
        "GIF": [(rgb, {"comment": b"a comment"}), (rgb, frames), (bits, {})],
        "TIFF": [
            (rgb, {}),
            (rgb, {"compression": "tiff_lzw", "exif": exif}),
            (rgb, {"compression": "jpeg"}),
            (bits, {"compression": "group4"}),
            (deep, {"compression": "tiff_adobe_deflate"}),
            (rgb, frames),
        ],
        "BMP": [(rgb, {}), (palette, {}), (bits, {})],
        "AVIF": [(rgb, {}), (alpha, {"exif": exif})],
        "HEIF": [(rgb, {"exif": exif.tobytes()}), (alpha, {})],
    }
    return {kind: tuple(_saved(image, kind, options) for image, options in some) for kind, some in ways.items()}


def _saved(image: Image.Image, kind: str, options: dict[str, object]) -> bytes:
    out = BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


Draw = Callable[[st.SearchStrategy], int]
"""Function that `@st.composite` passes to a strategy, to draw from other strategies."""


def _place(draw: Draw, data: bytes, within: int | None = None) -> int:
    return draw(st.integers(0, max(0, min(len(data), within or len(data)) - 1)))


def _span(draw: Draw, data: bytes) -> tuple[int, int]:
    start = _place(draw, data)
    return start, min(len(data), start + draw(st.integers(1, max(1, len(data) // 3))))


def truncated(draw: Draw, data: bytes) -> bytes:
    return data[: _place(draw, data)]


def beheaded(draw: Draw, data: bytes) -> bytes:
    return data[_place(draw, data, HEADER) :]


def flipped(draw: Draw, data: bytes) -> bytes:
    """Flip one to eight bits."""
    out = bytearray(data)
    for _ in range(draw(st.integers(1, 8))):
        out[_place(draw, data)] ^= 1 << draw(st.integers(0, 7))
    return bytes(out)


def overwritten(draw: Draw, data: bytes) -> bytes:
    """Replace a stretch by other bytes."""
    start, end = _span(draw, data)
    return data[:start] + bytes(draw(st.binary(min_size=1, max_size=64))) + data[end:]


def inserted(draw: Draw, data: bytes) -> bytes:
    at = _place(draw, data)
    return data[:at] + bytes(draw(st.binary(min_size=1, max_size=64))) + data[at:]


def deleted(draw: Draw, data: bytes) -> bytes:
    start, end = _span(draw, data)
    return data[:start] + data[end:]


def swapped(draw: Draw, data: bytes) -> bytes:
    """Swap two neighbouring stretches."""
    start, end = _span(draw, data)
    middle = draw(st.integers(start, end))
    return data[:start] + data[middle:end] + data[start:middle] + data[end:]


def repeated(draw: Draw, data: bytes) -> bytes:
    start, end = _span(draw, data)
    return data[:end] + data[start:end] * draw(st.integers(1, 50)) + data[end:]


def filled(draw: Draw, data: bytes) -> bytes:
    """Fill a stretch with zeros or ones."""
    start, end = _span(draw, data)
    return data[:start] + bytes([draw(st.sampled_from((0, 0xFF)))]) * (end - start) + data[end:]


def wrong_length(draw: Draw, data: bytes) -> bytes:
    """Replace a number of two or four bytes anywhere by zero, a huge number or one just past a limit."""
    return _number(draw, data, _place(draw, data))


def lying_header(draw: Draw, data: bytes) -> bytes:
    """Falsify numbers of the header: sizes, depths, offsets, lengths."""
    for _ in range(draw(st.integers(1, 3))):
        data = _number(draw, data, _place(draw, data, HEADER))
    return data


def _number(draw: Draw, data: bytes, at: int) -> bytes:
    value, form = draw(st.sampled_from(EXTREMES)), draw(st.sampled_from((">H", "<H", ">I", "<I")))
    number = struct.pack(form, value & (0xFFFF if form[1] == "H" else 0xFFFFFFFF))
    return data[:at] + number + data[at + len(number) :]


def joined(draw: Draw, data: bytes) -> bytes:
    """Put another file, of any format, after it or before it."""
    other = draw(st.sampled_from(seeds()[draw(st.sampled_from(FORMATS))]))
    return data + other if draw(st.booleans()) else other[: _place(draw, other)] + data


def crossed(draw: Draw, data: bytes) -> bytes:
    """Join the head of one file and the body of another."""
    other = draw(st.sampled_from(seeds()[draw(st.sampled_from(FORMATS))]))
    return data[: _place(draw, data)] + other[_place(draw, other) :]


MUTATIONS: dict[str, Callable[[Draw, bytes], bytes]] = {
    one.__name__: one
    for one in (
        truncated, beheaded, flipped, overwritten, inserted, deleted, swapped,
        repeated, filled, wrong_length, lying_header, joined, crossed,
    )
}  # fmt: skip


@st.composite
def mutants(draw: Draw, mutation: str, kind: str) -> bytes:
    """Draw a file of the format `kind` with the damage `mutation`; it is never empty."""
    return MUTATIONS[mutation](draw, draw(st.sampled_from(seeds()[kind]))) or b"\0"

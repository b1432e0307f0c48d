"""Geometry of a HEIC file: the pictures and the tiles that it describes, read from its boxes (ISO/IEC 23008-12)."""

from __future__ import annotations

import struct
from collections.abc import Iterator

MAX_BOXES = 20_000
"""The most boxes that are looked at."""

_CONTAINERS = {b"meta": 4, b"iprp": 0, b"ipco": 0, b"iref": 4}
"""Boxes that hold boxes, and the bytes before these."""


def geometry(data: bytes) -> tuple[int, int]:
    """Return the pixels of the largest picture in a file, and the tiles of which its pictures consist.

    Raises:
        ValueError: If there are too many boxes, or one is damaged.
    """
    pixels = tiles = 0
    for number, (kind, start, end) in enumerate(_boxes(data, 0, len(data))):
        if number == MAX_BOXES:
            raise ValueError("it consists of too many pieces")
        if kind == b"ispe":
            width, height = _unpack(">II", data, start + 4, end)
            pixels = max(pixels, width * height)
        elif kind == b"dimg":  # a picture and the tiles that it is made of; 4-byte ids are longer still
            tiles += (end - start) // 2
    return pixels, tiles


def _boxes(data: bytes, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield kind, start and end of the content of each box, and of those inside it."""
    while start + 8 <= end:
        size, kind = struct.unpack_from(">I4s", data, start)
        head = 8
        if size == 1:
            (size,), head = _unpack(">Q", data, start + 8, end), 16
        until = start + size if size else end
        if until < start + head or until > end:
            return  # cut off: the decoder says so
        yield kind, start + head, until
        if kind in _CONTAINERS:
            yield from _boxes(data, start + head + _CONTAINERS[kind], until)
        start = until


def _unpack(form: str, data: bytes, start: int, end: int) -> tuple[int, ...]:
    if start + struct.calcsize(form) > end:
        raise ValueError("it is damaged")
    return struct.unpack_from(form, data, start)

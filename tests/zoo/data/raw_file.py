"""A raw file as a camera writes it: a DNG of a mosaic of colours, with a JPEG preview."""

from __future__ import annotations

import struct

import numpy as np

_BYTE, _TEXT, _SHORT, _LONG, _FRACTION = 1, 2, 3, 4, 10
_CODES = {_BYTE: "B", _SHORT: "H", _LONG: "I", _FRACTION: "i"}

Tag = tuple[int, int, bytes]


def _tag(number: int, kind: int, *values: int) -> Tag:
    return number, kind, struct.pack(f"<{len(values)}{_CODES[kind]}", *values)


def _directory(tags: list[Tag], at: int) -> bytes:
    """Return a directory of a TIFF that begins at byte `at`, and the values behind it."""
    behind, entries = b"", b""
    end = at + 2 + 12 * len(tags) + 4
    for number, kind, packed in sorted(tags):
        count = len(packed) // {_FRACTION: 8, _TEXT: 1}.get(kind, struct.calcsize(_CODES.get(kind, "B")))
        if len(packed) > 4:
            packed, behind = struct.pack("<I", end + len(behind)), behind + packed + bytes(len(packed) % 2)
        entries += struct.pack("<HHI", number, kind, count) + packed.ljust(4, b"\0")
    return struct.pack("<H", len(tags)) + entries + bytes(4) + behind


def dng(preview: bytes, size: tuple[int, int], orientation: int = 1) -> bytes:
    """Return a DNG.

    Args:
        preview: The JPEG file.
        size: Its width and height.
        orientation: The EXIF orientation of the photograph.
    """
    width, height = size
    mosaic = np.full((height, width), 2048, "<u2").tobytes()
    sides = [_tag(256, _LONG, width), _tag(257, _LONG, height)]
    head = [_tag(278, _LONG, height), _tag(284, _SHORT, 1)]
    inner_at = 8 + len(preview) + len(preview) % 2 + len(mosaic)
    inner = _directory(
        [
            *(_tag(254, _LONG, 0), *sides, _tag(258, _SHORT, 16), _tag(259, _SHORT, 1), _tag(262, _SHORT, 32803)),
            *(_tag(273, _LONG, inner_at - len(mosaic)), _tag(277, _SHORT, 1), *head, _tag(279, _LONG, len(mosaic))),
            *(_tag(33421, _SHORT, 2, 2), _tag(33422, _BYTE, 0, 1, 1, 2)),
        ],
        inner_at,
    )
    outer_at = inner_at + len(inner)
    outer = _directory(
        [
            *(_tag(254, _LONG, 1), *sides, _tag(258, _SHORT, 8, 8, 8), _tag(259, _SHORT, 7), _tag(262, _SHORT, 6)),
            *((271, _TEXT, b"Toy\0"), (272, _TEXT, b"Toy One\0"), _tag(273, _LONG, 8), _tag(274, _SHORT, orientation)),
            *(_tag(277, _SHORT, 3), *head, _tag(279, _LONG, len(preview)), (306, _TEXT, b"2023:07:01 12:30:00\0")),
            *(_tag(330, _LONG, inner_at), _tag(50706, _BYTE, 1, 4, 0, 0), (50708, _TEXT, b"Toy One\0")),
            _tag(50721, _FRACTION, *(1, 1, 0, 1, 0, 1), *(0, 1, 1, 1, 0, 1), *(0, 1, 0, 1, 1, 1)),
        ],
        outer_at,
    )
    data = preview + bytes(len(preview) % 2) + mosaic + inner + outer
    return b"II*\0" + struct.pack("<I", outer_at) + data

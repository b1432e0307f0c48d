"""Bombs: small files, or files within the limits, with a huge number of pixels, scans, pieces or frames."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from io import BytesIO

from PIL import Image

MEGAPIXELS = 4800
"""A side just under the service's limit of 24 megapixels."""


def filling(size: int) -> dict[str, bytes]:
    """Return bombs of about `size` bytes by name; none claims more pixels than the limits allow."""
    return {name: make(size) for name, make in _FILLING.items()}


def of_pixels() -> dict[str, bytes]:
    """Return files by name that claim more pixels than any limit, or more content than they have."""
    return {
        "PNG of 400 megapixels": png(20_000, 20_000),
        "PNG as long as can be": png(2**31 - 1, 1, rows=2000),
        "PNG without a width": png(0, 10, rows=1),
        "JPEG of 65,500 x 65,500": jpeg(b"", scans=1, side=65_500, blocks=64),
        "GIF of 65,535 x 65,535": b"GIF89a" + struct.pack("<HHBBB", 65535, 65535, 0, 0, 0) + bytes(100),
        "BMP of 2 gigapixels": b"BM" + struct.pack("<IHHIIiiHHIIiiII", 99, 0, 0, 54, 40, 2**31 - 1, -(2**31) + 1, 1,
                                                     24, 0, 0, 0, 0, 0, 0),
        "TIFF of 4 gigapixels": _tiff([(256, 65535), (257, 65535), (258, 8), (262, 1), (273, 8), (278, 65535)]),
        "WebP of 268 megapixels": b"RIFF\x1e\0\0\0WEBPVP8X\x0a\0\0\0\x10\0\0\0\xfe\x3f\0\xfe\x3f\0" + bytes(8),
    }  # fmt: skip


def png(width: int, height: int, rows: int | None = None) -> bytes:
    """Return a black 1-bit PNG, a small file."""
    pixels = zlib.compress(bytes((rows or height) * (1 + min(width, 20_000) // 8)), 1)
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def many_scans(size: int, side: int = MEGAPIXELS) -> bytes:
    """Return a grey progressive JPEG whose scans are a few bytes each and mark every block as empty."""
    return jpeg(b"", max(1, (size - (side // 8) ** 2 // 8) // 39), side)


def jpeg(before: bytes, scans: int, side: int, blocks: int | None = None) -> bytes:
    """Return a grey progressive JPEG with `before` ahead of its tables; its scans mark every block as empty."""
    blocks = blocks or ((side + 7) // 8) ** 2
    tables = segment(0xDB, b"\0" + b"\1" * 64) + segment(0xC2, struct.pack(">BHHB", 8, side, side, 1) + b"\1\x11\0")
    codes = b"\1" + bytes(15)  # one code, of one bit
    tables += segment(0xC4, b"\x00" + codes + b"\0") + segment(0xC4, b"\x10" + codes + b"\xe0")
    first = segment(0xDA, b"\1\1\0\0\0\0") + bytes(blocks // 8)
    runs = "".join("0" + "1" * 14 for _ in range(-(-blocks // 32767)))  # "the next 32,767 blocks are empty"
    runs += "1" * (-len(runs) % 8)
    coded = int(runs, 2).to_bytes(len(runs) // 8, "big").replace(b"\xff", b"\xff\0")
    empty = segment(0xDA, b"\1\1\0\1\x3f\0") + coded
    return b"\xff\xd8" + before + tables + first + empty * scans + b"\xff\xd9"


def _after(kind: str, head: int | bytes, piece: bytes, size: int) -> bytes:
    """Return a small image with a piece repeated up to `size` bytes, after `head` bytes or before the mark `head`."""
    out = BytesIO()
    Image.new("L", (64, 64)).save(out, kind)
    data = out.getvalue()
    at = head if isinstance(head, int) else data.index(head)
    return data[:at] + piece * (size // len(piece)) + data[at:]


def segment(marker: int, data: bytes) -> bytes:
    """Return a segment of a JPEG."""
    return struct.pack(">BBH", 0xFF, marker, len(data) + 2) + data


def chunk(kind: bytes, data: bytes) -> bytes:
    """Return a chunk of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _tiff(tags: list[tuple[int, int]], data: bytes = b"") -> bytes:
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4) + data


def _tiff_tags(size: int) -> bytes:
    """Return a TIFF with the largest number of tags, all of which point to the same bytes."""
    count = min(60_000, size // 24)
    rest = size - 12 * count
    entries = b"".join(struct.pack("<HHII", tag, 7, rest, 8) for tag in range(1000, 1000 + count))
    return b"II*\0" + struct.pack("<IH", 8, count) + entries + bytes(4 + rest)


def _bmp_runs(size: int) -> bytes:
    head = struct.pack("<IHHI", 54 + 1024 + size, 0, 0, 54 + 1024)
    info = struct.pack("<IiiHHIIiiII", 40, MEGAPIXELS, MEGAPIXELS, 1, 8, 1, size, 0, 0, 256, 256)
    return b"BM" + head + info + bytes(1024) + b"\1\1" * (size // 2)


_FILLING: dict[str, Callable[[int], bytes]] = {
    "JPEG of scans": many_scans,
    "JPEG of comments": lambda size: _after("JPEG", 2, segment(0xFE, b""), size),
    "JPEG of EXIF": lambda size: _after("JPEG", 2, segment(0xE1, b"Exif\0\0x"), size),
    "JPEG of fill bytes": lambda size: _after("JPEG", 2, b"\xff", size),
    "JPEG of Photoshop resources": lambda size: _after(
        "JPEG", 2, segment(0xED, b"Photoshop 3.0\0" + b"8BIM\3\xff\0\0\0\0\0\0" * 5000), size
    ),
    "PNG of chunks": lambda size: _after("PNG", 33, chunk(b"tIME", bytes(7)), size),
    "PNG of texts": lambda size: _after("PNG", 33, chunk(b"tEXt", b"a\0b"), size),
    "PNG of packed texts": lambda size: _after("PNG", 33, chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(9999))), size),
    "PNG of empty data": lambda size: _after("PNG", 33, chunk(b"IDAT", b""), size),
    "GIF of comments": lambda size: _after("GIF", b"\x2c\0\0\0\0", b"\x21\xfe\1a\0", size),
    "GIF of nothing": lambda size: _after("GIF", b"\x2c\0\0\0\0", b"\0", size),
    "GIF of frames": lambda size: _after("GIF", b"\x2c\0\0\0\0", b"\x2c\0\0\0\0\1\0\1\0\0\2\2\x44\1\0", size),
    "TIFF of tags": _tiff_tags,
    "BMP of runs": _bmp_runs,
    "PPM of comments": lambda size: b"P3\n1000 1000\n255\n" + b"#a\n" * (size // 3),
    "PPM of numbers": lambda size: b"P3\n2000 2000\n255\n" + b"0 " * (size // 2),
    "PPM of lines": lambda size: b"P6\n" + b"#\n" * (size // 2) + b"10 10\n255\n" + bytes(300),
}  # fmt: skip

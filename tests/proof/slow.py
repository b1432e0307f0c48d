"""Slow files: small, within the pixel limit and mostly legal, but built to keep a decoder busy or to fill memory.

Bombs claim too much or hold too many pieces; these files multiply instead. Tiles share one stream, a scan of no bytes
runs over all pixels, a tag points a thousand times to the same megabyte, and a tile is larger than its image.
"""

from __future__ import annotations

import math
import struct
import warnings
import zlib
from collections.abc import Iterable, Sequence
from io import BytesIO
from typing import Any

from PIL import Image, TiffImagePlugin, features

from tests.proof.bombs import chunk, jpeg, segment
from tests.zoo.data.raw_file import dng

PIXELS = 210_000_000
"""The most pixels that are accepted (`zoo.data.images.Limits`)."""

HEVC = bytes.fromhex(
    "0103700000009000000000001ef000fcfdf8f800000f03600001001840010c01ffff03700000030090000003000003001eba0240610001002b"
    "42010103700000030090000003000003001ea020810596ea4929ae6e021a0c0800000300c800000300084062000100074401c172b02240"
)
HEVC_TILE = bytes.fromhex("000000132801af1380e6b3855e2bf6e357f20b584d2e4f")
"""Configuration (`hvcC`) and data of a grey HEVC picture of 64 x 64, written by x265."""


def slow_files(pixels: int = PIXELS) -> dict[str, bytes]:
    """Return the slow files by name, which begins with the format.

    Args:
        pixels: The limit that no file exceeds, and that most come near to.

    Returns:
        The bytes of each file, at most 2 MB, but 6 MB of profiles in a PNG, so that every processor needs more than
        the time that a decoder has. AVIF is written only where Pillow can write it. HEIC and raw files need no
        library.
    """
    return {
        **_tiffs(pixels),
        **_tiffs_of_tags(),
        **_jpegs(pixels),
        **_pngs(pixels),
        **_webps(pixels),
        **_gifs(pixels),
        **_bmps(pixels),
        **_portable_maps(pixels),
        **_avifs(pixels),
        **_heics(pixels),
        **_raws(pixels),
    }


# TIFF

BYTE, SHORT, LONG, RATIONAL, UNDEFINED = 1, 3, 4, 5, 7
_CODES = {BYTE: "B", SHORT: "H", LONG: "I", RATIONAL: "I", UNDEFINED: "B"}

Tags = dict[int, tuple[int, Sequence[int]]]
"""Tag -> (type, values)."""


def _tiff(tags: Tags, data: bytes = b"", following: int = 0) -> bytes:
    """Return a TIFF whose data begin at byte 8, and whose directory is followed by one at `following`."""
    entries = b""
    for tag, (kind, values) in sorted(tags.items()):
        packed = struct.pack(f"<{len(values)}{_CODES[kind]}", *values)
        count = len(values) // 2 if kind == RATIONAL else len(values)
        if len(packed) > 4:
            data += bytes(len(data) % 2)
            packed, data = struct.pack("<I", 8 + len(data)), data + packed
        entries += struct.pack("<HHI", tag, kind, count) + packed.ljust(4, b"\0")
    data += bytes(len(data) % 2)
    return b"II*\0" + struct.pack("<I", 8 + len(data)) + data + _directory(entries, following)


def _directory(entries: bytes, following: int = 0) -> bytes:
    return struct.pack("<H", len(entries) // 12) + entries + struct.pack("<I", following)


def _picture(width: int, height: int, compression: int, samples: int = 1, bits: int = 8, **more: Any) -> Tags:
    photometric = more.get("photometric", 2 if samples > 2 else 1)
    return {
        256: (LONG, [width]),
        257: (LONG, [height]),
        258: (SHORT, [bits] * samples),
        259: (SHORT, [compression]),
        262: (SHORT, [photometric]),
        277: (SHORT, [samples]),
    }


def _tiled(picture: Tags, tile: tuple[int, int], stream: bytes, planes: int = 1) -> bytes:
    """Return a TIFF all of whose tiles are the same bytes."""
    (_, (width,)), (_, (height,)) = picture[256], picture[257]
    count = -(-width // tile[0]) * -(-height // tile[1]) * planes
    shared: Tags = {322: (LONG, [tile[0]]), 323: (LONG, [tile[1]]), 324: (LONG, [8] * count)}
    return _tiff({**picture, **shared, 325: (LONG, [len(stream)] * count)}, stream)


def _stripped(picture: Tags, rows: int, stream: bytes, planes: int = 1) -> bytes:
    """Return a TIFF all of whose strips are the same bytes."""
    count = -(-picture[257][1][0] // rows) * planes
    shared: Tags = {273: (LONG, [8] * count), 278: (LONG, [rows]), 279: (LONG, [len(stream)] * count)}
    return _tiff({**picture, **shared}, stream)


def _encoded(mode: str, size: tuple[int, int], compression: str) -> bytes:
    """Return the one strip as which Pillow compresses a black image."""
    out = BytesIO()
    Image.new(mode, size).save(out, "TIFF", compression=compression, tiffinfo={278: size[1]})
    data = out.getvalue()
    tags = TiffImagePlugin.ImageFileDirectory_v2(data[:8])
    out.seek(tags.next)
    tags.load(out)
    (offset,), (length,) = tags[273], tags[279]
    return data[offset : offset + length]


def _tiffs(pixels: int) -> dict[str, bytes]:
    """Return TIFFs whose tiles or strips are larger than the image, or share their bytes."""
    million, side = 2**20, math.isqrt(pixels)
    zeros = {count: deflated(bytes(million), count) for count in (62, 123, 245)}
    column, square = _picture(1, pixels, 8), _picture(side, side, 8)
    tall = 4000, 16_000
    wide_fax = b"\xff" * 8192  # one bit says that a row is like the one above
    text, deep = (SHORT, [2]), (SHORT, [1, 1, 1])
    files = {
        "deflate tiles": _tiled(column, tall, zeros[62]),
        "a tile of 2 GB": _tiled(_picture(1, 1, 8), (32_768, 65_520), zlib.compress(b"\0")),
        "a raw tile of 2 GB": _tiled(_picture(1, 1, 1), (32_768, 65_520), bytes(16)),
        "a 1-bit tile of 8 gigapixels": _tiled(_picture(1, 1, 4, bits=1), (131_056, 65_520), wide_fax),
        "fax tiles": _tiled(_picture(1, pixels, 4, bits=1), (32_768, 65_520), wide_fax),
        "fax tiles, group 3": _tiled(
            _picture(1, pixels, 3, bits=1), (16_384, 1024), _encoded("1", (16_384, 1024), "group3")
        ),
        "LZW tiles": _tiled(_picture(1, pixels, 5), (4000, 4000), _encoded("L", (4000, 4000), "tiff_lzw")),
        "packbits tiles": _tiled(_picture(1, pixels, 32_773), (4000, 4000), _encoded("L", (4000, 4000), "packbits")),
        "LZMA tiles": _tiled(_picture(1, pixels, 34_925), (4000, 4000), _encoded("L", (4000, 4000), "lzma")),
        "zstd tiles": _tiled(_picture(1, pixels, 50_000), tall, _encoded("L", tall, "zstd")),
        "JPEG tiles": _tiled(_picture(1, pixels, 7), (4000, 4000), jpeg(b"", scans=0, side=4000)),
        "JPEG tiles of 99 scans": _tiled(_picture(1, pixels, 7), (4000, 4000), jpeg(b"", scans=98, side=4000)),
        "old JPEG tiles": _tiled(_picture(1, pixels, 6), (4000, 4000), jpeg(b"", scans=0, side=4000)),
        "raw tiles": _tiled(_picture(1, pixels, 1), (1024, 1024), bytes(million)),
        "raw tiles of 16 x 16": _tiled(_picture(side // 16, side // 4, 1), (16, 16), bytes(256)),
        "deflate tiles of 16 x 16": _tiled(_picture(side // 16, side // 4, 8), (16, 16), zlib.compress(bytes(256))),
        "planes of tiles": _tiled({**_picture(1, pixels, 8, 3), 284: text}, tall, zeros[62], planes=3),
        "planes of strips": _stripped({**_picture(side, side, 8, 3), 284: text}, side, zeros[123], planes=3),
        "16-bit tiles": _tiled(_picture(1, pixels, 8, bits=16), tall, zeros[123]),
        "16-bit RGBA tiles": _tiled(
            {**_picture(1, pixels, 8, 4, bits=16), 338: (SHORT, [2])}, (4000, 8000), zeros[245]
        ),
        "float tiles": _tiled({**_picture(1, pixels, 8, bits=32), 339: (SHORT, [3])}, tall, zeros[245]),
        "float tiles, predicted": _tiled(
            {**_picture(1, pixels, 8, bits=32), 339: (SHORT, [3]), 317: (SHORT, [3])}, tall, zeros[245]
        ),
        "64-bit strips": _stripped({**_picture(side // 2, side, 8, bits=64), 339: (SHORT, [3])}, side, zeros[245]),
        "predicted tiles": _tiled({**_picture(1, pixels, 8, 3), 317: text}, (4000, 5000), zeros[62]),
        "CMYK tiles": _tiled(_picture(1, pixels, 8, 4, photometric=5), (4000, 4000), zeros[62]),
        "CIELAB tiles": _tiled(_picture(1, pixels, 8, 3, photometric=8), (4000, 4000), zeros[62]),
        "YCbCr tiles": _tiled(
            {**_picture(1, pixels, 8, 3, photometric=6), 530: (SHORT, [4, 4])}, (4000, 16_000), zeros[123]
        ),
        "YCbCr in one strip": _stripped({**_picture(side, side, 8, 3, photometric=6), 530: text}, side, zeros[245]),
        "palette": _stripped(
            {**_picture(side, side, 8, photometric=3), 320: (SHORT, [0] * 768)}, side, zeros[123]
        ),
        "65,535 samples": _tiled(
            {**square, 258: (SHORT, [8]), 277: (SHORT, [65_535])}, (1024, 1024), zeros[62]
        ),
        "strips of one row": _stripped(_picture(pixels // 200_000, 200_000, 8), 1, zlib.compress(bytes(1000))),
        "raw strips of one row": _stripped(_picture(pixels // 200_000, 200_000, 1), 1, bytes(400)),
        "JPEG strips": _stripped(_picture(64, 64 * 10_000, 7), 64, jpeg(b"", scans=0, side=64)),
        "a strip of 4 billion rows": _stripped(square, 2**32 - 1, zeros[123]),
        "a strip of a row of 4 GB": _stripped(_picture(pixels, 1, 8, 3), 2**32 - 1, zeros[245]),
        "an endless strip": _stripped(_picture(1, 1, 8), 1, zeros[245]),
        "sideways": _stripped({**_picture(side, side, 8, 3), 274: (SHORT, [6])}, side, zeros[245]),
        "resolution in depth": _stripped({**_picture(side, side, 8, 3), 339: deep}, side, zeros[245]),
    }  # fmt: skip
    return {f"TIFF of {name}": file for name, file in files.items()}


def _shared_fractions(size: int, tags: int, turned: bool = True) -> bytes:
    """Return a directory (TIFF, EXIF) whose tags all point to the same fractions."""
    count = (size - 12 * tags - 100) // 8
    entries = struct.pack("<HHIHH", 274, SHORT, 1, 6, 0) * turned
    entries += b"".join(struct.pack("<HHII", tag, RATIONAL, count, 8) for tag in range(50_000, 50_000 + tags))
    return b"II*\0" + struct.pack("<I", 8 + 8 * count) + struct.pack("<II", 1, 3) * count + _directory(entries)


def _looping(tag: int) -> bytes:
    """Return a turned directory whose sub-directory and successor are itself."""
    entries = struct.pack("<HHIHH", 274, SHORT, 1, 6, 0) + struct.pack("<HHII", tag, LONG, 1, 8)
    return b"II*\0" + struct.pack("<I", 8) + _directory(entries, following=8)


def _tiffs_of_tags() -> dict[str, bytes]:
    """Return TIFFs of few pixels whose directories are endless, or far larger than the file."""
    small, dot = _picture(8, 8, 1), {273: (LONG, [8]), 278: (LONG, [8]), 279: (LONG, [64])}
    plain, turned = {**small, **dot}, {274: (SHORT, [6])}
    million = [1, 3] * 120_000
    alike: Tags = dict.fromkeys((33_434, 33_437), (RATIONAL, million))
    chain = _tiff(plain, bytes(64))
    length = len(chain)
    links = b"".join(
        chain[length - 114 : length - 4] + struct.pack("<I", length + 114 * (i + 1)) for i in range(10_000)
    )
    rational = _shared_fractions(500_000, 2000)
    files = {
        "a directory that follows itself": _tiff(plain, bytes(64), following=72),
        "10,000 directories": chain[:-4] + struct.pack("<I", length) + links,
        "sub-directories in themselves": _tiff({**plain, **turned, 330: (LONG, [72] * 1000)}, bytes(64), 72),
        "EXIF in itself": _tiff({**plain, **turned, 34_665: (LONG, [72]), 34_853: (LONG, [72])}, bytes(64), 72),
        "EXIF of 4 billion bytes": _counted(_tiff({**plain, 34_665: (LONG, [8])}, bytes(64)), 34_665),
        "a profile of 4 billion bytes": _counted(_tiff({**plain, 34_675: (UNDEFINED, [0] * 8)}, bytes(64)), 34_675),
        "a tag of 4 billion fractions": _counted(_tiff({**plain, 33_434: (RATIONAL, [1, 3])}, bytes(64)), 33_434),
        "4 billion offsets of strips": _counted(_tiff(plain, bytes(64)), 273),
        "4 billion samples": _counted(_tiff(plain, bytes(64)), 258),
        "fractions": _tiff({**plain, **turned, **alike}, bytes(64)),
        "2,000 tags of the same fractions": _with_picture(rational),
        "a profile of 2 MB": _tiff({**plain, 34_675: (UNDEFINED, [0] * 1_900_000)}, bytes(64)),
    }  # fmt: skip
    return {f"TIFF of {name}": file for name, file in files.items()}


def _counted(tiff: bytes, tag: int) -> bytes:
    """Return a TIFF with the largest count in one of its tags."""
    at = tiff.index(struct.pack("<H", tag), struct.unpack_from("<I", tiff, 4)[0])
    return tiff[: at + 4] + struct.pack("<I", 2**32 - 1) + tiff[at + 8 :]


def _with_picture(directory: bytes) -> bytes:
    """Return a TIFF with the tags of a directory and a small picture."""
    (at,) = struct.unpack_from("<I", directory, 4)
    (count,) = struct.unpack_from("<H", directory, at)
    picture = {**_picture(8, 8, 1), 273: (LONG, [8]), 278: (LONG, [8]), 279: (LONG, [64])}
    entries = b"".join(struct.pack("<HHII", tag, LONG, 1, values[0]) for tag, (_, values) in sorted(picture.items()))
    return directory[:at] + struct.pack("<H", count + len(picture)) + entries + directory[at + 2 :]


# JPEG


def _scan(components: Iterable[int], first: int = 0, last: int = 63, bits: int = 0) -> bytes:
    listed = b"".join(bytes([component, 0]) for component in components)
    return segment(0xDA, bytes([len(listed) // 2]) + listed + bytes([first, last, bits]))


def _frame(marker: int, width: int, height: int, sampling: Sequence[int], precision: int = 8) -> bytes:
    components = b"".join(bytes([number, factors, 0]) for number, factors in enumerate(sampling, 1))
    return segment(marker, struct.pack(">BHHB", precision, height, width, len(sampling)) + components)


_QUANTA = segment(0xDB, b"\0" + b"\1" * 64)
_ONE_CODE = b"\1" + bytes(15) + b"\0"
_HUFFMAN = segment(0xC4, b"\x00" + _ONE_CODE) + segment(0xC4, b"\x10" + _ONE_CODE)
_ADOBE = segment(0xEE, b"Adobe\0\x64\0\0\0\0\2")
_START, _END = b"\xff\xd8", b"\xff\xd9"


def _jpegs(pixels: int) -> dict[str, bytes]:
    """Return JPEGs whose scans run over all pixels, with hardly a byte for each."""
    side = math.isqrt(pixels) // 32 * 32
    grey, colour, cmyk = [0x11], [0x22, 0x11, 0x11], [0x11] * 4
    blocks, three, four = (side // 8) ** 2, _scan([1, 2, 3]), _scan([1, 2, 3, 4])
    head = _START + _QUANTA + _HUFFMAN
    refined = b"".join(
        _scan([1], 1, 63, bits) for bits in (0x0D, *(16 * bit + bit - 1 for bit in range(13, 0, -1))) for _ in range(7)
    )
    restarts = b"\0\0\xff\xd0\0\0\xff\xd1\0\0\xff\xd2\0\0\xff\xd3\0\0\xff\xd4\0\0\xff\xd5\0\0\xff\xd6\0\0\xff\xd7"
    exif = _shared_fractions(64_000, 2000)
    small = BytesIO()
    Image.new("RGB", (8, 8)).save(small, "JPEG")
    body = small.getvalue()[2:]
    files = {
        "99 scans": jpeg(b"", scans=98, side=side),
        "no data": head + _frame(0xC0, side, side, colour) + three + _END,
        "CMYK without data": _START + _ADOBE + head[2:] + _frame(0xC0, side, side, cmyk) + four + _END,
        "CMYK": _START + _ADOBE + head[2:] + _frame(0xC0, side, side, cmyk) + four + bytes(blocks) + _END,
        "one scan per colour": head + _frame(0xC0, side, side, colour)
        + b"".join(_scan([number]) + bytes(blocks // 8) for number in (1, 2, 3)) + _END,
        "arithmetic coding": head + _frame(0xC9, side, side, colour) + three + _END,
        "arithmetic coding, 99 scans": head + _frame(0xCA, side, side, grey) + _scan([1], 0, 0) + refined + _END,
        "arithmetic coding, 99 colour scans": head + _frame(0xCA, side, side, colour) + _scan([1, 2, 3], 0, 0)
        + b"".join(_scan([number], 1, 63) for _ in range(32) for number in (1, 2, 3)) + _END,
        "lossless coding": head + _frame(0xC3, side, side, cmyk) + _scan([1, 2, 3, 4], 1, 0) + _END,
        "12 bits": head + _frame(0xC1, side, side, grey, precision=12) + _scan([1]) + _END,
        "restarts": head + segment(0xDD, b"\0\1") + _frame(0xC0, side, side, colour) + three
        + restarts * (blocks // 4 // 8) + _END,
        "restarts that are missing": head + segment(0xDD, b"\0\1") + _frame(0xC0, side, side, colour) + three
        + bytes(100_000) + _END,
        "huge sampling": head + _frame(0xC0, side, side, [0x11, 0x44, 0x11])
        + b"".join(_scan([number]) + bytes(blocks // 8) for number in (1, 2, 3)) + _END,
        "odd sampling": head + _frame(0xC0, side, side, [0x32, 0x13, 0x21]) + three + _END,
        "two frames, the second larger": head + _frame(0xC0, 8, 8, grey) + _frame(0xC0, side, side, grey) + _scan([1])
        + _END,
        "two frames, the first larger": head + _frame(0xC0, side, side, grey) + _frame(0xC0, 8, 8, grey) + _scan([1])
        + _END,
        "a height that follows": head + _frame(0xC0, 65_500, 0, grey) + _scan([1]) + segment(0xDC, b"\xff\xff") + _END,
        "1 x 65,500": head + _frame(0xC0, 1, 65_500, grey) + _scan([1]) + _END,
        "many pictures": _pictures(1500),
        "4 billion pictures": _pictures(2).replace(struct.pack("<HHII", 0xB001, 4, 1, 2),
                                                   struct.pack("<HHII", 0xB001, 4, 1, 2**32 - 1)),
        "a profile in 255 segments": _START + b"".join(
            segment(0xE2, b"ICC_PROFILE\0" + bytes([number, 255]) + bytes(7000)) for number in range(1, 256)
        ) + body,
        "EXIF of the same fractions": _START + segment(0xE1, b"Exif\0\0" + exif) + body,
        "EXIF in itself": _START + segment(0xE1, b"Exif\0\0" + _looping(34_665)) + body,
        "a place in itself": _START + segment(0xE1, b"Exif\0\0" + _looping(34_853)) + body,
        "19 EXIF segments": _START + segment(0xE1, b"Exif\0\0" + exif) * 19 + body,
        "XMP": _START + segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + b"<a>" * 21_000) * 25 + body,
        "sideways": _START + segment(0xE1, b"Exif\0\0" + _looping(34_665)) + head[2:]
        + _frame(0xC0, side, side, colour) + three + _END,
    }  # fmt: skip
    return {f"JPEG of {name}": file for name, file in files.items()}


def _pictures(count: int) -> bytes:
    out = BytesIO()
    frames = [Image.new("L", (8, 8))] * (count - 1)
    Image.new("L", (8, 8)).save(out, "MPO", save_all=True, append_images=frames)
    return out.getvalue()


# PNG


def deflated(block: bytes, times: int) -> bytes:
    """Return the zlib stream of a block that is repeated, in the time of one block."""
    packer = zlib.compressobj(9, wbits=-15)
    packed = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
    high, low = divmod(zlib.adler32(block, 0), 2**16)
    first = 1 + times * low
    second = times * (len(block) + high) + len(block) * low * (times * (times - 1) // 2)
    return b"\x78\x9c" + packed * times + b"\3\0" + struct.pack(">HH", second % 65_521, first % 65_521)


def _png(width: int, height: int, bits: int, colour: int, before: bytes = b"", **how: Any) -> bytes:
    """Return a PNG of zeros, in rows of a filter, with chunks before its data."""
    samples = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    row = bytes([how.get("filtered", 0)]) + bytes(-(-width * bits * samples // 8))
    rows = max(1, 2**20 // len(row))
    interlaced = how.get("interlaced", 0)
    # An interlaced picture has more, and shorter, rows; all of their filters are zero, so that the zeros may be cut.
    times = -(-height // rows) + interlaced * (1 + height // rows // 4)
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, interlaced)
    data = deflated(row * rows, times)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + before + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def _pngs(pixels: int) -> dict[str, bytes]:
    """Return PNGs of the most pixels in the widest modes, and of packed texts, profiles and frames."""
    side = math.isqrt(pixels)
    packed = deflated(bytes(2**20 - 1), 1)
    large = deflated(bytes(2**20), 1500)
    palette = chunk(b"PLTE", bytes(768)) + chunk(b"tRNS", bytes(range(256)))
    turned = chunk(b"eXIf", _looping(34_665))
    small = _png(8, 8, 8, 0)
    frame = struct.pack(">IIIIHHBB", 8, 8, 0, 0, 1, 10, 0, 0)
    pixels_of_frame = zlib.compress(bytes(72))

    def control(number: int, fields: bytes) -> bytes:
        return chunk(b"fcTL", struct.pack(">I", number) + fields)

    frames = b"".join(
        control(1 + 2 * i, frame) + chunk(b"fdAT", struct.pack(">I", 2 + 2 * i) + pixels_of_frame)
        for i in range(20_000)
    )
    beyond = struct.pack(">IIIIHHBB", side, side, 0, 0, 1, 10, 0, 0)
    outside = struct.pack(">IIIIHHBB", 8, 8, 2**31 - 1, 2**31 - 1, 1, 10, 0, 0)
    files = {
        "1 bit, interlaced": _png(side, side, 1, 0, interlaced=1),
        "16-bit RGBA": _png(side, side, 16, 6),
        "16-bit RGBA, Paeth filter": _png(side, side, 16, 6, filtered=4),
        "16-bit RGBA, interlaced": _png(side, side, 16, 6, interlaced=1),
        "16-bit RGB": _png(side, side, 16, 2),
        "16-bit grey": _png(side, side, 16, 0),
        "16-bit grey and alpha": _png(side, side, 16, 4),
        "one column": _png(1, pixels, 8, 0),
        "one column, interlaced": _png(1, pixels, 8, 0, interlaced=1),
        "one row": _png(pixels, 1, 8, 0),
        "a palette with transparency": _png(side, side, 8, 3, palette),
        "grey with transparency": _png(side, side, 8, 0, chunk(b"tRNS", b"\0\0")),
        "sideways": _png(side, side, 16, 6, turned),
        "profiles": _png(8, 8, 8, 0, chunk(b"iCCP", b"a\0\0" + packed) * 6000),
        "a profile of 1.5 GB": _png(8, 8, 8, 0, chunk(b"iCCP", b"a\0\0" + large)),
        "zTXt": _png(8, 8, 8, 0, chunk(b"zTXt", b"a\0\0" + packed) * 1500),
        "zTXt of 1.5 GB": _png(8, 8, 8, 0, chunk(b"zTXt", b"a\0\0" + large)),
        "iTXt": _png(8, 8, 8, 0, chunk(b"iTXt", b"a\0\1\0\0\0" + packed) * 1500),
        "iTXt of 1.5 GB": _png(8, 8, 8, 0, chunk(b"iTXt", b"a\0\1\0\0\0" + large)),
        "EXIF of the same fractions": _png(8, 8, 8, 0, chunk(b"eXIf", _shared_fractions(500_000, 2000))),
        "EXIF in itself": _png(8, 8, 8, 0, turned),
        "data after its end": small[:41] + chunk(b"IDAT", large) + small[41:],
        "frames": _png(8, 8, 8, 0, chunk(b"acTL", struct.pack(">II", 20_001, 0)) + control(0, frame))[:-12]
        + frames + chunk(b"IEND", b""),
        "4 billion frames": _png(8, 8, 8, 0, chunk(b"acTL", struct.pack(">II", 2**32 - 1, 0)) + control(0, frame)),
        "a frame beyond the canvas": _png(8, 8, 8, 0, chunk(b"acTL", struct.pack(">II", 2, 0)) + control(0, beyond)),
        "a frame outside": _png(8, 8, 8, 0, chunk(b"acTL", struct.pack(">II", 2, 0)) + control(0, outside)),
        "a small first frame": _png(
            side, side, 8, 6, chunk(b"acTL", struct.pack(">II", 2, 0)) + control(0, frame)
        ),
    }  # fmt: skip
    return {f"PNG of {name}": file for name, file in files.items()}


# WebP


def _bits(*fields: tuple[int, int]) -> bytes:
    """Return (value, number of bits) packed from the lowest bit on."""
    value = at = 0
    for field, width in fields:
        value |= field << at
        at += width
    return value.to_bytes(-(-at // 8), "little")


def _lossless(width: int, height: int, predicted: bool = False) -> bytes:
    """Return a `VP8L` chunk of one colour: each of its codes has one symbol, so that a pixel takes no bit.

    Args:
        width: At most 16,384, like the height.
        height: The height.
        predicted: Predict each pixel from three neighbours (predictor 11), after the colour transforms.
    """
    alike: list[tuple[int, int]] = [(1, 4)] * 5  # a simple code of one symbol, of one bit, 0
    chosen = [(0b101, 3), (11, 8), *alike[1:]]  # likewise, of 8 bits
    whole = [(1, 1), (0, 2), (0, 3), (0, 1), *chosen, (1, 1), (2, 2)] if predicted else []
    data = _bits((0x2F, 8), (width - 1, 14), (height - 1, 14), (1, 1), (0, 3), *whole, (0, 1), (0, 1), (0, 1), *alike)
    return _riff_chunk(b"VP8L", data + bytes(8))


def _riff_chunk(kind: bytes, data: bytes) -> bytes:
    return kind + struct.pack("<I", len(data)) + data + bytes(len(data) % 2)


def _webp(*chunks: bytes) -> bytes:
    data = b"WEBP" + b"".join(chunks)
    return b"RIFF" + struct.pack("<I", len(data)) + data


def _canvas(flags: int, width: int, height: int) -> bytes:
    sides = struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3]
    return _riff_chunk(b"VP8X", struct.pack("<I", flags) + sides)


def _webps(pixels: int) -> dict[str, bytes]:
    """Return WebPs of the most pixels, in a few bytes; and of frames, profiles and EXIF."""
    animated, exif, profile = 0x02, 0x08, 0x20
    wide, side = 16_383, math.isqrt(pixels)
    high = pixels // wide

    def frame(width: int, height: int, picture: bytes) -> bytes:
        sides = struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3]
        return _riff_chunk(b"ANMF", bytes(6) + sides + b"\x0a\0\0\0" + picture)

    loop = _riff_chunk(b"ANIM", bytes(6))
    dot, whole = _lossless(1, 1), _lossless(side, side, predicted=True)
    lossy = BytesIO()
    Image.new("RGB", (3000, 3000)).save(lossy, "WEBP", quality=0, method=0)
    fractions = _shared_fractions(500_000, 2000)
    files = {
        "no bits": _webp(_lossless(wide, high)),
        "predictions": _webp(_lossless(wide, high, predicted=True)),
        "one column": _webp(_lossless(1, 16_384, predicted=True)),
        "lossy blocks": lossy.getvalue(),
        "many frames": _webp(_canvas(animated, 1, 1), loop, frame(1, 1, dot) * 30_000),
        "whole frames": _webp(_canvas(animated, side, side), loop, frame(side, side, whole) * 20_000),
        "a canvas larger than its frame": _webp(_canvas(animated, wide, high), loop, frame(1, 1, dot)),
        "a canvas of 16,383 x 16,383": _webp(_canvas(animated, wide, wide), loop, frame(1, 1, dot)),
        "a picture larger than its canvas": _webp(_canvas(0, 1, 1), whole),
        "a frame larger than its canvas": _webp(_canvas(animated, 1, 1), loop, frame(side, side, whole)),
        "EXIF of the same fractions": _webp(_canvas(exif, 1, 1), dot, _riff_chunk(b"EXIF", fractions)),
        "EXIF in itself": _webp(_canvas(exif, 1, 1), dot, _riff_chunk(b"EXIF", _looping(34_665))),
        "a profile of 1.9 MB": _webp(_canvas(profile, 1, 1), _riff_chunk(b"ICCP", bytes(1_900_000)), dot),
        "unknown chunks": _webp(_canvas(0, 1, 1), _riff_chunk(b"abcd", b"") * 200_000, dot),
    }
    return {f"WebP of {name}": file for name, file in files.items()}


# GIF


def _gif(screen: tuple[int, int], *parts: bytes) -> bytes:
    return b"GIF89a" + struct.pack("<HHBBB", *screen, 0x80, 0, 0) + bytes(6) + b"".join(parts) + b";"


def _gif_frame(left: int, top: int, width: int, height: int, codes: bytes, interlaced: bool = False) -> bytes:
    blocks = b"".join(bytes([len(codes[at : at + 255])]) + codes[at : at + 255] for at in range(0, len(codes), 255))
    return struct.pack("<BHHHHBB", 0x2C, left, top, width, height, 0x40 * interlaced, 8) + blocks + b"\0"


def _lzw(pixels: int) -> bytes:
    """Return the codes of zeros: each stands for one pixel more than the last, until the table is full."""
    fields = [(256, 9)]
    while pixels > 0:
        fields += [(256, 12)] if len(fields) > 1 else []
        fields += [(0, 9)]
        fields += [(code, min(12, code.bit_length())) for code in range(258, 4096)]
        pixels -= sum(range(1, 3839))
    text = "".join(format(value, f"0{width}b")[::-1] for value, width in [*fields, (257, 12)])
    return int(text[::-1], 2).to_bytes(-(-len(text) // 8), "little")


def _gifs(pixels: int) -> dict[str, bytes]:
    """Return GIFs whose frames do not fit their screens, and whose codes say little."""
    side = math.isqrt(pixels)
    zeros, one = _lzw(pixels), b"\0\1\4\4"
    clear = _bits(*[(256, 9)] * 8) * 200_000
    see_through = b"\x21\xf9\4\1\0\0\0\0"
    frames = _gif_frame(0, 0, side, side, one) * 50_000
    files = {
        "one colour": _gif((side, side), _gif_frame(0, 0, side, side, zeros)),
        "interlaced rows": _gif((side, side), _gif_frame(0, 0, side, side, zeros, interlaced=True)),
        "one column, interlaced": _gif((1, 65_535), _gif_frame(0, 0, 1, 65_535, zeros, interlaced=True)),
        "transparency": _gif((side, side), see_through, _gif_frame(0, 0, side, side, zeros)),
        "a frame larger than the screen": _gif((1, 1), _gif_frame(0, 0, side, side, zeros)),
        "a frame outside the screen": _gif((1, 1), _gif_frame(side - 1, side - 1, 1, 1, one)),
        "a frame at the far end": _gif((1, 1), _gif_frame(65_535, 65_535, 1, 1, one)),
        "a screen larger than the frame": _gif((side, side), _gif_frame(0, 0, 1, 1, one)),
        "clear codes": _gif((side, side), _gif_frame(0, 0, side, side, clear)),
        "codes after the end": _gif((1, 1), _gif_frame(0, 0, 1, 1, one + bytes(1_500_000))),
        "large frames": _gif((side, side), frames),
        "extensions": _gif((1, 1), b"\x21\xff\0" * 300_000, _gif_frame(0, 0, 1, 1, one)),
    }
    return {f"GIF of {name}": file for name, file in files.items()}


# BMP and portable maps


def _bmp(width: int, height: int, bits: int, compression: int, data: bytes, colours: int = 0, masks: int = 0) -> bytes:
    palette = bytes(4 * (2**bits if bits <= 8 else 0))
    extra = struct.pack("<III", 0xFF0000, 0xFF00, 0xFF) if masks else b""
    at = 54 + len(extra) + len(palette)
    info = struct.pack("<IiiHHIIiiII", 40, width, height, 1, bits, compression, len(data), 0, 0, colours, 0)
    return b"BM" + struct.pack("<IHHI", at + len(data), 0, 0, at) + info + extra + palette + data


def _bmps(pixels: int) -> dict[str, bytes]:
    """Return BMPs of escapes that skip pixels, and of headers that promise what does not follow."""
    side = math.isqrt(pixels)
    skip, line, end = b"\0\2\xff\xff", b"\0\0", b"\0\1"
    old = struct.pack("<IHHI", 26, 0, 0, 26) + struct.pack("<IHHHH", 12, side, side, 1, 24)
    files = {
        "RLE8 runs": _bmp(side, side, 8, 1, b"\xff\0" * (pixels // 255 + 1) + end),
        "RLE4 runs": _bmp(side, side, 4, 2, b"\xff\0" * (pixels // 255 + 1) + end),
        "RLE8 skips": _bmp(side, side, 8, 1, skip * 500 + end),
        "RLE4 skips": _bmp(side, side, 4, 2, skip * 500 + end),
        "RLE8 skips of long rows": _bmp(pixels, 1, 8, 1, skip + end),
        "RLE4 skips of long rows": _bmp(pixels, 1, 4, 2, skip + end),
        "RLE8 ends of long rows": _bmp(pixels, 1, 8, 1, b"\1\0" + line + end),
        "RLE4 ends of long rows": _bmp(pixels, 1, 4, 2, b"\2\0" + line + end),
        "RLE8 ends of rows": _bmp(side, side, 8, 1, (b"\1\0" + line) * side + end),
        "RLE8 of one column": _bmp(1, pixels, 8, 1, (b"\1\0" + line) * 300_000 + end),
        "RLE8 without data": _bmp(side, side, 8, 1, b""),
        "RLE8 from the top": _bmp(side, -side, 8, 1, skip * 500 + end),
        "absolute runs": _bmp(side, side, 8, 1, (b"\0\xff" + bytes(256)) * 7000 + end),
        "rows from the top": _bmp(side, -side, 24, 0, bytes(1_000_000)),
        "bit fields": _bmp(side, side, 32, 3, bytes(1_000_000), masks=1),
        "32 bits": _bmp(side, side, 32, 0, bytes(1_000_000)),
        "16 bits": _bmp(side, side, 16, 0, bytes(1_000_000)),
        "1 bit": _bmp(4000, 3900, 1, 0, bytes(1_990_000)),
        "a header of OS/2": b"BM" + old + bytes(1_000_000),
        "4 billion colours": _bmp(side, side, 8, 0, bytes(1_000_000), colours=2**32 - 1),
        "no colours": _bmp(side, side, 8, 0, bytes(1_000_000), colours=1),
    }
    return {f"BMP of {name}": file for name, file in files.items()}


def _portable_maps(pixels: int) -> dict[str, bytes]:
    """Return portable maps in all kinds, most of which end early."""
    side = math.isqrt(pixels)
    size, data = f"{side} {side}".encode(), bytes(1_900_000)
    wide = b"1400 1350"
    files = {
        "P4": b"P4\n4000 3800\n" + data,
        "P4 that ends early": b"P4\n" + size + b"\n",
        "P5": b"P5\n" + wide + b"\n255\n" + data,
        "P5 of maximum 254": b"P5\n" + wide + b"\n254\n" + data,
        "P5 of maximum 1": b"P5\n" + wide + b"\n1\n" + data,
        "P5 of maximum 65,535": b"P5\n1300 700\n65535\n" + data,
        "P5 of maximum 65,534": b"P5\n1300 700\n65534\n" + data,
        "P6 of maximum 254": b"P6\n800 790\n254\n" + data,
        "P6 of maximum 65,535": b"P6\n600 500\n65535\n" + data,
        "P6 that ends early": b"P6\n" + size + b"\n255\n" + bytes(1000),
        "P6 of maximum 254 that ends early": b"P6\n" + size + b"\n254\n" + bytes(1000),
        "P1": b"P1\n1000 1000\n" + b"0" * 1_000_000,
        "P2 of one number": b"P2\n1 1\n255\n" + b"0" * 1_000_000,
        "P3": b"P3\n400 400\n65535\n" + b"9 " * 480_000,
        "P1 that ends early": b"P1\n" + size + b"\n0",
        "Pf": b"Pf\n600 700\n-1.0\n" + data,
        "Pf that ends early": b"Pf\n" + size + b"\n-1.0\n" + data,
        "PF": b"PF\n400 300\n-1.0\n" + data,
        "P7": f"P7\nWIDTH {side}\nHEIGHT {side}\nDEPTH 4\nMAXVAL 255\nTUPLTYPE RGB_ALPHA\nENDHDR\n".encode() + data,
        "P0CMYK": b"P0CMYK\n600 700\n255\n" + data,
        "a header without end": b"P6\n" + b"1" * 1_000_000,
    }
    return {f"PPM of {name}": file for name, file in files.items()}


# AVIF and HEIC


def _box(kind: bytes, *parts: bytes, version: int | None = None) -> bytes:
    data = (b"" if version is None else struct.pack(">I", version << 24)) + b"".join(parts)
    return struct.pack(">I", 8 + len(data)) + kind + data


def _grid(kind: bytes, configuration: bytes, settings: bytes, tile: bytes, cells: int) -> bytes:
    """Return a file of `cells` x `cells` tiles of 64 x 64, all of which are the same bytes."""
    side, count = 64 * cells, cells * cells
    ids = range(2, 2 + count)
    brand = b"heic" if kind == b"hvc1" else b"avif"
    start = _box(b"ftyp", brand, bytes(4), b"mif1", brand, b"miaf")
    whole = struct.pack(">BBBBHH", 0, 0, cells - 1, cells - 1, side, side)

    def places(at: int) -> bytes:
        listed = [(1, at, len(whole)), *((number, at + len(whole), len(tile)) for number in ids)]
        packed = b"".join(struct.pack(">HHHII", number, 0, 1, offset, size) for number, offset, size in listed)
        return _box(b"iloc", b"\x44\0", struct.pack(">H", len(listed)), packed, version=0)

    def item(number: int, name: bytes) -> bytes:
        return _box(b"infe", struct.pack(">HH", number, 0), name, b"\0", version=2)

    def size_of(pixels: int) -> bytes:
        return _box(b"ispe", struct.pack(">II", pixels, pixels), version=0)

    properties = [
        size_of(side),
        size_of(64),
        _box(b"pixi", b"\3\x08\x08\x08", version=0),
        _box(configuration, settings),
    ]
    uses = struct.pack(">H3B", 1, 2, 1, 3) + b"".join(struct.pack(">H4B", number, 3, 2, 3, 0x84) for number in ids)

    def meta(at: int) -> bytes:
        return _box(
            b"meta",
            _box(b"hdlr", bytes(4), b"pict", bytes(13), version=0),
            _box(b"pitm", struct.pack(">H", 1), version=0),
            places(at),
            _box(b"iinf", struct.pack(">H", 1 + count), item(1, b"grid"), *(item(i, kind) for i in ids), version=0),
            _box(b"iref", _box(b"dimg", struct.pack(f">HH{count}H", 1, count, *ids)), version=0),
            _box(b"iprp", _box(b"ipco", *properties), _box(b"ipma", struct.pack(">I", 1 + count), uses, version=0)),
            version=0,
        )

    return start + meta(len(start) + len(meta(0)) + 8) + _box(b"mdat", whole, tile)


def _heics(pixels: int) -> dict[str, bytes]:
    """Return HEICs of many tiles and boxes, and of pictures that are not as large as they say."""
    grid = _grid(b"hvc1", b"hvcC", HEVC, HEVC_TILE, math.isqrt(pixels) // 64)
    few = _grid(b"hvc1", b"hvcC", HEVC, HEVC_TILE, min(64, math.isqrt(pixels) // 64))
    single = _grid(b"hvc1", b"hvcC", HEVC, HEVC_TILE, 1)
    nested = b""
    for _ in range(30_000):
        nested = _box(b"meta", nested, version=0) if len(nested) < 400_000 else nested
    start = single[: struct.unpack_from(">I", single)[0]]
    tile = single.index(struct.pack(">II", 64, 64))
    files = {
        "a grid": grid,
        "a grid of 4,096 tiles": few,
        "a picture larger than its tile": single.replace(struct.pack(">II", 64, 64), struct.pack(">II", 9000, 9000)),
        "a picture smaller than its tile": single[:tile] + struct.pack(">II", 1, 1) + single[tile + 8 :],
        "boxes in boxes": start + nested,
        "boxes": start + _box(b"free") * 200_000,
        "EXIF in no place": single + _box(b"Exif", bytes(1_000_000)),
    }
    return {f"HEIC of {name}": file for name, file in files.items()}


def _raws(pixels: int) -> dict[str, bytes]:
    """Return raw files whose previews are slow, or that describe more than they have."""
    side = math.isqrt(pixels)
    files = {
        "a preview of scans": dng(jpeg(b"", scans=90, side=min(side, 8000)), (64, 64)),
        "a preview of other size": dng(jpeg(b"", scans=1, side=64), (30_000, 2)),
        "nothing but a beginning": b"FUJIFILMCCD-RAW " + bytes(1_000_000),
        "directories in a circle": b"IIRO" + struct.pack("<IH", 8, 60_000) + b"\xff" * 1_000_000,
        "CR3 boxes": _box(b"ftyp", b"crx ", bytes(4), b"crx isom") + _box(b"moov", _box(b"free") * 100_000),
    }
    return {f"RAW of {name}": file for name, file in files.items()}


def _avifs(pixels: int) -> dict[str, bytes]:
    """Return AVIFs of many pixels, tiles and frames, where Pillow can write them."""
    if not features.check("avif"):
        return {}

    def written(image: Image.Image, **options: Any) -> bytes:
        out = BytesIO()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow reads the EXIF data that it writes
            image.save(out, "AVIF", speed=10, quality=10, **options)
        return out.getvalue()

    tile = written(Image.new("RGB", (64, 64)))
    at, data = tile.index(b"av1C"), tile.index(b"mdat")
    settings = tile[at + 4 : at - 4 + struct.unpack_from(">I", tile, at - 4)[0]]
    small = Image.new("RGB", (64, 64))
    others = [Image.new("RGB", (64, 64), (red, 0, 0)) for red in range(150)]
    cells = math.isqrt(pixels) // 64
    side = min(math.isqrt(pixels), 3000)
    files = {
        "one colour": written(Image.new("RGB", (side, side))),
        "transparency": written(Image.new("RGBA", (1200, 1200))),
        "frames": written(small, save_all=True, append_images=others),
        "a grid": _grid(b"av01", b"av1C", settings, tile[data + 4 :], cells),
        "EXIF of the same fractions": written(small, exif=_shared_fractions(500_000, 2000, turned=False)),
        "a profile of 1.9 MB": written(small, icc_profile=bytes(1_900_000)),
    }  # fmt: skip
    return {f"AVIF of {name}": file for name, file in files.items()}

"""The process that decodes image files: its work on any file ends within bounds.

`zoo.data.decoder_pool` starts a program that runs `main`, sends it one image after the other and reads their pixels. It
begins with Pillow and the standard library alone, so that it starts in a tenth of a second and takes 10 MB; it imports
more for the files that need it: deep, HEIC and raw ones, and those with EXIF data.

The bounds of one image:

- Bytes and pixels (`Limits`), checked in the header. A JPEG of more than `WHOLE_PIXELS` is decoded at a fraction of its
  size, and an image of another format may not have more. The tiles of a TIFF count as the pixels that they hold: 1,500
  of them may share one stream of 64 megapixels in a file of 74 kB.
- Processor time: `CPU_SECONDS`, and `CPU_SECONDS_PER_MEGAPIXEL` once the header is known. At the end of it the kernel
  ends the process by SIGPROF, also within a decoder in C.
- Memory: `MEMORY_BYTES`, and `needed_bytes` once the header is known. Beyond, allocations fail. An image that needs
  more than `LARGE_BYTES` is announced, and decoded when the caller says so: one at a time.
- Pieces: millions of markers, chunks and comments cost a microsecond each or, if they are joined one by one, quadratic
  time. Files of too many are refused at once, without a decoder that dies.

What an image becomes:

- The content decides the format, never the name. Of a raw file it is the preview.
- EXIF orientation is applied.
- Alpha (RGBA, LA, PA, palette transparency) is composited over white.
- Palettes become RGB; 1-bit and grey become grey; CMYK, YCbCr, LAB and HSV become RGB.
- More than 8 bits, and floats, are scaled by the range that the data reach (`zoo.data.depth`).
- The first frame of an animation is taken. What follows the end of a JPEG, such as a video, is not looked at.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import signal
import struct
import sys
import warnings
from collections.abc import Callable, Iterator
from io import BytesIO
from itertools import islice
from typing import Any, BinaryIO, NamedTuple

from PIL import Image, UnidentifiedImageError

FORMATS = ("JPEG", "PNG", "WEBP", "AVIF", "HEIF", "GIF", "BMP", "TIFF", "PPM")
"""The formats that are decoded; untrusted bytes do not reach Pillow's rarer plugins."""

CPU_SECONDS, CPU_SECONDS_PER_MEGAPIXEL = 2.0, 0.1
MEMORY_BYTES, MEMORY_BYTES_PER_PIXEL = 512 * 2**20, 16
COEFFICIENT_BYTES = 2
"""Bytes of a coefficient of a JPEG, all of which are in memory if it is progressive or comes in several scans."""
LARGE_BYTES = 512 * 2**20
WHOLE_PIXELS = 100_000_000
"""The most pixels that are in memory at once."""
MAX_SIDE = 10**6
"""The most pixels of a side: Pillow keeps an address for each row, so that one column would take hundreds of MB."""
TOO_LARGE = "image-too-large"
LENGTH = struct.Struct("<I")
"""The length of a message of JSON, before it."""
GO = b"\0"
"""The answer to the announcement of a large image."""
BAND_BYTES = 256 * 2**10
"""Pixels go back in bands of rows, so that they are not in memory twice."""

_FEW_PIXELS = 2**20


class Refusal(Exception):  # noqa: N818  # not an error of this process
    """A file that is not decoded: why, and the code of the `ImageError` that the caller raises."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.message, self.code = message, code


class DecodedFile(NamedTuple):
    """A decoded image.

    Attributes:
        image: Upright, 8 bits, mode L or RGB; perhaps at a fraction of its size.
        size: Its full upright size (width, height).
        notes: What was assumed about the file.
        facts: What the camera wrote (`zoo.data.camera.facts_of`).
    """

    image: Image.Image
    size: tuple[int, int]
    notes: tuple[str, ...]
    facts: dict[str, Any]


def decode(
    data: bytes, name: str, max_pixels: int, draft: int | None, announce: Callable[[int], None] | None = None
) -> DecodedFile:
    """Return the image in a file.

    Args:
        data: The file.
        name: The name of the image in messages.
        max_pixels: The most pixels that are accepted.
        draft: The shortest side, in pixels, that is large enough: a JPEG may be decoded at 1/2, 1/4 or 1/8 of its size.
        announce: Called with the bytes of memory that the image needs, before it is decoded.

    Raises:
        Refusal: If the file is damaged, too large or of no known format. Bad input raises nothing else.
    """
    try:
        if _RAW_LIKE.match(data):
            from zoo.data.camera import is_raw

            if is_raw(data):
                return _decode_raw(data, name, max_pixels, draft, announce)
        part = _part_of_image(data)
        _check_pieces(part.data)
        if _brands(part.data) & HEIC_BRANDS:
            _prepare_heic(part.data, name, max_pixels)
        image = _open(part.data if part.has_end else part.data + _END)
        check_size(image, name, max_pixels)
        size, pixels = image.size, image.width * image.height
        if pixels > _FEW_PIXELS:
            _limit_cpu(CPU_SECONDS + CPU_SECONDS_PER_MEGAPIXEL * min(pixels, WHOLE_PIXELS) / 1e6)
        side = _least_side(size, draft)
        _reduce(image, side)
        if announce is not None:
            announce(needed_bytes(image, size, part.scans))
        notes = [] if part.has_end else [_check_end(part.data, side, name)]
        return _upright(image, _shades(image, part.data, notes), size, name, notes)
    except Refusal:
        raise
    except Exception as error:  # Pillow's decoders raise nearly anything on damaged data
        raise refusal_of(error, name, begins_as_image(data)) from None


def _open(data: bytes) -> Image.Image:
    formats = [name for name in FORMATS if name != "HEIF" or name in Image.OPEN]
    image = Image.open(_ReadLimitedFile(data), formats=formats)
    if image.format == "MPO":  # a JPEG that lists further pictures behind it
        image.format = "JPEG"
    return image


def _least_side(size: tuple[int, int], draft: int | None) -> int | None:
    """Return the shortest side at which a JPEG is decoded: as asked, or less where it would not fit in memory."""
    fraction = next(part for part in (1, 2, 4, 8, 16) if size[0] * size[1] <= WHOLE_PIXELS * part**2)
    most = min(size) // fraction
    return min(most, draft or most) if draft is not None or fraction > 1 else None


def _reduce(image: Image.Image, side: int | None) -> None:
    """Let a JPEG be decoded at a fraction of its size."""
    if side is not None and image.format == "JPEG":
        image.draft("RGB" if image.mode not in ("L", "CMYK") else None, (side, side))


def needed_bytes(image: Image.Image, size: tuple[int, int], scans: int) -> int:
    """Return the memory that decoding takes at most, besides the file and the program.

    Args:
        image: The opened image, whose size is that at which it is decoded.
        size: Its full size.
        scans: The scans of a JPEG.
    """
    coefficients = 0
    if image.format == "JPEG" and (scans > 1 or "progressive" in image.info):
        coefficients = COEFFICIENT_BYTES * len(image.getbands()) * size[0] * size[1]
    return coefficients + MEMORY_BYTES_PER_PIXEL * image.width * image.height


def _shades(image: Image.Image, data: bytes, notes: list[str]) -> Image.Image:
    """Return the loaded image; colours of 10 to 14 bits in 16, of which Pillow keeps the high bytes, as 8 bits."""
    deep = image.mode == "RGB" and any(_rawmode(tile) in _OTHER_BYTES for tile in getattr(image, "tile", ()))
    image.load()
    if not deep or _highest(image) >= 64:
        return image
    lower = _open(data)
    tiles: list[Any] = lower.tile  # type: ignore[attr-defined]
    for number, tile in enumerate(tiles):
        other, rest = _OTHER_BYTES[_rawmode(tile)], tile.args if isinstance(tile.args, tuple) else ()
        tiles[number] = tile._replace(args=(other, *rest[1:]) if rest else other)
    lower.load()
    if _highest(image) == _highest(lower) == 0:
        return image
    from zoo.data.depth import rgb_to_8bit

    scaled, note = rgb_to_8bit(image, lower)
    notes.append(note)
    return scaled


def _highest(image: Image.Image) -> int:
    """Return the highest number in an RGB image."""
    bands: Any = image.getextrema()
    return max(high for _, high in bands)


def _rawmode(tile: Any) -> str:
    """Return how Pillow reads the pixels of a tile."""
    return str(tile.args[0] if isinstance(tile.args, tuple) else tile.args)


_OTHER_BYTES = {
    "RGB;16B": "RGB;16L",
    "RGB;16L": "RGB;16B",
    "RGB;16N": "RGB;16B" if sys.byteorder == "little" else "RGB;16L",
}
"""Pillow's ways to read one byte of each 16-bit colour, and the way to read the other one."""


def _upright(
    image: Image.Image, shades: Image.Image, size: tuple[int, int], name: str, notes: list[str]
) -> DecodedFile:
    """Return an image, whose pixels are `shades`, as EXIF says that it is seen."""
    facts: dict[str, Any] = {}
    if "exif" in image.info or image.format == "TIFF":
        from zoo.data.camera import facts_of

        facts = facts_of(image)
    turn = _TURNS.get(image.getexif().get(_ORIENTATION, 1))
    made = to_8bit(shades if turn is None else shades.transpose(turn), name, notes, image.format == "PPM")
    return DecodedFile(made, size[::-1] if turn in _SIDEWAYS else size, tuple(notes), facts)


_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What makes an image upright, by its EXIF orientation."""
_SIDEWAYS = frozenset(_TURNS[orientation] for orientation in (5, 6, 7, 8))


# JPEG


class _Part(NamedTuple):
    """The part of a file that is the image. scans: of a JPEG; has_end: whether its end marker is there."""

    data: bytes
    scans: int = 1
    has_end: bool = True


_END = b"\xff\xd9"
_MARKER = re.compile(rb"\xff([^\x00\x01\xd0-\xd8\xff])", re.DOTALL)
"""A marker of a JPEG that ends a scan or begins a segment; others belong to the data."""
MAX_SEGMENTS = 10_000
"""The most segments of a JPEG before its end; a file of 64 MiB has a thousand full ones."""
_TAIL = bytes(range(1, 240)) * 4
"""Bytes that continue a scan which lacks something, and are skipped behind one that is whole."""


def _part_of_image(data: bytes) -> _Part:
    """Return a JPEG up to its end, and any other file unchanged: phones put a video behind the photograph."""
    if not data.startswith(b"\xff\xd8"):
        return _Part(data)
    at, scans = 2, 0
    for _ in range(MAX_SEGMENTS):
        marker = _MARKER.search(data, at)
        if marker is None:
            return _Part(data, scans, has_end=False)
        if marker[1] == _END[1:]:
            return _Part(data[: marker.end()], scans)
        scans += marker[1] == b"\xda"
        if scans > MAX_SCANS:
            raise Refusal(f"the image has more than the {MAX_SCANS} scans that are accepted.", "unreadable-image")
        at = marker.end() + max(2, int.from_bytes(data[marker.end() : marker.end() + 2], "big"))
    raise Refusal("the image consists of too many pieces to be read.", "unreadable-image")


def _check_end(data: bytes, side: int | None, name: str) -> str:
    """Return the note about a JPEG that lacks its end marker.

    Raises:
        Refusal: If it lacks more: then bytes behind it change the picture.
    """

    import hashlib

    def digest(tail: bytes) -> bytes:
        image = _open(data + tail + _END)
        _reduce(image, side)
        return hashlib.sha256(image.tobytes()).digest()

    if digest(b"") != digest(_TAIL):
        raise Refusal(f"{name} is cut off: its file ends too early.", "unreadable-image")
    return "it lacks its end marker, and nothing else"


# HEIC and raw files

HEIC_BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"})
MAX_TILES = 4096
"""The most tiles of a HEIC, which phones write in 512 x 512 pixels."""
_RAW_LIKE = re.compile(rb"II[*UR]|MM[\0O]|FUJIFILM|FOVb|\0MRM|....ftypcrx", re.DOTALL)


def _brands(data: bytes) -> set[bytes]:
    """Return what an ISO media file says it is; of an AVIF nothing, because Pillow reads it."""
    if data[4:8] != b"ftyp":
        return set()
    end = min(int.from_bytes(data[:4], "big"), 512)
    brands = {data[8:12], *(data[at : at + 4] for at in range(16, end, 4))}
    return set() if brands & {b"avif", b"avis"} else brands


def _prepare_heic(data: bytes, name: str, max_pixels: int) -> None:
    """Let Pillow open HEIC, and check the pictures and tiles that a file describes."""
    if "HEIF" not in Image.OPEN:
        try:
            import pillow_heif
        except ImportError:
            raise _missing(name, "a HEIC photograph", "pillow-heif", "heic") from None
        pillow_heif.options.DECODE_THREADS = 1
        pillow_heif.options.THUMBNAILS = pillow_heif.options.DEPTH_IMAGES = pillow_heif.options.AUX_IMAGES = False
        pillow_heif.register_heif_opener()
    from zoo.data.heic import geometry

    pixels, tiles = geometry(data)
    if pixels > min(max_pixels, WHOLE_PIXELS):
        raise _too_many_pixels(f"{name} has a picture of {pixels:,} pixels", max_pixels, whole=True)
    if tiles > MAX_TILES:
        message = f"{name} has {tiles:,} tiles; at most {MAX_TILES:,} are accepted."
        raise Refusal(message, "unreadable-image")


def _decode_raw(
    data: bytes, name: str, max_pixels: int, draft: int | None, announce: Callable[[int], None] | None
) -> DecodedFile:
    """Return the preview in a raw file."""
    from zoo.data.camera import facts_of_raw, raw_preview

    _limit_cpu(CPU_SECONDS + CPU_SECONDS_PER_MEGAPIXEL * len(data) / 1e6)
    try:
        preview, turn = raw_preview(data)
    except ImportError:
        raise _missing(name, "a raw file", "rawpy", "raw") from None
    if not preview.startswith(b"\xff\xd8"):
        raise Refusal(f"{name} is a raw file without a preview that can be read.", "unreadable-image")
    image, size, notes, facts = decode(preview, name, max_pixels, draft, announce)
    if turn is not None:
        image, size = image.transpose(turn), size[::-1] if turn in _SIDEWAYS else size
    note = f"of the raw file, the preview of {size[0]} x {size[1]} pixels is taken"
    return DecodedFile(image, size, (*notes, note), {**facts_of_raw(data), **facts})


def _missing(name: str, kind: str, package: str, extra: str) -> Refusal:
    message = f"{name} is {kind}, for which {package} is not installed: pip install 'dml-zoo[{extra}]'"
    return Refusal(message, "unknown-format")


_BEGINNING = re.compile(
    rb"""\xff\xd8\xff | \x89PNG\r\n\x1a\n | GIF8[79]a | RIFF....WEBP | II[*+]\0 | MM\0[*+]
    | BM....\0\0\0\0....[\x0c\x28\x34\x38\x40\x6c\x7c]\0\0\0
    | ....ftyp(?:avif|avis|heic|heix|heim|heis|hevc|hevx|mif1|msf1)""",
    re.DOTALL | re.VERBOSE,
)
"""Beginning of an image file. `decode` decides what it really is."""
BEGINNING_BYTES = 32


def begins_as_image(data: bytes) -> bool:
    """Return whether the content of a file, or its beginning, is that of an image."""
    return _BEGINNING.match(data) is not None


def refusal_of(error: Exception, name: str, is_known: bool = False) -> Refusal:
    """Return the refusal for an error of Pillow; is_known: whether the file begins as an image."""
    if isinstance(error, UnidentifiedImageError) and is_known:
        return Refusal(
            f"{name} begins as an image, but is cut off, damaged or of a kind that is not read.", "unreadable-image"
        )
    if isinstance(error, UnidentifiedImageError):
        return Refusal(f"{name} is in none of the formats that are read ({', '.join(FORMATS)}).", "unknown-format")
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return Refusal(f"{name} claims to have too many pixels to be decoded.", TOO_LARGE)
    if isinstance(error, MemoryError):
        return Refusal(f"{name} takes more memory to decode than an image may.", TOO_LARGE)
    return Refusal(f"{name} cannot be decoded: {error or type(error).__name__}.", "unreadable-image")


def _too_many_pixels(what: str, max_pixels: int, whole: bool) -> Refusal:
    """Return the refusal of an image with too many pixels; whole: whether it cannot be decoded at a fraction."""
    if whole and max_pixels > WHOLE_PIXELS:
        return Refusal(f"{what}; at most {WHOLE_PIXELS:,} are accepted of any format but JPEG.", TOO_LARGE)
    setting = "the limit max_pixels; of a service --max-pixels"
    return Refusal(f"{what}; at most {max_pixels:,} are accepted ({setting}).", TOO_LARGE)


def check_size(image: Image.Image, name: str, max_pixels: int) -> None:
    """Refuse an opened image of too many pixels, in the picture or in the tiles of its file."""
    whole = image.format != "JPEG"
    if image.width * image.height > (min(max_pixels, WHOLE_PIXELS) if whole else max_pixels):
        raise _too_many_pixels(f"{name} has {image.width} x {image.height} pixels", max_pixels, whole)
    if max(image.size) > MAX_SIDE:
        message = f"{name} has {image.width} x {image.height} pixels; a side may have at most {MAX_SIDE:,}."
        raise Refusal(message, TOO_LARGE)
    if image.format != "TIFF":
        return
    tags: Any = image.tag_v2  # type: ignore[attr-defined]
    width, height = int(tags.get(322, image.width)), int(tags.get(323, image.height))
    across, down = (-(-side // max(1, tile)) for side, tile in zip(image.size, (width, height), strict=True))
    if across * width * down * height > min(max_pixels, WHOLE_PIXELS) + 4 * image.width * image.height:
        tiles = f"{name} has {across * down:,} tiles of {width} x {height} pixels"
        raise _too_many_pixels(tiles, max_pixels, whole)


def centre_square(image: Image.Image, square: dict[str, Any]) -> Image.Image:
    """Return the centre crop of the resized image (`zoo.data.preprocessing.Preprocessing.square`).

    The crop is computed in the source's coordinates and resized in one step, so that an image of 1 x 100,000,000
    pixels is never enlarged to a huge one.
    """
    image, crop = in_mode(image, square["mode"]), square["crop"]
    shown = image.size if square["squeeze"] else (min(image.size),) * 2
    width, height = (side * crop / square["resize"] for side in shown)
    left, top = (image.width - width) / 2, (image.height - height) / 2
    resampling = Image.Resampling[square["interpolation"].upper()]
    return image.resize((crop, crop), resampling, box=(left, top, left + width, top + height))


def to_8bit(image: Image.Image, name: str, notes: list[str], states_range: bool = False) -> Image.Image:
    """Convert an image of any mode to 8 bits, mode L or RGB, without alpha.

    Besides the image, this needs at most 5 bytes per pixel (9 for palettes with transparency).

    Args:
        image: The image.
        name: Its name in messages.
        notes: Gets a note if a range of numbers was taken from the data.
        states_range: Whether the file says what white is, so that the numbers are 0 to 65,535.
    """
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        return _scale_to_8bit(image, name, notes, states_range)
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


def _scale_to_8bit(image: Image.Image, name: str, notes: list[str], states_range: bool) -> Image.Image:
    from zoo.data.depth import NotFiniteError, scaled

    try:
        made, note = scaled(image, states_range)
    except NotFiniteError:
        raise Refusal(f"{name} holds NaN or infinite pixels.", "not-finite") from None
    if note:
        notes.append(note)
    return made


MAX_SCANS = 100
"""The most scans of a JPEG. Encoders write about ten. libtiff has the same limit for JPEGs in a TIFF."""
MAX_JPEG_PARTS = {
    # One is usual; an MPO file has one per picture.
    "EXIF segments": (b"Exif\0\0", 20),
    "Photoshop resources": (b"8BIM", 5000),
}
"""Parts of a JPEG whose cost adds up: the bytes with which each begins, and the most that are accepted."""

# Pillow reads a file piece by piece, at some microseconds each; a run-length encoded BMP needs two reads per run.
MAX_READS, MAX_BMP_READS = 50_000, 400_000
# A large file may be read more often. ffmpeg writes the smallest pieces: PNGs in 4 kB, with four reads each.
BYTES_PER_READ = 500
# The tags of a TIFF may all point to the same bytes, which Pillow keeps once for each tag.
MAX_TIMES_READ = 8

# Limits of a portable map (PPM, PGM, PBM) that holds its numbers as text.
MAX_PLAIN_BYTES, MAX_PLAIN_COMMENTS = 2**20, 20


class _ReadLimitedFile(BytesIO):
    """File in memory that refuses to be read too often, or more than a few times from end to end."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.reads = max(MAX_BMP_READS if data.startswith(b"BM") else MAX_READS, len(data) // BYTES_PER_READ)
        self.bytes = MAX_TIMES_READ * len(data) + 2**20

    def read(self, size: int | None = -1) -> bytes:
        part = super().read(size)
        self.reads -= 1
        self.bytes -= len(part)
        if self.reads < 0 or self.bytes < 0:
            reason = "the image consists of too many pieces to be read."
            if self.getvalue()[:2] in (b"P5", b"P6"):  # Pillow reads others one by one
                reason = (
                    "the image is a large portable map whose highest number is neither 255 nor, in grey, 65,535; save "
                    "it with that, or as PNG."
                )
            raise Refusal(reason, "unreadable-image")
        return part


def _check_pieces(data: bytes) -> None:
    """Refuse a file whose pieces would take longer to read than its pixels to decode."""
    if data.startswith(b"\xff\xd8"):
        for name, (prefix, limit) in MAX_JPEG_PARTS.items():
            # Half the time of bytes.count, and ends at the limit.
            if sum(1 for _ in islice(re.finditer(re.escape(prefix), data), limit + 1)) > limit:
                raise Refusal(f"the image has more than the {limit:,} {name} that are accepted.", "unreadable-image")
    if data[:2] in (b"P1", b"P2", b"P3") and (len(data) > MAX_PLAIN_BYTES or data.count(b"#") > MAX_PLAIN_COMMENTS):
        raise Refusal(
            f"the image is a plain portable map of more than {MAX_PLAIN_BYTES:,} bytes or {MAX_PLAIN_COMMENTS} "
            "comments; save it as a binary one, or as PNG.",
            "unreadable-image",
        )


def _limit_cpu(seconds: float) -> None:
    """Let the kernel end this process once it has computed for some more seconds; 0 takes the limit away."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _limit_memory(bytes_: int) -> None:
    """Let allocations fail that would give this process a larger address space."""
    try:
        import resource
    except ImportError:  # Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (bytes_ if hard == resource.RLIM_INFINITY else min(bytes_, hard), hard))


def _address_space() -> int:
    """Return the bytes of this process's address space; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as sizes:  # noqa: PTH123  # pathlib takes 0.7 MB
            return int(sizes.read().split()[0]) * mmap.PAGESIZE
    except OSError:
        return 0


def _answer(job: dict[str, Any], data: bytes, images: BinaryIO, out: BinaryIO, base: int) -> None:
    """Decode one image, and write a JSON object and, of a decoded image, its pixels in bands.

    Args:
        job: What is asked.
        data: The file.
        images: Gives the answer to the announcement of a large image.
        out: Gets the outcome.
        base: Bytes of the program's own address space; 0 where the system does not say.
    """

    def announce(needed: int) -> None:
        if base:
            _limit_memory(base + MEMORY_BYTES + needed)
        if needed > LARGE_BYTES:
            out.write(framed({"needs": needed}))
            out.flush()
            images.read(len(GO))

    _limit_cpu(CPU_SECONDS)
    if base:
        _limit_memory(base + MEMORY_BYTES)
    try:
        image, size, notes, facts = decode(data, job["name"], job["max_pixels"], job["draft"], announce)
        image = centre_square(image, job["square"]) if job["square"] else image
    except Refusal as refusal:
        out.write(framed({"code": refusal.code, "message": refusal.message[:8000]}))
    else:
        out.write(framed({"mode": image.mode, "size": image.size, "full": size, "notes": notes, "facts": facts}))
        for top, bottom in bands(image.mode, image.size):
            out.write(image.crop((0, top, image.width, bottom)).tobytes())
    out.flush()
    _limit_cpu(0)  # the next file is read without a limit that the last one has nearly used


def framed(message: dict[str, Any]) -> bytes:
    """Return a message as JSON behind its length."""
    text = json.dumps(message).encode()
    return LENGTH.pack(len(text)) + text


def bands(mode: str, size: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yield the first row of each band of an image, and the row after its last."""
    rows = max(1, BAND_BYTES // (size[0] * len(mode)))
    for top in range(0, size[1], rows):
        yield top, min(top + rows, size[1])


def main() -> None:
    """Decode the images that arrive on standard input until it ends."""
    for number in (signal.SIGINT, signal.SIGTERM):  # service managers and Ctrl-C send them to every process
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
    warnings.simplefilter("ignore")  # the caller hears what is wrong with an image
    images, out = sys.stdin.buffer, os.fdopen(os.dup(1), "wb", BAND_BYTES)
    nowhere = os.open(os.devnull, os.O_WRONLY)  # libraries in C print their own warnings
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    Image.preinit()
    Image.MAX_IMAGE_PIXELS = None  # `check_size` has limits of its own
    base = _address_space()
    while length := images.read(LENGTH.size):
        job = json.loads(images.read(*LENGTH.unpack(length)))
        _answer(job, images.read(job["bytes"]), images, out, base)

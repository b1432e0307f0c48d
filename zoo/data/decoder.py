"""The process that decodes image files: its work on any file ends within bounds.

`zoo.data.decoder_pool` starts this file as a program, sends it one image after the other and reads their pixels. It
imports Pillow and the standard library alone, so that it starts in a tenth of a second and takes 15 MB.

The bounds of one image:

- Bytes and pixels (`Limits`), checked in the header. The tiles of a TIFF count as the pixels that they hold: 1,500 of
  them may share one stream of 64 megapixels in a file of 74 kB.
- Processor time: `CPU_SECONDS`, and `CPU_SECONDS_PER_MEGAPIXEL` once the header is known. At the end of it the kernel
  ends the process by SIGPROF, also within a decoder in C.
- Memory: `MEMORY_BYTES`, and `MEMORY_BYTES_PER_PIXEL` for each pixel that the limits allow. Beyond, allocations fail.
- Pieces: millions of markers, chunks and comments cost a microsecond each or, if they are joined one by one, quadratic
  time. Files of too many are refused at once, without a decoder that dies.

What an image becomes:

- EXIF orientation is applied.
- Alpha (RGBA, LA, PA, palette transparency) is composited over white.
- Palettes become RGB; 1-bit and grey become grey; CMYK, YCbCr, LAB and HSV become RGB.
- 16-bit grey is scaled to 8 bits by 255 / 65535; 32-bit integers are taken as 0..65535, floats as 0..1 (or as 0..255 if
  a pixel is above 1).
- The first frame of an animation is taken.
"""

from __future__ import annotations

import json
import os
import re
import signal
import struct
import sys
import warnings
from collections.abc import Iterator
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from PIL import Image, ImageOps, UnidentifiedImageError

if TYPE_CHECKING:
    import numpy as np

FORMATS = ("JPEG", "PNG", "WEBP", "AVIF", "GIF", "BMP", "TIFF", "PPM")
"""The formats that are decoded; untrusted bytes do not reach Pillow's rarer plugins."""

CPU_SECONDS, CPU_SECONDS_PER_MEGAPIXEL = 2.0, 0.1
MEMORY_BYTES, MEMORY_BYTES_PER_PIXEL = 512 * 2**20, 16
MAX_SIDE = 10**6
"""The most pixels of a side: Pillow keeps an address for each row, so that one column would take hundreds of MB."""
TOO_LARGE = "image-too-large"
LENGTH = struct.Struct("<I")
"""The length of a message of JSON, before it."""
BAND_BYTES = 256 * 2**10
"""Pixels go back in bands of rows, so that they are not in memory twice."""

_TILE, _FEW_PIXELS = 512, 2**20


class Refusal(Exception):  # noqa: N818  # not an error of this process
    """A file that is not decoded: why, and the code of the `ImageError` that the caller raises."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.message, self.code = message, code


def decode(data: bytes, name: str, max_pixels: int, draft: int | None) -> tuple[Image.Image, tuple[int, int]]:
    """Return the upright 8-bit image of mode L or RGB in a file, and its full upright size (width, height).

    Args:
        data: The file.
        name: The name of the image in messages.
        max_pixels: The most pixels that are accepted.
        draft: The shortest side, in pixels, that is large enough: a JPEG may be decoded at 1/2, 1/4 or 1/8 of its size.

    Raises:
        Refusal: If the file is damaged, too large or of no known format. Bad input raises nothing else.
    """
    try:
        _check_pieces(data)
        image = Image.open(_ReadLimitedFile(data), formats=FORMATS)
        check_size(image, name, max_pixels)
        if image.width * image.height > _FEW_PIXELS:
            _limit_cpu(CPU_SECONDS + CPU_SECONDS_PER_MEGAPIXEL * image.width * image.height / 1e6)
        size = image.size
        if draft is not None and image.format == "JPEG":
            image.draft("RGB" if image.mode not in ("L", "CMYK") else None, (draft, draft))
        image.load()
        drafted = image.size
        ImageOps.exif_transpose(image, in_place=True)
        return to_8bit(image, name), size if image.size == drafted else size[::-1]
    except Refusal:
        raise
    except Exception as error:  # Pillow's decoders raise nearly anything on damaged data
        raise refusal_of(error, name) from None


def refusal_of(error: Exception, name: str) -> Refusal:
    """Return the refusal for an error of Pillow."""
    if isinstance(error, UnidentifiedImageError):
        return Refusal(f"{name} is in none of the formats that are read ({', '.join(FORMATS)}).", "unknown-format")
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return Refusal(f"{name} claims to have too many pixels to be decoded.", TOO_LARGE)
    if isinstance(error, MemoryError):
        return Refusal(f"{name} takes more memory to decode than an image may.", TOO_LARGE)
    return Refusal(f"{name} cannot be decoded: {error or type(error).__name__}.", "unreadable-image")


def check_size(image: Image.Image, name: str, max_pixels: int) -> None:
    """Refuse an opened image of too many pixels, in the picture or in the tiles of its file."""
    if image.width * image.height > max_pixels:
        message = f"{name} has {image.width} x {image.height} pixels; at most {max_pixels:,} are accepted."
        raise Refusal(message, TOO_LARGE)
    if max(image.size) > MAX_SIDE:
        message = f"{name} has {image.width} x {image.height} pixels; a side may have at most {MAX_SIDE:,}."
        raise Refusal(message, TOO_LARGE)
    if image.format != "TIFF":
        return
    tags: Any = image.tag_v2  # type: ignore[attr-defined]
    width, height = int(tags.get(322, image.width)), int(tags.get(323, image.height))
    across, down = (-(-side // max(1, tile)) for side, tile in zip(image.size, (width, height), strict=True))
    if across * width * down * height > max_pixels + 4 * image.width * image.height:
        tiles = f"{across * down:,} tiles of {width} x {height} pixels"
        message = f"{name} has {tiles}; at most {max_pixels:,} pixels are accepted."
        raise Refusal(message, TOO_LARGE)


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


def to_8bit(image: Image.Image, name: str) -> Image.Image:
    """Convert an image of any mode to 8 bits, mode L or RGB, without alpha.

    Besides the image, this needs at most 5 bytes per pixel (9 for palettes with transparency).
    """
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        return _scale_to_8bit(image, name)
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


def _scale_to_8bit(image: Image.Image, name: str) -> Image.Image:
    import numpy as np

    scale = _float_scale(image, name) if image.mode == "F" else 255 / 65535
    scaled = np.empty((image.height, image.width), np.uint8)
    for left, top, values in _tiles(image):
        height, width = values.shape
        scaled[top : top + height, left : left + width] = np.clip(np.rint(values * scale), 0, 255)
    return Image.fromarray(scaled)


def _float_scale(image: Image.Image, name: str) -> float:
    import numpy as np

    highest = max(float(values.max()) if np.isfinite(values).all() else np.inf for _, _, values in _tiles(image))
    if highest == np.inf:
        raise Refusal(f"{name} holds NaN or infinite pixels.", "not-finite")
    return 255.0 if highest <= 1 else 1.0


def _tiles(image: Image.Image) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield (left, top, float64 [h, w]) of each tile: a whole large image in float64 would take 640 MB."""
    import numpy as np

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
            raise Refusal("the image consists of too many pieces to be read.", "unreadable-image")
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
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _answer(job: dict[str, Any], data: bytes, out: BinaryIO) -> None:
    """Decode one image, and write a JSON object and, of a decoded image, its pixels in bands."""
    _limit_cpu(CPU_SECONDS)
    try:
        image, size = decode(data, job["name"], job["max_pixels"], job["draft"])
        image = centre_square(image, job["square"]) if job["square"] else image
    except Refusal as refusal:
        out.write(framed({"code": refusal.code, "message": refusal.message[:8000]}))
    else:
        out.write(framed({"mode": image.mode, "size": image.size, "full": size}))
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
    base, max_pixels = _address_space(), 0
    while length := images.read(LENGTH.size):
        job = json.loads(images.read(*LENGTH.unpack(length)))
        if base and job["max_pixels"] != max_pixels:
            max_pixels = job["max_pixels"]
            _limit_memory(base + MEMORY_BYTES + MEMORY_BYTES_PER_PIXEL * max_pixels)
        _answer(job, images.read(job["bytes"]), out)


if __name__ == "__main__":
    main()

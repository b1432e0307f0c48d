from __future__ import annotations

import contextlib
import struct
import time
import zlib
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from tests.proof import bombs
from tests.raising import raises
from zoo.data import images
from zoo.data.images import Limits, open_image
from zoo.errors import ImageError

SIZE = 300_000
BOMBS = bombs.filling(SIZE)
CLAIMS = bombs.of_pixels()
LIMITS = Limits(max_pixels=24_000_000)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", BOMBS)
def test_a_file_built_to_keep_a_decoder_busy_does_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MAX_READS", 10_000)  # in keeping with the small files
    monkeypatch.setattr(images, "MAX_BMP_READS", 10_000)
    begun = time.process_time()
    with contextlib.suppress(ImageError):
        open_image(BOMBS[name], LIMITS, draft=256)
    # Accepted files take as long as their pixels; without limits the scans took 20 s, the comments of a plain map 1 s.
    assert time.process_time() - begun < 0.5


@pytest.mark.parametrize(
    "name", ["JPEG of scans", "JPEG of EXIF", "PNG of chunks", "GIF of nothing", "PPM of comments", "BMP of runs"]
)
def test_too_many_parts_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MAX_READS", 10_000)
    monkeypatch.setattr(images, "MAX_BMP_READS", 10_000)
    with raises(ImageError, "too-many-parts"):
        open_image(BOMBS[name], LIMITS)


@pytest.mark.parametrize("name", CLAIMS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_claims_of_many_pixels_are_refused_before_decoding(name: str) -> None:
    with pytest.raises(ImageError):
        open_image(CLAIMS[name], LIMITS)


def test_files_of_encoders_are_read() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (200, 300, 3), np.uint8)
    for kind, options in (("JPEG", {"progressive": True}), ("PNG", {}), ("PPM", {}), ("TIFF", {"strip_size": 1})):
        out = BytesIO()
        Image.fromarray(pixels).save(out, kind, **options)
        assert open_image(out.getvalue(), LIMITS).size == (300, 200)
    many = bombs.many_scans(0, side=64)
    assert many.count(b"\xff\xda") == 2
    assert open_image(many, LIMITS).size == (64, 64)


def test_a_png_of_4_kb_pieces_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MAX_READS", 0)  # the limit then depends only on the size of the file
    out = BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (500, 500, 3), np.uint8)).save(out, "PNG")
    whole = out.getvalue()
    packed = zlib.compress(zlib.decompress(_data_of(whole)), 0)
    pieces = b"".join(bombs.chunk(b"IDAT", packed[at : at + 4096]) for at in range(0, len(packed), 4096))
    assert open_image(whole[:33] + pieces + bombs.chunk(b"IEND", b""), LIMITS).size == (500, 500)


def _data_of(png: bytes) -> bytes:
    """Return the content of the IDAT chunks."""
    at, data = 8, b""
    while at < len(png):
        length = int.from_bytes(png[at : at + 4], "big")
        data += png[at + 8 : at + 8 + length] if png[at + 4 : at + 8] == b"IDAT" else b""
        at += length + 12
    return data


def test_a_plain_map_is_read() -> None:
    image = open_image(b"P2 # a comment\n2 2 # another\n255\n0 64\n128 255\n")
    np.testing.assert_array_equal(np.asarray(image), [[0, 64], [128, 255]])


def test_a_bmp_of_runs_is_read() -> None:
    side, runs = 200, b""
    for row in range(side):
        runs += bytes((1, row % 256)) * side + b"\0\0"
    head = b"BM" + struct.pack("<IHHI", 54 + 1024 + len(runs), 0, 0, 54 + 1024)
    info = struct.pack("<IiiHHIIiiII", 40, side, side, 1, 8, 1, len(runs), 0, 0, 256, 256)
    palette = b"".join(bytes((i, i, i, 0)) for i in range(256))
    image = np.asarray(open_image(head + info + palette + runs + b"\0\1", LIMITS))
    np.testing.assert_array_equal(image.reshape(side, side, -1)[:, 0, 0], np.arange(side)[::-1] % 256)

"""Opening of images: one defined result for each kind of image, one defined error for damaged ones."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.children import run_python
from tests.raising import raises
from zoo.data.images import Limits, open_image
from zoo.errors import ImageError, ImageTooLargeError


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def corner(image: Image.Image) -> object:
    return image.getpixel((0, 0))


def test_exif_orientation_is_applied() -> None:
    image = Image.new("RGB", (20, 10), "white")
    image.paste((255, 0, 0), (0, 0, 10, 10))  # left half red
    exif = Image.Exif()
    exif[0x0112] = 6  # "rotate 90 degrees clockwise to display": left becomes top
    upright = open_image(encoded(image, "PNG", exif=exif.tobytes()))
    assert upright.size == (10, 20)
    assert corner(upright) == (255, 0, 0)
    assert upright.getpixel((0, 19)) == (255, 255, 255)


@pytest.mark.parametrize(
    ("mode", "colour", "expected"),
    [
        ("L", 77, 77),
        ("1", 1, 255),
        ("RGB", (1, 2, 3), (1, 2, 3)),
        ("RGBA", (255, 0, 0, 0), (255, 255, 255)),  # clear: white
        ("RGBA", (255, 0, 0, 255), (255, 0, 0)),
        ("RGBA", (0, 0, 0, 51), (204, 204, 204)),  # a fifth of black over white: 255 * 0.8
        ("LA", (0, 0), (255, 255, 255)),
        ("LA", (0, 51), (204, 204, 204)),
        ("La", (0, 51), (204, 204, 204)),
        ("RGBa", (0, 0, 0, 51), (204, 204, 204)),
        ("PA", 0, (255, 255, 255)),
        ("I;16", 65535, 255),
        ("I;16", 257 * 100, 100),
        ("I", 65535, 255),
        ("F", 0.2, 51),
        ("F", 200.0, 200),
        ("CMYK", (0, 255, 255, 0), (255, 0, 0)),  # full magenta and yellow ink: red
    ],
)
def test_modes(mode: str, colour: object, expected: object) -> None:
    opened = open_image(Image.new(mode, (4, 4), colour))
    assert opened.mode in ("L", "RGB")
    assert corner(opened) == expected


def test_16_bit_png_from_bytes() -> None:
    image = Image.new("I;16", (4, 4), 257 * 30)
    image.putpixel((3, 3), 65535)
    assert corner(open_image(encoded(image))) == 30


def test_palette_and_its_transparency() -> None:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 10, 200, 30])
    assert corner(open_image(encoded(image))) == (10, 200, 30)
    assert corner(open_image(encoded(image, transparency=1))) == (255, 255, 255)


def test_arrays() -> None:
    assert corner(open_image(np.full((5, 6), 9, np.uint8))) == 9
    assert corner(open_image(np.full((5, 6, 1), 9, np.uint8))) == 9
    assert corner(open_image(np.full((5, 6, 3), 9, np.uint8))) == (9, 9, 9)
    assert corner(open_image(np.zeros((5, 6, 4), np.uint8))) == (255, 255, 255)
    for bad in (np.zeros((5, 6)), np.zeros((0, 6), np.uint8), np.zeros((5, 6, 2), np.uint8), np.zeros(3, np.uint8)):
        with raises(ImageError, "unreadable-image", bad.dtype, list(bad.shape)):
            open_image(bad)


def test_first_frame_of_an_animation() -> None:
    frames = [Image.new("RGB", (4, 4), "red"), Image.new("RGB", (4, 4), "blue")]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert corner(open_image(data)) == (255, 0, 0)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "unreadable-image"),
        (b"hello, no image", "unknown-format"),
        (encoded(Image.new("RGB", (64, 64)))[:60], "unreadable-image"),
        *(
            (encoded(Image.effect_noise((64, 64), 80), kind)[:300], "unreadable-image")
            for kind in ("JPEG", "AVIF", "TIFF", "WEBP", "GIF")
        ),
    ],
)
def test_damaged_bytes(data: bytes, code: str) -> None:
    with raises(ImageError, code):
        open_image(data)


def test_a_path_is_named(tmp_path: Path) -> None:
    with raises(ImageError, "not-found", "nowhere.png"):
        open_image(tmp_path / "nowhere.png")
    (tmp_path / "bad.png").write_bytes(b"xx")
    with raises(ImageError, "unknown-format", "bad.png"):
        open_image(tmp_path / "bad.png")
    with raises(ImageError, "not-found", tmp_path):
        open_image(tmp_path)
    with raises(ImageError, "unreadable-image", "int"):
        open_image(3)  # type: ignore[arg-type]


@pytest.mark.slow
def test_limits_hold_before_decoding() -> None:
    bomb = encoded(Image.new("1", (20_000, 20_000)))
    assert len(bomb) < 100_000
    with raises(ImageTooLargeError, None, "pixels"):
        open_image(bomb)
    with raises(ImageTooLargeError, None, "100 x 100", "9,999"):
        open_image(encoded(Image.new("1", (100, 100))), Limits(max_pixels=9_999))
    with raises(ImageTooLargeError, None, "1,000 bytes", "999"):
        open_image(bytes(1000), Limits(max_bytes=999))


@given(st.data())
@settings(max_examples=50)
def test_mutated_files_decode_or_raise_image_error(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP"]))
    raw = bytearray(encoded(Image.linear_gradient("L").resize((24, 24)), kind))
    for _ in range(data.draw(st.integers(1, 6))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(1, len(raw)))
    with contextlib.suppress(ImageError):
        assert open_image(bytes(raw[:cut]), Limits(max_pixels=10**6)).mode in ("L", "RGB")


@pytest.mark.parametrize("mode", ["I;16", "F"])
def test_large_images_are_scaled_as_a_whole(mode: str) -> None:
    values = np.random.default_rng(0).random((700, 1100)) * (65535 if mode == "I;16" else 1)
    image = Image.fromarray(values.astype(np.uint16 if mode == "I;16" else np.float32))
    assert image.mode == mode
    stored = np.asarray(image).astype(float)
    expected = np.rint(stored * 255 / 65535 if mode == "I;16" else stored * 255)
    np.testing.assert_array_equal(np.asarray(open_image(image)), expected)
    values[-1, -1] = np.nan if mode == "F" else 0
    if mode == "F":
        with raises(ImageError, "not-finite"):
            open_image(Image.fromarray(values.astype(np.float32)))


def test_a_callers_image_is_left_as_it_was() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    image = Image.open(io.BytesIO(encoded(Image.new("RGB", (64, 32)), "JPEG", exif=exif.tobytes())))
    assert open_image(image, draft=8).size == (32, 64)
    assert image.size == (64, 32)
    assert image.getexif()[0x0112] == 6


def test_an_opened_image_can_be_opened_again() -> None:
    image = Image.new("RGB", (64, 32), "white")
    image.paste((255, 0, 0), (0, 0, 32, 32))  # left half red
    exif = Image.Exif()
    exif[0x0112] = 6
    opened = open_image(encoded(image, "JPEG", exif=exif.tobytes()), draft=8)
    again = open_image(opened, draft=8)
    assert opened.size == again.size == (8, 16)
    np.testing.assert_array_equal(np.asarray(again), np.asarray(opened))
    again.paste((0, 0, 0), (0, 0, 8, 16))
    assert corner(opened) != (0, 0, 0)


@pytest.mark.parametrize("shape", [(5, 6), (5, 6, 3)])
def test_an_opened_array_shares_no_memory(shape: tuple[int, ...]) -> None:
    array = np.full(shape, 9, np.uint8)
    opened = open_image(array)
    array[:] = 0
    assert np.asarray(opened).min() == 9


MEMORY = """
import sys
from pathlib import Path
from zoo.data.images import open_image

def peak():  # the process's own; resource.getrusage would count what its parent held before the exec
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024

before = peak()
width, height = open_image(sys.argv[1]).size
print((peak() - before) / (width * height))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "decoded"), [("I;16", 2), ("RGBA", 4), ("LA", 4), ("F", 4)])
def test_memory_beside_the_decoded_image_is_bounded(tmp_path: Path, mode: str, decoded: int) -> None:
    path = tmp_path / ("a.tiff" if mode == "F" else "a.png")
    Image.new(mode, (3000, 3000)).save(path, compress_level=1)
    out = run_python(MEMORY, path)
    file = path.stat().st_size / 3000**2  # the bytes are read at once, and a format may hold them again
    assert float(out) <= decoded + 2 * file + 6

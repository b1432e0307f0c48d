"""Files as phones, cameras and instruments write them: the content decides, and nothing is dark, lost or refused."""

from __future__ import annotations

import contextlib
import io
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pillow_heif
import pytest
import tifffile
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from tests.proof import bombs, slow
from tests.raising import raises
from tests.zoo.data.raw_file import dng
from zoo.data import decoder, decoder_pool
from zoo.data.folder import list_images
from zoo.data.images import Limits, open_file, open_image
from zoo.errors import ImageError, ImageTooLargeError

pillow_heif.register_heif_opener()


def photograph(size: tuple[int, int] = (96, 64)) -> Image.Image:
    small = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)
    return Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def distance(first: Image.Image, second: Image.Image) -> float:
    """Return the mean difference of two images of one size."""
    assert first.size == second.size
    return float(np.abs(np.asarray(first.convert("RGB"), float) - np.asarray(second.convert("RGB"), float)).mean())


# Formats


@pytest.mark.parametrize("kind", ["HEIF", "AVIF", "WEBP", "JPEG"])
def test_the_content_decides_and_not_the_name(tmp_path: Path, kind: str) -> None:
    data = encoded(photograph(), kind, quality=90)
    for name in ("a.jpg", "b.heic", "c.jpg_large", "no_suffix", "d.txt"):
        (tmp_path / name).write_bytes(data)
    listed = list_images(tmp_path)
    assert [path.name for path in listed] == ["a.jpg", "b.heic", "c.jpg_large", "d.txt", "no_suffix"]
    assert all(distance(open_image(path), photograph()) < 8 for path in listed)


def test_jpeg_2000_stays_off() -> None:
    with raises(ImageError, "unknown-format"):
        open_image(encoded(photograph(), "JPEG2000"))


@pytest.mark.parametrize("turn", range(1, 9))
def test_heic_is_upright(turn: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = turn
    heic, jpeg = (encoded(photograph(), kind, quality=95, exif=exif.tobytes()) for kind in ("HEIF", "JPEG"))
    assert distance(open_image(heic), ImageOps.exif_transpose(Image.open(io.BytesIO(jpeg)))) < 8


def test_the_geometry_of_heic_is_checked_before_decoding() -> None:
    data = encoded(photograph(), "HEIF")
    at = data.index(b"ispe") + 8
    claimed = data[:at] + struct.pack(">II", 30_000, 30_000) + data[at + 8 :]
    with raises(ImageTooLargeError, "image-too-large"):
        open_image(claimed)
    with raises(ImageError, "unreadable-image", "tiles"):
        open_image(slow.slow_files(24_000_000)["HEIC of a grid"])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damaged_heic_is_an_error_or_an_image(data: st.DataObject) -> None:
    damaged = bytearray(encoded(photograph(), "HEIF"))
    for _ in range(data.draw(st.integers(1, 6))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(1, len(damaged)))
    with contextlib.suppress(ImageError):
        assert open_image(bytes(damaged[:cut]), Limits(max_pixels=10**6)).mode in ("L", "RGB")


@pytest.mark.parametrize("turn", [1, 3, 6, 8])
def test_a_raw_file_gives_its_preview_upright(tmp_path: Path, turn: int) -> None:
    data = dng(encoded(photograph((320, 240)), "JPEG", quality=95), (320, 240), turn)
    path = tmp_path / "a.dng"
    path.write_bytes(data)
    assert list_images(tmp_path) == [path]
    image, size, notes, facts = open_file(data)
    exif = Image.Exif()
    exif[0x0112] = turn
    shown = ImageOps.exif_transpose(Image.open(io.BytesIO(encoded(photograph((320, 240)), "PNG", exif=exif.tobytes()))))
    assert (size, image.size) == (shown.size, shown.size)
    assert distance(image, shown) < 4
    assert "preview" in notes[-1]
    assert facts == {"taken": "2023-07-01T12:30:00", "camera": "Toy One"}


# JPEG


def test_a_video_behind_a_photograph_is_not_looked_at() -> None:
    jpeg = encoded(photograph(), "JPEG")
    video = b"\0\0\0\x18ftypmp42" + b"\xff\xda\xff\xd9\xff\xc0" * 2000
    np.testing.assert_array_equal(np.asarray(open_image(jpeg + video)), np.asarray(open_image(jpeg)))
    with raises(ImageError, "unreadable-image", "scans"):
        open_image(bombs.many_scans(20_000, side=64))


def test_a_thumbnail_inside_does_not_end_a_photograph() -> None:
    jpeg, thumbnail = encoded(photograph(), "JPEG"), encoded(photograph((16, 16)), "JPEG")
    jpeg = jpeg[:2] + bombs.segment(0xE1, b"Exif\0\0" + thumbnail) + jpeg[2:]
    assert distance(open_image(jpeg), photograph()) < 8


def test_further_pictures_in_one_file_do_not_hinder_a_draft() -> None:
    mpo = encoded(photograph((2400, 1600)), "MPO", save_all=True, append_images=[photograph((64, 64))])
    assert Image.open(io.BytesIO(mpo)).format == "MPO"
    assert open_image(mpo, draft=200).size == (300, 200)


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}, {"restart_marker_blocks": 3}])
def test_only_the_end_marker_may_be_missing(options: dict[str, object]) -> None:
    jpeg = encoded(photograph(), "JPEG", quality=80, **options)
    whole = open_file(jpeg)
    for cut in (1, 2):
        image, _, notes, _ = open_file(jpeg[:-cut])
        np.testing.assert_array_equal(np.asarray(image), np.asarray(whole.image))
        assert (whole.notes, len(notes)) == ((), 1)
    for share in np.linspace(0.2, 0.97, 12):
        with raises(ImageError, "unreadable-image"):
            open_image(jpeg[: int(share * len(jpeg))])


def test_a_jpeg_of_200_megapixels_is_decoded_at_a_fraction() -> None:
    data = bombs.jpeg(b"", scans=1, side=14_000)
    image, size, _, _ = open_file(data, draft=200)
    assert (image.size, size) == ((1750, 1750), (14_000, 14_000))
    assert open_image(data).width * open_image(data).height <= decoder.WHOLE_PIXELS
    with raises(ImageTooLargeError, "image-too-large", "--max-pixels"):
        open_image(data, Limits(max_pixels=100_000_000))
    png = encoded(Image.new("1", (11_000, 11_000)), "PNG")
    with raises(ImageTooLargeError, "image-too-large", "100,000,000"):
        open_image(png)


@pytest.mark.slow
def test_large_images_are_decoded_one_at_a_time() -> None:
    """Progressive ones hold all coefficients; the others are decoded beside them."""
    side = 9500
    large = encoded(Image.new("RGB", (side, side), "green"), "JPEG", progressive=True, subsampling=0)
    small = encoded(photograph(), "JPEG")
    peaks, done = [0], threading.Event()

    def watch() -> Iterator[int]:
        for process in list(decoder_pool._pool.busy):
            try:
                status = Path(f"/proc/{process.process.pid}/status").read_text()
            except OSError:
                continue
            yield int(status.split("VmRSS:")[1].split()[0]) // 1024 if "VmRSS:" in status else 0

    def look() -> None:
        while not done.is_set():
            peaks.append(sum(watch()))
            time.sleep(0.01)

    watcher = threading.Thread(target=look)
    watcher.start()
    threads = [threading.Thread(target=open_image, args=(large,), kwargs={"draft": 200}) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert distance(open_image(small), photograph()) < 8
    for thread in threads:
        thread.join()
    done.set()
    watcher.join()
    coefficients = 3 * 2 * side**2 / 2**20  # of one image, in MiB
    assert 0.8 * coefficients < max(peaks) < 1.6 * coefficients


# More than 8 bits


def grey() -> np.ndarray:
    """Return a picture on the scale 0 to 1 that reaches both ends."""
    values = np.asarray(photograph().convert("L"), float)
    return (values - values.min()) / (values.max() - values.min())


def tiff(pixels: np.ndarray, **options: object) -> bytes:
    out = io.BytesIO()
    tifffile.imwrite(out, pixels, **options)
    return out.getvalue()


@pytest.mark.parametrize(
    ("pixels", "noted"),
    [
        ((grey() * 255).round().astype(np.uint16), True),
        ((grey() * 1023).round().astype(np.uint16), True),
        ((grey() * 4095).round().astype(np.uint16), True),
        ((grey() * 16383).round().astype(np.uint16), True),
        ((grey() * 65535).round().astype(np.uint16), False),
        ((grey() * 4_000_000).round().astype(np.int32), True),
        ((grey() * 3000 - 1000).round().astype(np.int32), True),
        (grey().astype(np.float32), False),
        ((grey() * 255).astype(np.float32), True),
        ((grey() * 4095).astype(np.float32), True),
        ((grey() * 65535).astype(np.float32), True),
        ((grey() * 1.4).astype(np.float32), True),
        ((grey() * 2 - 1).astype(np.float32), True),
        ((grey() * 1e9).astype(np.float32), True),
    ],
)
def test_the_range_of_the_data_is_black_to_white(pixels: np.ndarray, noted: bool) -> None:
    for data in (tiff(pixels), tiff(pixels, byteorder=">"), tiff(pixels, compression="zlib")):
        image, _, notes, _ = open_file(data)
        np.testing.assert_allclose(np.asarray(image, float), grey() * 255, atol=1.01)
        assert bool(notes) == noted


def colours(top: int) -> np.ndarray:
    values = np.asarray(photograph(), float)
    return (values / values.max() * top).round().astype(np.uint16)


def png_16(pixels: np.ndarray) -> bytes:
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    head = bombs.chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + bombs.chunk(b"IDAT", zlib.compress(rows)) + bombs.chunk(b"IEND", b"")


@pytest.mark.parametrize("top", [255, 1023, 4095, 16_383, 65_535])
def test_colours_of_few_bits_in_16_are_bright(top: int) -> None:
    pixels = colours(top)
    files = png_16(pixels), tiff(pixels), tiff(pixels, byteorder=">"), tiff(pixels, compression="zlib")
    for data in files:
        image, _, notes, _ = open_file(data)
        np.testing.assert_allclose(np.asarray(image, float), pixels * (255 / top), atol=1.01)
        assert bool(notes) == (top < 65_535)


def test_a_map_that_states_its_range_keeps_it() -> None:
    image, _, notes, _ = open_file(b"P5 2 1 1023 " + struct.pack(">2H", 0, 100))
    assert (image.getpixel((1, 0)), notes) == (25, ())  # 100 / 1023 * 255


def test_a_black_picture_stays_black() -> None:
    for dtype in (np.uint16, np.float32):
        image, _, notes, _ = open_file(tiff(np.zeros((8, 8), dtype)))
        assert (image.getextrema(), notes) == ((0, 0), ())


# What the camera wrote


def test_facts_of_a_photograph() -> None:
    exif = Image.Exif()
    exif[0x010F], exif[0x0110] = "NIKON CORPORATION", "NIKON D850\0"
    exif[0x0132] = "2024:01:02 03:04:05"
    exif.get_ifd(0x8769)[0x9003] = "2023:12:31 23:59:59"
    exif.get_ifd(0x8825).update({1: "S", 2: (33.0, 51.0, 36.0), 3: "E", 4: (151.0, 12.0, 54.0)})
    expected = {"taken": "2023-12-31T23:59:59", "camera": "NIKON D850", "latitude": -33.86, "longitude": 151.215}
    for kind in ("JPEG", "PNG", "WEBP", "HEIF", "AVIF", "TIFF"):
        assert open_file(encoded(photograph(), kind, exif=exif.tobytes())).facts == pytest.approx(expected), kind


@pytest.mark.parametrize(
    ("tag", "value"), [(0x0132, "0000:00:00 00:00:00"), (0x0132, "yesterday"), (0x0110, "\x1b[31m"), (0x8825, {1: "N"})]
)
def test_facts_that_are_none_are_left_out(tag: int, value: object) -> None:
    exif = Image.Exif()
    if isinstance(value, dict):
        exif.get_ifd(tag).update(value)
    else:
        exif[tag] = value
    facts = open_file(encoded(photograph(), "JPEG", exif=exif.tobytes())).facts
    assert "\x1b" not in str(facts)
    assert facts.keys() <= {"camera"}


NEEDS = """
import sys
sys.modules["pillow_heif"] = sys.modules["rawpy"] = None
from zoo.data import decoder
for path in sys.argv[1:]:
    try:
        decoder.decode(open(path, "rb").read(), path, 10**8, None)
    except decoder.Refusal as refusal:
        print(refusal.code, refusal.message)
"""


def test_a_missing_extra_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(encoded(photograph(), "HEIF"))
    (tmp_path / "b").write_bytes(dng(encoded(photograph(), "JPEG"), (96, 64)))
    command = [sys.executable, "-c", NEEDS, tmp_path / "a", tmp_path / "b"]
    heic, raw = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert heic.startswith("unknown-format")
    assert "dml-zoo[heic]" in heic
    assert raw.startswith("unknown-format")
    assert "dml-zoo[raw]" in raw


@pytest.mark.parametrize("high", [1023, 4095])
def test_a_portable_map_with_another_highest_number_is_read_or_refused_with_a_way_out(high: int) -> None:
    """Pillow reads each number by itself, so that a large one is refused."""
    for side, refused in ((20, False), (400, True)):
        numbers = np.linspace(0, high, side * side).reshape(side, side).astype(">u2")
        data = f"P5\n{side} {side}\n{high}\n".encode() + numbers.tobytes()
        if refused:
            with raises(ImageError, "unreadable-image", "PNG"):
                open_image(data)
        else:
            pixels = np.asarray(open_image(data).convert("L")).astype(float)
            np.testing.assert_allclose(pixels, numbers.astype(float) * 255 / high, atol=1)

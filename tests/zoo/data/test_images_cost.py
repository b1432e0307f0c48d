"""Files that are built to keep a decoder busy or to fill memory: they are refused or done within bounds."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.children import run_python
from tests.proof import bombs
from tests.proof.slow import slow_files
from tests.raising import raises
from zoo.data import decoder, decoder_pool
from zoo.data.images import Limits, open_image
from zoo.errors import ImageError, ImageTooLargeError

SIZE = 300_000
LIMITS = Limits(max_pixels=1_000_000)
BOMBS = bombs.filling(SIZE)
CLAIMS = bombs.of_pixels()
FAMILIES = ("TIFF", "JPEG", "PNG", "WebP", "GIF", "BMP", "PPM", "AVIF", "HEIC", "RAW")


@cache
def slow() -> dict[str, bytes]:
    return slow_files(LIMITS.max_pixels)


def photograph(side: int = 96) -> tuple[bytes, np.ndarray]:
    """Return a PNG and its pixels."""
    pixels = np.random.default_rng(side).integers(0, 256, (side, side, 3), np.uint8)
    out = BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue(), pixels


def decoders(parent: int) -> list[int]:
    """Return the decoder processes of a process."""
    found = []
    for task in Path(f"/proc/{parent}/task").iterdir():
        for child in (task / "children").read_text().split():
            with contextlib.suppress(OSError):
                if b"decoder.py" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(int(child))
    return found


@contextlib.contextmanager
def decoding_goes_on() -> Iterator[None]:
    """Check that good images are decoded afterwards as if nothing had happened."""
    yield
    data, pixels = photograph()
    np.testing.assert_array_equal(np.asarray(open_image(data)), pixels)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_slow_and_legal_files_are_done_or_refused(family: str) -> None:
    files = {name: data for name, data in slow().items() if name.split()[0] == family}
    most = decoder.CPU_SECONDS + decoder.CPU_SECONDS_PER_MEGAPIXEL * LIMITS.max_pixels / 1e6
    with decoding_goes_on():
        for data in files.values():
            before = sum(cpu_seconds(process) for process in decoders(os.getpid()))
            try:
                image = open_image(data, LIMITS, draft=256)
                assert image.mode in ("L", "RGB")
                assert image.width * image.height <= LIMITS.max_pixels
            except ImageError:
                pass
            after = sum(cpu_seconds(process) for process in decoders(os.getpid()))
            assert after - before < most + decoder.CPU_SECONDS  # the bound, which starts again once the header is read


def cpu_seconds(process: int) -> float:
    """Return the processor time of a process until now; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_tiles_count_as_the_pixels_that_they_hold() -> None:
    """Thousands of tiles share one stream, and a tile of 2 GB belongs to a small image."""
    huge = [name for name in slow() if name.startswith("TIFF") and "tile" in name and "16 x 16" not in name]
    assert len(huge) > 20
    for name in huge:
        with pytest.raises(ImageError):
            open_image(slow()[name], LIMITS)


def test_tiles_of_encoders_are_read() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (300, 520), np.uint8)
    tiles = b""
    for top in range(0, 300, 256):
        for left in range(0, 520, 256):
            tile = np.zeros((256, 256), np.uint8)
            part = pixels[top : top + 256, left : left + 256]
            tile[: part.shape[0], : part.shape[1]] = part
            tiles += tile.tobytes()
    np.testing.assert_array_equal(np.asarray(open_image(_tiled(520, 300, 256, tiles))), pixels)


def _tiled(width: int, height: int, side: int, data: bytes) -> bytes:
    count = -(-width // side) * -(-height // side)
    numbers = {256: width, 257: height, 258: 8, 259: 1, 262: 1, 277: 1, 322: side, 323: side}
    entries = [struct.pack("<HHII", tag, 4, 1, value) for tag, value in numbers.items()]
    at = 8 + 2 + 12 * (len(entries) + 2) + 4
    begins = at + 8 * count
    entries += [struct.pack("<HHII", 324, 4, count, at), struct.pack("<HHII", 325, 4, count, at + 4 * count)]
    places = struct.pack(f"<{count}I", *(begins + i * side * side for i in range(count)))
    sizes = struct.pack(f"<{count}I", *[side * side] * count)
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + b"".join(entries) + bytes(4) + places + sizes + data


@pytest.mark.slow
def test_the_kernel_ends_a_decoder_at_its_processor_time() -> None:
    with decoding_goes_on(), raises(ImageError, "too-slow"):
        open_image(slow()["PNG of profiles"], LIMITS)


def test_the_kernel_bounds_the_memory_of_a_decoder() -> None:
    decoder_pool.close()  # those that are idle have the bound of their last image
    open_image(photograph()[0], LIMITS)
    for process in decoders(os.getpid()):
        limits = Path(f"/proc/{process}/limits").read_text().splitlines()
        soft = next(line for line in limits if line.startswith("Max address space")).split()[3]
        most = decoder.MEMORY_BYTES + decoder.MEMORY_BYTES_PER_PIXEL * 96 * 96
        assert most < int(soft) < most + 2**30


def test_a_decoder_that_dies_is_replaced() -> None:
    data, _ = photograph()
    open_image(data)
    for number in (signal.SIGKILL, signal.SIGSEGV):
        with decoding_goes_on():
            for process in decoders(os.getpid()):
                os.kill(process, number)
            time.sleep(0.1)


def test_a_decoder_that_dies_at_work_is_an_error_of_its_image() -> None:
    def kill() -> None:
        time.sleep(0.4)
        for process in decoders(os.getpid()):
            os.kill(process, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    with decoding_goes_on():
        thread.start()
        with pytest.raises(ImageError):
            open_image(slow()["PNG of profiles"], LIMITS)  # two seconds of work
        thread.join()


def test_signals_to_the_whole_group_do_not_end_decoders() -> None:
    """Ctrl-C and service managers reach every process, and open requests are still finished."""
    open_image(photograph()[0])
    before = decoders(os.getpid())
    for number in (signal.SIGINT, signal.SIGTERM):
        for process in before:
            os.kill(process, number)
    with decoding_goes_on():
        pass
    assert set(before) <= set(decoders(os.getpid()))


def test_threads_get_the_pixels_of_their_own_image() -> None:
    files = [photograph(side) for side in range(8, 72)]
    with ThreadPoolExecutor(16) as threads:
        opened = list(threads.map(lambda file: np.asarray(open_image(file[0])), files))
    for image, (_, pixels) in zip(opened, files, strict=True):
        np.testing.assert_array_equal(image, pixels)


def _opened_in_fork(data: bytes, pixels: np.ndarray, results: multiprocessing.Queue) -> None:
    results.put(all(np.array_equal(np.asarray(open_image(data)), pixels) for _ in range(20)))


def test_a_forked_process_has_decoders_of_its_own() -> None:
    data, pixels = photograph()
    open_image(data)
    context = multiprocessing.get_context("fork")
    results: multiprocessing.Queue = context.Queue()
    child = context.Process(target=_opened_in_fork, args=(data, pixels, results))
    child.start()
    for _ in range(20):
        np.testing.assert_array_equal(np.asarray(open_image(data)), pixels)
    assert results.get(timeout=60)
    child.join(60)


ORPHAN = """
import os, sys, time
from zoo.data.images import open_image
open_image(sys.argv[1])
print(os.getpid(), flush=True)
time.sleep(60)
"""


def test_decoders_end_with_their_process(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(photograph()[0])
    parent = subprocess.Popen([sys.executable, "-c", ORPHAN, path], stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        left = decoders(parent.pid)
        parent.kill()
    assert left
    end = time.monotonic() + 20
    while any(Path(f"/proc/{process}/cmdline").exists() for process in left) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{process}").exists() for process in left)


SCRIPT = """
import sys, warnings
warnings.simplefilter("error")
from zoo.data.images import open_image
print(open_image(sys.argv[1]).size)
"""


def test_a_script_without_a_main_guard_decodes(tmp_path: Path) -> None:
    """Processes of `multiprocessing` would run the script again."""
    path = tmp_path / "a.png"
    path.write_bytes(photograph(20)[0])
    assert run_python(SCRIPT, path).strip() == "(20, 20)"


@pytest.mark.parametrize("name", BOMBS)
def test_a_file_of_many_pieces_is_done_or_refused(name: str) -> None:
    with decoding_goes_on(), contextlib.suppress(ImageError):
        open_image(BOMBS[name], Limits(max_pixels=24_000_000), draft=256)


@pytest.mark.parametrize("name", ["JPEG of scans", "JPEG of EXIF", "GIF of nothing", "PPM of comments"])
def test_too_many_parts_are_refused(name: str) -> None:
    with raises(ImageError, "unreadable-image"):
        open_image(BOMBS[name], Limits(max_pixels=24_000_000))


@pytest.mark.parametrize("size", [(1, 10**6 + 1), (10**6 + 1, 1)])
def test_a_side_of_more_than_a_million_pixels_is_refused(size: tuple[int, int]) -> None:
    file = BytesIO()
    Image.new("L", size).save(file, "PNG")
    with raises(ImageTooLargeError, "image-too-large"):
        open_image(file.getvalue())


def test_tags_that_share_their_bytes_are_refused() -> None:
    """Pillow keeps the bytes once for each tag."""
    with raises(ImageError, "unreadable-image"):
        open_image(bombs.filling(2_000_000)["TIFF of tags"])


@pytest.mark.parametrize("name", CLAIMS)
def test_claims_of_many_pixels_are_refused_before_decoding(name: str) -> None:
    with pytest.raises(ImageError):
        open_image(CLAIMS[name], LIMITS)


def test_a_claim_of_pixels_is_too_large() -> None:
    with raises(ImageTooLargeError):
        open_image(CLAIMS["PNG of 400 megapixels"])


def test_files_of_encoders_are_read() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (200, 300, 3), np.uint8)
    kinds: tuple[tuple[str, dict[str, object]], ...] = (
        ("JPEG", {"progressive": True}),
        ("PNG", {}),
        ("PPM", {}),
        ("TIFF", {"strip_size": 1}),
        ("WEBP", {"lossless": True}),
        ("AVIF", {"quality": 100}),
    )
    for kind, options in kinds:
        out = BytesIO()
        Image.fromarray(pixels).save(out, kind, **options)
        assert open_image(out.getvalue(), LIMITS).size == (300, 200)
    many = bombs.many_scans(0, side=64)
    assert many.count(b"\xff\xda") == 2
    assert open_image(many, LIMITS).size == (64, 64)


def test_a_png_of_4_kb_pieces_is_read() -> None:
    """60 MB are read in 15,000 pieces, each in four reads: more reads than a small file may need."""
    side = 4500
    rows = np.random.default_rng(0).integers(0, 256, (side, 1 + 3 * side), np.uint8)
    rows[:, 0] = 0  # no filter
    packed = zlib.compress(rows.tobytes(), 0)
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    pieces = b"".join(bombs.chunk(b"IDAT", packed[at : at + 4096]) for at in range(0, len(packed), 4096))
    data = b"\x89PNG\r\n\x1a\n" + bombs.chunk(b"IHDR", header) + pieces + bombs.chunk(b"IEND", b"")
    np.testing.assert_array_equal(np.asarray(open_image(data))[-1], rows[-1, 1:].reshape(side, 3))


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


def test_a_path_that_is_not_a_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    for path in (tmp_path / "pipe.png", Path("/dev/zero")):
        with raises(ImageError, "not-found"):
            open_image(path)


def test_decoders_get_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    decoder_pool.close()
    open_image(photograph()[0])
    for process in decoders(os.getpid()):
        assert b"secret" not in Path(f"/proc/{process}/environ").read_bytes()

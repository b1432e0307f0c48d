"""Decoding in threads: batches, the cache and its key, and images that cannot be read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.raising import raises
from zoo.data.dataset import Dataset
from zoo.data.decode import Squares, decode, decode_batches
from zoo.data.preprocessing import Preprocessing
from zoo.errors import UnreadableImagesError

SQUARE = Preprocessing(8, 8, "RGB")


def pictures(folder: Path, sizes: list[tuple[int, int]]) -> Dataset:
    draw = np.random.default_rng(0)
    paths = []
    for i, (width, height) in enumerate(sizes):
        paths.append(folder / f"{i}.png")
        Image.fromarray(draw.integers(0, 256, (height, width, 3), np.uint8)).save(paths[-1])
    n = len(paths)
    return Dataset("pictures", "train", paths, np.arange(n), tuple(map(str, range(n))), [p.name for p in paths])


def test_files_are_decoded_once_and_mapped(tmp_path: Path, own_zoo: Path) -> None:
    dataset = pictures(tmp_path, [(10, 10), (16, 8), (8, 16)])
    rows = np.array([2, 0])
    first = decode(dataset, rows, Squares(SQUARE), "read")
    assert first.pixels.shape == (2, 8, 8, 3)
    assert first.rows.tolist() == [2, 0]
    (folder,) = (own_zoo / "cache").iterdir()
    # What is in the cache is what is used: decoding does not happen again.
    pixels = np.load(folder / "pixels.npy", mmap_mode="r+")
    pixels[0] = 7
    pixels.flush()
    again = decode(dataset, rows, Squares(SQUARE), "read")
    assert isinstance(again.pixels, np.memmap)
    assert (again.pixels[0] == 7).all()
    assert (again.pixels[1] == first.pixels[1]).all()


def test_a_changed_file_other_rows_and_other_squares_are_decoded_again(tmp_path: Path, own_zoo: Path) -> None:
    dataset = pictures(tmp_path, [(10, 10), (16, 8)])
    decode(dataset, np.array([0, 1]), Squares(SQUARE), "read")
    decode(dataset, np.array([1]), Squares(SQUARE), "read")
    decode(dataset, np.array([0, 1]), Squares(SQUARE, whole=True), "read")
    Image.new("RGB", (10, 10), "red").save(tmp_path / "0.png")
    changed = decode(dataset, np.array([0, 1]), Squares(SQUARE), "read")
    assert (changed.pixels[0] == [255, 0, 0]).all()
    assert len(list((own_zoo / "cache").iterdir())) == 4


def test_whole_images_are_squeezed_and_remember_their_proportions(tmp_path: Path) -> None:
    ramp = np.repeat(np.linspace(0, 255, 64).astype(np.uint8)[None], 32, 0)
    Image.fromarray(np.stack([ramp] * 3, 2)).save(tmp_path / "0.png")
    dataset = Dataset("ramp", "train", [tmp_path / "0.png"], np.array([0]), ("0",), ["0.png"])
    whole = decode(dataset, np.array([0]), Squares(SQUARE, whole=True), "read")
    assert whole.aspects.tolist() == [2.0]
    assert whole.pixels[0, 4, 0, 0] < 25
    assert whole.pixels[0, 4, -1, 0] > 230
    centre = decode(dataset, np.array([0]), Squares(SQUARE), "read")
    assert centre.aspects.tolist() == [1.0]
    assert centre.pixels[0, 4, 0, 0] > 60


@pytest.mark.parametrize("damage", [b"no image", b""])
def test_all_damaged_images_are_named_or_left_out_and_counted(tmp_path: Path, damage: bytes) -> None:
    dataset = pictures(tmp_path, [(10, 10)] * 4)
    (tmp_path / "2.png").write_bytes(damage)
    (tmp_path / "1.png").write_bytes(damage)
    with raises(UnreadableImagesError, "unreadable-image", "1.png", "2.png", "data.skip_unreadable=true") as caught:
        decode(dataset, np.arange(4), Squares(SQUARE), "read")
    assert caught.value.reasons.keys() == {"1.png", "2.png"}
    left = decode(dataset, np.arange(4), Squares(SQUARE, skip=True), "read")
    assert left.rows.tolist() == [0, 3]
    assert left.skipped == ["1.png", "2.png"]
    assert len(left.pixels) == 2
    # A run that skipped it does not hide the error from the next one.
    with raises(UnreadableImagesError, "unreadable-image", "1.png", "2.png"):
        decode(dataset, np.arange(4), Squares(SQUARE), "read")


def test_images_in_memory_need_no_cache(own_zoo: Path) -> None:
    images = [np.full((9, 9, 3), i, np.uint8) for i in range(3)]
    dataset = Dataset("memory", "train", images, np.arange(3), ("0", "1", "2"), ["0", "1", "2"])
    assert decode(dataset, np.arange(3), Squares(SQUARE), "read").pixels[:, 0, 0, 0].tolist() == [0, 1, 2]
    assert not (own_zoo / "cache").exists()


def test_batches_keep_order_and_cover_all() -> None:
    images = [np.full((8, 8), i, np.uint8) for i in range(23)]
    batches = list(decode_batches(iter(images), Preprocessing(8, 8, "L", mean=(0.5,), std=(0.5,)), 5))
    assert [len(batch) for batch in batches] == [5, 5, 5, 5, 3]
    assert np.concatenate(batches)[:, 0, 0, 0].tolist() == list(range(23))

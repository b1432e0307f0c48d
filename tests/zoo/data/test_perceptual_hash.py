"""Perceptual hash: against SciPy's cosine transform, under mirroring, and under small changes."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageOps
from scipy.fft import dctn

from zoo.data.perceptual_hash import BITS, SIDE, hamming, hash_of_pixels, mirror_hash, perceptual_hash


def picture(seed: int, size: tuple[int, int] = (160, 120)) -> Image.Image:
    """A smooth picture in colour, of random large spots."""
    pixels = np.random.default_rng(seed).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC)


def test_bits_are_the_signs_of_the_lowest_frequencies():
    pixels = np.random.default_rng(0).uniform(0, 255, (SIDE, SIDE)).astype(np.float32)
    spectrum = dctn(pixels.astype(np.float64), type=2)
    order = sorted(((v, u) for v in range(SIDE) for u in range(SIDE)), key=lambda at: (at[0] ** 2 + at[1] ** 2, at))
    expected = [spectrum[at] > 0 for at in order[1 : BITS + 1]]
    np.testing.assert_array_equal(np.unpackbits(hash_of_pixels(pixels)), expected)


def test_the_hash_of_the_mirror_image_needs_no_pixels():
    pixels = np.random.default_rng(1).uniform(0, 255, (SIDE, SIDE)).astype(np.float32)
    np.testing.assert_array_equal(hash_of_pixels(pixels[:, ::-1]), mirror_hash(hash_of_pixels(pixels)))
    found = perceptual_hash(ImageOps.mirror(picture(1)))
    assert hamming(found, mirror_hash(perceptual_hash(picture(1)))) <= 2


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_size_proportions_and_colour_hardly_count(mode: str):
    original = perceptual_hash(picture(2))
    assert original.dtype == np.uint8
    assert original.shape == (32,)
    for size in ((80, 60), (320, 240), (160, 160)):
        assert hamming(original, perceptual_hash(picture(2).convert(mode).resize(size))) <= 12
    assert 90 <= hamming(original, perceptual_hash(picture(3))) <= 166


def test_a_part_is_hashed_as_its_crop():
    box = (16, 12, 112, 84)
    assert hamming(perceptual_hash(picture(4), box), perceptual_hash(picture(4).crop(box))) <= 4


def test_distances_are_counts_of_different_bits():
    rng = np.random.default_rng(5)
    first, second = rng.integers(0, 256, (2, 7, 32), dtype=np.uint8)
    pairs = zip(first.tolist(), second.tolist(), strict=True)
    expected = [sum((a ^ b).bit_count() for a, b in zip(*pair, strict=True)) for pair in pairs]
    assert hamming(first, second).tolist() == expected
    assert hamming(first[:, None], second[None]).shape == (7, 7)


@pytest.mark.parametrize("grey", [0, 7, 255])
def test_a_picture_of_one_colour_has_a_hash(grey: int):
    assert perceptual_hash(Image.new("L", (50, 30), grey)).tolist() == [0] * 32

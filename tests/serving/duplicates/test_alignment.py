"""Alignment: correlations against a plain loop, and crops and frames whose place is known."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageOps

from serving.duplicates.alignment import aligned_distance, correlations, find_inside


def picture(seed: int, size: tuple[int, int] = (200, 150)) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (24, 32), dtype=np.uint8)
    return Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC)


def test_correlations_are_those_of_a_plain_loop():
    rng = np.random.default_rng(0)
    pixels = rng.uniform(0, 255, (12, 15)).astype(np.float32)
    templates = [rng.uniform(0, 255, shape).astype(np.float32) for shape in ((5, 6), (12, 15), (12, 4))]
    for template, surface in zip(templates, correlations(pixels, templates), strict=True):
        height, width = template.shape
        assert surface.shape == (13 - height, 16 - width)
        for (top, left), found in np.ndenumerate(surface):
            window = pixels[top : top + height, left : left + width].astype(np.float64).ravel()
            expected = np.corrcoef(window, template.astype(np.float64).ravel())[0, 1]
            assert found == pytest.approx(expected, abs=1e-4)


def test_flat_windows_and_templates_correlate_with_nothing():
    flat = np.full((8, 8), 40, np.float32)
    noise = np.random.default_rng(1).uniform(0, 255, (4, 4)).astype(np.float32)
    assert np.abs(correlations(flat, [noise])[0]).max() == 0
    assert np.abs(correlations(np.arange(64, dtype=np.float32).reshape(8, 8), [flat[:4, :4]])[0]).max() == 0


@pytest.mark.parametrize("scale", [1.0, 0.6, 1.7])
def test_the_place_of_a_crop_is_found(scale: float):
    original, (left, top, right, bottom) = picture(2), (30, 20, 160, 120)
    crop = original.crop((left, top, right, bottom))
    crop = crop.resize((round(crop.width * scale), round(crop.height * scale)), Image.Resampling.BICUBIC)
    place = find_inside(original, crop)
    assert place is not None
    assert place.correlation > 0.9
    assert place.scale == pytest.approx((right - left) / crop.width, rel=0.04)
    assert (place.left, place.top) == pytest.approx((left, top), abs=4)


def test_crops_and_frames_are_near_and_other_pictures_are_not():
    original = picture(3)
    crop = original.crop((20, 10, 170, 130))
    framed = ImageOps.expand(original, 20, 0)
    for copy in (crop, framed):
        assert aligned_distance(original, copy) == aligned_distance(copy, original) <= 40
    assert aligned_distance(original, picture(4)) > 70


@pytest.mark.parametrize("size", [(1, 1), (3, 200), (500, 2), (64, 64)])
def test_odd_sizes_and_flat_pictures_have_a_distance(size: tuple[int, int]):
    for image in (Image.new("L", size, 9), picture(5, size)):
        assert 0 <= aligned_distance(image, picture(6)) <= 256

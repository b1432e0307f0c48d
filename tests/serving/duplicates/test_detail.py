"""Agreement in detail: correlations of blocks against a plain loop, and pictures without structure."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from serving.duplicates.detail import (
    LEAST_BLOCK,
    SHIFT,
    PicturePair,
    block_correlations,
    correlations_of_blocks,
    has_background,
    stroke_correlations,
)


def test_correlations_of_blocks_are_those_of_a_plain_loop():
    rng = np.random.default_rng(0)
    first, second = rng.uniform(0, 255, (2, 24, 32)).astype(np.float32)
    first[:8, :8] = second[:8, :8] = 7  # flat in both
    second[8:16, 8:16] = first[9:17, 6:14]  # shifted
    expected = []
    padded = np.pad(second.astype(np.float64), SHIFT, mode="edge")
    for top in range(0, 24, LEAST_BLOCK):
        for left in range(0, 32, LEAST_BLOCK):
            block = first[top : top + LEAST_BLOCK, left : left + LEAST_BLOCK].astype(np.float64).ravel()
            if max(block.std(), second[top : top + LEAST_BLOCK, left : left + LEAST_BLOCK].std()) <= 5:
                continue
            windows = [
                padded[top + down : top + down + LEAST_BLOCK, left + across : left + across + LEAST_BLOCK].ravel()
                for down in range(2 * SHIFT + 1)
                for across in range(2 * SHIFT + 1)
            ]
            expected.append(max(np.corrcoef(block, window)[0, 1] for window in windows if window.std()))
    found = correlations_of_blocks(first, second, 5)
    assert len(found) == 11
    assert found == pytest.approx(expected, abs=1e-4)


def test_flat_pictures_and_gradients_have_nothing_to_compare():
    flat = np.full((96, 128), 250, np.float32)
    slope = flat - np.linspace(0, 90, 96, dtype=np.float32)[:, None]
    for pixels in (flat, slope):
        assert len(block_correlations(pixels, pixels)) == len(stroke_correlations(pixels, pixels)) == 0


def test_a_stroke_in_one_picture_alone_does_not_agree():
    page = np.full((256, 180), 255, np.float32)
    page[20::16] = 0  # the lines of a form
    other = page.copy()
    other[100:104, 60:90:4] = 0
    assert stroke_correlations(page, page).min() > 0.99
    assert stroke_correlations(page, other).min() < 0.3


def test_a_background_of_one_colour_is_told_from_a_photograph():
    page = np.full((64, 64), 240.0)
    page[:30] = np.random.default_rng(1).uniform(0, 255, (30, 64))
    assert has_background(page)
    assert not has_background(np.random.default_rng(1).normal(128, 40, (64, 64)))


@pytest.mark.parametrize("size", [(1, 1), (3, 200), (200, 3), (300, 200)])
def test_parts_of_any_size_have_pixels_of_one_shape(size: tuple[int, int]):
    image, other = Image.new("L", size, 9), Image.new("L", (120, 90), 9)
    first, second = PicturePair(image, (0, 0, *size), other, (0, 0, 120, 90)).pixels(128)
    assert first.shape == second.shape
    assert min(first.shape) >= LEAST_BLOCK
    assert max(first.shape) <= 128

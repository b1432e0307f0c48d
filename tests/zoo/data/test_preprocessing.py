"""Preprocessing: centre crop, resizing and draft decoding."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from zoo.data.preprocessing import Preprocessing, to_pixels

GREY = Preprocessing(8, 8, "L", mean=(0.5,), std=(0.5,))
COLOUR = Preprocessing(8, 8)


@pytest.mark.parametrize("size", [(1, 1), (1, 30_000), (30_000, 1), (9, 7), (8, 8), (1000, 10)])
def test_every_size_becomes_the_crop(size: tuple[int, int]) -> None:
    assert to_pixels(Image.new("RGB", size, (5, 6, 7)), COLOUR).tolist() == [[[5, 6, 7]] * 8] * 8
    assert to_pixels(Image.new("RGB", size, "white"), GREY).shape == (8, 8, 1)


def test_the_centre_is_cropped() -> None:
    image = Image.new("RGB", (30, 10), "red")
    image.paste((0, 0, 255), (10, 0, 20, 10))  # the middle third is blue
    assert to_pixels(image, COLOUR)[:, 1:-1, 2].min() == 255  # the outer columns blend with the red ones


def test_resize_is_a_box_average_where_sizes_divide() -> None:
    values = np.random.default_rng(0).integers(0, 256, (16, 16), np.uint8)
    expected = np.rint(values.astype(float).reshape(8, 2, 8, 2).mean((1, 3)))
    preprocessing = Preprocessing(8, 8, "L", "box", mean=(0.5,), std=(0.5,))
    assert np.abs(to_pixels(values, preprocessing)[..., 0] - expected).max() <= 1  # Pillow rounds halves differently


def test_a_squeezed_image_is_the_whole_at_equal_sides() -> None:
    """Group, section 4.1: "resized to 256 x 256", then the centre crop; by means of blocks of 4 x 2 pixels."""
    values = np.random.default_rng(1).integers(0, 256, (16, 32), np.uint8)
    means = np.rint(values.astype(float).reshape(8, 2, 8, 4).mean((1, 3)))
    for crop, expected in ((8, means), (4, means[2:6, 2:6])):
        preprocessing = Preprocessing(8, crop, "L", "box", mean=(0.5,), std=(0.5,), squeeze=True)
        assert np.abs(to_pixels(values, preprocessing)[..., 0] - expected).max() <= 1
    image = Image.fromarray(np.random.default_rng(2).integers(0, 256, (30, 50, 3), np.uint8))
    squeezed = np.asarray(image.resize((20, 20), Image.Resampling.BILINEAR))
    assert np.array_equal(to_pixels(image, Preprocessing(20, 20, squeeze=True)), squeezed)
    assert not np.array_equal(to_pixels(image, Preprocessing(20, 20)), squeezed)


def test_draft_decoding_stays_near_full_decoding() -> None:
    photo = Image.linear_gradient("L").resize((512, 384)).convert("RGB")
    preprocessing = Preprocessing(64, 64)
    buffer = io.BytesIO()
    photo.save(buffer, "JPEG", quality=95)
    draft, full = (to_pixels(image, preprocessing).astype(int) for image in (buffer.getvalue(), photo))
    assert np.abs(draft - full).mean() < 3

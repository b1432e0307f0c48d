"""Crops against hand calculations and against torchvision, which draws them in pixels."""

from __future__ import annotations

import numpy as np
import torch
from torchvision.transforms import RandomResizedCrop

from training.augment import augment, crop_boxes, draw_changes
from training.recipe import Augmentation


def test_the_central_window_by_hand() -> None:
    # Twice as wide as high, high as wide, half as wide: 7/8 of the short side, in the middle.
    boxes = crop_boxes(torch.tensor([2.0, 1.0, 0.5]), Augmentation(), 7 / 8)
    expected = torch.tensor([[0, 0, 7 / 16, 7 / 8], [0, 0, 7 / 8, 7 / 8], [0, 0, 7 / 8, 7 / 16]])
    assert torch.allclose(boxes, expected)


def test_a_window_is_a_square_at_a_random_position() -> None:
    torch.manual_seed(0)
    boxes = crop_boxes(torch.full((2000,), 2.0), Augmentation(crop="window", window=0.5), 1.0)
    assert torch.allclose(boxes[:, 2:], torch.tensor([0.25, 0.5]).expand(2000, 2))
    assert (boxes[:, :2].abs() + boxes[:, 2:] <= 1 + 1e-6).all()
    assert boxes[:, 0].min() < -0.7
    assert boxes[:, 0].max() > 0.7
    assert abs(boxes[:, 0].mean()) < 0.05


def test_a_window_of_a_squeezed_image_keeps_no_proportions() -> None:
    boxes = crop_boxes(torch.full((50,), 2.0), Augmentation(crop="squeezed", window=0.5), 1.0)
    assert torch.allclose(boxes[:, 2:], torch.tensor(0.5))


def test_random_resized_crops_are_distributed_as_torchvision_s() -> None:
    torch.manual_seed(0)
    width, height = 600, 400
    image = torch.empty(3, height, width)
    theirs = [RandomResizedCrop.get_params(image, [0.2, 1.0], [3 / 4, 4 / 3]) for _ in range(4000)]
    _, left, h, w = np.array(theirs).T
    boxes = crop_boxes(torch.full((4000,), width / height), Augmentation(crop="resized", area=(0.2, 1.0)), 1.0).numpy()
    ours = ((boxes[:, 0] - boxes[:, 2] + 1) / 2, boxes[:, 2], boxes[:, 3])
    for a, b in zip(ours, (left / width, w / width, h / height), strict=True):
        quantiles = np.linspace(0.05, 0.95, 10)
        np.testing.assert_allclose(np.quantile(a, quantiles), np.quantile(b, quantiles), atol=0.03)


def test_an_image_that_no_draw_fits_gives_its_largest_allowed_part() -> None:
    boxes = crop_boxes(torch.tensor([10.0, 0.1]), Augmentation(crop="resized", area=(0.9, 1.0)), 1.0)
    assert torch.allclose(boxes[:, 2:], torch.tensor([[4 / 3 / 10, 1.0], [1.0, 4 / 3 / 10]]))


def test_a_crop_shows_its_part_of_the_image() -> None:
    # A ramp over the width: an image twice as wide as high, kept as a square; the central window shows its middle half.
    ramp = torch.linspace(0, 1, 64).expand(1, 1, 64, 64)
    augmentation = Augmentation(oversample=1)
    out = augment(ramp, draw_changes(torch.zeros(1), torch.tensor([2.0]), augmentation), augmentation, 32)
    assert torch.allclose(out[0, 0, 0, [0, -1]], torch.tensor([0.25, 0.75]), atol=0.02)
    assert torch.allclose(out[0, 0, 0], out[0, 0, -1], atol=1e-5)


def test_part_of_the_changes_gives_part_of_the_images() -> None:
    torch.manual_seed(0)
    augmentation = Augmentation(10, 1.2, 1.1, 0.1, 0.1, 0.1, 4, 0.4, 0.5, 0.2, 0.1, 1.0, crop="resized")
    images = torch.rand(6, 3, 16, 16)
    changes = draw_changes(torch.zeros(6), torch.full((6,), 1.5), augmentation)
    whole = augment(images, changes, augmentation, 12)
    parts = [augment(images[rows], changes.part(rows), augmentation, 12) for rows in (slice(0, 2), slice(2, 6))]
    assert torch.allclose(torch.cat(parts), whole, atol=1e-6)

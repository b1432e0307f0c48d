"""Augmentation and crops, against hand calculations and torchvision, which draws crops in pixels."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms import RandomResizedCrop

from training.augment import augment, crop_boxes, draw_changes
from training.recipe import Augmentation


def images(n: int = 4, side: int = 16) -> Tensor:
    return torch.rand(n, 3, side, side, generator=torch.Generator().manual_seed(0))


def changed(images: Tensor, turns: Tensor, augmentation: Augmentation, side: int) -> Tensor:
    return augment(images, draw_changes(turns, torch.ones(len(turns)), augmentation), augmentation, side)


def test_an_empty_augmentation_changes_nothing() -> None:
    out = changed(images(), torch.zeros(4), Augmentation(oversample=1), 16)
    assert torch.allclose(out, images(), atol=1e-5)


def test_quarter_turns_are_exact_rotations() -> None:
    out = changed(images(), torch.tensor([0.0, 1.0, 2.0, 3.0]), Augmentation(oversample=1), 16)
    for i in range(4):
        options = [torch.rot90(images()[i], sign * i, (1, 2)) for sign in (1, -1)]
        assert any(torch.allclose(out[i], option, atol=1e-4) for option in options)
    # All four turns of one image are different, and a turn and its opposite undo one another.
    same = changed(images()[:1].repeat(4, 1, 1, 1), torch.arange(4.0), Augmentation(oversample=1), 16)
    back = changed(same, -torch.arange(4.0), Augmentation(oversample=1), 16)
    assert torch.allclose(back, images()[:1].repeat(4, 1, 1, 1), atol=1e-4)


def test_mirror() -> None:
    out = changed(images(), torch.zeros(4), Augmentation(flip=1.0, oversample=1), 16)
    assert torch.allclose(out, images().flip(3), atol=1e-4)


def test_pixels_from_outside_are_background() -> None:
    torch.manual_seed(0)
    out = changed(torch.zeros(64, 1, 16, 16), torch.zeros(64), Augmentation(translate=0.9, background=1.0), 16)
    assert out.min() == 0
    assert out.max() == 1


def test_everything_at_once_stays_in_range_and_varies() -> None:
    torch.manual_seed(0)
    augmentation = Augmentation(15, 1.3, 1.2, 0.2, 0.1, 0.08, 5, 0.5, 0.5, 0.3, 0.2, 1.0)
    out = changed(images(8, 32), torch.zeros(8), augmentation, 20)
    assert out.shape == (8, 3, 20, 20)
    assert torch.isfinite(out).all()
    assert out.min() >= 0
    assert out.max() <= 1
    again = changed(images(8, 32), torch.zeros(8), augmentation, 20)
    assert not torch.equal(out, again)


def test_thicker_strokes_are_darker_on_a_light_ground() -> None:
    torch.manual_seed(0)
    stroke = torch.ones(64, 1, 16, 16)
    stroke[:, :, 8, 4:12] = 0
    out = changed(stroke, torch.zeros(64), Augmentation(thicken=1.0, background=1.0, oversample=1), 16)
    means = out.mean((1, 2, 3))
    assert (means <= stroke[0].mean() + 1e-6).all()
    assert means.min() < stroke[0].mean() - 0.01


def test_the_central_window_by_hand() -> None:
    # Twice as wide as high, high as wide, half as wide: 7/8 of the short side, in the middle.
    boxes = crop_boxes(torch.tensor([2.0, 1.0, 0.5]), Augmentation(), 7 / 8)
    expected = torch.tensor([[0, 0, 7 / 16, 7 / 8], [0, 0, 7 / 8, 7 / 8], [0, 0, 7 / 8, 7 / 16]])
    assert torch.allclose(boxes, expected)


def test_the_central_window_of_a_squeezed_image_by_hand() -> None:
    # 7/8 of both sides, for any proportions.
    boxes = crop_boxes(torch.tensor([2.0, 0.5]), Augmentation(), 7 / 8, squeeze=True)
    assert torch.allclose(boxes, torch.tensor([[0, 0, 7 / 8, 7 / 8]] * 2))


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

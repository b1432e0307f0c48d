from __future__ import annotations

import torch
from torch import Tensor

from training.augment import augment, draw_changes
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

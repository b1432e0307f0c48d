"""Fused norms: outputs and gradients are those of the separate layers; what cannot be fused is left alone."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from training.recipe import Backbone
from training.recipes import standard_recipe
from training.trunk.fused import fuse_frozen_norms
from training.trunk.parts import choose_parts
from zoo.models.network import create_trunk

PREPROCESSING = replace(standard_recipe("margin-lite0-cub2010").preprocessing, crop=64)
LITE0, RESNET = "tf_efficientnet_lite0", "resnet18"
IMAGES = torch.randn(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def trunk_of(architecture: str, **settings: Any) -> nn.Module:
    """Return a trunk whose norms have statistics, factors and offsets of their own."""
    torch.manual_seed(0)
    trunk = create_trunk(architecture, 3)
    for module in trunk.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.uniform_(-0.1, 0.1)
            module.running_var.uniform_(0.8, 1.2)
            nn.init.uniform_(module.weight, 0.8, 1.2)
            nn.init.uniform_(module.bias, -0.1, 0.1)
    choose_parts(trunk, Backbone("any", architecture, **settings))
    return trunk.train()


def gradients(trunk: nn.Module) -> tuple[Tensor, dict[str, Tensor | None]]:
    trunk.zero_grad()
    features = trunk(IMAGES)
    (features * torch.linspace(-1, 1, features.shape[1])).sum().backward()
    return features.detach(), {name: parameter.grad for name, parameter in trunk.named_parameters()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "settings"),
    [
        (LITE0, {"freeze_norm": "all"}),
        (LITE0, {"freeze_norm": "all", "frozen_stages": 3}),
        (LITE0, {"freeze_norm": "statistics"}),
        (RESNET, {"freeze_norm": "all"}),
        (RESNET, {"freeze_norm": "all", "tune": "last"}),
    ],
)
def test_a_step_is_that_of_separate_layers(architecture: str, settings: dict[str, Any]) -> None:
    plain, fused = trunk_of(architecture, **settings), trunk_of(architecture, **settings)
    assert fuse_frozen_norms(fused, PREPROCESSING) > 0
    assert fused.state_dict().keys() == plain.state_dict().keys()
    assert fused.training
    expected, found = gradients(plain), gradients(fused)
    torch.testing.assert_close(found[0], expected[0], rtol=1e-3, atol=1e-3 * float(expected[0].abs().max()))
    largest = max(float(gradient.abs().max()) for gradient in expected[1].values() if gradient is not None)
    for name, gradient in expected[1].items():
        own = found[1][name]
        assert (own is None) == (gradient is None), name
        if gradient is not None and own is not None:
            torch.testing.assert_close(own, gradient, rtol=1e-3, atol=1e-4 * largest)


def test_every_norm_of_the_photo_trunk_is_fused() -> None:
    trunk = trunk_of(LITE0, freeze_norm="all")
    norms = sum(isinstance(module, nn.BatchNorm2d) for module in trunk.modules())
    assert fuse_frozen_norms(trunk, PREPROCESSING) == norms


def test_norms_of_frozen_stages_are_fused_where_others_learn() -> None:
    trunk = trunk_of(LITE0, freeze_norm="none", frozen_stages=3)
    frozen = sum(isinstance(module, nn.BatchNorm2d) and not module.training for module in trunk.modules())
    plain = copy.deepcopy(trunk).eval()
    assert fuse_frozen_norms(trunk, PREPROCESSING) == frozen
    torch.testing.assert_close(trunk.eval()(IMAGES), plain(IMAGES), rtol=1e-4, atol=1e-4)


def test_a_copy_has_weights_of_its_own() -> None:
    """The copies of averages and of slow networks must not read the weights of the network they were copied from."""
    trunk = trunk_of(RESNET, freeze_norm="all")
    fuse_frozen_norms(trunk, PREPROCESSING)
    before = trunk(IMAGES)
    copied = copy.deepcopy(trunk)
    with torch.no_grad():
        for parameter in trunk.parameters():
            parameter.mul_(0.5)
    torch.testing.assert_close(copied(IMAGES), before)
    assert not torch.allclose(trunk(IMAGES), before)


@pytest.mark.parametrize("settings", [{"freeze_norm": "none"}, {"freeze_norm": "statistics", "tune": "norm"}])
def test_norms_that_follow_the_images_or_learn_alone_are_left(settings: dict[str, Any]) -> None:
    trunk = trunk_of(RESNET, **settings)
    assert fuse_frozen_norms(trunk, PREPROCESSING) == 0
    assert not any("forward" in module.__dict__ for module in trunk.modules())


def test_a_convolution_whose_output_is_used_twice_is_left() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
            nn.init.uniform_(self.norm.weight, 2, 3)

        def forward(self, images: Tensor) -> Tensor:
            maps = self.conv(images)
            return (maps + self.norm(maps)).mean((2, 3))

    trunk = Twice()
    choose_parts(trunk, Backbone("any", "any", freeze_norm="all"))
    before = trunk(IMAGES)
    assert fuse_frozen_norms(trunk, PREPROCESSING) == 0
    torch.testing.assert_close(trunk(IMAGES), before)

"""Parts of a trunk that learn: normalisation layers, the last stage, nothing or all."""

from __future__ import annotations

import pytest
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from tests.raising import raises
from training.recipe import Backbone
from training.trunk.parts import choose_parts, last_parameters
from zoo.errors import RecipeError
from zoo.models.network import create_trunk


def learning(trunk: nn.Module) -> set[str]:
    """Return the first two parts of the names of the parameters that learn."""
    return {".".join(name.split(".")[:2]) for name, p in trunk.named_parameters() if p.requires_grad}


SMALL_VIT = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 3, "num_heads": 2}

LAST = [
    ("conv4", {}, {"blocks.3"}),
    ("googlenet", {}, {f"inception5{b}.branch{i}" for b in "ab" for i in range(1, 5)}),
    ("tf_efficientnet_lite0", {}, {"blocks.6", "conv_head.weight", "bn2.weight", "bn2.bias"}),
    ("gem", {"architecture": "resnet18", "p": 2.0}, {"layer4.0", "layer4.1"}),
    ("vit_tiny_patch16_224", SMALL_VIT, {"blocks.2", "norm.weight", "norm.bias"}),
    ("vit_tiny_patch16_224", {**SMALL_VIT, "global_pool": "avg"}, {"blocks.2", "fc_norm.weight", "fc_norm.bias"}),
    ("convnext_atto", {"depths": [1, 1, 1, 1], "dims": [8, 8, 8, 8]}, {"stages.3", "head.norm"}),
]


@pytest.mark.parametrize(("architecture", "args", "expected"), LAST)
def test_the_last_stage_learns_alone(architecture: str, args: dict, expected: set[str]) -> None:
    trunk = create_trunk(architecture, 3, args)
    choose_parts(trunk, Backbone("x", architecture, args, tune="last"))
    assert learning(trunk) == expected


def test_the_last_stage_of_bn_inception_is_that_of_the_smallest_maps() -> None:
    trunk = create_trunk("bn_inception", 3)
    choose_parts(trunk, Backbone("ibn", "bn_inception", tune="last", freeze_norm="all"))
    names = {name for name, parameter in trunk.named_parameters() if parameter.requires_grad}
    assert names == {
        name for name, _ in trunk.named_parameters() if name.startswith("inception_5") and "_bn." not in name
    }


def test_the_last_stage_of_an_ensemble_is_that_of_each_member() -> None:
    trunk = create_trunk("ensemble", 3, {"members": [{"architecture": "conv4"}, {"architecture": "resnet18"}]})
    expected = {id(p) for member in trunk.members for p in last_parameters(member.trunk)}
    assert {id(p) for p in last_parameters(trunk)} == expected
    assert len(expected) == 3 + 15  # conv4's last block, resnet18's layer4


@pytest.mark.parametrize(("architecture", "args"), [("resnet18", {}), ("vit_tiny_patch16_224", SMALL_VIT)])
def test_factors_and_offsets_of_norms_learn_alone(architecture: str, args: dict) -> None:
    trunk = create_trunk(architecture, 3, args)
    choose_parts(trunk, Backbone("x", architecture, args, tune="norm"))
    norms = {name for name, module in trunk.named_modules() if isinstance(module, _BatchNorm | nn.LayerNorm)}
    names = {name for name, p in trunk.named_parameters() if p.requires_grad}
    assert names == {f"{norm}.{part}" for norm in norms for part in ("weight", "bias")}


def test_nothing_or_all_of_a_trunk_learns() -> None:
    for tune, number in (("head", 0), ("all", 12)):
        trunk = create_trunk("conv4", 3)
        choose_parts(trunk, Backbone("conv4", "conv4", tune=tune))
        assert sum(p.requires_grad for p in trunk.parameters()) == number


def test_a_trunk_without_the_part_is_refused() -> None:
    for tune, code in (
        ("norm", "unsupported-model"),
        ("last", "unsupported-model"),
        ("lora", "unsupported-model"),
        ("prompt", "unsupported-model"),
    ):
        with raises(RecipeError, code):
            choose_parts(nn.Sequential(nn.Conv2d(3, 4, 1)), Backbone("x", "x", tune=tune))
    with raises(RecipeError, "invalid-value"):
        Backbone("x", "x", tune="first")
    with raises(RecipeError, "invalid-value"):
        Backbone("x", "x", tune="lora", rank=0)


def test_frozen_stages_neither_learn_nor_follow_the_images() -> None:
    trunk = create_trunk("tf_efficientnet_lite0", 3)
    choose_parts(trunk, Backbone("lite0", "tf_efficientnet_lite0", frozen_stages=3))
    assert learning(trunk) == {*(f"blocks.{i}" for i in range(2, 7)), "conv_head.weight", "bn2.weight", "bn2.bias"}
    trunk.train()
    first, later = trunk.blocks[1][0].bn1, trunk.blocks[2][0].bn1
    assert not first.training
    assert later.training


def test_frozen_stages_that_leave_nothing_to_learn_are_refused() -> None:
    trunk = create_trunk("conv4", 3)
    with raises(RecipeError, code="unsupported-model"):
        choose_parts(trunk, Backbone("conv4", "conv4", frozen_stages=4))

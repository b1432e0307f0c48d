"""Parts of a trunk that learn: batch norms, normalisation layers, the last stage."""

from __future__ import annotations

import copy

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from tests.raising import raises
from training.recipe import Backbone
from training.trunk.parts import choose_parts, freeze_norm, last_parameters
from zoo.errors import RecipeError
from zoo.models.backbones import register
from zoo.models.network import create_trunk

register()

TRUNKS = {
    "resnet18": {"channels": (8, 8, 8, 8), "zero_init_last": False},
    "densenet121": {"block_config": (1, 1, 1, 1), "growth_rate": 8},  # BatchNormAct2d
    "conv4": {"in_chans": 3},
    "bn_inception": {},
    "googlenet": {},
}


def trained_for_a_step(trunk: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the state before and after a training step with weight decay."""
    before = copy.deepcopy(trunk.state_dict())
    optimizer = torch.optim.SGD(trunk.parameters(), lr=1e-3, momentum=0.9, weight_decay=0.1)
    trunk.train()
    trunk(torch.randn(4, 3, 32, 32)).square().sum().backward()
    optimizer.step()
    return before, trunk.state_dict()


def kinds(trunk: nn.Module) -> dict[str, str]:
    """Return the kind of each entry of the state dict: statistics, affine (both of batch norms) or weights."""
    norms = {name for name, module in trunk.named_modules() if isinstance(module, _BatchNorm)}
    out = {}
    for name in trunk.state_dict():
        module, _, leaf = name.rpartition(".")
        statistics = leaf in ("running_mean", "running_var", "num_batches_tracked")
        out[name] = ("statistics" if statistics else "affine") if module in norms else "weights"
    return out


@pytest.mark.parametrize("architecture", TRUNKS)
@pytest.mark.parametrize(
    ("mode", "fixed"), [("none", set()), ("statistics", {"statistics"}), ("all", {"statistics", "affine"})]
)
def test_a_step_changes_only_unfrozen_parts(architecture: str, mode: str, fixed: set[str]) -> None:
    torch.manual_seed(0)
    trunk = timm.create_model(architecture, num_classes=0, **TRUNKS[architecture])
    freeze_norm(trunk, mode)
    before, after = trained_for_a_step(trunk)
    for name, kind in kinds(trunk).items():
        assert torch.equal(before[name], after[name]) is (kind in fixed), name


def test_training_normalises_by_the_running_statistics() -> None:
    trunk = nn.Sequential(nn.BatchNorm2d(3), nn.Dropout(0.5))
    norm = trunk[0]
    norm.running_mean.uniform_()
    norm.running_var.uniform_(1, 2)
    freeze_norm(trunk, "statistics")
    x = torch.randn(4, 3, 5, 5)
    for model in (trunk, copy.deepcopy(trunk)):
        assert model.train() is model
        assert model[1].training
        expected = F.batch_norm(x, norm.running_mean, norm.running_var, training=False)
        torch.testing.assert_close(model[0](x), expected)
        model.eval()
        assert not model[1].training


def test_a_copy_is_frozen_too() -> None:
    trunk = nn.Sequential(nn.BatchNorm1d(3))
    freeze_norm(trunk, "all")
    twin = copy.deepcopy(trunk)
    assert twin[0].train(True) is twin[0]
    twin[0](torch.randn(8, 3))
    assert twin[0].num_batches_tracked == 0
    assert not twin[0].weight.requires_grad


def test_modules_in_a_batch_norm_follow_the_mode() -> None:
    layer = timm.layers.BatchNormAct2d(3, act_layer=nn.RReLU, inplace=False)
    freeze_norm(layer, "all")
    layer.train()
    assert not layer.training
    assert layer.act.training
    layer.eval()
    assert not layer.act.training


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm])
def test_every_batch_norm_is_found(kind: type[nn.Module]) -> None:
    norm = kind(4)  # type: ignore[call-arg]
    freeze_norm(norm, "all")
    assert not norm.train().training
    assert not any(parameter.requires_grad for parameter in norm.parameters())


def test_wrong_modes_are_refused() -> None:
    with raises(RecipeError, "unknown-freeze-norm"):
        freeze_norm(nn.BatchNorm1d(2), "statistic")
    with raises(RecipeError, "no-batch-norm"):
        freeze_norm(nn.Sequential(nn.Conv2d(1, 1, 1), nn.LayerNorm(3)), "all")
    freeze_norm(nn.Sequential(), "none")


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
    for tune, code in (("norm", "no-norm-layers"), ("last", "no-stages"), ("lora", "no-linear-layers")):
        with raises(RecipeError, code):
            choose_parts(nn.Sequential(nn.Conv2d(3, 4, 1)), Backbone("x", "x", tune=tune))
    with raises(RecipeError, "setting-range"):
        Backbone("x", "x", tune="first")
    with raises(RecipeError, "setting-range"):
        Backbone("x", "x", tune="lora", rank=0)

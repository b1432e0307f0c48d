from __future__ import annotations

import copy

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from tests.raising import raises
from training.optim import freeze_norm
from zoo.errors import RecipeError
from zoo.models.backbones import register

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


@pytest.mark.slow
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
    with raises(RecipeError, "unknown-name"):
        freeze_norm(nn.BatchNorm1d(2), "statistic")
    with raises(RecipeError, "unsupported-model"):
        freeze_norm(nn.Sequential(nn.Conv2d(1, 1, 1), nn.LayerNorm(3)), "all")
    freeze_norm(nn.Sequential(), "none")

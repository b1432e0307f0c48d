"""BN-Inception against hand counts of its public definition and a plain float64 forward pass of the same."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.models.backbones import register
from zoo.models.backbones.bn_inception import BLOCKS, BNInception, _halve
from zoo.models.backbones.caffe import MEAN, STD, convert_caffe

register()

BY_HAND = {
    "3a": (256, 219_552),
    "3b": (320, 260_704),
    "3c": (576, 385_632),
    "4a": (576, 610_848),
    "4b": (576, 666_240),
    "4c": (608, 915_456),
    "4d": (608, 1_144_000),
    "4e": (1056, 1_451_008),
    "5a": (1024, 2_210_496),
    "5b": (1024, 2_281_248),
}
"""A block's output channels; i * o * k * k + 3 * o (weights; bias, factor, offset) added up over the public layers."""


def test_parameters_per_block_and_in_all() -> None:
    net = timm.create_model("bn_inception", num_classes=0)
    counts: dict[str, int] = {}
    for name, parameter in net.named_parameters():
        block = name.split("_")[1] if name.startswith("inception") else "stem"
        counts[block] = counts.get(block, 0) + parameter.numel()
    assert counts == {"stem": 125_056, **{name: count for name, (_, count) in BY_HAND.items()}}
    assert sum(counts.values()) == 10_270_240
    channels = 192
    for name, block in BLOCKS.items():
        channels = block.outputs(channels)
        assert channels == BY_HAND[name][0]


def published(classes: int = 10) -> dict[str, Tensor]:
    """Random weights in the published form: for BGR images, batch norms of shape [1, c], without batch counters."""
    draw = torch.Generator().manual_seed(0)
    state = {}
    for name, tensor in BNInception(num_classes=classes).state_dict().items():
        if not name.endswith("num_batches_tracked"):
            noise = 0.5 + torch.rand(tensor.shape, generator=draw)
            state[name] = noise[None] if "_bn." in name else tensor * noise
    return state


def naive(state: dict[str, Tensor], x: Tensor) -> Tensor:
    """The public definition, layer by layer, in float64."""
    p = {name: tensor.double() for name, tensor in state.items()}

    def conv(name: str, x: Tensor, stride: int = 1) -> Tensor:
        weight = p[f"{name}.weight"]
        x = F.conv2d(x, weight, p[f"{name}.bias"], stride, padding=weight.shape[-1] // 2)
        mean, var, scale, offset = (
            p[f"{name}_bn.{key}"].reshape(1, -1, 1, 1) for key in ("running_mean", "running_var", "weight", "bias")
        )
        return ((x - mean) / (var + 1e-5).sqrt() * scale + offset).clamp(min=0)

    x = F.max_pool2d(conv("conv1_7x7_s2", x, 2), 3, 2, ceil_mode=True)
    x = F.max_pool2d(conv("conv2_3x3", conv("conv2_3x3_reduce", x)), 3, 2, ceil_mode=True)
    for block in ("3a", "3b", "3c", "4a", "4b", "4c", "4d", "4e", "5a", "5b"):
        name, stride = f"inception_{block}", 2 if block in ("3c", "4e") else 1
        out = [conv(f"{name}_1x1", x)] if stride == 1 else []
        out.append(conv(f"{name}_3x3", conv(f"{name}_3x3_reduce", x), stride))
        double = conv(f"{name}_double_3x3_1", conv(f"{name}_double_3x3_reduce", x))
        out.append(conv(f"{name}_double_3x3_2", double, stride))
        if stride == 2:
            out.append(F.max_pool2d(x, 3, 2, ceil_mode=True))
        elif block == "5b":
            out.append(conv(f"{name}_pool_proj", F.max_pool2d(x, 3, 1, 1)))
        else:
            out.append(conv(f"{name}_pool_proj", F.avg_pool2d(x, 3, 1, 1, count_include_pad=True)))
        x = torch.cat(out, 1)
    return x.mean((2, 3)) @ p["last_linear.weight"].T + p["last_linear.bias"]


def test_converted_weights_see_rgb_as_the_published_ones_see_bgr() -> None:
    state = published()
    net = timm.create_model("bn_inception", num_classes=10).eval()
    net.load_state_dict(convert_caffe(state, "conv1_7x7_s2"))
    rgb = torch.randint(0, 256, (2, 3, 64, 96), generator=torch.Generator().manual_seed(1)).float()
    bgr = rgb[:, [2, 1, 0]].double() - torch.tensor([104.0, 117.0, 128.0]).double().reshape(1, 3, 1, 1)
    expected = naive(state, bgr)
    mean, std = (torch.tensor(constant, dtype=torch.float64).reshape(1, 3, 1, 1) for constant in (MEAN, STD))
    with torch.no_grad():
        got = net.double()((rgb.double() / 255 - mean) / std)
    # The batch norms' scales grow the scores from layer to layer.
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=0)
    assert net.pretrained_cfg["mean"] == MEAN
    assert net.pretrained_cfg["std"] == STD


@pytest.mark.parametrize(("h", "w"), [(6, 8), (5, 8), (7, 7), (1, 2)])
def test_maps_are_halved_by_windows_cut_at_the_border(h: int, w: int) -> None:
    x = torch.rand(1, 1, h, w, generator=torch.Generator().manual_seed(0))
    rows, columns = range(0, h, 2), range(0, w, 2)
    expected = [[x[0, 0, i : i + 3, j : j + 3].max() for j in columns] for i in rows]
    torch.testing.assert_close(_halve(x)[0, 0], torch.tensor(expected), rtol=0, atol=0)


def test_any_side_will_do() -> None:
    net = timm.create_model("bn_inception", num_classes=0).eval()
    for side, out in ((1, 1), (33, 2), (72, 3)):
        with torch.no_grad():
            assert net.forward_features(torch.rand(1, 3, side, side)).shape == (1, 1024, out, out)


def test_as_a_timm_model() -> None:
    net = timm.create_model("bn_inception", in_chans=1, num_classes=5, global_pool="max", norm_momentum=0.9).eval()
    assert {module.momentum for module in net.modules() if isinstance(module, nn.BatchNorm2d)} == {0.9}
    x = torch.rand(2, 1, 32, 64)
    with torch.no_grad():
        assert net(x).shape == (2, 5)
        maps = net.forward_features(x)
        torch.testing.assert_close(net.forward_head(maps, pre_logits=True), maps.amax((2, 3)))
        net.reset_classifier(0, "avg")
        torch.testing.assert_close(net(x), maps.mean((2, 3)))
        net.reset_classifier(0, "")
        assert net(x).shape == maps.shape == (2, 1024, 1, 2)
    assert isinstance(net.get_classifier(), nn.Identity)


def test_features_at_every_reduction() -> None:
    net = timm.create_model("bn_inception", features_only=True).eval()
    maps = net(torch.rand(1, 3, 64, 64))
    sides = zip(net.feature_info.channels(), net.feature_info.reduction(), strict=True)
    assert [tuple(m.shape) for m in maps] == [(1, c, 64 // r, 64 // r) for c, r in sides]

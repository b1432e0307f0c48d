"""GoogLeNet as a timm model: Inception v1 with batch norm and without auxiliary classifiers.

Szegedy et al. 2015, Going Deeper with Convolutions, table 1, in torchvision's form ("GN"): its module names, and 3 x 3
convolutions instead of the paper's 5 x 5. 5,599,904 parameters without the classifier.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn
from torch.nn.functional import relu

from zoo.models.backbones.pooling import global_pooling

BLOCKS = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
"""Output channels of the convolutions: 1 x 1; 3 x 3 reduced, 3 x 3; 5 x 5 reduced, 5 x 5; after pooling."""

POOLED = {"3b": 3, "4e": 2}
"""Blocks followed by max pooling with stride 2 -> side of the window."""


class GoogLeNet(nn.Module):
    """Network from images [n, in_chans, h, w], h and w at least 15, to pooled features [n, 1024] or class scores.

    Args:
        in_chans: Channels of the images.
        num_classes: Number of class scores; 0 for features.
        global_pool: Avg, max, avgmax (half of their sum), or "" for the feature maps.
        drop_rate: Dropout before the classifier.
    """

    def __init__(
        self, in_chans: int = 3, num_classes: int = 1000, global_pool: str = "avg", drop_rate: float = 0.0
    ) -> None:
        super().__init__()
        self.conv1 = Conv(in_chans, 64, 7, stride=2)
        self.maxpool1 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.conv2 = Conv(64, 64, 1)
        self.conv3 = Conv(64, 192, 3)
        self.maxpool2 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        channels = 192
        for name, widths in BLOCKS.items():
            self.add_module(f"inception{name}", block := Inception(channels, *widths))
            channels = block.outputs
            if name in POOLED:
                self.add_module(f"maxpool{name[0]}", nn.MaxPool2d(POOLED[name], stride=2, ceil_mode=True))
        self.num_features = self.head_hidden_size = channels
        self.global_pool = global_pooling(global_pool)
        self.head_drop = nn.Dropout(drop_rate)
        self.reset_classifier(num_classes)
        self.feature_info = [
            {"num_chs": 64, "reduction": 2, "module": "conv1"},
            {"num_chs": 192, "reduction": 4, "module": "conv3"},
            {"num_chs": 480, "reduction": 8, "module": "inception3b"},
            {"num_chs": 832, "reduction": 16, "module": "inception4e"},
            {"num_chs": 1024, "reduction": 32, "module": "inception5b"},
        ]

    def group_matcher(self, coarse: bool = False) -> dict[str, str]:
        """Return timm's description of the groups of parameters: the blocks of one size of map are one stage."""
        return {"stem": r"^conv", "blocks": r"^inception(\d)"}

    def get_classifier(self) -> nn.Module:
        return self.fc

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        self.num_classes = num_classes
        if global_pool is not None:
            self.global_pool = global_pooling(global_pool)
        self.fc: nn.Module = nn.Linear(self.num_features, num_classes) if num_classes > 0 else nn.Identity()

    def forward_features(self, x: Tensor) -> Tensor:
        x = self.maxpool1(self.conv1(x))
        x = self.maxpool2(self.conv3(self.conv2(x)))
        for name in BLOCKS:
            x = getattr(self, f"inception{name}")(x)
            if name in POOLED:
                x = getattr(self, f"maxpool{name[0]}")(x)
        return x

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = self.head_drop(self.global_pool(x))
        return x if pre_logits else self.fc(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


class Inception(nn.Module):
    """Inception block: four parallel branches, joined along the channels."""

    def __init__(
        self, inputs: int, single: int, three_reduce: int, three: int, five_reduce: int, five: int, pool_proj: int
    ) -> None:
        super().__init__()
        self.outputs = single + three + five + pool_proj
        self.branch1 = Conv(inputs, single, 1)
        self.branch2 = nn.Sequential(Conv(inputs, three_reduce, 1), Conv(three_reduce, three, 3))
        self.branch3 = nn.Sequential(Conv(inputs, five_reduce, 1), Conv(five_reduce, five, 3))
        self.branch4 = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), Conv(inputs, pool_proj, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], 1)


class Conv(nn.Module):
    """Convolution, batch norm and ReLU; the map keeps its size, or is halved with `stride` 2."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return relu(self.bn(self.conv(x)))


def convert_torchvision(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Remove the auxiliary classifiers, which torchvision's published weights never trained, from its state dict."""
    return {name: tensor for name, tensor in state.items() if not name.startswith(("aux1.", "aux2."))}


default_cfgs = generate_default_cfgs(
    {
        "googlenet": {
            "url": "",
            "input_size": (3, 224, 224),
            "num_classes": 1000,
            "pool_size": (7, 7),
            # The public weights expect -1..1: torchvision normalises by ImageNet's means, which its network undoes
            # (`transform_input`).
            "mean": (0.5, 0.5, 0.5),
            "std": (0.5, 0.5, 0.5),
            "interpolation": "bilinear",
            "crop_pct": 0.875,
            "first_conv": "conv1.conv",
            "classifier": "fc",
        }
    }
)


@register_model
def googlenet(pretrained: bool = False, **kwargs: Any) -> GoogLeNet:
    """Build `GoogLeNet` from its keyword arguments."""
    model: GoogLeNet = build_model_with_cfg(
        GoogLeNet, "googlenet", pretrained, feature_cfg={"feature_cls": "hook"}, **kwargs
    )
    return model

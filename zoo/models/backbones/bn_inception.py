"""BN-Inception as a timm model (Ioffe & Szegedy 2015, Batch Normalization, appendix).

The network of the public Caffe weights: convolutions have biases, and blocks 4c and 4d project the pooled maps to 128
channels (the paper: 96). 10,270,240 parameters without the classifier. The module names are those of the public state
dict, flat: `inception_3a_1x1` and `inception_3a_1x1_bn`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, max_pool2d, pad, relu

from zoo.models.backbones.caffe import MEAN, STD
from zoo.models.backbones.pooling import global_pooling


class Block(NamedTuple):
    """Output channels of the convolutions of an inception block.

    The branches are 1 x 1; 1 x 1 then 3 x 3; 1 x 1 then 3 x 3 twice; pooling then 1 x 1. A block with stride 2 has no
    first branch, and its pooled maps (the maxima) are not projected.
    """

    single: int
    three_reduce: int
    three: int
    double_reduce: int
    double: int
    pool: str
    pool_proj: int
    stride: int = 1

    def outputs(self, inputs: int) -> int:
        return self.single + self.three + self.double + (self.pool_proj or inputs)


BLOCKS = {
    "3a": Block(64, 64, 64, 64, 96, "avg", 32),
    "3b": Block(64, 64, 96, 64, 96, "avg", 64),
    "3c": Block(0, 128, 160, 64, 96, "max", 0, stride=2),
    "4a": Block(224, 64, 96, 96, 128, "avg", 128),
    "4b": Block(192, 96, 128, 96, 128, "avg", 128),
    "4c": Block(160, 128, 160, 128, 160, "avg", 128),
    "4d": Block(96, 128, 192, 160, 192, "avg", 128),
    "4e": Block(0, 128, 192, 192, 256, "max", 0, stride=2),
    "5a": Block(352, 192, 320, 160, 224, "avg", 128),
    "5b": Block(352, 192, 320, 192, 224, "max", 128),
}


class BNInception(nn.Module):
    """Network from images [n, in_chans, h, w], any h and w, to pooled features [n, 1024] or class scores.

    Args:
        in_chans: Channels of the images; the maps are 32 times smaller than they.
        num_classes: Number of class scores; 0 for features.
        global_pool: Avg, max, avgmax (half of their sum), or "" for the feature maps.
        drop_rate: Dropout before the classifier.
        norm_momentum: Weight of the newest batch in the running statistics. The published PyTorch definition has 0.9,
            which is Caffe's weight of the past and in PyTorch keeps little more than the last batch.
    """

    def __init__(
        self,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "avg",
        drop_rate: float = 0.0,
        norm_momentum: float = 0.1,
    ) -> None:
        super().__init__()
        self.norm_momentum = norm_momentum
        self._add("conv1_7x7_s2", in_chans, 64, 7, stride=2)
        self._add("conv2_3x3_reduce", 64, 64, 1)
        self._add("conv2_3x3", 64, 192, 3)
        channels = 192
        for name, block in BLOCKS.items():
            channels = self._add_block(f"inception_{name}", block, channels)
        self.num_features = self.head_hidden_size = channels
        self.global_pool = global_pooling(global_pool)
        self.head_drop = nn.Dropout(drop_rate)
        self.reset_classifier(num_classes)
        self.feature_info = [
            {"num_chs": 64, "reduction": 2, "module": "conv1_7x7_s2_bn"},
            {"num_chs": 192, "reduction": 4, "module": "conv2_3x3_bn"},
            {"num_chs": 320, "reduction": 8, "module": "inception_3b_output"},
            {"num_chs": 608, "reduction": 16, "module": "inception_4d_output"},
            {"num_chs": 1024, "reduction": 32, "module": "inception_5b_output"},
        ]

    def _add(self, name: str, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        self.add_module(name, nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2))
        self.add_module(f"{name}_bn", nn.BatchNorm2d(outputs, momentum=self.norm_momentum))

    def _add_block(self, name: str, block: Block, inputs: int) -> int:
        if block.single:
            self._add(f"{name}_1x1", inputs, block.single, 1)
        self._add(f"{name}_3x3_reduce", inputs, block.three_reduce, 1)
        self._add(f"{name}_3x3", block.three_reduce, block.three, 3, block.stride)
        self._add(f"{name}_double_3x3_reduce", inputs, block.double_reduce, 1)
        self._add(f"{name}_double_3x3_1", block.double_reduce, block.double, 3)
        self._add(f"{name}_double_3x3_2", block.double, block.double, 3, block.stride)
        if block.pool_proj:
            self._add(f"{name}_pool_proj", inputs, block.pool_proj, 1)
        # The identity gives hooks (`feature_info`) the joined branches.
        self.add_module(f"{name}_output", nn.Identity())
        return block.outputs(inputs)

    def group_matcher(self, coarse: bool = False) -> dict[str, str]:
        """Return timm's description of the groups of parameters: the blocks of one size of map are one stage."""
        return {"stem": r"^conv", "blocks": r"^inception_(\d)"}

    def get_classifier(self) -> nn.Module:
        return self.last_linear

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        self.num_classes = num_classes
        if global_pool is not None:
            self.global_pool = global_pooling(global_pool)
        self.last_linear: nn.Module = nn.Linear(self.num_features, num_classes) if num_classes > 0 else nn.Identity()

    def forward_features(self, x: Tensor) -> Tensor:
        x = _halve(self._conv("conv1_7x7_s2", x))
        x = _halve(self._conv("conv2_3x3", self._conv("conv2_3x3_reduce", x)))
        for name, block in BLOCKS.items():
            branches = torch.cat(list(self._branches(f"inception_{name}", block, x)), 1)
            x = getattr(self, f"inception_{name}_output")(branches)
        return x

    def _branches(self, name: str, block: Block, x: Tensor) -> Iterator[Tensor]:
        if block.single:
            yield self._conv(f"{name}_1x1", x)
        yield self._conv(f"{name}_3x3", self._conv(f"{name}_3x3_reduce", x))
        first = self._conv(f"{name}_double_3x3_1", self._conv(f"{name}_double_3x3_reduce", x))
        yield self._conv(f"{name}_double_3x3_2", first)
        if block.stride == 2:
            yield _halve(x)
        else:
            pool = avg_pool2d if block.pool == "avg" else max_pool2d
            yield self._conv(f"{name}_pool_proj", pool(x, 3, stride=1, padding=1))

    def _conv(self, name: str, x: Tensor) -> Tensor:
        return relu(getattr(self, f"{name}_bn")(getattr(self, name)(x)))

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = self.head_drop(self.global_pool(x))
        return x if pre_logits else self.last_linear(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


def _halve(x: Tensor) -> Tensor:
    """Max-pool 3 x 3 with stride 2 and windows cut at the lower and right border, as in Caffe."""
    h, w = x.shape[-2:]
    if h % 2 or w % 2:
        # An odd side gives one row less than a convolution with stride 2. Zeros do not change maxima after a ReLU.
        x = pad(x, (0, w % 2, 0, h % 2))
    return max_pool2d(x, 3, stride=2, ceil_mode=True)


default_cfgs = generate_default_cfgs(
    {
        "bn_inception": {
            "url": "",
            "input_size": (3, 224, 224),
            "num_classes": 1000,
            "pool_size": (7, 7),
            "mean": MEAN,
            "std": STD,
            "interpolation": "bilinear",
            "crop_pct": 0.875,
            "first_conv": "conv1_7x7_s2",
            "classifier": "last_linear",
        }
    }
)


@register_model
def bn_inception(pretrained: bool = False, **kwargs: Any) -> BNInception:
    """Build `BNInception` from its keyword arguments."""
    model: BNInception = build_model_with_cfg(
        BNInception, "bn_inception", pretrained, feature_cfg={"feature_cls": "hook"}, **kwargs
    )
    return model

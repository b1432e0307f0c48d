"""conv4 as a timm model: four blocks of 3 x 3 convolution, batch norm, ReLU and 2 x 2 max pooling.

The small network of the few-shot literature (Vinyals et al. 2016, Matching Networks, section 4.1); `widths` are free.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn

from zoo.models.backbones.pooling import global_pooling


class Conv4(nn.Module):
    """Network from images [n, in_chans, h, w] to pooled features [n, widths[-1]], or to class scores.

    Args:
        in_chans: Channels of the images; h and w are at least 16, or 8 with `last_pool=False`.
        num_classes: Number of class scores; 0 for features.
        widths: Channels of the four blocks.
        global_pool: Avg, max, avgmax (half of their sum), or "" for the feature map.
        drop_rate: Dropout before the classifier.
        last_pool: False leaves out the fourth max pooling.
    """

    def __init__(
        self,
        in_chans: int = 1,
        num_classes: int = 0,
        widths: Sequence[int] = (64, 64, 64, 64),
        global_pool: str = "avg",
        drop_rate: float = 0.0,
        last_pool: bool = True,
    ) -> None:
        super().__init__()
        self.num_features = self.head_hidden_size = widths[-1]
        self.global_pool = global_pooling(global_pool)
        channels = [in_chans, *widths]
        self.blocks = nn.Sequential(*(_block(a, b, last_pool or i < 3) for i, (a, b) in enumerate(pairwise(channels))))
        self.head_drop = nn.Dropout(drop_rate)
        self.reset_classifier(num_classes)
        self.feature_info = [
            {"num_chs": width, "reduction": 2 ** (i + (last_pool or i < 3)), "module": f"blocks.{i}"}
            for i, width in enumerate(widths)
        ]

    def group_matcher(self, coarse: bool = False) -> dict[str, str]:
        """Return timm's description of the groups of parameters: each block is one."""
        return {"blocks": r"^blocks\.(\d+)"}

    def get_classifier(self) -> nn.Module:
        return self.fc

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        self.num_classes = num_classes
        if global_pool is not None:
            self.global_pool = global_pooling(global_pool)
        self.fc: nn.Module = nn.Linear(self.num_features, num_classes) if num_classes > 0 else nn.Identity()

    def forward_features(self, x: Tensor) -> Tensor:
        maps: Tensor = self.blocks(x)
        return maps

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = self.head_drop(self.global_pool(x))
        return x if pre_logits else self.fc(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


def _block(inputs: int, outputs: int, pool: bool) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)]
    return nn.Sequential(*layers, nn.ReLU(True), *([nn.MaxPool2d(2)] if pool else []))


default_cfgs = generate_default_cfgs(
    {
        "conv4": {
            "url": "",
            "input_size": (1, 28, 28),
            "num_classes": 0,
            "mean": (0.5,),
            "std": (0.5,),
            "interpolation": "bilinear",
            "crop_pct": 1.0,
            "first_conv": "blocks.0.0",
            "classifier": "fc",
        }
    }
)


@register_model
def conv4(pretrained: bool = False, **kwargs: Any) -> Conv4:
    """Build `Conv4` from its keyword arguments."""
    model: Conv4 = build_model_with_cfg(Conv4, "conv4", pretrained, **kwargs)
    return model

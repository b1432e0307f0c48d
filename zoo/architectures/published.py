"""Backbones whose public weights are PyTorch files outside the Hub: which file, and how its state dict becomes ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from zoo.architectures.caffe import from_caffe
from zoo.architectures.googlenet import from_torchvision


@dataclass(frozen=True)
class Published:
    """A public file. sha256: a prefix, the digits that its name ends with; its publishers state no more of it."""

    url: str
    sha256: str
    convert: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]

    @property
    def file(self) -> str:
        return self.url.rpartition("/")[2]


def _bn_inception(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return from_caffe(state, first_conv="conv1_7x7_s2")


PUBLISHED = {
    "bn_inception": Published(
        "http://data.lip6.fr/cadene/pretrainedmodels/bn_inception-52deb4733.pth", "52deb4733", _bn_inception
    ),
    "googlenet": Published("https://download.pytorch.org/models/googlenet-1378be20.pth", "1378be20", from_torchvision),
}

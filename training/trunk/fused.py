"""Fused batch norms: a convolution applies the frozen batch norm behind it, so that a step passes over fewer maps."""

from __future__ import annotations

from types import MethodType

import torch
from timm.layers.conv2d_same import Conv2dSame
from timm.layers.norm_act import BatchNormAct2d
from timm.layers.padding import pad_same
from torch import Tensor, nn

from zoo.data.preprocessing import Preprocessing

CONVOLUTIONS = (nn.Conv2d, Conv2dSame)
NORMS = (nn.BatchNorm2d, BatchNormAct2d)


def fuse_frozen_norms(trunk: nn.Module, preprocessing: Preprocessing) -> int:
    """Let convolutions apply the batch norms that follow them, where these use their running statistics in training.

    Parameters, their names and gradients do not change: the weights are scaled in every pass. A norm that learns
    behind a convolution that does not is left alone, because cached maps may end between the two.

    Args:
        trunk: The trunk, as it will be trained. A copy of it is fused, too.
        preprocessing: That of its images, for their size.

    Returns:
        The number of fused norms: 0 if the trunk would then compute something else.
    """
    if not any(_is_frozen(module) for module in trunk.modules()):
        return 0
    channels, crop, device = preprocessing.channels, preprocessing.crop, next(trunk.parameters()).device
    image = torch.linspace(-1, 1, channels * crop * crop, device=device).reshape(1, channels, crop, crop)
    training = trunk.training
    trunk.eval()
    with torch.no_grad():
        pairs, features = _pairs(trunk, image)
        for convolution, norm in pairs:
            # A tuple hides the norm from `modules()`; bound methods are copied together with their modules.
            convolution.fused = (norm,)  # type: ignore[assignment]
            convolution.forward = MethodType(_convolve, convolution)  # type: ignore[method-assign]
            norm.forward = MethodType(_activate, norm)  # type: ignore[method-assign]
        if not torch.allclose(trunk(image), features, 1e-3, 1e-4):
            for convolution, norm in pairs:
                del convolution.fused, convolution.forward, norm.forward
            pairs = []
    trunk.train(training)
    return len(pairs)


def _is_frozen(module: nn.Module) -> bool:
    """Return whether a module is a batch norm that stays in evaluation mode (`training.optim.freeze_statistics`)."""
    return type(module) in NORMS and "train" in module.__dict__ and module.weight is not None


def _pairs(trunk: nn.Module, image: Tensor) -> tuple[list[tuple[nn.Conv2d, nn.BatchNorm2d]], Tensor]:
    """Return each convolution with the frozen norm that takes its output, and the features of an image."""
    outputs: dict[int, tuple[nn.Conv2d, Tensor]] = {}
    pairs: list[tuple[nn.Conv2d, nn.BatchNorm2d]] = []

    def keep(module: nn.Conv2d, _: object, output: Tensor) -> None:
        outputs[id(output)] = module, output

    def match(module: nn.BatchNorm2d, inputs: tuple[Tensor, ...]) -> None:
        convolution, output = outputs.get(id(inputs[0]), (None, None))
        if convolution is None or output is not inputs[0]:
            return
        if convolution.weight.requires_grad or not module.weight.requires_grad:
            pairs.append((convolution, module))

    hooks = []
    for module in trunk.modules():
        if type(module) in CONVOLUTIONS:
            hooks.append(module.register_forward_hook(keep))
        elif _is_frozen(module):
            hooks.append(module.register_forward_pre_hook(match))
    try:
        features = trunk(image)
    finally:
        for hook in hooks:
            hook.remove()
    return pairs, features


def _convolve(convolution: nn.Conv2d, maps: Tensor) -> Tensor:
    """Replace `forward` of a convolution: convolution and norm in one pass."""
    (norm,) = convolution.fused  # type: ignore[misc]
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    bias = norm.bias - norm.running_mean * scale
    if convolution.bias is not None:
        bias = bias + convolution.bias * scale
    if isinstance(convolution, Conv2dSame):
        maps = pad_same(maps, list(convolution.kernel_size), list(convolution.stride), list(convolution.dilation))
    return convolution._conv_forward(maps, convolution.weight * scale[:, None, None, None], bias)


def _activate(norm: nn.BatchNorm2d, maps: Tensor) -> Tensor:
    """Replace `forward` of a norm whose convolution applies it: only the activation is left."""
    if isinstance(norm, BatchNormAct2d):
        activated: Tensor = norm.act(norm.drop(maps))
        return activated
    return maps

"""Minibatches of small random images for tests of methods, as the training loop passes them in one process."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from training.build import MethodContext, create_method
from training.methods.base import Method, Minibatch
from training.recipe import Objective
from zoo.models.card import Head
from zoo.models.network import create_heads

FEATURES = 12


def trunk(seed: int = 0) -> nn.Module:
    """Images [n, 3, 4, 4] to features [n, FEATURES]: smooth, without batch norm."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.Tanh(), nn.Linear(16, FEATURES))


def minibatch(
    net: nn.Module, labels: Sequence[int], samples: Sequence[int] | None = None, task: str = "main", epoch: int = 0
) -> Minibatch:
    """Random images with these labels; another view is the same images with a little noise."""
    images = torch.randn(len(labels), 3, 4, 4)

    def forward(images: Tensor, other: nn.Module | None) -> Tensor:
        features: Tensor = (other or net)(images)
        return features

    return Minibatch(
        torch.tensor(labels),
        torch.arange(len(labels)) if samples is None else torch.tensor(samples),
        images,
        forward,
        lambda: images + 0.1 * torch.randn_like(images),
        task,
        epoch,
    )


def method(
    objective: Objective, labels: Sequence[int], dims: dict[str, int], net: nn.Module | None = None, seed: int = 0
) -> Method:
    """The objective's method for training samples of these labels, with heads of these dims on the toy trunk."""
    net = net or trunk(seed)
    heads = create_heads([Head(name, dim) for name, dim in dims.items()], FEATURES)
    setting = MethodContext(net, heads, FEATURES, np.array(labels), max(labels) + 1, batch_size=8, seed=seed)
    return create_method(objective, setting)

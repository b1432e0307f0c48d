"""Auxiliary tasks on the toy trunk, each with its own head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.training.methods.batches import FEATURES, trunk
from training.losses.margin import Margin
from training.methods.auxiliary import AUXILIARY, Auxiliary
from training.methods.base import Minibatch
from training.registry import construct

DIM, SAMPLES, BATCH = 6, 8, 4


class Toy:
    """A trunk, a head and its task, for eight training samples in batches of four."""

    def __init__(self, name: str, seed: int = 0, **args: Any) -> None:
        self.trunk = trunk(seed)
        self.head = nn.Linear(FEATURES, DIM)
        self.pixels = torch.randn(SAMPLES, 3, 4, 4, generator=torch.Generator().manual_seed(1))
        offered = {"trunk": self.trunk, "head": self.head, "dim": DIM, "create_loss": lambda dim: Margin(4)}
        offered |= {"classes": 4, "samples": SAMPLES, "batch_size": BATCH, "seed": seed}
        self.task: Auxiliary = construct(AUXILIARY, "auxiliary task", name, args, offered)

    def loss(self, batch: Minibatch) -> Tensor:
        return self.task.loss(self.head(batch.features), batch)

    @torch.no_grad()
    def observe(self) -> Tensor:
        features: Tensor = self.trunk(self.pixels)
        return features

    def step(self, batch: Minibatch, lr: float = 0.1) -> None:
        """One step downhill of trunk, head and task."""
        parameters = [p for m in (self.trunk, self.head, self.task) for p in m.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(self.loss(batch), parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= lr * gradient
        self.task.end_step(batch)

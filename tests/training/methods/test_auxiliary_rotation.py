"""Rotation prediction: the quarter turns by hand, and the loss against a loop."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.training.methods.batches import minibatch
from tests.training.methods.heads import Toy


def test_the_loss_against_a_loop() -> None:
    toy = Toy("rotation")
    batch = minibatch(toy.trunk, [0, 1, 2])
    terms = []
    for image in batch.images.numpy():
        for turn in range(4):
            turned = torch.from_numpy(np.rot90(image, turn, axes=(1, 2)).copy())[None]
            with torch.no_grad():
                logits = toy.task.classifier(toy.head(toy.trunk(turned)))[0].double().numpy()
            terms.append(-math.log(math.exp(logits[turn]) / sum(math.exp(logit) for logit in logits)))
    assert toy.loss(batch).item() == pytest.approx(sum(terms) / 12, rel=1e-5)


def test_the_task_learns_the_rotation() -> None:
    toy = Toy("rotation")
    images = torch.randn(8, 3, 4, 4, generator=torch.Generator().manual_seed(0)) / 4
    images[:, :, 0] += 1  # bright at the top
    for _ in range(40):
        batch = minibatch(toy.trunk, [0] * 8)
        batch.images[:] = images
        toy.step(batch, lr=1.0)
    assert toy.loss(batch).item() < 0.5  # log 4 by guessing

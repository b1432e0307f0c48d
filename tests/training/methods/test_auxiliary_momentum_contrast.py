"""Momentum contrast: the queue by hand, the network of the keys, and the loss against a loop."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from tests.training.methods.batches import minibatch
from tests.training.methods.heads import BATCH, DIM, SAMPLES, Toy

LABELS = [0, 0, 1, 1]


def keys_of(value: float, n: int = BATCH) -> torch.Tensor:
    return torch.full((n, DIM), float(value))


def test_the_queue_keeps_the_latest_in_order_and_wraps_around() -> None:
    toy = Toy("dance", queue_batches=2)
    for value, n in ((1, 4), (2, 3), (3, 3)):
        toy.task._enqueue(keys_of(value, n))
    assert toy.task.queue[:, 0].tolist() == [3, 3, 1, 1, 2, 2, 2, 3]
    assert toy.task.pointer.item() == 2
    toy.task._enqueue(keys_of(4, 4))
    assert toy.task.queue[:, 0].tolist() == [3, 3, 4, 4, 4, 4, 2, 3]
    assert toy.task.pointer.item() == 6


@pytest.mark.parametrize("queue_batches", [1, 5])
def test_the_queue_starts_with_keys_of_the_training_samples(queue_batches: int) -> None:
    toy = Toy("dance", queue_batches=queue_batches)
    toy.task.start_epoch(0, toy.observe)
    every = normalize(toy.head(toy.observe()), dim=1)
    nearest = torch.cdist(toy.task.queue, every).min(1)
    assert nearest.values.max() < 1e-3
    counts = torch.bincount(nearest.indices, minlength=SAMPLES)
    assert counts.max() - counts.min() <= 1  # each about as often
    filled = toy.task.queue.clone()
    again = Toy("dance", queue_batches=queue_batches)
    again.task.start_epoch(0, again.observe)
    assert torch.equal(again.task.queue, filled)
    toy.task.start_epoch(1, toy.observe)
    assert torch.equal(toy.task.queue, filled)


def test_keys_of_another_view_by_the_slow_network_join_the_queue_after_the_step() -> None:
    toy = Toy("dance", queue_batches=2)
    toy.task.start_epoch(0, toy.observe)
    with torch.no_grad():
        for live in (toy.trunk, toy.head):
            for parameter in live.parameters():
                parameter += 0.1
    before = toy.task.queue.clone()
    batch = minibatch(toy.trunk, LABELS)
    torch.manual_seed(3)
    toy.loss(batch).backward()
    assert torch.equal(toy.task.queue, before)
    torch.manual_seed(3)
    keys = normalize(toy.task.head.average(toy.task.trunk.average(batch.another_view())), dim=1)
    toy.task.end_step(batch)
    assert torch.allclose(toy.task.queue, torch.cat([keys, before[BATCH:]]))


@pytest.mark.parametrize("name", ["dance", "nce"])
def test_the_loss_against_a_loop(name: str) -> None:
    toy = Toy(name, queue_batches=2, temperature=0.1)
    toy.task.start_epoch(0, toy.observe)
    batch = minibatch(toy.trunk, LABELS)
    torch.manual_seed(3)
    value = toy.loss(batch).item()
    torch.manual_seed(3)
    with torch.no_grad():
        q = normalize(toy.head(batch.features), dim=1).double().numpy()
        k = normalize(toy.head(toy.trunk(batch.another_view())), dim=1).double().numpy()
    n = toy.task.queue.double().numpy()
    terms = []
    for i in range(BATCH):
        d = np.maximum(0.5, np.sqrt(np.maximum(0, 2 - 2 * n @ q[i])))
        weights = d ** (2 - DIM) * (1 - d**2 / 4) ** ((3 - DIM) / 2)
        assert (d <= 1.4).any()
        weights[d > 1.4] = 0
        weights = weights / weights.max() if name == "dance" else np.ones(len(n))
        terms.append(math.log(np.exp(weights * (n @ q[i]) / 0.1).sum()) - k[i] @ q[i] / 0.1)
    assert value == pytest.approx(float(np.mean(terms)), rel=1e-4)

"""Instance discrimination against a loop, and its bank by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import normalize

from tests.training.methods.batches import minibatch
from tests.training.methods.heads import SAMPLES, Toy


def test_the_loss_against_a_loop() -> None:
    toy = Toy("instance")
    samples = [5, 0, 7]
    batch = minibatch(toy.trunk, [0, 0, 1], samples)
    f = normalize(toy.head(batch.features), dim=1).detach().double().numpy()
    v = toy.task.bank.double().numpy()
    assert toy.task.bank.norm(dim=1).tolist() == pytest.approx([1] * SAMPLES)
    terms = []
    for row, i in zip(f, samples, strict=True):
        every = sum(math.exp(v[j] @ row / 0.07) for j in range(SAMPLES))
        terms.append(-math.log(math.exp(v[i] @ row / 0.07) / every))
    assert toy.loss(batch).item() == pytest.approx(sum(terms) / 3, rel=1e-5)


def test_the_vector_of_a_sample_moves_half_way() -> None:
    toy = Toy("instance")
    bank = toy.task.bank.clone()
    batch = minibatch(toy.trunk, [0, 0, 1, 1], [5, 0, 5, 7])
    f = normalize(toy.head(batch.features), dim=1).detach()
    toy.loss(batch).backward()
    toy.task.end_step(batch)
    for sample, row in ((5, 0), (0, 1), (7, 3)):  # of a sample that is drawn twice the first counts
        assert torch.allclose(toy.task.bank[sample], normalize(bank[sample] / 2 + f[row] / 2, dim=0), atol=1e-6)
    rest = [1, 2, 3, 4, 6]
    assert torch.equal(toy.task.bank[rest], bank[rest])

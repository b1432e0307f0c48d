"""CosFace against loops and pytorch-metric-learning."""

from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning import losses

from tests.training.losses.batches import DIM, LABELS, batch, mean, unit
from training.losses.cosface import CosFaceLoss


@pytest.mark.parametrize("seed", range(3))
def test_equals_the_loop_and_pytorch_metric_learning(seed: int) -> None:
    embeddings, y = batch(seed, LABELS)
    torch.manual_seed(seed)
    loss = CosFaceLoss(4, DIM, scale=10, margin=0.2).double()
    terms = []
    for row, label in zip(embeddings.numpy() @ unit(loss.centres.detach().numpy()).T, LABELS, strict=True):
        own = math.exp(10 * (row[label] - 0.2))
        terms.append(-math.log(own / (own + sum(math.exp(10 * c) for j, c in enumerate(row) if j != label))))
    assert loss(embeddings, y).item() == pytest.approx(mean(terms), abs=1e-12)
    reference = losses.CosFaceLoss(4, DIM, margin=0.2, scale=10)
    reference.W.data = loss.centres.data.T
    assert loss(embeddings, y).item() == pytest.approx(reference(embeddings, y).item(), abs=1e-9)

"""Normalised softmax against loops and pytorch-metric-learning."""

from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning import losses

from tests.training.losses.batches import DIM, LABELS, batch, mean, unit
from training.losses.norm_softmax import NormalizedSoftmaxLoss


@pytest.mark.parametrize("seed", range(3))
def test_equals_the_loop_and_pytorch_metric_learning(seed: int) -> None:
    embeddings, y = batch(seed, LABELS)
    torch.manual_seed(seed)
    loss = NormalizedSoftmaxLoss(4, DIM, temperature=0.1).double()
    rows = embeddings.numpy() @ unit(loss.centres.detach().numpy()).T / 0.1
    terms = [-math.log(math.exp(row[y]) / sum(math.exp(x) for x in row)) for row, y in zip(rows, LABELS, strict=True)]
    assert loss(embeddings, y).item() == pytest.approx(mean(terms), abs=1e-12)
    reference = losses.NormalizedSoftmaxLoss(4, DIM, temperature=0.1)
    reference.W.data = loss.centres.data.T
    assert loss(embeddings, y).item() == pytest.approx(reference(embeddings, y).item(), abs=1e-9)

"""Proxy-Anchor loss against loops and pytorch-metric-learning."""

from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning import losses

from tests.training.losses.batches import DIM, LABELS, batch, mean, unit
from training.losses.proxy_anchor import ProxyAnchorLoss


@pytest.mark.parametrize("seed", range(3))
def test_equals_the_loop_and_pytorch_metric_learning(seed: int) -> None:
    embeddings, y = batch(seed, LABELS)
    torch.manual_seed(seed)
    loss = ProxyAnchorLoss(6, DIM, alpha=12, margin=0.2).double()
    s = embeddings.numpy() @ unit(loss.proxies.detach().numpy()).T
    pulled, pushed = [], []
    for p in range(6):
        own = [row[p] for row, label in zip(s, LABELS, strict=True) if label == p]
        others = [row[p] for row, label in zip(s, LABELS, strict=True) if label != p]
        if own:
            pulled.append(math.log(1 + sum(math.exp(-12 * (v - 0.2)) for v in own)))
        pushed.append(math.log(1 + sum(math.exp(12 * (v + 0.2)) for v in others)))
    assert loss(embeddings, y).item() == pytest.approx(mean(pulled) + mean(pushed), abs=1e-12)
    reference = losses.ProxyAnchorLoss(6, DIM, margin=0.2, alpha=12)
    reference.proxies.data = loss.proxies.data
    assert loss(embeddings, y).item() == pytest.approx(reference(embeddings, y).item(), abs=1e-9)

"""ArcFace against loops and pytorch-metric-learning."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from pytorch_metric_learning import losses
from torch.nn.functional import cross_entropy

from tests.training.losses.batches import DIM, LABELS, batch, create, mean, unit
from training.losses.arcface import add_angle


def naive(cosines: np.ndarray, labels: list[int], scale: float, margin: float) -> float:
    terms = []
    for row, y in zip(cosines, labels, strict=True):
        theta = math.acos(row[y])
        target = math.cos(theta + margin) if theta + margin <= math.pi else row[y] - margin * math.sin(margin)
        others = sum(math.exp(scale * c) for j, c in enumerate(row) if j != y)
        terms.append(-math.log(math.exp(scale * target) / (math.exp(scale * target) + others)))
    return mean(terms)


@pytest.mark.parametrize("clamped", [False, True])
@pytest.mark.parametrize("margin", [0.5, 2.0])
@pytest.mark.parametrize("seed", range(3))
def test_equals_the_loop_and_pytorch_metric_learning(seed: int, margin: float, clamped: bool) -> None:
    embeddings, y = batch(seed, LABELS)
    torch.manual_seed(seed)
    loss = create("arcface", margin=math.degrees(margin), clamped=clamped)
    cosines = embeddings.numpy() @ unit(loss.centres.detach().numpy()).T
    expected = naive(cosines.clip(0) if clamped else cosines, LABELS, 16, margin)
    assert loss(embeddings, y).item() == pytest.approx(expected, abs=1e-12)
    if not clamped:
        reference = losses.ArcFaceLoss(4, DIM, margin=math.degrees(margin), scale=16)
        reference.W.data = loss.centres.data.T
        assert loss(embeddings, y).item() == pytest.approx(reference(embeddings, y).item(), abs=1e-9)


def test_the_target_falls_all_the_way_to_pi() -> None:
    theta = torch.linspace(0.001, math.pi - 0.001, 1000, dtype=torch.float64)
    assert (add_angle(theta.cos(), 0.5).diff() < 0).all()


def test_the_margin_changes_the_loss() -> None:
    embeddings, y = batch(0, LABELS)
    torch.manual_seed(0)
    loss = create("arcface")
    plain = create("arcface", margin=0.0)
    plain.centres.data = loss.centres.data
    assert loss(embeddings, y) > plain(embeddings, y) + 1
    # The published code shifts the logits of all classes by the target's change, which cross entropy does not see.
    cosines = embeddings @ torch.nn.functional.normalize(loss.centres, dim=1).T
    own = cosines.gather(1, y[:, None])
    published = cross_entropy(16 * (cosines + add_angle(own, 0.5) - own), y)
    assert published.item() == pytest.approx(plain(embeddings, y).item(), abs=1e-9)

"""Deep clustering: pseudo-labels of well separated features, and the loss against a loop."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn.metrics import normalized_mutual_info_score

from tests.training.methods.batches import FEATURES, minibatch
from tests.training.methods.heads import SAMPLES, Toy

GROUPS = torch.arange(SAMPLES) % 3


def grouped() -> torch.Tensor:
    centres = 10 * torch.eye(FEATURES)[:3]
    return centres[GROUPS] + 0.1 * torch.randn(SAMPLES, FEATURES, generator=torch.Generator().manual_seed(0))


def test_pseudo_labels_are_the_clusters() -> None:
    toy = Toy("deepcluster", clusters=3)
    toy.task.start_epoch(0, grouped)
    assert toy.task.pseudo_labels.dtype == torch.int64
    assert normalized_mutual_info_score(GROUPS, toy.task.pseudo_labels) == pytest.approx(1)


def test_clusters_and_classifier_are_renewed_every_few_epochs() -> None:
    toy = Toy("deepcluster", clusters=3, every=2)
    weights = []
    for epoch in range(4):
        toy.task.start_epoch(epoch, grouped)
        weights.append(toy.task.classifier.weight.clone())
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[2], weights[3])
    assert not torch.equal(weights[1], weights[2])


def test_the_loss_against_a_loop() -> None:
    toy = Toy("deepcluster", clusters=3)
    toy.task.start_epoch(0, grouped)
    samples = [6, 2, 4]
    batch = minibatch(toy.trunk, [0, 0, 0], samples)
    with torch.no_grad():
        logits = toy.task.classifier(toy.head(batch.features)).double().numpy()
    labels = [int(toy.task.pseudo_labels[sample]) for sample in samples]
    terms = [
        -math.log(math.exp(row[label]) / sum(math.exp(x) for x in row))
        for row, label in zip(logits, labels, strict=True)
    ]
    assert toy.loss(batch).item() == pytest.approx(sum(terms) / 3, rel=1e-5)

"""Recall@k surrogate against loops and hand calculation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.raising import raises
from tests.training.losses.batches import LABELS, batch, mean, positives
from training.losses import recall_at_k
from training.losses.recall_at_k import RecallAtKLoss
from zoo.errors import RecipeError


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def naive(s: np.ndarray, ks: tuple[int, ...], warm: tuple[float, ...], rank_temperature: float) -> float:
    recalls = []
    for q in range(len(LABELS)):
        own = positives(LABELS, q)
        ranks = [
            1 + sum(sigmoid((s[q, z] - s[q, x]) / rank_temperature) for z in range(len(LABELS)) if z not in (q, x))
            for x in own
        ]
        for k, temperature in zip(ks, warm, strict=True):
            if own:
                result = min(k, sum(sigmoid((k - rank) / temperature) for rank in ranks))
                recalls.append(result / min(k, len(own)))
    return 1 - mean(recalls)


@pytest.mark.parametrize("seed", range(3))
def test_equals_the_loop(seed: int) -> None:
    embeddings, y = batch(seed, LABELS)
    s = embeddings.numpy() @ embeddings.numpy().T
    actual = RecallAtKLoss((1, 2, 4), rank_temperature=0.1)(embeddings, y)
    assert actual.item() == pytest.approx(naive(s, (1, 2, 4), (1, 1, 1), 0.1), abs=1e-12)
    # The authors' code: the recall temperature is k.
    actual = RecallAtKLoss((1, 2, 4), (1, 2, 4), 0.05)(embeddings, y)
    assert actual.item() == pytest.approx(naive(s, (1, 2, 4), (1, 2, 4), 0.05), abs=1e-12)


def test_chunks_do_not_change_value_and_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for chunk in (2**20, 30, 1):
        monkeypatch.setattr(recall_at_k, "CHUNK", chunk)
        embeddings, y = batch(3, LABELS)
        embeddings.requires_grad_()
        value = RecallAtKLoss()(embeddings, y)
        results.append((value, *torch.autograd.grad(value, embeddings)))
    for value, gradient in results[1:]:
        assert value.item() == pytest.approx(results[0][0].item(), abs=1e-14)
        assert torch.allclose(gradient, results[0][1], atol=1e-14)


def test_the_query_does_not_compete_with_its_positives() -> None:
    # Two classes, each at one end of the line: the only positive of every query has rank 1, so its recall at 1 is
    # sigmoid(0). In the authors' code the query itself comes first and leaves sigmoid(-1).
    rows = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]])
    assert RecallAtKLoss(k=(1,))(rows, torch.tensor([0, 0, 1, 1])).item() == pytest.approx(0.5, abs=1e-6)


def test_each_k_has_its_temperature() -> None:
    with raises(RecipeError, "invalid-value"):
        RecallAtKLoss(k=(1, 2, 4), recall_temperature=(1, 2))

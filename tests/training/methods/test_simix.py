"""SiMix against similarities that are mixed one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from tests.raising import raises
from tests.training.losses.test_smooth_ap import naive
from tests.training.methods.batches import method, minibatch, trunk
from training.methods.simix import positive_pairs
from training.recipe import Objective
from zoo.errors import RecipeError

LABELS = [0, 1, 0, 0, 1, 2]
PAIRS = [(0, 2), (0, 3), (1, 4), (2, 3)]
"""All positive pairs of these labels."""


def simix(loss: str = "smoothap", **heads: int) -> Objective:
    return Objective(loss, loss_args={"temperature": 0.2} if loss == "smoothap" else {}, method="simix")


@pytest.mark.parametrize("seed", range(3))
def test_equals_the_loss_of_mixed_similarities(seed: int) -> None:
    """The matrix of the paper's equation, mixed from the batch's similarities alone, through the loop of Smooth-AP."""
    net = trunk()
    built = method(simix(), LABELS, {"embedding": 5}, net)
    batch = minibatch(net, LABELS)
    torch.manual_seed(seed)
    shares = torch.rand(len(PAIRS), 1).double().numpy()[:, 0]
    torch.manual_seed(seed)
    value = built.loss(batch)["loss"]
    rows = normalize(built.heads["embedding"](batch.features), dim=1).detach().double().numpy()
    # Each sample, real or virtual, as its shares of the real ones.
    parts = [{i: 1.0} for i in range(6)] + [{x: a, z: 1 - a} for (x, z), a in zip(PAIRS, shares, strict=True)]
    s = np.array(
        [[sum(a * b * (rows[i] @ rows[j]) for i, a in v.items() for j, b in w.items()) for w in parts] for v in parts]
    )
    labels = LABELS + [LABELS[x] for x, _ in PAIRS]
    assert value.item() == pytest.approx(naive(s, labels, 0.2), abs=1e-5)
    value.backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in net.parameters())


def test_every_positive_pair_counts_once() -> None:
    first, second = positive_pairs(torch.tensor(LABELS))
    assert list(zip(first.tolist(), second.tolist(), strict=True)) == PAIRS
    assert len(positive_pairs(torch.tensor([0, 1, 2]))[0]) == 0


def test_a_batch_without_pairs_is_that_of_the_plain_method() -> None:
    net, labels = trunk(), [0, 1, 2, 3]
    batch = minibatch(net, labels)
    plain = method(Objective("recall"), labels, {"embedding": 5}, net)
    assert method(simix("recall"), labels, {"embedding": 5}, net).loss(batch) == plain.loss(batch)


def test_losses_of_raw_embeddings_and_several_heads_are_refused() -> None:
    with raises(RecipeError, "conflicting-settings"):
        method(simix("npair"), LABELS, {"embedding": 5})
    with raises(RecipeError, "conflicting-settings"):
        method(simix(), LABELS, {"a": 5, "b": 5})

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.training.miners.batches import LABELS, rows
from training.functional import Pairs, Triplets
from training.losses.contrastive import ContrastiveLoss
from training.losses.margin import MarginLoss
from training.losses.triplet import TripletMarginLoss
from training.miners import MINERS, create_miner
from training.miners.hard import BatchHardMiner
from training.miners.multi_similarity import MultiSimilarityMiner
from training.miners.rho import RhoMiner

EMBEDDINGS, Y = rows(len(LABELS)), torch.tensor(LABELS)


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("probability", [0.15, 0.35, 0.4])
def test_the_rate_of_exchange_and_its_form(probability: float, published: bool) -> None:
    torch.manual_seed(0)
    embeddings, y = rows(400), torch.arange(400) % 80
    a, p, n = BatchHardMiner()(embeddings, y)
    miner, exchanged, times = RhoMiner(probability, BatchHardMiner(), published), 0, 20
    for _ in range(times):
        anchors, positives, negatives = miner(embeddings, y)
        swapped = y[anchors] == y[negatives]
        assert torch.equal(anchors, a)
        assert torch.equal(negatives, torch.where(swapped, p, n))
        assert torch.equal(positives, torch.where(swapped, a, p) if published else p)
        exchanged += int(swapped.sum())
    tuples = times * len(a)
    assert tuples > 7000
    assert exchanged / tuples == pytest.approx(probability, abs=5 * (probability * (1 - probability) / tuples) ** 0.5)


LINE = torch.tensor([[1.0, 0.0], [0.8, 0.6], [-1.0, 0.0]])
"""An anchor, its positive at a distance of sqrt(.4) = .632, and a negative."""


@pytest.mark.parametrize(
    ("loss", "published", "moves"),
    [
        # (a, p, p) is [d - d + .2] = .2, a constant; (a, a, p) is [0 - d^2 + .2], which needs d < .447.
        (TripletMarginLoss(0.2, squared=True), False, False),
        (TripletMarginLoss(0.2, squared=True), True, False),
        (TripletMarginLoss(0.5, squared=True), True, True),
        (TripletMarginLoss(0.5), True, False),
        # (a, p, p) is [d - 1.2 + .2] + [1.2 - d + .2], of which the second pushes; (a, a, p) has the same push alone.
        (MarginLoss(), False, True),
        (MarginLoss(), True, True),
        # (a, p, p) is d + [1 - d], a constant below 1.
        (ContrastiveLoss(), False, False),
        (ContrastiveLoss(), True, True),
    ],
)
def test_which_form_pushes_the_positive_away(loss: nn.Module, published: bool, moves: bool) -> None:
    one = Triplets(*(torch.tensor([i]) for i in range(3)))
    rows, y = LINE.clone().requires_grad_(), torch.tensor([0, 0, 1])
    tuples = RhoMiner(1, lambda embeddings, labels: one, published)(LINE, y)
    value = loss(rows, y, tuples)
    (gradient,) = torch.autograd.grad(value, rows, allow_unused=True) if value.requires_grad else (None,)
    # Positive where a step downhill moves the positive away from the anchor.
    away = 0.0 if gradient is None else float(-gradient[1] @ (LINE[1] - LINE[0]))
    assert away == pytest.approx(0, abs=1e-6) if not moves else away > 0.1


@pytest.mark.parametrize(("probability", "rate"), [(0, 0.0), (1, 1.0)])
def test_probabilities_zero_and_one(probability: float, rate: float) -> None:
    anchors, _, negatives = RhoMiner(probability)(EMBEDDINGS, Y)
    assert (Y[anchors] == Y[negatives]).double().mean() == rate


@pytest.mark.parametrize("published", [False, True])
def test_pairs_are_exchanged_independently(published: bool) -> None:
    torch.manual_seed(0)
    pairs = MultiSimilarityMiner(2.0)(EMBEDDINGS, Y)  # so wide that every pair is kept
    miner, exchanged, kept, times = RhoMiner(0.35, MultiSimilarityMiner(2.0), published), 0, 0, 400
    drawn: set[tuple[int, int]] = set()
    for _ in range(times):
        result = miner(EMBEDDINGS, Y)
        assert isinstance(result, Pairs)
        swapped = Y[result.anchors_n] == Y[result.negatives]
        assert torch.equal(result.anchors_n, pairs.anchors_n)
        assert torch.equal(result.negatives[~swapped], pairs.negatives[~swapped])
        drawn |= set(zip(result.anchors_n[swapped].tolist(), result.negatives[swapped].tolist(), strict=True))
        exchanged += int(swapped.sum())
        kept += len(result.anchors_p)
        assert (Y[result.anchors_p] == Y[result.positives]).all()
    positive = set(zip(pairs.anchors_p.tolist(), pairs.positives.tolist(), strict=True))
    assert drawn == positive
    assert exchanged / (times * len(pairs.anchors_n)) == pytest.approx(0.35, abs=0.02)
    assert kept / (times * len(positive)) == pytest.approx(0.65 if published else 1, abs=0.03)


def test_an_anchor_without_another_of_its_class_keeps_its_negative() -> None:
    alone = Pairs(*(torch.tensor(i) for i in ([0], [1], [2, 0], [0, 2])))
    result = RhoMiner(1, lambda embeddings, labels: alone)(EMBEDDINGS[:3], torch.tensor([0, 0, 1]))
    assert isinstance(result, Pairs)
    assert result.negatives.tolist() == [0, 1]


@pytest.mark.parametrize("name", sorted(set(MINERS) - {"rho"}))
@pytest.mark.parametrize("published", [False, True])
def test_rho_wraps_every_miner(name: str, published: bool) -> None:
    for probability in (0.0, 0.5, 1.0):
        args = {"probability": probability, "miner": name, "published": published}
        inner = create_miner(name, {})
        torch.manual_seed(0)
        expected = inner(EMBEDDINGS, Y)
        torch.manual_seed(0)
        result = create_miner("rho", args)(EMBEDDINGS, Y)
        assert type(result) is type(expected)
        if probability == 0:
            assert all(torch.equal(a, b) for a, b in zip(result, expected, strict=True))

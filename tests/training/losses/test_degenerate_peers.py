"""Losses against pytorch-metric-learning where batches are degenerate, wherever it means the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from pytorch_metric_learning import distances, losses, reducers, regularizers
from torch import nn

from tests.training.losses.batches import DIM, create, negatives, positives
from tests.training.losses.test_every_loss import BATCHES, ROWS, rows
from training.losses.circle import Circle
from training.losses.contrastive import Contrastive
from training.losses.fastap import FastAP
from training.losses.lifted import Lifted
from training.losses.margin import Margin
from training.losses.multi_similarity import MultiSimilarity
from training.losses.n_pair import NPair
from training.losses.nt_xent import NTXent
from training.losses.proxy_nca import ProxyNCA
from training.losses.snr import SNRContrastive, SNRTriplet
from training.losses.supcon import SupCon
from training.losses.triplet import Triplet

LENGTH = {"embedding_regularizer": regularizers.LpRegularizer(power=2), "embedding_reg_weight": 0.005}
CENTRE = {"embedding_regularizer": regularizers.ZeroMeanRegularizer(), "embedding_reg_weight": 0.005}
EUCLIDEAN = distances.LpDistance(normalize_embeddings=False)
DOT = distances.DotProductSimilarity(normalize_embeddings=False)

PEERS: dict[str, tuple[nn.Module, nn.Module]] = {
    "contrastive": (Contrastive(4), losses.ContrastiveLoss(reducer=reducers.MeanReducer())),
    "contrastive of active pairs": (Contrastive(4, active_only=True), losses.ContrastiveLoss()),
    "triplet": (Triplet(4, active_only=True), losses.TripletMarginLoss(margin=0.2)),
    "margin": (Margin(4, by_triplets=True), losses.MarginLoss(margin=0.2, beta=1.2)),
    "multi-similarity": (MultiSimilarity(4), losses.MultiSimilarityLoss(alpha=2, beta=40, base=0.5)),
    "lifted": (Lifted(4), losses.GeneralizedLiftedStructureLoss(neg_margin=1, distance=EUCLIDEAN, **LENGTH)),
    "n-pair": (NPair(4), losses.NPairsLoss(distance=DOT, **LENGTH)),
    "fastap": (FastAP(4), losses.FastAPLoss(num_bins=10)),
    "supcon": (SupCon(4), losses.SupConLoss(temperature=0.1)),
    "nt-xent": (NTXent(4), losses.NTXentLoss(temperature=0.1)),
    "circle": (Circle(4), losses.CircleLoss(m=0.4, gamma=80)),
    "snr-contrastive": (SNRContrastive(4, active_only=True), losses.SignalToNoiseRatioContrastiveLoss(**CENTRE)),
    "snr-triplet": (
        SNRTriplet(4, active_only=True),
        losses.TripletMarginLoss(margin=0.2, distance=distances.SNRDistance(), **CENTRE),
    ),
}


def some_anchor_lacks_pairs(labels: list[int], kind: str) -> bool:
    return not all(positives(labels, a) and negatives(labels, a) for a in range(len(labels)))


def some_row_does_not_vary(labels: list[int], kind: str) -> bool:
    return kind in ("zeros", "one zero", "flat")


# Where pytorch-metric-learning has a convention of its own. The loops of test_degenerate_values.py have these cases,
# and all of the histogram loss: it cannot place cosines of 1 there.
DIFFERS: dict[str, Callable[[list[int], str], bool]] = {
    # An anchor without a positive or without a negative counts, the logarithm of its empty sum as 0.
    "lifted": some_anchor_lacks_pairs,
    # It measures the distance to a row of zeros (1), where the loss takes it from the cosine (2 - 2 * 0).
    "fastap": lambda labels, kind: kind == "one zero",
    # 0 for a batch of one class, whose samples the equation tells apart all the same.
    "supcon": lambda labels, kind: len(set(labels)) == 1,
    # It divides by the variance, 0: infinite, or not a number and then left out as not active.
    "snr-contrastive": some_row_does_not_vary,
    "snr-triplet": some_row_does_not_vary,
}


@pytest.mark.parametrize("name", PEERS)
def test_the_value_is_that_of_pytorch_metric_learning(name: str) -> None:
    ours, theirs = PEERS[name]
    differs = DIFFERS.get(name, lambda labels, kind: False)
    for what, labels in BATCHES.items():
        for kind in ROWS:
            if differs(labels, kind):
                continue
            embeddings, y = rows(kind, labels, getattr(ours, "normalised", True)), torch.tensor(labels)
            expected = theirs(embeddings, y).item()
            assert ours.double()(embeddings, y).item() == pytest.approx(expected, abs=1e-6), (what, kind)


BY_CLASS: dict[str, Callable[[], Any]] = {
    "arcface": lambda: losses.ArcFaceLoss(4, DIM, margin=math.degrees(0.5), scale=16),
    "cosface": lambda: losses.CosFaceLoss(4, DIM, margin=0.35, scale=64),
    "norm-softmax": lambda: losses.NormalizedSoftmaxLoss(4, DIM, temperature=0.05),
    "proxy-anchor": lambda: losses.ProxyAnchorLoss(4, DIM, margin=0.1, alpha=32),
    "proxy-nca": lambda: losses.ProxyNCALoss(4, DIM, softmax_scale=9),
}


@pytest.mark.parametrize("name", BY_CLASS)
def test_the_value_with_class_vectors_is_that_of_pytorch_metric_learning(name: str) -> None:
    # With the own proxy in the sum, as theirs has it.
    ours = ProxyNCA(4, DIM, positive_in_denominator=True).double() if name == "proxy-nca" else create(name, 4)
    theirs, (vectors,) = BY_CLASS[name](), ours.parameters()
    if hasattr(theirs, "proxies"):
        theirs.proxies.data = vectors.data
    else:
        theirs.W.data = vectors.data.T
    for what, labels in BATCHES.items():
        for kind in ROWS:
            embeddings, y = rows(kind, labels, True), torch.tensor(labels)
            expected = theirs(embeddings, y).item()
            assert ours(embeddings, y).item() == pytest.approx(expected, abs=1e-6), (what, kind)

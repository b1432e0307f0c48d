"""Losses of all pairs or triplets against naive loops where batches are degenerate."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.training.losses.batches import all_triplets, create, distance, mean, negatives, positives, unit
from tests.training.losses.test_every_loss import BATCHES, rows
from training.losses.circle import Circle
from training.losses.contrastive import Contrastive
from training.losses.fastap import FastAP
from training.losses.histogram import Histogram
from training.losses.lifted import Lifted
from training.losses.margin import Margin
from training.losses.multi_similarity import MultiSimilarity
from training.losses.n_pair import NPair
from training.losses.nt_xent import NTXent
from training.losses.recall_at_k import RecallAtK
from training.losses.snr import SNRContrastive, SNRTriplet
from training.losses.supcon import SupCon
from training.losses.triplet import Triplet

Naive = Callable[[np.ndarray, list[int]], float]


def above(values: list[float]) -> list[float]:
    return [max(0.0, value) for value in values]


def near(y: list[int]) -> list[tuple[int, int]]:
    return [(a, p) for a in range(len(y)) for p in positives(y, a)]


def far(y: list[int]) -> list[tuple[int, int]]:
    return [(a, n) for a in range(len(y)) for n in negatives(y, a)]


def snr(x: np.ndarray, y: np.ndarray) -> float:
    """0 where the first row does not vary, as the loss defines it."""
    return float(np.var(x - y) / np.var(x)) if np.var(x) > 1e-12 else 0.0


def contrastive(e: np.ndarray, y: list[int]) -> float:
    return mean([distance(e[a], e[p]) for a, p in near(y)]) + mean(above([1 - distance(e[a], e[n]) for a, n in far(y)]))


def triplet(e: np.ndarray, y: list[int]) -> float:
    return mean(above([distance(e[a], e[p]) - distance(e[a], e[n]) + 0.2 for a, p, n in all_triplets(y)]))


def margin(e: np.ndarray, y: list[int]) -> float:
    terms = above([distance(e[a], e[p]) - 1 for a, p in near(y)] + [1.4 - distance(e[a], e[n]) for a, n in far(y)])
    return sum(terms) / max(1, sum(term > 0 for term in terms))


def snr_triplet(e: np.ndarray, y: list[int]) -> float:
    terms = above([snr(e[a], e[p]) - snr(e[a], e[n]) + 0.2 for a, p, n in all_triplets(y)])
    return mean(terms) + 0.005 * mean([abs(sum(row)) for row in e])


def snr_contrastive(e: np.ndarray, y: list[int]) -> float:
    terms = mean([snr(e[a], e[p]) for a, p in near(y)]) + mean(above([1 - snr(e[a], e[n]) for a, n in far(y)]))
    return terms + 0.005 * mean([abs(sum(row)) for row in e])


def lifted(e: np.ndarray, y: list[int]) -> float:
    terms = []
    for a in range(len(y)):
        if positives(y, a) and negatives(y, a):
            pulled = math.log(sum(math.exp(distance(e[a], e[p])) for p in positives(y, a)))
            terms.append(pulled + math.log(sum(math.exp(1 - distance(e[a], e[n])) for n in negatives(y, a))))
    return mean(above(terms)) + 0.005 * mean([float(row @ row) for row in e])


def n_pair(e: np.ndarray, y: list[int]) -> float:
    first = {c: [i for i, label in enumerate(y) if label == c][:2] for c in y}
    pairs = {c: members for c, members in first.items() if len(members) == 2}
    terms = []
    for c, (a, p) in pairs.items():
        others = [members[1] for other, members in pairs.items() if other != c]
        terms.append(math.log(1 + sum(math.exp(e[a] @ e[n] - e[a] @ e[p]) for n in others)))
    return mean(terms) + 0.005 * mean([float(row @ row) for row in e])


def multi_similarity(e: np.ndarray, y: list[int]) -> float:
    terms = []
    for a in range(len(y)):
        pulled = math.log(1 + sum(math.exp(-2 * (e[a] @ e[p] - 0.5)) for p in positives(y, a))) / 2
        terms.append(pulled + math.log(1 + sum(math.exp(40 * (e[a] @ e[n] - 0.5)) for n in negatives(y, a))) / 40)
    return mean(terms)


def circle(e: np.ndarray, y: list[int]) -> float:
    terms = []
    for a in range(len(y)):
        if positives(y, a) and negatives(y, a):
            own, others = [e[a] @ e[p] for p in positives(y, a)], [e[a] @ e[n] for n in negatives(y, a)]
            pull = sum(math.exp(-80 * max(0.0, 1.4 - s) * (s - 0.6)) for s in own)
            terms.append(math.log(1 + pull * sum(math.exp(80 * max(0.0, s + 0.4) * (s - 0.4)) for s in others)))
    return mean(terms)


def supcon(e: np.ndarray, y: list[int]) -> float:
    terms = []
    for a in range(len(y)):
        every = sum(math.exp(e[a] @ e[x] / 0.1) for x in range(len(y)) if x != a)
        if positives(y, a):
            terms.append(mean([-math.log(math.exp(e[a] @ e[p] / 0.1) / every) for p in positives(y, a)]))
    return mean(terms)


def nt_xent(e: np.ndarray, y: list[int]) -> float:
    def of(a: int, p: int) -> float:
        own = math.exp(e[a] @ e[p] / 0.1)
        return -math.log(own / (own + sum(math.exp(e[a] @ e[n] / 0.1) for n in negatives(y, a))))

    return mean([of(a, p) for a, p in near(y)])


def histogram(e: np.ndarray, y: list[int]) -> float:
    def shares(pairs: list[tuple[int, int]]) -> np.ndarray:
        at = np.linspace(-1, 1, 65)
        total = sum((np.maximum(0, 1 - abs(e[i] @ e[j] - at) * 32) for i, j in pairs), np.zeros(65))
        return np.asarray(total / max(1, len(pairs)))

    return float(shares(far(y)) @ shares(near(y)).cumsum())


def fastap(e: np.ndarray, y: list[int]) -> float:
    terms, at = [], np.linspace(0, 4, 11)
    for a in range(len(y)):
        own, every = np.zeros(11), np.zeros(11)
        for x in positives(y, a) + negatives(y, a):
            shares = np.maximum(0, 1 - abs(2 - 2 * e[a] @ e[x] - at) / 0.4)
            every += shares
            own += shares * (y[x] == y[a])
        if positives(y, a):
            found = [own[i] * own[: i + 1].sum() / every[: i + 1].sum() for i in range(11) if own[i] > 0]
            terms.append(1 - sum(found) / len(positives(y, a)))
    return mean(terms)


def recall_at_k(e: np.ndarray, y: list[int]) -> float:
    recalls = []
    for q in range(len(y)):
        own = positives(y, q)
        ranks = [
            1 + sum(0.5 + math.tanh((e[q] @ e[z] - e[q] @ e[x]) / 0.02) / 2 for z in range(len(y)) if z not in (q, x))
            for x in own
        ]
        found = {k: min(k, sum(1 / (1 + math.exp(rank - k)) for rank in ranks)) for k in (1, 2, 4, 8, 16)}
        recalls += [found[k] / min(k, len(own)) for k in found if own]
    return 1 - mean(recalls) if recalls else 0.0


LOSSES: dict[str, tuple[torch.nn.Module, Naive]] = {
    "circle": (Circle(4), circle),
    "contrastive": (Contrastive(4), contrastive),
    "fastap": (FastAP(4), fastap),
    "histogram": (Histogram(4), histogram),
    "lifted": (Lifted(4), lifted),
    "margin": (Margin(4), margin),
    "multi-similarity": (MultiSimilarity(4), multi_similarity),
    "n-pair": (NPair(4), n_pair),
    "nt-xent": (NTXent(4), nt_xent),
    "recall-at-k": (RecallAtK(4), recall_at_k),
    "snr-contrastive": (SNRContrastive(4), snr_contrastive),
    "snr-triplet": (SNRTriplet(4), snr_triplet),
    "supcon": (SupCon(4), supcon),
    "triplet": (Triplet(4), triplet),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("kind", ["random", "duplicates", "zeros", "one zero", "flat", "opposite"])
def test_the_value_is_that_of_the_loop(name: str, kind: str) -> None:
    loss, naive = LOSSES[name]
    for what, labels in BATCHES.items():
        embeddings = rows(kind, labels, getattr(loss, "normalised", True))
        got = loss.double()(embeddings, torch.tensor(labels)).item()
        assert got == pytest.approx(naive(embeddings.numpy(), labels), abs=1e-6), what


def cross_entropy(logits: np.ndarray, y: list[int]) -> float:
    return mean([math.log(sum(math.exp(x - row[k]) for x in row)) for row, k in zip(logits, y, strict=True)])


def shifted(cosines: np.ndarray, y: list[int], scale: float, change: Callable[[float], float]) -> float:
    logits = scale * cosines
    for row, k in enumerate(y):
        logits[row, k] = scale * change(float(cosines[row, k]))
    return cross_entropy(logits, y)


def turned(cosine: float) -> float:
    angle = math.acos(max(-1.0, min(1.0, cosine))) + 0.5
    return math.cos(angle) if angle <= math.pi else cosine - 0.5 * math.sin(0.5)


def proxy_nca(cosines: np.ndarray, y: list[int]) -> float:
    def term(row: np.ndarray, k: int) -> float:
        return math.log(sum(math.exp(18 * (x - row[k])) for z, x in enumerate(row) if z != k))

    return mean([term(row, k) for row, k in zip(cosines, y, strict=True)])


def proxy_anchor(cosines: np.ndarray, y: list[int]) -> float:
    def columns(sign: int, own: bool) -> list[list[float]]:
        pairs = [[row[z] for row, k in zip(cosines, y, strict=True) if (k == z) is own] for z in range(4)]
        return [[math.exp(32 * (sign * x + 0.1)) for x in column] for column in pairs]

    pulled = [math.log(1 + sum(column)) for column in columns(-1, own=True) if column]
    return mean(pulled) + mean([math.log(1 + sum(column)) for column in columns(1, own=False)])


BY_CLASS: dict[str, Naive] = {
    "norm-softmax": lambda c, y: cross_entropy(c / 0.05, y),
    "cosface": lambda c, y: shifted(c, y, 64, lambda x: x - 0.35),
    "arcface": lambda c, y: shifted(c, y, 16, turned),
    "proxy-nca": proxy_nca,
    "proxy-anchor": proxy_anchor,
}


@pytest.mark.parametrize("name", BY_CLASS)
@pytest.mark.parametrize("kind", ["random", "duplicates", "zeros", "one zero", "flat", "opposite"])
def test_the_value_with_class_vectors_is_that_of_the_loop(name: str, kind: str) -> None:
    loss = create(name, 4)
    (vectors,) = loss.parameters()
    for what, labels in BATCHES.items():
        embeddings = rows(kind, labels, True)
        cosines = embeddings.numpy() @ unit(vectors.detach().numpy()).T
        got = loss(embeddings, torch.tensor(labels)).item()
        assert got == pytest.approx(BY_CLASS[name](cosines, labels), abs=1e-6), what

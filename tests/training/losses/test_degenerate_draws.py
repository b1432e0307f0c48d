"""Losses that draw or refine, and SoftTriple, against naive loops where batches are degenerate."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.training.losses.batches import DIM, all_triplets, distance, indices, mean, negatives, positives
from tests.training.losses.test_every_loss import BATCHES, ROWS, rows
from training.losses.angular import Angular
from training.losses.group import GroupLoss, choose_anchors
from training.losses.n_pair import choose_pairs
from training.losses.quadruplet import Quadruplet, complete
from training.losses.softtriple import SoftTriple

every_kind = pytest.mark.parametrize("kind", ROWS)


def unit(x: np.ndarray) -> np.ndarray:
    """A row of zeros stays one."""
    return np.array([row / max(math.sqrt(row @ row), 1e-12) for row in x])


def log_one_plus(exponents: list[float]) -> float:
    return math.log(1 + sum(math.exp(x) for x in exponents))


def softtriple(e: np.ndarray, y: list[int], w: np.ndarray) -> float:
    k, classes, _ = w.shape
    terms = []
    for x, label in zip(e, y, strict=True):
        s = []
        for c in range(classes):
            weights = [math.exp(x @ w[i, c] / 0.1) for i in range(k)]
            s.append(sum(weights[i] * (x @ w[i, c]) for i in range(k)) / sum(weights) - 0.01 * (c == label))
        terms.append(math.log(sum(math.exp(8 * value) for value in s)) - 8 * s[label])
    apart = sum(distance(w[i, c], w[j, c]) for c in range(classes) for j in range(k) for i in range(j))
    return mean(terms) + 0.2 * apart / (classes * k * (k - 1))


@every_kind
@pytest.mark.parametrize("same_centres", [False, True])
def test_softtriple_is_that_of_the_loop(kind: str, same_centres: bool) -> None:
    torch.manual_seed(0)
    loss = SoftTriple(4, DIM, 3).double()
    if same_centres:
        loss.centres.data[1:] = loss.centres.data[0]
    w = loss.centres.detach().numpy()
    w = w / np.sqrt((w**2).sum(2, keepdims=True))
    for what, labels in BATCHES.items():
        embeddings = rows(kind, labels, True)
        got = loss(embeddings, torch.tensor(labels)).item()
        assert got == pytest.approx(softtriple(embeddings.numpy(), labels, w), abs=1e-9), what


def angular(e: np.ndarray, pairs: list[tuple[int, int]], others: list[list[int]]) -> float:
    """With tan(45 degrees) = 1, weight 2 and nu 0.005."""
    phi, terms = unit(e), []
    for (a, p), far in zip(pairs, others, strict=True):
        dots = [e[a] @ e[n] - e[a] @ e[p] for n in far]
        angles = [4 * (phi[a] + phi[p]) @ phi[n] - 4 * phi[a] @ phi[p] for n in far]
        terms.append(log_one_plus(dots) + 2 * log_one_plus(angles))
    return mean(terms) + 0.005 * mean([float(row @ row) for row in e])


@every_kind
def test_angular_of_all_samples_is_that_of_the_loop(kind: str) -> None:
    for what, labels in BATCHES.items():
        embeddings, y = rows(kind, labels, False), torch.tensor(labels)
        torch.manual_seed(3)
        drawn = choose_pairs(y, all_samples=True)
        pairs = list(zip(drawn.anchors.tolist(), drawn.positives.tolist(), strict=True))
        assert [a for a, _ in pairs] == [a for a in range(len(labels)) if positives(labels, a)], what
        assert all(p in positives(labels, a) for a, p in pairs), what
        torch.manual_seed(3)
        got = Angular(4, all_samples=True)(embeddings, y).item()
        expected = angular(embeddings.numpy(), pairs, [negatives(labels, a) for a, _ in pairs])
        assert got == pytest.approx(expected, abs=1e-9), what


@every_kind
def test_angular_of_a_pair_a_class_is_that_of_the_loop(kind: str) -> None:
    for what, labels in BATCHES.items():
        members = [[i for i, label in enumerate(labels) if label == c] for c in sorted(set(labels))]
        pairs = [(own[0], own[1]) for own in members if len(own) > 1]
        others = [[p for a, p in pairs if labels[a] != labels[own]] for own, _ in pairs]
        embeddings = rows(kind, labels, False)
        got = Angular(4)(embeddings, torch.tensor(labels)).item()
        assert got == pytest.approx(angular(embeddings.numpy(), pairs, others), abs=1e-9), what


def correlation(x: np.ndarray, y: np.ndarray) -> float:
    """0 of a row that does not vary."""
    x, y = x - x.mean(), y - y.mean()
    power = math.sqrt((x @ x) * (y @ y))
    return float(x @ y) / power if power > 1e-12 else 0.0


def group(loss: GroupLoss, e: np.ndarray, y: list[int], fixed: list[bool], steps: int) -> float:
    weight, bias = (p.detach().numpy() for p in (loss.classifier.weight, loss.classifier.bias))
    n = range(len(y))
    priors = [np.exp((row @ weight.T + bias) / 24) for row in e]
    x = [np.eye(4)[y[i]] if fixed[i] else priors[i] / priors[i].sum() for i in n]
    w = [[max(0.0, correlation(e[i], e[j])) * (i != j) for j in n] for i in n]
    for _ in range(steps):
        products = [x[i] * np.maximum(sum(w[i][j] * x[j] for j in n), 1e-12) for i in n]
        x = [row / row.sum() for row in products]
    return mean([-math.log(x[i][y[i]]) for i in n if not fixed[i]])


@every_kind
@pytest.mark.parametrize("anchors", [0, 1, 2])
def test_group_loss_is_that_of_the_loop(kind: str, anchors: int) -> None:
    torch.manual_seed(1)
    loss = GroupLoss(4, DIM, anchors).double()
    for what, labels in BATCHES.items():
        embeddings, y = rows(kind, labels, False), torch.tensor(labels)
        torch.manual_seed(4)
        fixed = choose_anchors(y, anchors).tolist()
        for c in labels:
            own = [fixed[i] for i, label in enumerate(labels) if label == c]
            assert sum(own) == min(anchors, len(own) - 1), what
        torch.manual_seed(4)
        got = loss(embeddings, y).item()
        assert got == pytest.approx(group(loss, embeddings.numpy(), labels, fixed, 5), abs=1e-9), what


def quadruplet(e: np.ndarray, tuples: list[list[int]]) -> float:
    def squared(i: int, j: int) -> float:
        return distance(e[i], e[j]) ** 2

    first = [max(0.0, squared(a, p) - squared(a, n) + 0.2) for a, p, n, _ in tuples]
    second = [max(0.0, squared(a, p) - squared(n, m) + 0.2) for a, p, n, m in tuples if m >= 0]
    return mean(first) + mean(second)


def check_drawn(tuples: list[list[int]], y: list[int]) -> None:
    """Every tuple is of the classes that it must be of, and none is left out that there is."""
    for a, p, n, m in tuples:
        assert a != p
        assert y[a] == y[p] != y[n]
        third = [i for i in range(len(y)) if y[i] not in (y[a], y[n])]
        assert m in third if third else m == -1


@every_kind
@pytest.mark.parametrize("given", [False, True])
def test_quadruplet_is_that_of_the_loop(kind: str, given: bool) -> None:
    for what, labels in BATCHES.items():
        embeddings, y = rows(kind, labels, True), torch.tensor(labels)
        triplets = all_triplets(labels)
        mined = indices(triplets) if given else None
        torch.manual_seed(5)
        tuples = [[int(x) for x in row] for row in zip(*complete(y, mined), strict=True)]
        check_drawn(tuples, labels)
        every = [(a, p) for a, p, _ in triplets]
        assert [(a, p) for a, p, *_ in tuples] == (every if given else sorted(set(every))), what
        torch.manual_seed(5)
        got = Quadruplet(4)(embeddings, y, mined).item()
        assert got == pytest.approx(quadruplet(embeddings.numpy(), tuples), abs=1e-9), what

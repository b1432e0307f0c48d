"""Every loss on degenerate batches: the value against a naive loop, and finite gradients in float64 and float32."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.training.losses.batches import (
    BATCHES,
    ROWS,
    Naive,
    Oracle,
    above,
    all_triplets,
    create,
    distance,
    far,
    indices,
    mean,
    near,
    negatives,
    nonzero,
    normalised,
    of_cosines,
    of_pairs,
    positives,
    rows,
    unit,
)
from training.batch import EmbeddingBatch
from training.losses import LOSSES
from training.losses.group import GroupLoss, choose_anchors
from training.losses.n_pair import choose_pairs
from training.losses.quadruplet import add_second_negatives


def snr(x: np.ndarray, y: np.ndarray) -> float:
    """0 where the first row does not vary, as the loss defines it."""
    return float(np.var(x - y) / np.var(x)) if np.var(x) > 1e-12 else 0.0


def contrastive(e: np.ndarray, y: list[int]) -> float:
    return mean([distance(e[a], e[p]) for a, p in near(y)]) + mean(above([1 - distance(e[a], e[n]) for a, n in far(y)]))


def triplet(e: np.ndarray, y: list[int]) -> float:
    return mean(above([distance(e[a], e[p]) - distance(e[a], e[n]) + 0.2 for a, p, n in all_triplets(y)]))


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
            result = [own[i] * own[: i + 1].sum() / every[: i + 1].sum() for i in range(11) if own[i] > 0]
            terms.append(1 - sum(result) / len(positives(y, a)))
    return mean(terms)


def recall_at_k(e: np.ndarray, y: list[int]) -> float:
    recalls = []
    for q in range(len(y)):
        own = positives(y, q)
        ranks = [
            1 + sum(0.5 + math.tanh((e[q] @ e[z] - e[q] @ e[x]) / 0.02) / 2 for z in range(len(y)) if z not in (q, x))
            for x in own
        ]
        result = {k: min(k, sum(1 / (1 + math.exp(rank - k)) for rank in ranks)) for k in (1, 2, 4, 8, 16)}
        recalls += [result[k] / min(k, len(own)) for k in result if own]
    return 1 - mean(recalls) if recalls else 0.0


def smooth_ap(e: np.ndarray, y: list[int]) -> float:
    def rank(q: int, i: int, among: list[int]) -> float:
        return 1 + sum(0.5 + math.tanh((e[q] @ e[z] - e[q] @ e[i]) / 0.02) / 2 for z in among if z != i)

    terms = []
    for q in range(len(y)):
        own, every = positives(y, q), [z for z in range(len(y)) if z != q]
        if own:
            terms.append(1 - mean([rank(q, i, own) / rank(q, i, every) for i in own]))
    return mean(terms)


def contrastive_active(e: np.ndarray, y: list[int]) -> float:
    return nonzero([distance(e[a], e[p]) for a, p in near(y)]) + nonzero([1 - distance(e[a], e[n]) for a, n in far(y)])


def triplet_active(e: np.ndarray, y: list[int]) -> float:
    return nonzero([distance(e[a], e[p]) - distance(e[a], e[n]) + 0.2 for a, p, n in all_triplets(y)])


def snr_triplet_active(e: np.ndarray, y: list[int]) -> float:
    terms = [snr(e[a], e[p]) - snr(e[a], e[n]) + 0.2 for a, p, n in all_triplets(y)]
    return nonzero(terms) + 0.005 * mean([abs(sum(row)) for row in e])


def snr_contrastive_active(e: np.ndarray, y: list[int]) -> float:
    terms = nonzero([snr(e[a], e[p]) for a, p in near(y)]) + nonzero([1 - snr(e[a], e[n]) for a, n in far(y)])
    return terms + 0.005 * mean([abs(sum(row)) for row in e])


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


def softtriple(loss: nn.Module, embeddings: Tensor, y: list[int]) -> float:
    e, w = embeddings.numpy(), unit(loss.centres.detach().numpy())
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


def subcenter_arcface(loss: nn.Module, embeddings: Tensor, y: list[int]) -> float:
    w = unit(loss.centres.detach().numpy())
    cosines = np.array(
        [[max(x @ w[i, c] for i in range(len(w))) for c in range(w.shape[1])] for x in embeddings.numpy()]
    )
    return shifted(cosines, y, 64, turned)


def softtriple_of_equal_centres() -> nn.Module:
    loss = create("softtriple", 4)
    loss.centres.data[1:] = loss.centres.data[0]
    return loss


def zero_or_unit(x: np.ndarray) -> np.ndarray:
    """A row of zeros stays one."""
    return np.array([row / max(math.sqrt(row @ row), 1e-12) for row in x])


def log_one_plus(exponents: list[float]) -> float:
    return math.log(1 + sum(math.exp(x) for x in exponents))


def angular(e: np.ndarray, pairs: list[tuple[int, int]], others: list[list[int]]) -> float:
    """With tan(45 degrees) = 1, weight 2 and nu 0.005."""
    phi, terms = zero_or_unit(e), []
    for (a, p), away in zip(pairs, others, strict=True):
        dots = [e[a] @ e[n] - e[a] @ e[p] for n in away]
        angles = [4 * (phi[a] + phi[p]) @ phi[n] - 4 * phi[a] @ phi[p] for n in away]
        terms.append(log_one_plus(dots) + 2 * log_one_plus(angles))
    return mean(terms) + 0.005 * mean([float(row @ row) for row in e])


def n_pair(e: np.ndarray, pairs: list[tuple[int, int]], others: list[list[int]]) -> float:
    terms = [log_one_plus([e[a] @ e[n] - e[a] @ e[p] for n in far]) for (a, p), far in zip(pairs, others, strict=True)]
    return mean(terms) + 0.005 * mean([float(row @ row) for row in e])


OfPairs = Callable[[np.ndarray, list[tuple[int, int]], list[list[int]]], float]


def of_all_samples(naive: OfPairs) -> Oracle:
    def oracle(loss: nn.Module, embeddings: Tensor, y: list[int]) -> float:
        torch.manual_seed(0)
        drawn = choose_pairs(EmbeddingBatch(torch.zeros(len(y), 1), torch.tensor(y)), "random")
        pairs = list(zip(drawn.anchors.tolist(), drawn.positives.tolist(), strict=True))
        assert [a for a, _ in pairs] == [a for a in range(len(y)) if positives(y, a)]
        assert all(p in positives(y, a) for a, p in pairs)
        return naive(embeddings.numpy(), pairs, [negatives(y, a) for a, _ in pairs])

    return oracle


def of_a_pair_a_class(naive: OfPairs) -> Oracle:
    def oracle(loss: nn.Module, embeddings: Tensor, y: list[int]) -> float:
        members = [[i for i, label in enumerate(y) if label == c] for c in sorted(set(y))]
        pairs = [(own[0], own[1]) for own in members if len(own) > 1]
        others = [[p for a, p in pairs if y[a] != y[own]] for own, _ in pairs]
        return naive(embeddings.numpy(), pairs, others)

    return oracle


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


def group_of(anchors: int) -> tuple[nn.Module, Oracle]:
    def oracle(loss: nn.Module, embeddings: Tensor, y: list[int]) -> float:
        torch.manual_seed(0)
        fixed = choose_anchors(torch.tensor(y), anchors).tolist()
        for c in y:
            own = [fixed[i] for i, label in enumerate(y) if label == c]
            assert sum(own) == min(anchors, len(own) - 1)
        assert isinstance(loss, GroupLoss)
        return group(loss, embeddings.numpy(), y, fixed, 5)

    torch.manual_seed(1)
    return create("group", anchors=anchors), oracle


def quadruplet(e: np.ndarray, tuples: list[list[int]]) -> float:
    def d(i: int, j: int) -> float:
        return distance(e[i], e[j])

    first = [max(0.0, d(a, p) - d(a, n) + 0.2) for a, p, n, _ in tuples]
    second = [max(0.0, d(a, p) - d(n, m) + 0.2) for a, p, n, m in tuples if m >= 0]
    return mean(first) + mean(second)


def check_drawn(tuples: list[list[int]], y: list[int]) -> None:
    """Every tuple is of the classes that it must be of, and none is left out that there is."""
    for a, p, n, m in tuples:
        assert a != p
        assert y[a] == y[p] != y[n]
        third = [i for i in range(len(y)) if y[i] not in (y[a], y[n])]
        assert m in third if third else m == -1


def quadruplet_of(given: bool) -> tuple[nn.Module, Oracle]:
    def oracle(loss: nn.Module, embeddings: Tensor, y: list[int]) -> float:
        triplets = all_triplets(y)
        torch.manual_seed(0)
        drawn = add_second_negatives(torch.tensor(y), indices(triplets) if given else None)
        tuples = [[int(x) for x in row] for row in zip(*drawn, strict=True)]
        check_drawn(tuples, y)
        pairs = [(a, p) for a, p, _ in triplets]
        assert [(a, p) for a, p, *_ in tuples] == (pairs if given else sorted(set(pairs)))
        return quadruplet(embeddings.numpy(), tuples)

    return create("quadruplet"), oracle


BY_PAIRS: dict[str, Naive] = {
    "circle": circle,
    "contrastive": contrastive,
    "fastap": fastap,
    "histogram": histogram,
    "lifted": lifted,
    "ms": multi_similarity,
    "ntxent": nt_xent,
    "recall": recall_at_k,
    "smoothap": smooth_ap,
    "snr-contrastive": snr_contrastive,
    "snr": snr_triplet,
    "supcon": supcon,
    "triplet": triplet,
}
BY_CLASS: dict[str, Naive] = {
    "softmax": lambda c, y: cross_entropy(c / 0.05, y),
    "cosface": lambda c, y: shifted(c, y, 64, lambda x: x - 0.35),
    "arcface": lambda c, y: shifted(c, y, 16, turned),
    "proxynca": proxy_nca,
    "pa": proxy_anchor,
}


def of_tests() -> dict[str, tuple[nn.Module, Oracle]]:
    """Return the cases that tests of single losses have in `ORACLES`."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("test_*.py") if path != Path(__file__))
    modules = (import_module(f"{__package__}.{name}") for name in names)
    return {case: oracle for module in modules for case, oracle in getattr(module, "ORACLES", {}).items()}


CASES: dict[str, tuple[nn.Module, Oracle]] = {
    **of_tests(),
    **{name: (create(name, 4), of_pairs(naive)) for name, naive in BY_PAIRS.items()},
    **{name: (create(name, 4), of_cosines(naive)) for name, naive in BY_CLASS.items()},
    "contrastive, active_only": (create("contrastive", active_only=True), of_pairs(contrastive_active)),
    "triplet, active_only": (create("triplet", active_only=True), of_pairs(triplet_active)),
    "snr-contrastive, active_only": (create("snr-contrastive", active_only=True), of_pairs(snr_contrastive_active)),
    "snr, active_only": (create("snr", active_only=True), of_pairs(snr_triplet_active)),
    "proxynca, positive_in_denominator": (
        create("proxynca", positive_in_denominator=True),
        of_cosines(lambda c, y: cross_entropy(18 * c, y)),
    ),
    "softtriple": (create("softtriple", 4), softtriple),
    "softtriple, equal centres": (softtriple_of_equal_centres(), softtriple),
    "subcenter": (create("subcenter", 4), subcenter_arcface),
    "npair": (create("npair"), of_all_samples(n_pair)),
    "npair, a pair a class": (create("npair", pairs="first"), of_a_pair_a_class(n_pair)),
    "angular": (create("angular"), of_all_samples(angular)),
    "angular, a pair a class": (create("angular", pairs="first"), of_a_pair_a_class(angular)),
    "group, no anchors": group_of(0),
    "group, one anchor": group_of(1),
    "group": group_of(2),
    "quadruplet": quadruplet_of(given=False),
    "quadruplet, given triplets": quadruplet_of(given=True),
}


@pytest.mark.parametrize("case", CASES)
def test_the_value_is_that_of_the_loop_and_the_gradient_is_finite(case: str) -> None:
    loss, oracle = CASES[case]
    loss.double()
    for name, labels in BATCHES.items():
        y = torch.tensor(labels)
        tuples = (indices(all_triplets(labels)),) if "given" in case else ()
        for kind in ROWS:
            embeddings = rows(kind, labels, normalised(case.split(",")[0]))
            expected = oracle(loss, embeddings, labels)
            torch.manual_seed(0)
            value = loss(embeddings.requires_grad_(), y, *tuples)
            assert value.item() == pytest.approx(expected, abs=1e-6), (name, kind)
            check_gradients(loss, value, embeddings, (name, kind))
            single, embeddings = copy.deepcopy(loss).float(), embeddings.detach().float().requires_grad_()
            value = single(embeddings, y, *tuples)
            assert value.shape == ()
            assert torch.isfinite(value), (name, kind)
            check_gradients(single, value, embeddings, (name, kind))


def check_gradients(loss: nn.Module, value: Tensor, embeddings: Tensor, case: tuple[str, str]) -> None:
    gradients = torch.autograd.grad(value, [embeddings, *loss.parameters()], materialize_grads=True)
    assert all(torch.isfinite(gradient).all() for gradient in gradients), case


def test_every_loss_has_an_oracle_here() -> None:
    # DaNCE has its own in test_dance.py.
    assert {case.split(",")[0] for case in CASES} == set(LOSSES) - {"dance"}

"""DaNCE against loops, by hand, and where numbers get large."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from tests.raising import raises
from tests.training.losses.batches import BATCHES, DIM, LABELS, ROWS, batch, mean, negatives, positives, rows
from training.losses.dance import DaNCELoss
from zoo.errors import RecipeError

NEAREST, FARTHEST = 0.5, 1.4


def unit(n: int, dim: int = DIM, seed: int = 0, spread: float = 1.0) -> Tensor:
    """Rows float64 [n, dim] around one direction, farther apart the larger `spread`."""
    rows = torch.randn(n + 1, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return normalize(rows[:1] + spread * rows[1:], dim=1)


def log_weight(cosine: float, dim: int) -> float:
    """log 1 / q(d) of equation 6, d clamped from below."""
    d = max(NEAREST, math.sqrt(2 - 2 * cosine))
    return -(dim - 2) * math.log(d) - (dim - 3) / 2 * math.log(1 - d * d / 4)


def far(cosine: float) -> bool:
    return 2 - 2 * cosine > FARTHEST**2


def row_weights(cosines: Sequence[float], dim: int) -> list[float]:
    """Return the paper's weights: an anchor's largest is 1, beyond the cut 0, and all are 1 if all are beyond."""
    near = [log_weight(s, dim) for s in cosines if not far(s)]
    if not near:
        return [1.0] * len(cosines)
    return [0.0 if far(s) else math.exp(log_weight(s, dim) - max(near)) for s in cosines]


def published_weights(cosines: dict[tuple[int, int], float], dim: int) -> dict[tuple[int, int], float]:
    """The published form, of {(anchor, negative): cosine}: over the largest of all, floored, shares of the anchors."""
    largest = max(log_weight(s, dim) for s in cosines.values() if not far(s))
    floored = {
        pair: 1e-45 if far(s) else max(1e-45, math.exp(log_weight(s, dim) - largest)) for pair, s in cosines.items()
    }
    return {(a, n): w / sum(v for (_, m), v in floored.items() if m == n) for (a, n), w in floored.items()}


def term(positive: float, weighted: Sequence[float], temperature: float, with_positive: bool) -> float:
    total = sum(math.exp(s / temperature) for s in weighted)
    pulled = math.exp(positive / temperature)
    return -math.log(pulled / (total + pulled if with_positive else total))


FORMS = [{}, {"with_positive": True}, {"published": True}]
"""That of equation 6, the same with the positive in the sum, that of the published code."""


def of_keys(
    q: np.ndarray,
    k: np.ndarray,
    n: np.ndarray,
    temperature: float,
    with_positive: bool = False,
    published: bool = False,
) -> float:
    dim = q.shape[1]
    s = {(i, j): float(q[i] @ n[j]) for i in range(len(q)) for j in range(len(n))}
    if published:
        weights = published_weights(s, dim)
    else:
        rows = [row_weights([s[i, j] for j in range(len(n))], dim) for i in range(len(q))]
        weights = {(i, j): rows[i][j] for i, j in s}
    return mean(
        [
            term(
                float(q[i] @ k[i]),
                [weights[i, j] * s[i, j] for j in range(len(n))],
                temperature,
                with_positive or published,
            )
            for i in range(len(q))
        ]
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("temperature", [0.01, 0.1])
@pytest.mark.parametrize(("dim", "spread"), [(2, 1.0), (3, 3.0), (5, 1.0), (5, 3.0), (128, 0.4), (512, 1.0)])
def test_keys_against_the_loop(dim: int, spread: float, temperature: float, form: dict[str, bool]) -> None:
    rows = unit(4 + 4 + 9, dim, spread=spread)
    queries, keys, others = rows[:4], rows[4:8], rows[8:]
    expected = of_keys(queries.numpy(), keys.numpy(), others.numpy(), temperature, **form)
    loss = DaNCELoss(temperature, **form)
    assert loss.contrast_keys(queries, keys, others).item() == pytest.approx(expected, rel=1e-9, abs=1e-9)
    single = loss.contrast_keys(queries.float(), keys.float(), others.float())
    assert single.item() == pytest.approx(expected, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_views_of_a_batch_against_the_loop(seed: int, published: bool) -> None:
    embeddings, y = batch(seed, LABELS)
    s = (embeddings @ embeddings.T).numpy()
    pairs = {(a, n): s[a, n] for a in range(9) for n in negatives(LABELS, a)}
    shares = published_weights(pairs, DIM)
    terms = []
    for a in range(9):
        cosines = [s[a, n] for n in negatives(LABELS, a)]
        weights = [shares[a, n] for n in negatives(LABELS, a)] if published else row_weights(cosines, DIM)
        weighted = [w * c for w, c in zip(weights, cosines, strict=True)]
        terms += [term(s[a, p], weighted, 0.1, published) for p in positives(LABELS, a)]
    assert DaNCELoss(0.1, published=published)(embeddings, y).item() == pytest.approx(mean(terms), abs=1e-10)


def test_by_hand() -> None:
    # D = 3: q(d) ~ d. Negatives at d = 1 (cosine 1/2), at 1.25 (7/32) and beyond the cut, at sqrt 2 (0).
    queries, keys = torch.tensor([[1.0, 0, 0]]), torch.tensor([[0.8, 0.6, 0]])
    others = torch.tensor([[0.5, 0.75**0.5, 0], [7 / 32, 0, (1 - (7 / 32) ** 2) ** 0.5], [0.0, 0.0, 1.0]])
    paper = math.log(math.exp(0.5) + math.exp(7 / 32 / 1.25) + 1) - 0.8
    assert DaNCELoss(1.0).contrast_keys(queries, keys, others).item() == pytest.approx(paper, abs=1e-6)
    capped = math.log(math.exp(0.5 * 0.9) + math.exp(7 / 32 / 1.25) + 1) - 0.8
    assert DaNCELoss(1.0, cap=0.9).contrast_keys(queries, keys, others).item() == pytest.approx(capped, abs=1e-6)
    with_positive = math.log(1 + math.exp(paper))
    assert DaNCELoss(1.0, with_positive=True).contrast_keys(queries, keys, others).item() == pytest.approx(
        with_positive, abs=1e-6
    )
    # One query has all of every negative's weight.
    published = math.log(1 + (math.exp(0.5) + math.exp(7 / 32) + 1) / math.exp(0.8))
    assert DaNCELoss(1.0, published=True).contrast_keys(queries, keys, others).item() == pytest.approx(
        published, abs=1e-6
    )


def test_a_query_with_only_far_negatives_weights_them_equally() -> None:
    queries, keys = torch.tensor([[1.0, 0, 0]]), torch.tensor([[1.0, 0, 0]])
    others = torch.tensor([[-1.0, 0, 0], [0.0, 1.0, 0]])
    expected = math.log(math.exp(-1) + 1) - 1
    assert DaNCELoss(1.0).contrast_keys(queries, keys, others).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("temperature", [0.01, 0.1])
def test_without_weights_the_loss_is_plain_nce(temperature: float) -> None:
    rows = unit(17)
    queries, keys, others = rows[:4], rows[4:8], rows[8:]
    logits = torch.cat([(queries * keys).sum(1, keepdim=True), queries @ others.T], 1) / temperature
    published = DaNCELoss(temperature, weighted=False, published=True).contrast_keys(queries, keys, others)
    assert published.item() == pytest.approx(cross_entropy(logits, torch.zeros(4, dtype=torch.int64)).item(), rel=1e-9)
    paper = DaNCELoss(temperature, weighted=False).contrast_keys(queries, keys, others)
    assert paper.item() == pytest.approx((logits[:, 1:].logsumexp(1) - logits[:, 0]).mean().item(), rel=1e-9)


@pytest.mark.parametrize("published", [False, True])
def test_only_queries_get_a_gradient_and_none_through_the_weights(published: bool) -> None:
    queries, keys, others = (rows.clone().requires_grad_() for rows in unit(12, spread=2.0).split(4))
    loss = DaNCELoss(0.1, published=published)
    loss.contrast_keys(queries, keys, others).backward()
    assert keys.grad is None
    assert others.grad is None
    cosines = (queries @ others.T).detach()
    weights = loss.weights(cosines, torch.ones(4, 4, dtype=torch.bool), DIM)

    def still(q: Tensor) -> Tensor:
        terms = (q @ others.detach().T * weights / 0.1).logsumexp(1) - (q * keys.detach()).sum(1) / 0.1
        return (torch.log1p(terms.exp()) if published else terms).mean()

    again = queries.detach().clone().requires_grad_()
    still(again).backward()
    assert queries.grad is not None
    assert again.grad is not None
    assert torch.allclose(queries.grad, again.grad)


@pytest.mark.parametrize("published", [False, True])
def test_gradients_without_weights(published: bool) -> None:
    loss = DaNCELoss(0.1, weighted=False, published=published)
    queries, keys, others = unit(12).split(4)
    assert torch.autograd.gradcheck(lambda q: loss.contrast_keys(q, keys, others), queries.clone().requires_grad_())
    embeddings, y = batch(0, LABELS)
    assert torch.autograd.gradcheck(lambda e: loss(e, y), embeddings.requires_grad_())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("labels", BATCHES.values(), ids=list(BATCHES))
def test_degenerate_batches_have_finite_values_and_gradients(labels: list[int], kind: str, dtype: torch.dtype) -> None:
    embeddings = rows(kind, labels, unit=True).to(dtype).requires_grad_()
    value = DaNCELoss()(embeddings, torch.tensor(labels))
    value.backward()
    assert value.shape == ()
    assert torch.isfinite(value)
    assert embeddings.grad is not None
    assert torch.isfinite(embeddings.grad).all()


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("dim", [2, 3, 64, 512])
@pytest.mark.parametrize("kind", ["random", "equal", "opposite", "zero", "no negatives", "one zero query"])
def test_degenerate_rows_have_finite_values_and_gradients(kind: str, dim: int, published: bool) -> None:
    rows = unit(24, dim).float()
    queries, keys, others = rows[:4].clone(), rows[4:8], rows[8:]
    if kind == "equal":
        queries, keys, others = (rows[:1].repeat(n, 1) for n in (4, 4, 16))
    elif kind == "opposite":
        others = -rows[:1].repeat(16, 1)
        queries = rows[:1].repeat(4, 1)
    elif kind == "zero":
        queries, keys, others = (torch.zeros(n, dim) for n in (4, 4, 16))
    elif kind == "no negatives":
        others = others[:0]
    elif kind == "one zero query":
        queries[1] = 0
    queries.requires_grad_()
    value = DaNCELoss(published=published).contrast_keys(queries, keys, others)
    value.backward()
    assert torch.isfinite(value)
    assert queries.grad is not None
    assert torch.isfinite(queries.grad).all()
    if kind == "no negatives":
        assert value == 0
        assert not queries.grad.any()


def test_nan_stays_visible() -> None:
    for place in range(3):
        rows = list(unit(12).split(4))
        rows[place][0] = torch.nan
        assert not torch.isfinite(DaNCELoss().contrast_keys(*rows))


@pytest.mark.parametrize("args", [{"temperature": 0}, {"cap": 0}, {"nearest": 0}, {"nearest": 1.5}, {"farthest": 2.1}])
def test_impossible_constants_are_rejected(args: dict[str, float]) -> None:
    with raises(RecipeError, "invalid-value"):
        DaNCELoss(**args)

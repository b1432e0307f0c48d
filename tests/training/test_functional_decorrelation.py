"""Decorrelation: its value by a naive loop, and the direction of each gradient."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from tests.raising import raises
from training.functional import Decorrelation, reverse_gradient
from zoo.errors import RecipeError


def embeddings(n: int, dim: int, seed: int) -> Tensor:
    return normalize(torch.randn(n, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), dim=1)


def naive(term: Decorrelation, a: Tensor, b: Tensor) -> float:
    """Return c by loops over float64 numbers."""
    first, second = term.regressor[0], term.regressor[2]
    total = 0.0
    for row_a, row_b in zip(a.tolist(), b.tolist(), strict=True):
        hidden = [
            max(sum(w * x for w, x in zip(weights, row_b, strict=True)) + bias, 0)
            for weights, bias in zip(first.weight.tolist(), first.bias.tolist(), strict=True)
        ]
        out = [
            sum(w * x for w, x in zip(weights, hidden, strict=True)) + bias
            for weights, bias in zip(second.weight.tolist(), second.bias.tolist(), strict=True)
        ]
        length = sum(x * x for x in out) ** 0.5
        total += sum((x * y / length) ** 2 for x, y in zip(row_a, out, strict=True)) / len(row_a)
    return total / len(a)


@pytest.fixture
def term() -> Decorrelation:
    torch.manual_seed(0)
    return Decorrelation(4, 3, width=6)


def test_the_term_is_minus_the_mean_of_squared_products(term: Decorrelation) -> None:
    a, b = embeddings(7, 4, seed=1), embeddings(7, 3, seed=2)
    assert term(a.float(), b.float()).item() == pytest.approx(-naive(term, a, b), rel=1e-5)


def test_a_sum_over_the_dimensions_is_dim_times_the_mean(term: Decorrelation) -> None:
    a, b = embeddings(5, 4, seed=1).float(), embeddings(5, 3, seed=2).float()
    summed = Decorrelation(4, 3, width=6, sum_over_dim=True)
    summed.load_state_dict(term.state_dict())
    torch.testing.assert_close(summed(a, b), 4 * term(a, b))


def test_by_hand() -> None:
    """The regressor always gives (3, 4) / 5 and a is (1, 0): c = ((3/5)^2 + 0) / 2 = 0.18."""
    term = Decorrelation(2, 2, width=1)
    with torch.no_grad():
        term.regressor[2].weight.zero_()
        term.regressor[2].bias.copy_(torch.tensor([3.0, 4.0]))
    assert term(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])).item() == pytest.approx(-0.18)


def test_a_step_of_the_regressor_alone_raises_the_correlation(term: Decorrelation) -> None:
    a, b = embeddings(7, 4, seed=1), embeddings(7, 3, seed=2)
    before = naive(term, a, b)
    term(a.float(), b.float()).backward()
    torch.optim.SGD(term.parameters(), lr=0.1).step()
    assert naive(term, a, b) > before


@pytest.mark.parametrize("which", ["a", "b"])
def test_a_step_of_either_embedding_alone_lowers_the_correlation(term: Decorrelation, which: str) -> None:
    inputs = {"a": embeddings(7, 4, seed=1).float(), "b": embeddings(7, 3, seed=2).float()}
    before = naive(term, inputs["a"], inputs["b"])
    moved = inputs[which].requires_grad_()
    term(inputs["a"], inputs["b"]).backward()
    torch.optim.SGD([moved], lr=0.1).step()
    assert naive(term, inputs["a"], inputs["b"]) < before


def test_gradients_are_those_of_the_naive_loop_with_their_signs(term: Decorrelation) -> None:
    """Central differences of c: the embeddings get + dc, so that descent lowers it; the regressor gets - dc."""
    term.double()
    a, b = embeddings(5, 4, seed=1).requires_grad_(), embeddings(5, 3, seed=2).requires_grad_()
    term(a, b).backward()
    expected = [(a, 1.0), (b, 1.0), *((parameter, -1.0) for parameter in term.parameters())]
    for tensor, sign in expected:
        assert tensor.grad is not None
        numeric = torch.zeros_like(tensor)
        for i in range(tensor.numel()):
            numeric.view(-1)[i] = sign * slope(term, a, b, tensor, i)
        torch.testing.assert_close(tensor.grad, numeric, rtol=1e-3, atol=1e-6)


def slope(term: Decorrelation, a: Tensor, b: Tensor, tensor: Tensor, i: int, step: float = 1e-5) -> float:
    """Return dc / d tensor[i] by central differences."""
    values = []
    for sign in (1, -1):
        tensor.data.view(-1)[i] += sign * step
        values.append(naive(term, a.detach(), b.detach()))
        tensor.data.view(-1)[i] -= sign * step
    return (values[0] - values[1]) / (2 * step)


def test_a_zero_regressor_and_zero_embeddings_give_zero(term: Decorrelation) -> None:
    for parameter in term.parameters():
        torch.nn.init.zeros_(parameter)
    a = torch.zeros(3, 4, requires_grad=True)
    value = term(a, torch.zeros(3, 3))
    value.backward()
    assert value.item() == 0
    assert a.grad is not None
    assert a.grad.isfinite().all()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in term.parameters())


def test_reversal_keeps_values_to_the_last_bit_and_turns_gradients() -> None:
    values = (torch.randn(1000) * torch.logspace(-30, 30, 1000)).requires_grad_()
    reverse_gradient(values).sum().backward()
    assert torch.equal(reverse_gradient(values), values)
    assert values.grad is not None
    assert torch.equal(values.grad, -torch.ones(1000))


@pytest.mark.parametrize("sizes", [(0, 3, 6), (4, 0, 6), (4, 3, 0)])
def test_sizes_are_checked(sizes: tuple[int, int, int]) -> None:
    with raises(RecipeError, "invalid-value"):
        Decorrelation(*sizes)

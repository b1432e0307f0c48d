"""Properties of every loss: correct gradients, visible NaN, independence of the order of the batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.raising import raises
from tests.training.losses.batches import DIM, LABELS, batch, create, normalised
from tests.training.methods.batches import method, minibatch, trunk
from training.losses import LOSSES
from training.miners import create_miner
from training.recipe import Objective
from zoo.errors import RecipeError, UsageError

RANDOM = {"angular", "group", "npair", "quadruplet"}
"""Losses that draw missing tuples at random."""
CUT_GRADIENT = {"circle", "dance"}
"""Losses with a part without gradient; their own tests cover it."""


@pytest.mark.parametrize("name", LOSSES)
def test_nan_stays_visible(name: str) -> None:
    # The loop stops at a loss that is not finite; nothing else may fail first, and nothing may hide it.
    embeddings, y = batch(1, [0, 0, 0, 1, 1, 2], normalised(name))
    embeddings[1] = torch.nan
    assert not torch.isfinite(create(name, 4)(embeddings, y))


@pytest.mark.parametrize("name", LOSSES)
def test_embeddings_on_their_class_vectors_have_finite_gradients(name: str) -> None:
    loss = create(name, 2)
    for vectors in loss.parameters():
        if vectors.shape == (2, DIM):
            embeddings = torch.nn.functional.normalize(vectors.detach(), dim=1).repeat(2, 1)
            for side in (embeddings, -embeddings):
                side.requires_grad_()
                loss(side, torch.tensor([0, 1, 0, 1])).backward()
                assert side.grad is not None
                assert torch.isfinite(side.grad).all()


@pytest.mark.parametrize("name", sorted(set(LOSSES) - CUT_GRADIENT))
@pytest.mark.parametrize("labels", [LABELS, [0, 0, 1, 2]])
def test_gradients(name: str, labels: list[int]) -> None:
    embeddings, y = batch(0, labels, normalised(name))
    loss = create(name, 4)
    state = {key: value.detach().requires_grad_() for key, value in loss.named_parameters()}

    def value(e: Tensor, *parameters: Tensor) -> Tensor:
        torch.manual_seed(0)
        return torch.func.functional_call(loss, dict(zip(state, parameters, strict=True)), (e, y))

    # Of the larger batch one random direction is compared, of the smaller one every entry.
    inputs = (embeddings.requires_grad_(), *state.values())
    assert torch.autograd.gradcheck(value, inputs, fast_mode=labels is LABELS)


@pytest.mark.parametrize("name", sorted(set(LOSSES) - RANDOM))
def test_the_order_of_the_batch_does_not_matter(name: str) -> None:
    embeddings, y = batch(2, LABELS, normalised(name))
    loss = create(name, 4)
    order = torch.tensor([3, 0, 8, 7, 5, 1, 6, 4, 2])
    assert loss(embeddings[order], y[order]).item() == pytest.approx(loss(embeddings, y).item(), abs=1e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_a_step_downhill_lowers_the_loss(name: str) -> None:
    embeddings, y = batch(3, [0, 0, 0, 1, 1, 1, 2, 2, 2], normalised(name))
    embeddings.requires_grad_()
    loss = create(name, 3)
    torch.manual_seed(0)
    before = loss(embeddings, y)
    (gradient,) = torch.autograd.grad(before, embeddings)
    torch.manual_seed(0)
    after = loss(embeddings - 1e-4 * gradient / gradient.norm(), y)
    assert after < before


@pytest.mark.parametrize("name", LOSSES)
def test_the_plain_method_passes_unit_or_raw_embeddings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []

    def forward(self: nn.Module, embeddings: Tensor, labels: Tensor, tuples: None = None) -> Tensor:
        seen.append(embeddings)
        return embeddings.sum()

    monkeypatch.setattr(LOSSES[name], "forward", forward)
    labels, net = [0, 0, 1, 1, 2, 3], trunk()
    method(Objective(name), labels, {"embedding": DIM}, net).loss(minibatch(net, labels))
    (embeddings,) = seen
    assert torch.allclose(embeddings.norm(dim=1), torch.ones(6), atol=1e-5) == normalised(name)


@pytest.mark.parametrize(
    ("loss", "miner", "names"),
    [
        ("arcface", "distance-weighted", ["triplets", "'arcface'", "objective.miner=none"]),
        ("margin", "ms", ["pairs", "'margin'", "triplets"]),
        ("quadruplet", "ms", ["pairs", "'quadruplet'", "quadruplets or triplets"]),
    ],
)
def test_a_loss_rejects_a_miner_of_other_tuples(loss: str, miner: str, names: list[str]) -> None:
    for arguments in ({"miner": miner}, {"miner": "rho", "miner_args": {"probability": 0.4, "miner": miner}}):
        with pytest.raises(RecipeError) as caught:
            method(Objective(loss, **arguments), [0, 1], {"embedding": DIM})
        assert all(name in str(caught.value) for name in names)
    method(Objective("ms", miner), [0, 1], {"embedding": DIM})


LEARNS_BY_CLASS = [
    "arcface",
    "cosface",
    "group",
    "margin",
    "softmax",
    "pa",
    "proxynca",
    "softtriple",
    "subcenter",
]


@pytest.mark.parametrize("name", LEARNS_BY_CLASS)
@pytest.mark.parametrize("label", [-1, 3])
def test_labels_out_of_range_are_rejected(name: str, label: int) -> None:
    embeddings, _ = batch(0, [0, 1, 2, 0], normalised(name))
    with pytest.raises(RecipeError) as caught:
        create(name, 3)(embeddings, torch.tensor([0, 1, 2, label]))
    assert str(label) in str(caught.value)


@pytest.mark.parametrize("name", LOSSES)
def test_other_shapes_and_dtypes_are_rejected(name: str) -> None:
    """Without the check several losses would take labels that lack a row, and others would raise torch's errors."""
    loss, (embeddings, labels) = create(name, 4), batch(0, [0, 0, 1, 1, 2], normalised(name))
    for wrong in (labels[:-1], labels[:, None]):
        with pytest.raises(UsageError) as caught:
            loss(embeddings, wrong)
        assert str(list(wrong.shape)) in str(caught.value)
    for dtype in (torch.int32, torch.float32):
        with pytest.raises(UsageError) as caught:
            loss(embeddings, labels.to(dtype))
        assert str(dtype).removeprefix("torch.") in str(caught.value)


@pytest.mark.parametrize("name", ["margin", "triplet", "snr"])
def test_a_loss_of_triplets_rejects_pairs(name: str) -> None:
    embeddings, labels = batch(0, [0, 0, 1, 1, 2], normalised(name))
    with pytest.raises(UsageError):
        create(name, 4)(embeddings, labels, create_miner("ms", {})(embeddings, labels))


def test_a_custom_loss_must_annotate_its_tuples(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(nn.Module):
        def __init__(self, classes: int) -> None:
            super().__init__()

        def forward(self, embeddings: Tensor, labels: Tensor, tuples=None) -> Tensor:  # type: ignore[no-untyped-def]
            return embeddings.sum()

    monkeypatch.setitem(LOSSES, "own", Own)
    with raises(RecipeError, "conflicting-settings"):
        method(Objective("own", "random"), [0, 1], {"embedding": DIM})


@pytest.mark.parametrize("name", ["arcface", "cosface", "softmax", "proxynca"])
def test_class_vectors_may_start_normal_as_in_pytorch_metric_learning(name: str) -> None:
    """Reality's rates turn a vector by about rate x steps / length: the length is that of N(0, 1)."""
    torch.manual_seed(0)
    loss = LOSSES[name](classes=200, dim=128, start="normal")
    (vectors,) = loss.parameters()
    assert vectors.shape == (200, 128)
    assert vectors.mean().item() == pytest.approx(0, abs=0.03)
    assert vectors.std().item() == pytest.approx(1, abs=0.03)
    assert vectors.abs().max().item() > 3


def test_centres_of_softtriple_may_start_as_in_pytorch_metric_learning() -> None:
    from pytorch_metric_learning.losses import SoftTripleLoss

    torch.manual_seed(0)
    theirs = SoftTripleLoss(num_classes=98, embedding_size=128, centers_per_class=10).fc
    (ours,) = LOSSES["softtriple"](classes=98, dim=128, centres=10, start="kaiming").parameters()
    own = torch.empty_like(theirs)
    torch.nn.init.kaiming_uniform_(own, a=5**0.5)
    assert ours.std().item() == pytest.approx(own.std().item(), rel=0.01)
    assert ours.abs().max().item() == pytest.approx(own.abs().max().item(), rel=0.01)


def test_an_unknown_start_is_an_error() -> None:
    with raises(RecipeError, "unknown-name") as caught:
        LOSSES["cosface"](classes=4, dim=8, start="norml")
    assert "'normal'" in str(caught.value)

"""Properties of every loss: correct gradients, visible NaN, independence of the order of the batch."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pytest
import torch
from pytorch_metric_learning import losses as pml_losses
from pytorch_metric_learning import miners as pml_miners
from torch import Tensor, nn

from tests.raising import raises
from tests.training.losses.batches import DIM, LABELS, all_triplets, batch, create, indices, normalised
from tests.training.methods.batches import method, minibatch, trunk
from training.batch import EmbeddingBatch
from training.functional import Pairs, Triplets
from training.losses import LOSSES
from training.losses.base import accepted_tuples
from training.methods.base import Plain
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


def value_of(name: str, embeddings: Tensor, labels: Tensor, **args: Any) -> float:
    """The value of a loss of four classes; what it draws is the same each time."""
    loss = create(name, 4)
    torch.manual_seed(0)
    value: Tensor = loss(embeddings, labels, **args)
    return value.item()


@pytest.mark.parametrize("name", LOSSES)
def test_embeddings_are_scaled_to_unit_length_unless_the_loss_is_defined_on_raw_ones(name: str) -> None:
    raw, y = batch(4, LABELS, normalised=False)
    unit = torch.nn.functional.normalize(raw, dim=1)
    assert (value_of(name, raw, y) == pytest.approx(value_of(name, unit, y), abs=1e-9)) == normalised(name)


@pytest.mark.parametrize("name", LOSSES)
def test_the_plain_method_calls_a_loss_as_its_user_does(name: str) -> None:
    labels, net = [0, 0, 1, 1, 2, 3], trunk()
    built = method(Objective(name), labels, {"embedding": DIM}, net)
    step = minibatch(net, labels)
    raw = built.heads["embedding"](step.features)
    torch.manual_seed(0)
    expected = built.objective(raw, step.labels)
    torch.manual_seed(0)
    assert built.loss(step)["loss"].item() == expected.item()


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
def test_other_shapes_and_labels_that_are_no_whole_numbers_are_rejected(name: str) -> None:
    """Without the check several losses would take labels that lack a row, and others would raise torch's errors."""
    loss, (embeddings, labels) = create(name, 4), batch(0, [0, 0, 1, 1, 2], normalised(name))
    for wrong in (labels[:-1], labels[:, None]):
        with pytest.raises(UsageError) as caught:
            loss(embeddings, wrong)
        assert str(list(wrong.shape)) in str(caught.value)
    for dtype in (torch.bool, torch.float32):
        with raises(UsageError, "invalid-labels"):
            loss(embeddings, labels.to(dtype))
    with raises(UsageError, "invalid-value"):
        loss(embeddings.long(), labels)


@pytest.mark.parametrize("name", LOSSES)
def test_labels_of_every_integer_type_mean_the_same(name: str) -> None:
    embeddings, y = batch(0, LABELS)
    expected = value_of(name, embeddings, y)
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32):
        assert value_of(name, embeddings, y.to(dtype)) == expected


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("parameters", [torch.float32, torch.float16])
def test_half_precision_is_computed_in_float32(name: str, dtype: torch.dtype, parameters: torch.dtype) -> None:
    embeddings, y = batch(0, LABELS)
    loss, half = create(name, 4).to(parameters), embeddings.to(dtype).requires_grad_()
    torch.manual_seed(0)
    expected = loss.float()(half.detach().float(), y)
    torch.manual_seed(0)
    value = loss.to(parameters)(half, y)
    value.backward()
    assert value.item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-6)
    assert half.grad is not None
    assert half.grad.dtype == dtype
    assert torch.isfinite(half.grad).all()


@pytest.mark.parametrize("name", LOSSES)
def test_double_embeddings_need_no_double_loss(name: str) -> None:
    embeddings, y = batch(0, LABELS)
    loss = create(name, 4).float()
    torch.manual_seed(0)
    single = loss(embeddings, y)
    torch.manual_seed(0)
    assert single.item() == pytest.approx(loss.double()(embeddings, y).item(), rel=1e-6, abs=1e-7)


JOINED = ["margin", "triplet", "snr", "histogram", "npair", "angular"]


@pytest.mark.parametrize("name", JOINED)
def test_pairs_become_the_triplets_of_their_anchors(name: str) -> None:
    embeddings, y = batch(0, LABELS)
    pairs = create_miner("ms", {})(embeddings, y)
    triplets = [
        (int(a), int(p), int(n))
        for a, p in zip(pairs[0], pairs[1], strict=True)
        for other, n in zip(pairs[2], pairs[3], strict=True)
        if other == a
    ]
    expected = value_of(name, embeddings, y, indices_tuple=indices(triplets))
    assert value_of(name, embeddings, y, indices_tuple=pairs) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", ["quadruplet", "dance", "group", "recall"])
def test_other_tuples_than_those_of_a_loss_are_one_error(name: str) -> None:
    embeddings, y = batch(0, LABELS)
    with raises(UsageError, "invalid-value"):
        value_of(name, embeddings, y, indices_tuple=create_miner("ms", {})(embeddings, y))
    with raises(UsageError, "invalid-value"):
        value_of(name, embeddings, y, indices_tuple=(y, y))


@pytest.mark.parametrize("name", [name for name in LOSSES if Triplets in accepted_tuples(LOSSES[name])])
def test_plain_tuples_are_those_of_their_kind(name: str) -> None:
    embeddings, y = batch(0, LABELS)
    triplets = indices(all_triplets(LABELS))
    expected = value_of(name, embeddings, y, indices_tuple=triplets)
    assert value_of(name, embeddings, y, indices_tuple=tuple(triplets)) == expected
    assert value_of(name, embeddings, y, indices_tuple=list(triplets)) == expected


COMPARING = [name for name in LOSSES if LOSSES[name].compares_references]


@pytest.mark.parametrize("name", COMPARING)
def test_references_are_what_the_embeddings_are_compared_with(name: str) -> None:
    """The loss is that of a batch which the references have joined, over pairs whose anchors are the embeddings."""
    (rows, y), (references, other) = batch(0, [0, 1, 2, 1]), batch(1, [1, 0, 2, 2, 0, 3])
    args = {"kept_only": True} if name == "ms" else {"nu": 0} if "nu" in signature(LOSSES[name]).parameters else {}
    args |= {"pairs": "all"} if name == "angular" else {}
    loss, every = create(name, 4, **args), EmbeddingBatch(rows, y, references, other)
    joined, labels = torch.cat([rows, references]), torch.cat([y, other])
    a, p, b, n = every.all_pairs()
    pairs = Pairs(a, p + 4, b, n + 4)
    expected = loss(joined, labels, pairs)
    if name == "margin":
        loss.by_triplets = True
    assert loss(rows, y, None, references, other).item() == pytest.approx(expected.item(), abs=1e-9)
    assert loss(rows, y, (a, p, b, n), references, other).item() == pytest.approx(expected.item(), abs=1e-9)


@pytest.mark.parametrize("name", sorted(set(LOSSES) - set(COMPARING)))
def test_other_losses_refuse_references(name: str) -> None:
    embeddings, y = batch(0, LABELS)
    with raises(UsageError, "option-without-effect"):
        create(name)(embeddings, y, None, embeddings, y)


@pytest.mark.parametrize("name", LOSSES)
def test_the_representation_names_every_constant(name: str) -> None:
    loss = create(name)
    given = {"class_sizes"} | ({"num_classes"} if loss.num_classes is None else set())
    for constant in set(signature(LOSSES[name]).parameters) - given - {"parts"}:
        assert f"{constant}=" in repr(loss)
    assert "beta=1.2" in repr(create("margin"))


@pytest.mark.parametrize("mined", [True, False])
def test_losses_and_miners_of_another_library_train_as_they_are(mined: bool) -> None:
    labels, net = [0, 0, 1, 1, 2, 3], trunk()
    loss = pml_losses.ArcFaceLoss(4, DIM) if not mined else pml_losses.TripletMarginLoss()
    head = nn.ModuleDict({"embedding": nn.Linear(net(torch.zeros(1, 3, 4, 4)).shape[1], DIM)})
    built = Plain(head, loss, pml_miners.MultiSimilarityMiner() if mined else None)
    step = minibatch(net, labels)
    raw = head["embedding"](step.features)
    pairs = pml_miners.MultiSimilarityMiner()(raw, step.labels) if mined else None
    assert built.loss(step)["loss"].item() == pytest.approx(loss(raw, step.labels, pairs).item(), abs=1e-6)


@pytest.mark.parametrize("name", ["arcface", "cosface", "softmax", "proxynca"])
def test_class_vectors_may_start_normal_as_in_pytorch_metric_learning(name: str) -> None:
    """Reality's rates turn a vector by about rate x steps / length: the length is that of N(0, 1)."""
    torch.manual_seed(0)
    loss = LOSSES[name](num_classes=200, embedding_size=128)
    (vectors,) = loss.parameters()
    assert vectors.shape == (200, 128)
    assert vectors.mean().item() == pytest.approx(0, abs=0.03)
    assert vectors.std().item() == pytest.approx(1, abs=0.03)
    assert vectors.abs().max().item() > 3


def test_centres_of_softtriple_may_start_as_in_pytorch_metric_learning() -> None:
    from pytorch_metric_learning.losses import SoftTripleLoss

    torch.manual_seed(0)
    theirs = SoftTripleLoss(num_classes=98, embedding_size=128, centers_per_class=10).fc
    (ours,) = LOSSES["softtriple"](98, 128).parameters()
    own = torch.empty_like(theirs)
    torch.nn.init.kaiming_uniform_(own, a=5**0.5)
    assert ours.std().item() == pytest.approx(own.std().item(), rel=0.01)
    assert ours.abs().max().item() == pytest.approx(own.abs().max().item(), rel=0.01)


def test_an_unknown_start_is_an_error() -> None:
    with raises(RecipeError, "unknown-name") as caught:
        LOSSES["cosface"](4, 8, start="norml")
    assert "'normal'" in str(caught.value)

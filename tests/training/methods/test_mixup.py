"""Manifold mixup against the trunk run by hand, and against the usual mixed cross entropy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Beta
from torch.nn.functional import cross_entropy, normalize
from torch.utils.checkpoint import checkpoint

from tests.raising import raises
from tests.training.methods.batches import method, minibatch, trunk
from training.losses.triplet import TripletMarginLoss
from training.methods.base import Minibatch
from training.methods.mixup import MixedTrunk, find_stages, mix_activations
from training.miners.hard import BatchHardMiner
from training.recipe import Objective
from zoo.errors import RecipeError
from zoo.models.network import create_trunk

LABELS = [0, 0, 1, 1, 2, 2]


def mixed_objective(loss: str = "triplet", miner: str | None = None, **args: Any) -> Objective:
    return Objective(loss, miner, method="mixup", method_args={"layers": ["1"], **args})


def drawn(seed: int, alpha: float, n: int) -> tuple[float, Tensor]:
    torch.manual_seed(seed)
    return Beta(alpha, alpha).sample().item(), torch.randperm(n)


def by_hand(net: nn.Sequential, images: Tensor, order: Tensor, share: float) -> Tensor:
    """The toy trunk, its second module's output mixed."""
    hidden = net[1](net[0](images))
    return net[3](net[2](share * hidden + (1 - share) * hidden[order]))


def test_equals_the_trunk_by_hand_with_two_sets_of_tuples() -> None:
    net = trunk()
    mixup = method(mixed_objective(miner="hard"), LABELS, {"embedding": 5}, net)
    batch = minibatch(net, LABELS)
    share, order = drawn(4, 2.0, 6)
    torch.manual_seed(4)
    terms = mixup.loss(batch)
    rows = normalize(mixup.heads["embedding"](by_hand(net, batch.images, order, share)), dim=1)
    loss, miner, partners = TripletMarginLoss(0.2, active_only=False), BatchHardMiner(), batch.labels[order]
    own = share * loss(rows, batch.labels, miner(rows.detach(), batch.labels))
    partner = (1 - share) * loss(rows, partners, miner(rows.detach(), partners))
    assert terms["own"].item() == pytest.approx(own.item(), rel=1e-5)
    assert terms["partner"].item() == pytest.approx(partner.item(), rel=1e-5)
    sum(terms.values()).backward()  # type: ignore[union-attr]
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in net.parameters())
    # The hook is gone.
    assert torch.equal(net(batch.images), batch.features)


def test_a_softmax_loss_equals_the_cross_entropy_with_mixed_labels() -> None:
    net = trunk()
    mixup = method(mixed_objective("softmax", alpha=0.5), LABELS, {"embedding": 5}, net)
    batch = minibatch(net, LABELS)
    share, order = drawn(7, 0.5, 6)
    torch.manual_seed(7)
    value = sum(mixup.loss(batch).values())
    rows = normalize(mixup.heads["embedding"](by_hand(net, batch.images, order, share)), dim=1)
    logits = rows / 0.05 @ normalize(mixup.objective.centres, dim=1).T
    one_hot = torch.eye(3)[batch.labels]
    expected = cross_entropy(logits, share * one_hot + (1 - share) * one_hot[order])
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)  # type: ignore[union-attr]


def test_two_processes_permute_their_images_in_the_same_way() -> None:
    # This process holds the first three of six images; the other's features come from the same permutation.
    net = trunk()
    mixup = method(mixed_objective("softmax"), LABELS, {}, net)
    parts = torch.randn(6, 3, 4, 4).split(3)
    labels = torch.tensor([0, 1, 2, 2, 0, 1])

    def forward(images: Tensor, other: nn.Module | None) -> Tensor:
        assert images is parts[0]
        assert other is not None
        return torch.cat([other(part) for part in parts])

    share, order = drawn(5, 2.0, 3)
    torch.manual_seed(5)
    terms = mixup.loss(Minibatch(labels, torch.arange(6), parts[0], forward, lambda: parts[0], "main", 0))
    whole = torch.cat([order, order + 3])
    rows = normalize(by_hand(net, torch.cat(parts), whole, share), dim=1)
    expected = (1 - share) * mixup.objective(rows, labels[whole])
    assert terms["partner"].item() == pytest.approx(expected.item(), rel=1e-5)


def test_stages_are_those_that_timm_names_and_drawn_at_random() -> None:
    conv4 = create_trunk("conv4", 1, {"widths": [2, 2, 2, 2]})
    assert find_stages(conv4) == [conv4.blocks[i] for i in range(4)]  # type: ignore[index, union-attr]
    torch.manual_seed(0)
    objective = Objective("softmax", method="mixup", method_args={"layers": ["0", "1", "2", "3"]})
    net = trunk()
    mixup = method(objective, LABELS, {}, net)
    ran: list[nn.Module] = []

    def forward(images: Tensor, other: nn.Module | None) -> Tensor:
        assert isinstance(other, MixedTrunk)
        ran.append(other.stage)
        features: Tensor = other(images)
        return features

    images = torch.randn(6, 3, 4, 4)
    for _ in range(40):
        mixup.loss(Minibatch(torch.tensor(LABELS), torch.arange(6), images, forward, lambda: images, "main", 0))
    assert len(ran) == 40
    assert set(ran) == set(net)


def test_the_trunk_is_not_registered_and_a_share_of_one_changes_nothing() -> None:
    net = trunk()
    mixup = method(mixed_objective(), LABELS, {"embedding": 5}, net)
    assert {name for name, _ in mixup.named_parameters()} == {"heads.embedding.weight", "heads.embedding.bias"}
    images = torch.randn(4, 3, 4, 4)
    with mix_activations(net[1], torch.tensor([1, 2, 3, 0]), 1.0):  # type: ignore[index]
        assert torch.equal(net(images), net(images))


def test_a_repeated_forward_pass_is_mixed_again_and_a_part_of_it_rejected() -> None:
    net = trunk()
    images, order = torch.randn(4, 3, 4, 4), torch.tensor([1, 2, 3, 0])
    mixed = MixedTrunk(net, net[1], order, 0.3)  # type: ignore[index]
    rows = (checkpoint(mixed, images, use_reentrant=False), by_hand(net, images, order, 0.3))
    gradients = [torch.autograd.grad(features.square().sum(), list(net.parameters())) for features in rows]
    for actual, expected in zip(*gradients, strict=True):
        assert torch.allclose(actual, expected, atol=1e-6)
    with raises(RecipeError, "conflicting-settings"):
        mixed(images[:2])


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2], [1]])
@pytest.mark.parametrize("miner", ["hard", None])
def test_degenerate_batches(labels: list[int], miner: str | None) -> None:
    net = trunk()
    mixup = method(mixed_objective(miner=miner), LABELS, {"embedding": 5}, net)
    value = sum(mixup.loss(minibatch(net, labels)).values())
    value.backward()  # type: ignore[union-attr]
    assert torch.isfinite(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("objective", "dims", "code"),
    [
        (mixed_objective(alpha=0), {}, "invalid-value"),
        (mixed_objective(layers=["layer1"]), {}, "unknown-name"),
        (mixed_objective(layers=[""]), {}, "unknown-name"),
        (Objective("triplet", method="mixup"), {}, "unsupported-model"),
        (mixed_objective(), {"a": 2, "b": 2}, "conflicting-settings"),
    ],
)
def test_layers_numbers_and_heads_that_do_not_fit_are_rejected(
    objective: Objective, dims: dict[str, int], code: str
) -> None:
    with raises(RecipeError, code):
        method(objective, LABELS, dims)


def test_a_layer_without_one_activation_per_image_is_rejected() -> None:
    rnn = nn.Sequential(nn.Flatten(), nn.RNN(48, 3))
    with raises(RecipeError, "unsupported-model"), mix_activations(rnn[1], torch.tensor([1, 0]), 0.5):
        rnn(torch.randn(2, 3, 4, 4))

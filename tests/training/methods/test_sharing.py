"""Sharing: each term against a naive loop, the parameters that each task changes, the arms of the ablation."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from tests.raising import raises
from tests.training.methods.batches import method, minibatch, trunk
from training.functional import Triplets
from training.losses.margin import MarginLoss
from training.losses.triplet import TripletMarginLoss
from training.methods.sharing import ARMS, Sharing
from training.miners.base import mine_unit_rows
from training.miners.inter_class import InterClassMiner
from training.miners.semihard import SemihardMiner
from training.recipe import Objective
from zoo.errors import RecipeError

CLASSES = [c for c in range(5) for _ in range(4)]
LABELS, SAMPLES = [0, 0, 1, 1, 2, 2, 3, 3], [0, 1, 4, 5, 8, 9, 12, 13]


def sharing(
    arm: str = "decorrelated",
    net: nn.Module | None = None,
    loss: str = "margin",
    miner: str | None = "semihard",
    dim: int = 6,
    **args: Any,
) -> Sharing:
    objective = Objective(loss, miner, method="sharing", method_args={"arm": arm, **args})
    return cast(Sharing, method(objective, CLASSES, dict.fromkeys(ARMS[arm], dim), net))


def gradients(module: nn.Module) -> list[bool]:
    return [p.grad is not None and bool(p.grad.any()) for p in module.parameters()]


def naive_margin(unit: Tensor, triplets: Triplets, margin: float = 0.2, beta: float = 1.2) -> float:
    e, terms = unit.detach().double().numpy(), []
    for a, p, n in zip(*(index.tolist() for index in triplets), strict=True):
        terms += [np.linalg.norm(e[a] - e[p]) - beta + margin, beta - np.linalg.norm(e[a] - e[n]) + margin]
    active = [float(term) for term in terms if term > 0]
    return sum(active) / max(1, len(active))


@pytest.mark.parametrize("task", ["discriminative", "shared"])
def test_the_task_learns_from_its_triplets(task: str) -> None:
    net = trunk()
    trained, batch = sharing(net=net), minibatch(net, LABELS, SAMPLES, task)
    unit = normalize(trained.heads[task](batch.features), dim=1)
    miner = SemihardMiner() if task == "discriminative" else InterClassMiner()
    torch.manual_seed(5)
    expected = naive_margin(unit, mine_unit_rows(miner, unit, batch.labels))
    torch.manual_seed(5)
    assert trained.loss(batch)[task].item() == pytest.approx(expected, rel=1e-5)
    assert expected > 0


@pytest.mark.parametrize("task", ["discriminative", "shared"])
def test_decorrelation_is_gamma_times_minus_the_correlation(task: str) -> None:
    net = trunk()
    trained, batch = sharing(net=net, gamma=700.0), minibatch(net, LABELS, SAMPLES, task)
    term = trained.loss(batch)["decorrelation"]
    phi, shared = (normalize(trained.heads[name](batch.features), dim=1) for name in ("discriminative", "shared"))
    assert trained.decorrelation is not None
    predicted = normalize(trained.decorrelation.regressor(shared), dim=1)
    total = 0.0
    for row, other in zip(phi.tolist(), predicted.tolist(), strict=True):
        total += sum((x * y) ** 2 for x, y in zip(row, other, strict=True)) / 6
    assert term.item() == pytest.approx(-700 * total / 8, rel=1e-5)


def test_encoders_descend_the_correlation_and_the_adversary_climbs_it() -> None:
    net = trunk()
    trained, batch = sharing(net=net, gamma=2.0), minibatch(net, LABELS, SAMPLES, "shared")
    encoders = [*net.parameters(), *trained.heads.parameters()]
    adversary = list(cast(nn.Module, trained.decorrelation).parameters())
    result = torch.autograd.grad(trained.loss(batch)["decorrelation"], [*encoders, *adversary])
    phi, shared = (normalize(trained.heads[name](net(batch.images)), dim=1) for name in ("discriminative", "shared"))
    assert trained.decorrelation is not None
    correlation = (phi * normalize(trained.decorrelation.regressor(shared), dim=1)).square().mean()
    expected = torch.autograd.grad(2 * correlation, [*encoders, *adversary])
    for i, (actual, plain) in enumerate(zip(result, expected, strict=True)):
        torch.testing.assert_close(actual, plain if i < len(encoders) else -plain)


@pytest.mark.parametrize("task", ["discriminative", "shared"])
def test_without_decorrelation_a_task_moves_its_own_encoder_and_the_features(task: str) -> None:
    net = trunk()
    trained, other = sharing("separate", net), "shared" if task == "discriminative" else "discriminative"
    terms = trained.loss(minibatch(net, LABELS, SAMPLES, task))
    assert list(terms) == [task]
    terms[task].backward()
    assert all(gradients(net))
    assert all(gradients(trained.heads[task]))
    assert all(gradients(trained.losses[task]))
    assert not any(gradients(trained.heads[other]) + gradients(trained.losses[other]))


@pytest.mark.parametrize(
    ("arm", "tasks"),
    [
        ("discriminative", ["discriminative"] * 5),
        ("shared", ["shared"] * 5),
        ("joint", ["discriminative", "shared", "discriminative", "shared", "discriminative"]),
        ("separate", ["discriminative", "shared", "discriminative", "shared", "discriminative"]),
        ("decorrelated", ["discriminative", "shared", "discriminative", "shared", "discriminative"]),
    ],
)
def test_tasks_alternate_across_epochs(arm: str, tasks: list[str]) -> None:
    trained = sharing(arm)
    assert trained.plan(0, 5) == tasks
    assert trained.plan(1, 5) == (tasks if len(set(tasks)) == 1 else [*tasks[1:], "shared"])


@pytest.mark.parametrize("arm", ARMS)
def test_an_iteration_has_two_batches_and_two_updates_in_every_arm(arm: str) -> None:
    """Algorithm 1 draws a batch of classes and a batch across classes, and updates after each."""
    trained = sharing(arm)
    naive = []
    for _ in range(52):
        naive += list(trained.tasks) if len(trained.tasks) == 2 else 2 * list(trained.tasks)
    assert trained.plan(1, trained.steps(52)) == naive


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_has_finite_gradients_on_any_batch(arm: str) -> None:
    net = trunk()
    trained = sharing(arm, net)
    for task in set(trained.plan(0, 4)):
        for labels, samples in [(LABELS, SAMPLES), ([0, 0], [0, 1]), ([0, 1], [0, 4]), ([2], [8]), ([3] * 3, [12] * 3)]:
            trained.zero_grad()
            terms = trained.loss(minibatch(net, labels, samples, task))
            torch.stack(list(terms.values())).sum().backward()
            assert all(term.isfinite() for term in terms.values())
            assert all(p.grad.isfinite().all() for p in trained.parameters() if p.grad is not None)


def test_joint_trains_both_tasks_on_one_head() -> None:
    net = trunk()
    trained = sharing("joint", net)
    for task in ("discriminative", "shared"):
        trained.zero_grad()
        terms = trained.loss(minibatch(net, LABELS, SAMPLES, task))
        assert list(terms) == [task]
        terms[task].backward()
        assert all(gradients(trained.heads["joint"]))


def test_grouped_triplets_have_batches_by_group_and_boundaries_by_class() -> None:
    trained = sharing(triplets="grouped-standardised", groups=2)
    labels = np.array(CLASSES)
    features = torch.stack([torch.from_numpy(labels), torch.arange(20) // 2 % 2], 1).float()
    trained.start_epoch(0, lambda: features)
    assert trained.targets("discriminative", labels) is labels
    groups = trained.targets("shared", labels)
    assert (groups == groups[0]).tolist() == [i // 2 % 2 == 0 for i in range(20)]
    margin = trained.losses["shared"]
    assert isinstance(margin, MarginLoss)
    assert len(margin.beta) == 5
    net = trunk()
    batch = minibatch(net, [0] * 4, [0, 1, 2, 3], "shared")
    trained.loss(batch)["shared"].backward()
    assert margin.beta.grad is not None
    assert margin.beta.grad.nonzero().flatten().tolist() in ([], [0])


def test_proxy_losses_leave_the_shared_task_to_triplets_with_semihard_negatives() -> None:
    trained = sharing(loss="proxynca", miner=None)
    loss = trained.losses["shared"]
    assert isinstance(loss, TripletMarginLoss)
    assert (loss.margin, loss.squared) == (0.2, True)
    assert cast(InterClassMiner, trained.triplets.base_miner).negative == "semihard"
    miner = cast(InterClassMiner, sharing().triplets.base_miner)
    assert (miner.positive, miner.negative) == ("distance-weighted", "distance-weighted")


def test_unconstrained_triplets_are_random() -> None:
    miner = cast(InterClassMiner, sharing(triplets="unconstrained").triplets.base_miner)
    assert (miner.positive, miner.negative) == ("random", "random")


def test_n_pair_trains_the_shared_task_by_n_pair_with_several_negatives() -> None:
    """Section 4: the loss of phi* is that of phi, with positives of another class and negatives of third classes."""
    net = trunk()
    trained, batch = sharing(net=net, loss="npair", miner=None), minibatch(net, LABELS, SAMPLES, "shared")
    raw = trained.heads["shared"](batch.features)
    torch.manual_seed(5)
    drawn = mine_unit_rows(InterClassMiner(negative="random"), normalize(raw, dim=1), batch.labels)
    e, terms = raw.detach().double().numpy(), []
    for a, p in zip(drawn.anchors.tolist(), drawn.positives.tolist(), strict=True):
        third = [n for n, label in enumerate(LABELS) if label not in (LABELS[a], LABELS[p])]
        assert len(third) == 4
        terms.append(np.log(1 + sum(np.exp(e[a] @ e[n] - e[a] @ e[p]) for n in third)))
    expected = float(np.mean(terms) + 0.005 * np.mean([row @ row for row in e]))
    torch.manual_seed(5)
    assert trained.loss(batch)["shared"].item() == pytest.approx(expected, rel=1e-5)


def test_the_shared_task_may_have_a_loss_and_negatives_of_its_own() -> None:
    args = {"shared_loss": "margin", "shared_loss_args": {"beta": 0.6}, "negatives": "random"}
    trained = sharing(loss="proxynca", miner=None, triplets="nearest", **args)
    loss, miner = trained.losses["shared"], cast(InterClassMiner, trained.triplets.base_miner)
    assert isinstance(loss, MarginLoss)
    assert loss.beta.tolist() == pytest.approx([0.6] * 5)
    assert (miner.positive, miner.negative) == ("nearest", "random")


def test_the_adversary_learns_at_its_own_rate() -> None:
    trained = sharing()
    (rate,) = trained.parameter_groups()
    assert (rate.lr, rate.weight_decay) == (1e-5, 1e-6)
    assert {id(p) for p in rate.parameters} == {id(p) for p in cast(nn.Module, trained.decorrelation).parameters()}
    assert trained.decorrelation is not None
    assert trained.decorrelation.regressor[0].out_features == 512
    assert sharing("separate").parameter_groups() == []


def test_a_checkpoint_continues_identically() -> None:
    net = trunk()
    first, second = (sharing(net=net, triplets="grouped", groups=3) for _ in range(2))
    first.start_epoch(0, lambda: torch.randn(20, 4))
    with torch.no_grad():
        for parameter in first.parameters():
            parameter += 0.1
    second.load_state_dict(first.state_dict())
    batch = minibatch(net, LABELS, SAMPLES, "shared")
    terms = []
    for trained in (first, second):
        torch.manual_seed(3)
        terms.append(trained.loss(batch))
    assert terms[0] == terms[1]
    assert first.targets("shared", np.array(CLASSES)).tolist() == second.targets("shared", np.array(CLASSES)).tolist()


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ({"gamma": -1.0}, "invalid-value"),
        ({"triplets": "intra-class"}, "unknown-name"),
        ({"negatives": "hard"}, "unknown-name"),
        ({"shared_loss": "proxynca"}, "conflicting-settings"),
        ({"shared_loss_args": {"beta": 1}}, "option-without-effect"),
        ({"triplets": "grouped", "groups": 21}, "invalid-value"),
    ],
)
def test_impossible_values_are_rejected(args: dict[str, Any], code: str) -> None:
    with raises(RecipeError, code):
        sharing(**args)


@pytest.mark.parametrize("args", [{"shared_loss": "margins"}, {"width": 0}])
def test_an_unknown_loss_and_an_empty_regressor_are_rejected(args: dict[str, Any]) -> None:
    with pytest.raises(RecipeError):
        sharing(**args)


@pytest.mark.parametrize(
    ("arm", "heads"),
    [
        ("decorrelated", ["discriminative"]),
        ("joint", ["discriminative", "shared"]),
        ("shared", []),
        ("separate", ["a"]),
    ],
)
def test_heads_must_be_those_of_the_arm(arm: str, heads: list[str]) -> None:
    objective = Objective("margin", method="sharing", method_args={"arm": arm})
    with raises(RecipeError, "conflicting-settings"):
        method(objective, CLASSES, dict.fromkeys(heads, 4))


def test_unknown_arms_are_rejected() -> None:
    with raises(RecipeError, "unknown-name"):
        method(Objective("margin", method="sharing", method_args={"arm": "both"}), CLASSES, {"shared": 4})

"""MIC: each term against a naive loop, its groups, and the frequency of its tasks."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any, cast

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score
from torch import nn
from torch.nn.functional import normalize

from tests.raising import raises
from tests.training.methods.batches import FEATURES, method, minibatch, trunk
from training.losses.margin import MarginLoss
from training.losses.triplet import TripletMarginLoss
from training.methods.mic import MIC
from training.recipe import Objective
from training.samplers.spc import SPC
from zoo.errors import RecipeError

CLASSES = [c for c in range(5) for _ in range(4)]
LABELS, SAMPLES = [0, 0, 1, 1, 2, 2, 3, 3], [0, 1, 4, 6, 8, 9, 12, 14]


def mic(net: nn.Module | None = None, loss: str = "margin", miner: str | None = None, **args: Any) -> MIC:
    objective = Objective(loss, miner, method="mic", method_args={"groups": 3, **args})
    return cast(MIC, method(objective, CLASSES, {"class": 6}, net))


def naive_margin(unit: np.ndarray, labels: list[int], margin: float = 0.2, beta: float = 1.2) -> float:
    """Over all pairs of the batch, both ways round."""
    active = []
    for i in range(len(unit)):
        for j in range(len(unit)):
            distance = float(np.linalg.norm(unit[i] - unit[j]))
            term = distance - beta + margin if labels[i] == labels[j] else beta - distance + margin
            active += [term] if i != j and term > 0 else []
    return sum(active) / max(1, len(active))


@pytest.mark.parametrize("task", ["class", "auxiliary"])
def test_classes_and_groups_have_separate_heads(task: str) -> None:
    net = trunk()
    trained, batch = mic(net), minibatch(net, LABELS, SAMPLES, task)
    labels = LABELS if task == "class" else [sample % 3 for sample in SAMPLES]
    head = trained.heads["class"] if task == "class" else trained.auxiliary
    unit = normalize(head(batch.features), dim=1).detach().double().numpy()
    terms = trained.loss(batch)
    assert sorted(terms) == sorted([task, "decorrelation"])
    assert terms[task].item() == pytest.approx(naive_margin(unit, labels), rel=1e-5)
    assert terms[task] > 0


def test_encoders_descend_the_correlation_and_the_adversary_climbs_it() -> None:
    """The adversary tells the class embedding from the auxiliary one."""
    net = trunk()
    trained, batch = mic(net, decorrelation=30.0), minibatch(net, LABELS, SAMPLES, "auxiliary")
    encoders = [*net.parameters(), *trained.heads.parameters(), *trained.auxiliary.parameters()]
    everything = [*encoders, *trained.decorrelation.parameters()]
    term = trained.loss(batch)["decorrelation"]
    result = torch.autograd.grad(term, everything)
    features = net(batch.images)
    target, source = (normalize(head(features), dim=1) for head in (trained.heads["class"], trained.auxiliary))
    correlation = 30 * (target * normalize(trained.decorrelation.regressor(source), dim=1)).square().mean()
    assert term.item() == pytest.approx(-correlation.item(), rel=1e-5)
    for i, (actual, plain) in enumerate(zip(result, torch.autograd.grad(correlation, everything), strict=True)):
        torch.testing.assert_close(actual, plain if i < len(encoders) else -plain)


@pytest.mark.parametrize("task", ["class", "auxiliary"])
@pytest.mark.parametrize("miner", [None, "distance-weighted"])
def test_gradients_are_finite_on_any_batch(task: str, miner: str | None) -> None:
    net = trunk()
    trained = mic(net, miner=miner)
    for labels, samples in [(LABELS, SAMPLES), ([0, 0], [0, 3]), ([0, 1], [0, 4]), ([2], [8]), ([3] * 3, [12] * 3)]:
        trained.zero_grad()
        terms = trained.loss(minibatch(net, labels, samples, task))
        torch.stack(list(terms.values())).sum().backward()
        assert all(term.isfinite() for term in terms.values())
        assert all(p.grad.isfinite().all() for p in trained.parameters() if p.grad is not None)


def test_auxiliary_steps_follow_class_steps_with_the_probability() -> None:
    trained = mic(auxiliary_probability=0.8)
    plan = trained.plan(3, 9000)
    assert len(plan) == 9000
    assert ("auxiliary", "auxiliary") not in set(itertools.pairwise(plan))
    assert plan.count("class") == 5000  # 5000 + 0.8 x 5000 = 9000
    half = [plan[i + 1] == "auxiliary" for i, task in enumerate(plan[:4500]) if task == "class"]
    assert np.mean(half) == pytest.approx(0.8, abs=0.03)
    assert plan == mic(auxiliary_probability=0.8).plan(3, 9000) != trained.plan(4, 9000)
    assert mic(auxiliary_probability=0).plan(0, 5) == ["class"] * 5
    assert mic(auxiliary_probability=1).plan(0, 6) == ["class", "auxiliary"] * 3


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.5, 0.7, 0.8, 1.0])
@pytest.mark.parametrize("iterations", [1, 2, 3, 7, 10, 52, 71, 531])
def test_an_epoch_has_all_class_steps_of_its_iterations(probability: float, iterations: int) -> None:
    """The published code trains on each batch of classes, and after it on one of groups with the probability."""
    trained = mic(auxiliary_probability=probability)
    steps = trained.steps(iterations)
    plan = trained.plan(2, steps)
    assert len(plan) == steps
    assert plan.count("class") == iterations
    expected = Fraction(str(probability)) * iterations
    assert 0 <= expected - plan.count("auxiliary") < 1


def test_groups_contain_several_classes_and_give_batches() -> None:
    trained, classes = mic(groups=2), np.array(CLASSES)
    traits = np.tile([0, 1, 1, 0], 5)
    features = torch.from_numpy(np.stack([10.0 * classes, traits], 1)).float()
    assert trained.targets("class", classes) is classes
    trained.start_epoch(0, lambda: features)
    groups = trained.targets("auxiliary", classes)
    assert adjusted_rand_score(traits, groups) == 1
    (batch,) = SPC(groups, 8, 4).epoch(0, 1)
    assert np.unique(groups[batch], return_counts=True)[1].tolist() == [4, 4]
    for epoch in (1, 2):
        trained.start_epoch(epoch, lambda: pytest.fail("groups hold for three epochs"))


def test_there_may_be_more_groups_than_classes() -> None:
    net = trunk()
    trained = mic(net, groups=15)
    loss = trained.losses["auxiliary"]
    assert isinstance(loss, MarginLoss)
    assert loss.beta.tolist() == pytest.approx([1.2] * 15)
    trained.loss(minibatch(net, [3, 3, 4, 4], [12, 13, 14, 19], "auxiliary"))["auxiliary"].backward()


def test_the_groups_may_have_another_loss() -> None:
    loss = mic(auxiliary_loss="triplet", auxiliary_loss_args={"margin": 0.5}).losses["auxiliary"]
    assert isinstance(loss, TripletMarginLoss)
    assert loss.margin == 0.5


def test_learning_rates_and_published_state() -> None:
    trained = mic()
    auxiliary, adversary = trained.parameter_groups()
    assert [(rate.lr, rate.weight_decay) for rate in (auxiliary, adversary)] == [(1e-5, 4e-4), (1e-5, 1e-6)]
    assert [tuple(p.shape) for p in auxiliary.parameters] == [(6, FEATURES), (6,)]
    assert [tuple(p.shape) for p in adversary.parameters] == [(512, 6), (512,), (6, 512), (6,)]
    assert trained.weight == 2500
    assert list(trained.heads) == ["class"]


def test_a_checkpoint_continues_identically() -> None:
    net = trunk()
    first, second = (mic(net, miner="semihard") for _ in range(2))
    first.start_epoch(0, lambda: torch.randn(20, 4))
    with torch.no_grad():
        for parameter in first.parameters():
            parameter += 0.1
    second.load_state_dict(first.state_dict())
    batch = minibatch(net, LABELS, SAMPLES, "auxiliary")
    terms = []
    for trained in (first, second):
        torch.manual_seed(3)
        terms.append(trained.loss(batch))
    assert terms[0] == terms[1]


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ({"groups": 21}, "invalid-value"),
        ({"auxiliary_probability": 1.5}, "invalid-value"),
        ({"decorrelation": -1.0}, "invalid-value"),
        ({"adversary_lr": -1.0}, "invalid-value"),
        ({"auxiliary_loss": "proxynca", "miner": "semihard"}, "conflicting-settings"),
    ],
)
def test_impossible_values_are_rejected(args: dict[str, Any], code: str) -> None:
    with raises(RecipeError, code):
        mic(**args)


def test_unknown_arguments_of_the_auxiliary_loss_are_rejected() -> None:
    with pytest.raises(RecipeError) as caught:
        mic(auxiliary_loss_args={"betas": 1})
    assert "'betas'" in str(caught.value)


@pytest.mark.parametrize("heads", [{}, {"discriminative": 4}, {"class": 4, "auxiliary": 4}])
def test_the_head_is_named_class(heads: dict[str, int]) -> None:
    with raises(RecipeError, "conflicting-settings"):
        method(Objective("margin", method="mic"), CLASSES, heads)

"""The method of the group loss: pre-training first, on features without a head or with one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.raising import raises
from tests.training.methods.batches import FEATURES, method, minibatch, trunk
from training.losses.group import GroupLoss
from training.methods.group import GroupMethod
from training.recipe import Objective
from zoo.cli.main import main
from zoo.errors import RecipeError

LABELS = [0, 0, 0, 1, 1, 1, 2, 2, 2]
OBJECTIVE = Objective("group", method="group", method_args={"pretraining": 2})


@pytest.mark.parametrize("dims", [{}, {"embedding": 5}])
def test_classifies_first_then_groups(dims: dict[str, int]) -> None:
    net = trunk()
    group = method(OBJECTIVE, LABELS, dims, net)
    assert isinstance(group, GroupMethod)
    assert group.objective.classifier.in_features == (5 if dims else FEATURES)
    batch = minibatch(net, LABELS, epoch=1)
    raw = group.heads["embedding"](batch.features) if dims else batch.features
    (name, value), *rest = group.loss(batch).items()
    assert (name, rest) == ("classification", [])
    expected = cross_entropy(group.objective.classifier(raw), batch.labels)
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)
    batch = minibatch(net, LABELS, epoch=2)
    raw = group.heads["embedding"](batch.features) if dims else batch.features
    torch.manual_seed(3)
    terms = group.loss(batch)
    torch.manual_seed(3)
    assert terms.keys() == {"group"}
    assert terms["group"].item() == pytest.approx(group.objective(raw, batch.labels).item(), rel=1e-6)
    terms["group"].backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in [*net.parameters(), *group.parameters()])


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2], [1]])
def test_degenerate_batches(labels: list[int]) -> None:
    net = trunk()
    group = method(OBJECTIVE, LABELS, {}, net)
    for epoch in (0, 5):
        (value,) = group.loss(minibatch(net, labels, epoch=epoch)).values()
        value.backward()
        assert torch.isfinite(value)
    assert all(torch.isfinite(p.grad).all() for p in net.parameters() if p.grad is not None)


@pytest.mark.parametrize(
    ("objective", "dims", "code"),
    [
        (Objective("margin", method="group"), {}, "conflicting-settings"),
        (OBJECTIVE, {"a": 2, "b": 2}, "conflicting-settings"),
        (Objective("group", method="group", method_args={"pretraining": -1}), {}, "invalid-value"),
    ],
)
def test_another_loss_heads_and_numbers_are_rejected(objective: Objective, dims: dict[str, int], code: str) -> None:
    with raises(RecipeError, code):
        method(objective, LABELS, dims)


@pytest.mark.parametrize("objective", [Objective(None, method="group"), Objective("group", "semihard", method="group")])
def test_a_missing_loss_and_a_miner_are_rejected(objective: Objective) -> None:
    with pytest.raises(RecipeError):
        method(objective, LABELS, {})


def test_the_plain_method_trains_the_loss_too() -> None:
    net = trunk()
    plain = method(Objective("group"), LABELS, {}, net)
    assert isinstance(plain.objective, GroupLoss)
    assert torch.isfinite(plain.loss(minibatch(net, LABELS))["loss"])


@pytest.mark.slow
@pytest.mark.parametrize(("pretraining", "kept"), [(1, {2, 3}), (2, {3}), (3, {None}), (0, {1, 2, 3})])
def test_no_epoch_of_the_pretraining_is_kept_as_the_model(
    pretraining: int, kept: set[int | None], own_zoo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"schedule.epochs": 3, "schedule.steps": 2, "objective.method_args.pretraining": pretraining}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    assert main(["train", "group-conv4-glyphs", *words, "--as", "toy", "--no-eval", "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["best_epoch"] in kept
    assert ("pre-training" in told.err) is (kept == {None})

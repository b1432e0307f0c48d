from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.raising import raises
from training.clustering import Momentum
from zoo.errors import RecipeError


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))


def test_the_average_follows_by_hand() -> None:
    live = nn.Linear(1, 1)
    nn.init.constant_(live.weight, 1.0)
    slow = Momentum(live, 0.9)
    nn.init.constant_(live.weight, 2.0)
    slow.update()
    assert slow.average.weight.item() == pytest.approx(1.1)
    slow.update()
    assert slow.average.weight.item() == pytest.approx(0.9 * 1.1 + 0.1 * 2)


def test_running_statistics_are_copied() -> None:
    live = network()
    slow = Momentum(live, 0.9)
    live(torch.randn(8, 3))
    slow.update()
    for mine, theirs in zip(slow.average.buffers(), live.buffers(), strict=True):
        assert torch.equal(mine, theirs)


def test_it_stays_in_evaluation_mode_and_learns_nothing() -> None:
    slow = Momentum(network(), 0.9)
    nn.ModuleList([slow]).train()
    assert not any(module.training for module in slow.modules())
    assert not any(parameter.requires_grad for parameter in slow.parameters())
    rows = torch.randn(8, 3)
    before = {name: value.clone() for name, value in slow.state_dict().items()}
    assert torch.allclose(slow.average(rows)[:2], slow.average(rows[:2]))
    assert all(torch.equal(value, before[name]) for name, value in slow.state_dict().items())


def test_the_live_network_is_not_registered() -> None:
    live = network()
    slow = Momentum(live, 0.9)
    assert not {id(p) for p in live.parameters()} & {id(p) for p in slow.parameters()}
    assert all(name.startswith("average.") for name in slow.state_dict())


@pytest.mark.parametrize("momentum", [-0.1, 1.0])
def test_impossible_momentum_is_refused(momentum: float) -> None:
    with raises(RecipeError, "bad-momentum"):
        Momentum(network(), momentum)

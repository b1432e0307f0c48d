"""Groups of samples: their members, their renewal, and their place in a checkpoint."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from tests.raising import raises
from training.methods.grouping import Grouping
from zoo.errors import RecipeError

CLASSES = np.repeat(np.arange(6), 8)
TRAITS = np.tile([0, 1], 24)


def observe() -> Tensor:
    """The first feature tells the classes, far apart in two halves; the second a trait of every other sample."""
    halves = 100.0 * (CLASSES >= 3) + CLASSES
    return torch.from_numpy(np.stack([halves, TRAITS + 0.01 * np.arange(48)], 1)).float()


@pytest.mark.parametrize(("standardised", "expected"), [(True, TRAITS), (False, CLASSES >= 3)])
def test_standardised_groups_contain_several_classes(standardised: bool, expected: np.ndarray) -> None:
    grouping = Grouping(CLASSES, 2, every=1, seed=0, standardised=standardised)
    grouping.start_epoch(0, observe)
    assert adjusted_rand_score(expected, grouping.targets()) == 1


def test_groups_change_only_before_every_third_epoch() -> None:
    grouping = Grouping(CLASSES, 2, every=3, seed=0)
    calls = []

    def seen() -> Tensor:
        calls.append(epoch)
        return observe()

    for epoch in range(8):
        grouping.start_epoch(epoch, seen)
    assert calls == [0, 3, 6]


def test_before_the_first_features_every_group_has_members() -> None:
    targets = Grouping(CLASSES, 5, every=3, seed=0).targets()
    assert targets.dtype == np.int64
    assert np.unique(targets).tolist() == [0, 1, 2, 3, 4]


def test_a_checkpoint_holds_the_groups_alone() -> None:
    grouping, other = (Grouping(CLASSES, 2, every=3, seed=seed) for seed in (0, 1))
    grouping.start_epoch(0, observe)
    assert list(grouping.state_dict()) == ["groups"]
    other.load_state_dict(grouping.state_dict())
    assert other.targets().tolist() == grouping.targets().tolist()


@pytest.mark.parametrize(("number", "every"), [(1, 3), (49, 3), (2, 0)])
def test_numbers_out_of_range_are_rejected(number: int, every: int) -> None:
    with raises(RecipeError, "bad-number"):
        Grouping(CLASSES, number, every, seed=0)

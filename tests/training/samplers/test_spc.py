from __future__ import annotations

import numpy as np

from tests.raising import raises
from training.samplers.spc import SPC
from zoo.errors import RecipeError


def test_all_classes_are_drawn_equally_often() -> None:
    labels = np.repeat(np.arange(10), 5)
    drawn = np.concatenate(list(SPC(labels, 8, 2, 0).epoch(0, 2000)))
    frequency = np.bincount(labels[drawn]) / len(drawn)
    np.testing.assert_allclose(frequency, 0.1, atol=0.01)


def test_classes_are_drawn_in_groups_of_neighbours() -> None:
    labels = np.repeat(np.arange(12), 5)
    for batch in SPC(labels, 16, 2, 0, together=4).epoch(0, 20):
        drawn = sorted(set(labels[batch].tolist()))
        assert len(drawn) == 8
        assert all(set(range(4 * (c // 4), 4 * (c // 4) + 4)) <= set(drawn) for c in drawn)
    with raises(RecipeError, "conflicting-settings"):
        SPC(labels, 10, 2, 0, together=5)

from __future__ import annotations

import numpy as np
import pytest

from training.samplers.class_weighted import ClassWeighted

SIZES = np.array([1, 2, 3, 6])
LABELS = np.repeat(np.arange(4), SIZES)


@pytest.mark.parametrize("power", [-1.0, 0.0, 1.0])
def test_classes_are_drawn_by_their_size(power: float) -> None:
    drawn = np.concatenate(list(ClassWeighted(LABELS, 2, 2, power=power).epoch(0, 2000)))
    weights = SIZES**power
    np.testing.assert_allclose(np.bincount(LABELS[drawn]) / len(drawn), weights / weights.sum(), atol=0.03)


def test_with_power_1_each_sample_comes_equally_often() -> None:
    drawn = np.concatenate(list(ClassWeighted(LABELS, 1, 1, 0).epoch(0, 12000)))
    np.testing.assert_allclose(np.bincount(drawn) / len(drawn), 1 / 12, atol=0.01)

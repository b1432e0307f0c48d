from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.raising import raises
from training.samplers.spc_r import SPCR
from zoo.errors import RecipeError


@settings(max_examples=60)
@given(st.lists(st.integers(0, 8), min_size=2, max_size=20), st.data())
def test_samples_are_different_and_the_last_has_a_classmate(labels: list[int], data: st.DataObject) -> None:
    y, size = np.array(labels), data.draw(st.integers(2, len(labels)))
    if len(set(labels)) == len(labels):
        with raises(RecipeError, "too-few-samples"):
            SPCR(y, size, 0)
        return
    for batch in SPCR(y, size, 0).epoch(0, 4):
        assert len(batch) == len(set(batch.tolist())) == size
        assert y[batch[-1]] in y[batch[:-1]]


def test_all_samples_come_equally_often() -> None:
    labels = np.repeat(np.arange(20), 3)
    drawn = np.concatenate(list(SPCR(labels, 10, 0).epoch(0, 3000)))
    np.testing.assert_allclose(np.bincount(drawn) / len(drawn), 1 / 60, atol=0.002)


@pytest.mark.parametrize("size", [1, 6])
def test_a_size_out_of_range_is_rejected(size: int) -> None:
    with raises(RecipeError, "invalid-value"):
        SPCR(np.array([0, 0, 1, 1, 2]), size, 0)

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zoo.evaluation.matmul import flat_nonzero, masked_entries


@given(st.integers(1, 40), st.integers(1, 40), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_flat_nonzero_of_any_shape(rows: int, columns: int, density: float, seed: int) -> None:
    mask = np.random.default_rng(seed).random((rows, columns)) < density
    indices = flat_nonzero(mask)
    assert indices.dtype == np.int64
    np.testing.assert_array_equal(indices, np.flatnonzero(mask))


@pytest.mark.parametrize("places", [[], [0], [7], [8], [64], [0, 7, 8, 63, 64]])
def test_entries_at_the_ends_of_words_and_beyond(places: list[int]) -> None:
    mask = np.zeros((5, 13), np.bool_)
    mask.ravel()[places] = True
    products = np.arange(65).reshape(5, 13)
    rows, columns, values = masked_entries(products, mask)
    assert [(int(r) * 13 + int(c)) for r, c in zip(rows, columns, strict=True)] == places
    assert values.tolist() == places

"""Data set value: checks of its parts, and subsets."""

from __future__ import annotations

import numpy as np
import pytest

from tests.raising import raises
from zoo.data.dataset import Dataset, split_title, subset
from zoo.errors import DatasetError


def test_a_part_of_a_data_set_keeps_order_names_and_factors() -> None:
    whole = Dataset(
        "x", "all", list("abcd"), np.array([2, 0, 2, 1]), ("p", "q", "r"), list("wxyz"), {"f": np.arange(4)}
    )
    part = subset(whole, np.array([True, False, True, True]), "test")
    assert (part.split, part.classes, part.labels.tolist()) == ("test", ("q", "r"), [1, 1, 0])
    assert (part.images, part.sources, part.factors["f"].tolist()) == (["a", "c", "d"], ["w", "y", "z"], [0, 2, 3])
    with raises(DatasetError, "no-images"):
        subset(whole, np.zeros(4, bool))


@pytest.mark.parametrize(
    ("labels", "sources", "code"),
    [([0], "ab", "invalid-labels"), ([0, 1], "a", "invalid-labels"), ([0, 2], "ab", "invalid-labels")],
)
def test_parts_that_do_not_fit_are_refused(labels: list[int], sources: str, code: str) -> None:
    with raises(DatasetError, code, "x (all)"):
        Dataset("x", "all", list("ab"), np.array(labels), ("p", "q"), list(sources))


def test_titles_of_splits() -> None:
    assert (split_title("test"), split_title("all")) == ("test split", "all of it")

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.samplers.spc import SPC
from zoo.errors import RecipeError


@settings(max_examples=50)
@given(st.integers(2, 9), st.integers(1, 4), st.integers(1, 6), st.integers(0, 99))
def test_every_batch_has_k_samples_of_each_of_its_classes(classes: int, per_class: int, most: int, seed: int) -> None:
    sizes = np.arange(classes) % most + 1
    sizes[-1] = max(per_class, sizes[-1])  # one class has as many as are asked for
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(classes), sizes))
    in_batch = max(1, classes // 2)
    for batch in SPC(labels, in_batch * per_class, per_class, seed).epoch(0, 5):
        values, counts = np.unique(labels[batch], return_counts=True)
        assert len(values) == in_batch
        assert (counts == per_class).all()
        for value in values:
            chosen = batch[labels[batch] == value]
            if (labels == value).sum() >= per_class:
                assert len(set(chosen)) == per_class


def test_the_draw_depends_on_seed_and_epoch_alone() -> None:
    labels = np.repeat(np.arange(10), 5)
    batches = [
        [b.tolist() for b in SPC(labels, 8, 2, seed).epoch(epoch, 3)]
        for seed, epoch in ((1, 4), (1, 4), (1, 5), (2, 4))
    ]
    assert batches[0] == batches[1]
    assert batches[0] != batches[2] != batches[3]


def test_all_classes_are_drawn_equally_often() -> None:
    labels = np.repeat(np.arange(10), 5)
    drawn = np.concatenate(list(SPC(labels, 8, 2, 0).epoch(0, 2000)))
    frequency = np.bincount(labels[drawn]) / len(drawn)
    np.testing.assert_allclose(frequency, 0.1, atol=0.01)


def test_classes_that_come_together() -> None:
    labels = np.repeat(np.arange(12), 5)
    for batch in SPC(labels, 16, 2, 0, together=4).epoch(0, 20):
        drawn = sorted(set(labels[batch].tolist()))
        assert len(drawn) == 8
        assert all(set(range(4 * (c // 4), 4 * (c // 4) + 4)) <= set(drawn) for c in drawn)
    with pytest.raises(RecipeError, match="must divide"):
        SPC(labels, 10, 2, 0, together=5)


@pytest.mark.parametrize(
    ("size", "per_class", "match"),
    [(9, 2, "multiple"), (8, 2, "needs 4 classes"), (0, 1, "multiple"), (6, 3, "per_class is 3, .* the largest has 2")],
)
def test_what_the_data_cannot_satisfy_is_refused(size: int, per_class: int, match: str) -> None:
    with pytest.raises(RecipeError, match=match):
        SPC(np.array([0, 0, 1, 1, 2]), size, per_class, 0)

"""Greedy coreset against a float64 loop, and its purpose: batches that cover all parts of the data."""

from __future__ import annotations

import numpy as np
import pytest

from tests.training.samplers.toy_samplers import sampler, unit_rows
from training.samplers.greedy_coreset import GreedyCoreset, farthest_first


def naive(rows: np.ndarray, classes: np.ndarray, count: int) -> list[int]:
    chosen = [0]
    while len(chosen) < count:
        best, farthest = -1, -1.0
        for i in range(len(rows)):
            if any(classes[i] == classes[j] for j in chosen):
                continue
            nearest = min(float(np.linalg.norm(rows[i] - rows[j])) for j in chosen)
            if nearest > farthest:
                best, farthest = i, nearest
        chosen.append(best)
    return chosen


@pytest.mark.parametrize("seed", range(4))
def test_each_sample_is_the_farthest_from_those_before(seed: int) -> None:
    rows, classes = unit_rows(40, 5, seed), np.arange(40) % 12
    assert farthest_first(rows, classes, 10).tolist() == naive(rows.astype(np.float64), classes, 10)


def test_by_hand() -> None:
    # On a line: from 0 the farthest is 10, then 4 (as far as 4 from 0); 9 is of 10's class and never chosen.
    rows = np.array([[0.0], [1], [4], [9], [10]], np.float32)
    assert farthest_first(rows, np.array([0, 1, 2, 3, 3]), 4).tolist() == [0, 4, 2, 1]


def test_batches_cover_the_data_better_than_random_ones() -> None:
    """A choice mapped through another random subset, as in the published code, does not."""
    labels, centres = np.repeat(np.arange(30), 4), unit_rows(6, 8)
    batch_sampler = GreedyCoreset(labels, 6, 1, 8, pool=120)
    # Classes 0 to 24 are at the first centre: a random batch of six mostly misses some of the other five.
    batch_sampler.memory[:] = centres[np.maximum(labels - 24, 0)]
    for batch in batch_sampler.epoch(0, 10):
        assert set(np.maximum(labels[batch] - 24, 0).tolist()) == set(range(6))


def test_a_pool_of_too_few_classes_is_filled_up() -> None:
    labels = np.repeat(np.arange(8), 50)
    for batch in sampler("greedy-coreset", labels, 16, 2, pool=3).epoch(0, 10):
        assert (np.bincount(labels[batch]) == 2).all()

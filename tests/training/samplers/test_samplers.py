"""Properties of every batch sampler."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.samplers import MPerClassSampler as PmlMPerClassSampler
from torch.utils.data import DataLoader, Dataset

from tests.raising import raises
from tests.training.samplers.toy_samplers import sampler, unit_rows
from training.samplers import SAMPLERS
from training.samplers.classes import ClassIndex
from training.samplers.m_per_class import MPerClassSampler
from training.samplers.spc import SPC
from zoo.errors import RecipeError

BY_CLASS = [name for name in SAMPLERS if name != "spc-r"]
BY_MEMORY = ["greedy-coreset", "ddm", "frd"]


@pytest.mark.parametrize("name", BY_CLASS)
@settings(max_examples=15)
@given(st.integers(2, 9), st.integers(1, 4), st.integers(1, 6), st.integers(0, 99))
def test_batches_have_k_different_samples_per_class(name: str, classes: int, k: int, most: int, seed: int) -> None:
    sizes = np.arange(classes) % most + 1
    sizes[-1] = max(k, sizes[-1])  # one class has as many as are asked for
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(classes) - 3, sizes))
    in_batch = max(1, classes // 2)
    for batch in sampler(name, labels, in_batch * k, k, seed).epoch(0, 3):
        assert batch.dtype == np.int64
        values, counts = np.unique(labels[batch], return_counts=True)
        assert len(values) == in_batch
        assert (counts == k).all()
        for value in values:
            different = len(set(batch[labels[batch] == value].tolist()))
            assert different == k or (labels == value).sum() < k


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_draw_depends_on_seed_epoch_and_memory_alone(name: str) -> None:
    labels = np.repeat(np.arange(10), 5)
    drawn = [
        [batch.tolist() for batch in sampler(name, labels, 8, 2, seed).epoch(epoch, 3)]
        for seed, epoch in ((1, 4), (1, 4), (1, 5), (2, 4))
    ]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]
    assert drawn[0] != drawn[3]
    first: Any = sampler(name, labels, 8, 2, 1)
    if hasattr(first, "memory"):
        first.memory[:] = unit_rows(50, 8, seed=1)
        assert [batch.tolist() for batch in first.epoch(4, 3)] != drawn[0]


@pytest.mark.parametrize("name", BY_MEMORY)
def test_memory_written_between_two_batches_affects_the_second(name: str) -> None:
    labels = np.repeat(np.arange(10), 5)
    drawn = []
    for rewrite in (False, True):
        batch_sampler: Any = sampler(name, labels, 8, 2)
        batches = batch_sampler.epoch(0, 6)
        first = next(batches).tolist()
        if rewrite:
            batch_sampler.memory[:] = unit_rows(50, 8, seed=1)
        drawn.append((first, [batch.tolist() for batch in batches]))
    assert drawn[0][0] == drawn[1][0]
    assert drawn[0][1] != drawn[1][1]


@pytest.mark.parametrize("name", BY_MEMORY)
@pytest.mark.parametrize("kind", ["zero", "equal"])
def test_a_collapsed_memory_still_gives_batches(name: str, kind: str) -> None:
    batch_sampler: Any = sampler(name, np.repeat(np.arange(6), 4), 12, 3)
    batch_sampler.memory[:] = 0 if kind == "zero" else unit_rows(1, 8)
    for batch in batch_sampler.epoch(0, 5):
        assert len(set(batch.tolist())) == 12


@pytest.mark.parametrize("name", BY_CLASS)
@pytest.mark.parametrize(
    ("size", "per_class", "code"),
    [
        (9, 2, "conflicting-settings"),
        (0, 1, "conflicting-settings"),
        (8, 2, "too-few-classes"),
        (6, 3, "too-few-samples"),
    ],
)
def test_a_batch_that_the_classes_cannot_fill_is_rejected(name: str, size: int, per_class: int, code: str) -> None:
    with raises(RecipeError, code):
        sampler(name, np.array([0, 0, 1, 1, 2]), size, per_class)


@pytest.mark.parametrize(
    ("name", "args"), [("greedy-coreset", {"pool": 0}), ("ddm", {"pool": 1}), ("frd", {"candidates": 0})]
)
def test_impossible_arguments_are_rejected(name: str, args: dict[str, Any]) -> None:
    with raises(RecipeError, "invalid-value"):
        sampler(name, np.repeat(np.arange(4), 4), 4, 2, **args)


@pytest.mark.parametrize(
    ("name", "args", "value"), [("frd", {"together": 2}, "'together'"), ("gc", {}, "greedy-coreset")]
)
def test_unknown_samplers_and_arguments_are_rejected(name: str, args: dict[str, Any], value: str) -> None:
    with pytest.raises(RecipeError) as caught:
        sampler(name, np.repeat(np.arange(4), 4), 4, 2, **args)
    assert value in str(caught.value)


@settings(max_examples=40)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=20), st.integers(0, 5), st.integers(0, 99))
def test_samples_and_classmates_are_of_the_class_and_different(labels: list[int], count: int, seed: int) -> None:
    y, draw = np.array(labels), np.random.default_rng(seed)
    classes = ClassIndex(y)
    values = np.unique(y)
    for value, row in zip(values, classes.samples(np.arange(len(classes)), count, draw), strict=True):
        assert (y[row] == value).all()
        assert len(set(row.tolist())) == count or count > labels.count(value)
    for i, row in enumerate(classes.classmates(np.arange(len(y)), count, draw)):
        assert (y[row] == y[i]).all()
        alone = labels.count(labels[i]) == 1
        assert alone or i not in row
        assert len(set(row.tolist())) == count or count > labels.count(labels[i]) - 1


def test_each_sample_comes_equally_often_to_each_place() -> None:
    classes, draw = ClassIndex(np.zeros(5)), np.random.default_rng(0)
    rows = classes.samples(np.zeros(20_000, np.int64), 3, draw)
    mates = classes.classmates(np.full(20_000, 2), 2, draw)
    for place in range(3):
        np.testing.assert_allclose(np.bincount(rows[:, place]) / 20_000, 0.2, atol=0.015)
    for place in range(2):
        np.testing.assert_allclose(np.bincount(mates[:, place]) / 20_000, [0.25, 0.25, 0, 0.25, 0.25], atol=0.015)


class Numbers(Dataset[int]):
    """The numbers from 0 to 49, each its own sample."""

    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_data_loader_draws_the_batches_of_one_epoch_after_another(name: str, workers: int) -> None:
    labels = np.repeat(np.arange(10), 5)
    loader = DataLoader(Numbers(), batch_sampler=sampler(name, labels, 8, 2, 3), num_workers=workers)
    assert len(loader) == 6
    expected: Any = sampler(name, labels, 8, 2, 3)
    for epoch in range(2):
        drawn = [batch.tolist() for batch in loader]
        assert drawn == [batch.tolist() for batch in expected.epoch(epoch, 6)]


@pytest.mark.parametrize("labels", [list(range(5)) * 4, torch.arange(5).repeat(4), np.arange(5).repeat(4)])
def test_labels_may_be_a_list_a_tensor_or_an_array(labels: Any) -> None:
    (batch,) = SPC(labels, batch_size=6, samples_per_class=2).epoch(0, 1)
    assert np.unique(np.asarray(labels)[batch], return_counts=True)[1].tolist() == [2, 2, 2]


@pytest.mark.parametrize(("batch_size", "length"), [(None, 1000), (6, 1000), (12, 50)])
def test_m_per_class_gives_a_plain_loader_m_samples_of_each_class(batch_size: int | None, length: int) -> None:
    labels = np.repeat(np.arange(7), [1, 2, 3, 9, 9, 9, 9])
    torch.manual_seed(0)
    m = MPerClassSampler(labels, 3, batch_size, length)
    theirs = PmlMPerClassSampler(labels, 3, batch_size, length)
    drawn = list(m)
    assert len(drawn) == len(m) == len(theirs)
    assert list(m) != drawn
    size = batch_size or 21
    for batch in np.reshape(drawn, (-1, size)):
        assert np.unique(labels[batch], return_counts=True)[1].tolist() == [3] * (size // 3)
        for c in set(labels[batch].tolist()) - {0, 1}:
            assert len(set(batch[labels[batch] == c].tolist())) == 3


@pytest.mark.parametrize(("m", "batch_size"), [(0, None), (3, 8), (3, 24), (2, 0)])
def test_impossible_numbers_of_m_per_class_are_rejected(m: int, batch_size: int | None) -> None:
    with raises(RecipeError, "conflicting-settings"):
        MPerClassSampler(np.repeat(np.arange(7), 5), m, batch_size)

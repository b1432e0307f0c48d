from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest
import torch

from zoo.evaluation import knn, nearest_neighbours
from zoo.evaluation.matmul import Workers


@pytest.mark.parametrize("threads", [1, 3])
def test_results_come_in_the_order_of_the_tasks(threads):
    delays = threading.Event()

    def square(number):
        if number % 3 == 0:
            delays.wait(0.002)
        return number * number

    with Workers(threads) as workers:
        assert list(workers.map(square, range(40))) == [number * number for number in range(40)]
        assert list(workers.map(square, [])) == []


def test_tasks_are_taken_only_as_results_are():
    taken = []
    with Workers(2) as workers:
        results = workers.map(lambda task: task, (taken.append(n) or n for n in itertools.count()))
        assert [next(results) for _ in range(3)] == [0, 1, 2]
    assert len(taken) < 20


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_is_raised_where_the_result_is_taken(threads):
    with Workers(threads) as workers:
        results = workers.map(lambda task: 1 / task, [1, 0, 2])
        assert next(results) == 1
        with pytest.raises(ZeroDivisionError):
            next(results)


def test_each_thread_is_prepared_before_the_first_task():
    prepared, seen = set(), []
    with Workers(3, lambda: prepared.add(threading.get_ident()), lambda: seen.append(len(prepared))) as workers:
        assert set(workers.map(lambda _: threading.get_ident(), range(9))) <= prepared
    assert seen == [3]


def test_a_search_in_threads_gives_the_same_and_restores_torch(int8, monkeypatch):
    monkeypatch.setattr(knn, "BLOCK", 64)
    monkeypatch.setattr(knn, "SINGLE_BLOCK", 0)
    rows = np.random.default_rng(0).standard_normal((400, 64), np.float32)
    before = torch.get_num_threads()
    expected = nearest_neighbours(rows, rows, 7, exclude_self=True)
    try:
        torch.set_num_threads(3)
        for whole in (0, 8192):
            monkeypatch.setattr(knn, "SINGLE_BLOCK", whole)
            for queries, own in ((rows, True), (rows[:150], False)):
                neighbours = nearest_neighbours(queries, rows, 7, own)
                wanted = expected if own else nearest_neighbours(queries.tolist(), rows, 7)
                np.testing.assert_array_equal(neighbours[0], wanted[0])
                np.testing.assert_array_equal(neighbours[1], wanted[1])
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    exact = (rows.astype(np.float64) @ rows.astype(np.float64).T).astype(np.float32)
    np.fill_diagonal(exact, -np.inf)
    np.testing.assert_array_equal(expected[1], np.argsort(-exact, axis=1, kind="stable")[:, :7])

"""Fidelity of a student to its teacher, against loops over all pairs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from training.distillation.fidelity import cross_search, measure_fidelity, shared_neighbours
from zoo.data.dataset import Dataset
from zoo.evaluation import retrieval_metrics

N, CLASSES = 40, 5


def rows(dim: int, seed: int) -> np.ndarray:
    made = np.random.default_rng(seed).standard_normal((N, dim))
    return (made / np.linalg.norm(made, axis=1, keepdims=True)).astype(np.float32)


def pictures() -> Dataset:
    labels = np.arange(N) % CLASSES
    names = tuple(f"class {k}" for k in range(CLASSES))
    return Dataset("folder", "test", [np.zeros((2, 2, 3), np.uint8)] * N, labels, names, [f"{i}" for i in range(N)])


def order(queries: np.ndarray, gallery: np.ndarray, i: int) -> list[int]:
    similar = gallery.astype(np.float64) @ queries[i].astype(np.float64)
    return [j for j in np.argsort(-similar, kind="stable").tolist() if j != i]


def test_shared_neighbours_equal_the_loop() -> None:
    teacher, student = rows(6, 0), rows(9, 1)
    expected = [len({*order(teacher, teacher, i)[:10]} & {*order(student, student, i)[:10]}) / 10 for i in range(N)]
    np.testing.assert_allclose(shared_neighbours(teacher, student, 10), expected)
    assert shared_neighbours(teacher, teacher, 10).min() == 1


@pytest.mark.parametrize("noise", [0.1, 3.0])
def test_cross_search_equals_the_loop(noise: float) -> None:
    """With little noise each image is its own nearest neighbour, with much noise often the farthest."""
    teacher = rows(6, 0)
    student = teacher + noise * rows(6, 1) * (-1.0) ** np.arange(N)[:, None]
    labels = pictures().labels
    found = cross_search(teacher, student.astype(np.float32), pictures())
    unit = (student / np.linalg.norm(student, axis=1, keepdims=True)).astype(np.float32)
    for i in range(N):
        ranked = [bool(labels[j] == labels[i]) for j in order(unit, teacher, i)]
        relatives = sum(ranked)
        precisions = [sum(ranked[: r + 1]) / (r + 1) for r in range(relatives) if ranked[r]]
        assert found.values["recall_at_1"][i] == ranked[0]
        assert found.values["map_at_r"][i] == pytest.approx(sum(precisions) / relatives)


def test_a_student_that_is_its_teacher() -> None:
    teacher = rows(6, 0)
    found = measure_fidelity(teacher, teacher, pictures(), True)
    assert found.neighbours.value == 1
    assert found.cosine is not None
    assert found.cosine.value == pytest.approx(1)
    expected = retrieval_metrics(teacher, pictures().labels, k=(1,))
    for metric, scores in found.retrieval.items():
        assert [score.value for score in scores.values()] == pytest.approx([expected[metric]] * 3)
        assert scores["teacher"].low <= scores["teacher"].value <= scores["teacher"].high
    assert set(found.retrieval["map_at_r"]) == {"teacher", "student", "cross"}


def test_unlike_dimensions_have_no_cosine_and_no_cross_search() -> None:
    found = measure_fidelity(rows(6, 0), rows(9, 1), pictures(), True)
    assert found.cosine is None
    assert set(found.retrieval["recall_at_1"]) == {"teacher", "student"}


def test_without_labels_retrieval_is_not_measured() -> None:
    found = measure_fidelity(rows(6, 0), rows(6, 1), pictures(), False)
    assert (found.retrieval, found.evaluation, found.k) == ({}, None, 10)
    few = dataclasses.replace(pictures(), images=[b""] * 2, labels=np.zeros(2, np.int64), sources=["a", "b"])
    found = measure_fidelity(rows(6, 0)[:2], rows(6, 1)[:2], few, False)
    assert (found.k, found.neighbours.value) == (1, 1)


def test_separate_queries_search_the_teachers_gallery() -> None:
    teacher, student = rows(6, 0), rows(6, 1)
    asks = np.arange(N) < 10
    parted = dataclasses.replace(pictures(), factors={"query": asks.astype(np.int64)})
    labels = parted.labels
    expected = retrieval_metrics(teacher[~asks], labels[~asks], (1,), student[asks], labels[asks])
    found = measure_fidelity(teacher, student, parted, True)
    assert {name: scores["cross"].value for name, scores in found.retrieval.items()} == {
        name: pytest.approx(expected[name]) for name in found.retrieval
    }

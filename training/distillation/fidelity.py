"""Fidelity: the agreement of a student with its teacher on held-out images."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from zoo.data.dataset import Dataset
from zoo.evaluation import Evaluation, evaluate, intervals_over_classes, nearest_neighbours, per_query
from zoo.evaluation.evaluate import METRICS, search_arguments
from zoo.evaluation.inputs import retrieval_inputs, unit_rows
from zoo.evaluation.knn import neighbour_chunks
from zoo.evaluation.retrieval import PerQuery, build_per_query, measure_hits
from zoo.evaluation.statistics import SIGNED

NEIGHBOURS = 10


@dataclass(frozen=True)
class Score:
    """A mean with its 95 % interval over classes, or over images where there are no classes."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Fidelity:
    """The agreement of a student with its teacher on held-out images.

    Attributes:
        images: The number of images.
        k: The number of neighbours compared.
        cosine: The mean cosine of the two embeddings of an image; None if their dimensions differ.
        neighbours: The share of the teacher's `k` nearest images that are among the student's `k` nearest.
        retrieval: Metric -> searching model -> score. The models are "teacher", "student" and "cross": the student's
            queries in the teacher's gallery, without each query's own image. Empty without labels.
        evaluation: The student's measurement; None without labels.
    """

    images: int
    k: int
    cosine: Score | None
    neighbours: Score
    retrieval: dict[str, dict[str, Score]]
    evaluation: Evaluation | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the scores as JSON values, without the evaluation, which the student's results.json has."""
        values = dataclasses.asdict(self)
        del values["evaluation"]
        return values


def measure_fidelity(teacher: np.ndarray, student: np.ndarray, test: Dataset, labelled: bool) -> Fidelity:
    """Compare a student's embeddings with its teacher's.

    Args:
        teacher: Unit rows, float [n, e].
        student: Unit rows of the same images, float [n, d].
        test: The images.
        labelled: Measure retrieval by the labels of `test` too.
    """
    n = len(test)
    units = test.labels if labelled else np.arange(n)
    k = min(NEIGHBOURS, n - 1)
    agreement = {"neighbours": shared_neighbours(teacher, student, k)}
    if teacher.shape[1] == student.shape[1]:
        agreement["cosine"] = (teacher * student).sum(1, dtype=np.float64)
    scores = _scores(agreement, units)
    if not labelled:
        return Fidelity(n, k, scores.get("cosine"), scores["neighbours"], {})
    teachers, students = (evaluate(rows, test, k=(1,)) for rows in (teacher, student))
    by_model = {"teacher": _evaluation_scores(teachers), "student": _evaluation_scores(students)}
    if teacher.shape[1] == student.shape[1]:
        cross = cross_search(teacher, student, test)
        by_model["cross"] = _scores({name: cross.values[name] for name in METRICS}, cross.classes)
    retrieval = {name: {model: values[name] for model, values in by_model.items()} for name in METRICS}
    return Fidelity(n, k, scores.get("cosine"), scores["neighbours"], retrieval, students)


def shared_neighbours(teacher: np.ndarray, student: np.ndarray, k: int) -> np.ndarray:
    """Return for each row the share of its k nearest others by the teacher that are the student's too, float64 [n]."""
    theirs, ours = (nearest_neighbours(rows, rows, k, exclude_self=True)[1] for rows in (teacher, student))
    shared: np.ndarray = (theirs[:, :, None] == ours[:, None, :]).any(2).mean(1)
    return shared


def cross_search(teacher: np.ndarray, student: np.ndarray, test: Dataset) -> PerQuery:
    """Search the teacher's rows [n, d] with each of the student's [n, d], leaving out the query's own image.

    If the data set separates queries and gallery, its queries by the student search its gallery by the teacher.
    """
    theirs, ours = (search_arguments(rows, test.labels, test) for rows in (teacher, student))
    if "queries" in theirs:
        return per_query(**{**theirs, "queries": ours["queries"]}, k=(1,))
    search = retrieval_inputs(teacher, test.labels)
    queries, depth = unit_rows(student, "the student's embeddings"), int(search.relatives.max())
    parts = []
    for rows, _, neighbours in neighbour_chunks(queries, search.gallery, depth + 1, exact=False):
        is_other = neighbours != np.arange(rows.start, rows.start + len(neighbours))[:, None]
        is_other[is_other.all(1), -1] = False  # its own image is further away than all wanted neighbours
        without_self = neighbours[is_other].reshape(len(neighbours), depth)
        hits = search.codes[without_self] == search.codes[rows, None]
        parts.append(measure_hits(hits, search.relatives[rows], (1,)))
    return build_per_query({name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, search)


def _evaluation_scores(evaluation: Evaluation) -> dict[str, Score]:
    return {name: Score(evaluation.metrics[name], *evaluation.intervals[name]) for name in METRICS}


def _scores(values: dict[str, np.ndarray], units: np.ndarray) -> dict[str, Score]:
    bounds = intervals_over_classes(values, units, SIGNED)
    return {name: Score(float(numbers.mean()), *bounds[name]) for name, numbers in values.items()}

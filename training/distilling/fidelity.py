"""How near a student came to its teacher, on images that neither it nor its recipe has seen."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from zoo.data.dataset import Dataset
from zoo.evaluation import Evaluation, bootstrap_intervals, evaluate, nearest_neighbours, per_query
from zoo.evaluation.evaluate import searched
from zoo.evaluation.inputs import search_of, unit_rows
from zoo.evaluation.knn import neighbour_chunks
from zoo.evaluation.retrieval import PerQuery, measure_hits, per_query_of

METRICS = ("recall_at_1", "map_at_r")
NEIGHBOURS = 10


@dataclass(frozen=True)
class Score:
    """A mean with its 95 % interval, by resampling classes, or images where there are no classes."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Fidelity:
    """cosine: mean of the student's and the teacher's embedding of an image; None where their dimensions differ.

    neighbours: the share of the teacher's `k` nearest images that are among the student's `k` nearest. retrieval:
    metric -> the model that searched, "teacher", "student" or "cross" (the student's queries, the teacher's gallery, in
    which each query's own image is left out) -> score; empty without labels, and then there is no evaluation of the
    student either.
    """

    images: int
    k: int
    cosine: Score | None
    neighbours: Score
    retrieval: dict[str, dict[str, Score]]
    evaluation: Evaluation | None = None

    def to_json(self) -> dict[str, Any]:
        values = dataclasses.asdict(self)
        del values["evaluation"]  # the student's results.json has it
        return values


def compare(teacher: np.ndarray, student: np.ndarray, test: Dataset, labelled: bool) -> Fidelity:
    """Embeddings [n, e] and [n, d] of the same images, unit rows; with labels also what each finds."""
    n = len(test)
    units = test.labels if labelled else np.arange(n)
    k = min(NEIGHBOURS, n - 1)
    alike = {"neighbours": shared_neighbours(teacher, student, k)}
    if teacher.shape[1] == student.shape[1]:
        alike["cosine"] = (teacher * student).sum(1, dtype=np.float64)
    near = _scores(alike, units)
    if not labelled:
        return Fidelity(n, k, near.get("cosine"), near["neighbours"], {})
    theirs, ours = (evaluate(rows, test, k=(1,)) for rows in (teacher, student))
    found = {"teacher": _measured(theirs), "student": _measured(ours)}
    if teacher.shape[1] == student.shape[1]:
        cross = crossed(teacher, student, test)
        found["cross"] = _scores({name: cross.values[name] for name in METRICS}, cross.classes)
    retrieval = {name: {who: scores[name] for who, scores in found.items()} for name in METRICS}
    return Fidelity(n, k, near.get("cosine"), near["neighbours"], retrieval, ours)


def shared_neighbours(teacher: np.ndarray, student: np.ndarray, k: int) -> np.ndarray:
    """float64 [n]: of each row's k nearest others by the teacher, the share that is among the student's k nearest."""
    theirs, ours = (nearest_neighbours(rows, rows, k, exclude_self=True)[1] for rows in (teacher, student))
    shared: np.ndarray = (theirs[:, :, None] == ours[:, None, :]).any(2).mean(1)
    return shared


def crossed(teacher: np.ndarray, student: np.ndarray, test: Dataset) -> PerQuery:
    """Each of the student's rows [n, d] searches the teacher's [n, d], its own image's left out by index.

    Where the data set parts queries and gallery, its queries by the student search its gallery by the teacher.
    """
    theirs, ours = (searched(rows, test.labels, test) for rows in (teacher, student))
    if "queries" in theirs:
        return per_query(**{**theirs, "queries": ours["queries"]}, k=(1,))
    search = search_of(teacher, test.labels)
    queries, depth = unit_rows(student, "the student's embeddings"), int(search.relatives.max())
    pieces = []
    for rows, _, found in neighbour_chunks(queries, search.gallery, depth + 1, exact=False):
        others = found != np.arange(rows.start, rows.start + len(found))[:, None]
        others[others.all(1), -1] = False  # its own image is further away than all that are wanted
        kept = found[others].reshape(len(found), depth)
        hits = search.codes[kept] == search.codes[rows, None]
        pieces.append(measure_hits(hits, search.relatives[rows], (1,)))
    return per_query_of({name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}, search)


def _measured(found: Evaluation) -> dict[str, Score]:
    return {name: Score(found.metrics[name], *found.intervals[name]) for name in METRICS}


def _scores(values: dict[str, np.ndarray], units: np.ndarray) -> dict[str, Score]:
    bounds = bootstrap_intervals(values, units)
    return {name: Score(float(each.mean()), *bounds[name]) for name, each in values.items()}

"""Embeddings and labels with which something is wrong: a number that is defined, or an error that says what it is."""

from __future__ import annotations

import math

import numpy as np
import pytest

from zoo.errors import EvaluationError
from zoo.evaluation import evaluate

DRAW = np.random.default_rng(0)
ROWS = DRAW.normal(size=(6, 4))
PAIRS = [0, 0, 1, 1, 2, 2]
EVERY = ("ranking", "clustering", "structure", "verification")


def spoilt(value: float) -> np.ndarray:
    rows = ROWS.copy()
    rows[3] = value
    return rows


@pytest.mark.parametrize("group", EVERY)
@pytest.mark.parametrize(
    ("rows", "labels", "says"),
    [
        (spoilt(np.nan), PAIRS, "row 3 of embeddings holds NaN or infinite values"),
        (spoilt(np.inf), PAIRS, "row 3 of embeddings holds NaN or infinite values"),
        (spoilt(0), PAIRS, "row 3 of embeddings is all zero"),
        (ROWS, PAIRS[:5], "labels must be one for each of the 6 rows"),
        (ROWS, range(6), "no query has a relative"),
    ],
    ids=["nan", "inf", "zero", "labels", "classes of one"],
)
def test_every_group_says_what_is_wrong(group: str, rows: np.ndarray, labels: list[int], says: str) -> None:
    with pytest.raises(EvaluationError, match=says):
        evaluate(rows, labels=list(labels), k=(1,), metrics=(group,))


def test_k_beyond_the_gallery_is_named() -> None:
    with pytest.raises(EvaluationError, match="recall_at_6 needs 6 neighbours, but a query has only 5"):
        evaluate(ROWS, labels=PAIRS, k=(1, 6))


@pytest.mark.parametrize("group", EVERY)
def test_no_rows_are_nothing_to_measure(group: str) -> None:
    with pytest.raises(EvaluationError, match="there is nothing to measure"):
        evaluate(ROWS[:0], labels=[], metrics=(group,))


def test_a_k_that_makes_no_sense_is_named_before_a_model_is_looked_for() -> None:
    with pytest.raises(EvaluationError, match="k must list every K of recall_at_K"):
        evaluate("no-such-model", k=1)  # type: ignore[arg-type]


def test_one_class_cannot_be_clustered_but_searched() -> None:
    assert evaluate(ROWS, labels=[7] * 6, k=(1,), metrics=("ranking",)).metrics["mrr"] == 1
    with pytest.raises(EvaluationError, match="fewer than two classes"):
        evaluate(ROWS, labels=[7] * 6, k=(1,), metrics=("clustering",))


@pytest.mark.parametrize(
    ("rows", "labels", "recall"),
    [
        (np.repeat(ROWS[:3], 2, 0), PAIRS, 1.0),  # a duplicate of the query is found, not the query
        (np.ones((6, 4)), [0, 0, 0, 1, 1, 1], 0.5),  # all alike: ties go by row, so that class 0 is found
        (ROWS, [0, 0, 1, 2, 3, 4], None),  # four classes of one
    ],
    ids=["duplicates", "collapsed", "classes of one"],
)
def test_every_metric_of_a_degenerate_embedding_is_a_number(
    rows: np.ndarray, labels: list[int], recall: float | None
) -> None:
    found = evaluate(rows, labels=labels, k=(1,), metrics=("all",))
    assert all(math.isfinite(value) for value in found.metrics.values())
    assert recall is None or found.metrics["recall_at_1"] == recall
    assert found.queries_without_relatives == sum(labels.count(label) == 1 for label in labels)

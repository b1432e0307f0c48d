"""How alike two partitions of the same samples are: mutual information, normalised or adjusted, and F1 over pairs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from zoo.errors import EvaluationError
from zoo.evaluation.inputs import class_codes


def nmi(labels: Any, clusters: Any) -> float:
    """Normalised mutual information I / ((H(labels) + H(clusters)) / 2), from 0 to 1.

    labels, clusters: n integers or strings each. Where both are one part only, it is 1. It rises with the number of
    parts even where they have nothing in common: beside it belongs its value for random embeddings. Manning et al.
    2008, Introduction to Information Retrieval, section 16.3. Raises `EvaluationError` for none, or unequal many.
    """
    table = _cross(labels, clusters)
    entropy = (_entropy(table.rows) + _entropy(table.columns)) / 2
    return float(np.clip(_mutual_information(table) / entropy, 0, 1)) if entropy else 1.0


def ami(labels: Any, clusters: Any) -> float:
    """Mutual information adjusted for chance: (I - E[I]) / (mean entropy - E[I]); near 0 for random clusters.

    E[I] is over all partitions with the same sizes (Vinh et al. 2010, Information Theoretic Measures for Clusterings
    Comparison; normalised by the mean). Where no other value is possible, it is 1. Arguments and errors
    as of `nmi`.
    """
    table = _cross(labels, clusters)
    chance = _expected_information(table)
    room = (_entropy(table.rows) + _entropy(table.columns)) / 2 - chance
    return float(min(1.0, (_mutual_information(table) - chance) / room)) if room > 1e-12 else 1.0


def pair_f1(labels: Any, clusters: Any) -> float:
    """F1 over pairs of samples: precision and recall of "same cluster" as a guess of "same label", from 0 to 1.

    Manning et al. 2008, section 16.3; so in the code of Revisiting, DiVA and before them. Where neither holds a pair,
    it is 1. Arguments and errors as of `nmi`.
    """
    table = _cross(labels, clusters)
    guessed_and_true = _pairs(table.columns) + _pairs(table.rows)
    return 2 * _pairs(table.counts) / guessed_and_true if guessed_and_true else 1.0


class _Cross(NamedTuple):
    """How many samples share label and cluster, where any do: counts [m] at (row, column); the sums of either."""

    counts: np.ndarray
    row: np.ndarray
    column: np.ndarray
    rows: np.ndarray
    columns: np.ndarray


def _cross(labels: Any, clusters: Any) -> _Cross:
    n = len(labels)
    if not n:
        raise EvaluationError("there is nothing to compare: the partitions have no samples.")
    a, b = class_codes(labels, n)[0], class_codes(clusters, n)[0]
    cells, counts = np.unique(a * (b.max() + 1) + b, return_counts=True)
    row, column = np.divmod(cells, b.max() + 1)
    return _Cross(counts, row, column, np.bincount(a), np.bincount(b))


def _entropy(sizes: np.ndarray) -> float:
    shares = sizes / sizes.sum()
    return float(-(shares * np.log(shares)).sum())


def _mutual_information(table: _Cross) -> float:
    n = table.rows.sum()
    expected = table.rows[table.row] / n * table.columns[table.column]
    return float((table.counts / n * np.log(table.counts / expected)).sum())


def _expected_information(table: _Cross) -> float:
    """E[I]: each count is hypergeometric, given the sizes; parts of one size count once, times their number."""
    n = int(table.rows.sum())
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])
    total = 0.0
    for a, many_a in zip(*np.unique(table.rows, return_counts=True), strict=True):
        for b, many_b in zip(*np.unique(table.columns, return_counts=True), strict=True):
            total += many_a * many_b * _expected_cell(int(a), int(b), n, log_factorial)
    return total


def _expected_cell(a: int, b: int, n: int, log_factorial: np.ndarray) -> float:
    count = np.arange(max(1, a + b - n), min(a, b) + 1)
    f = log_factorial
    ways = f[a] + f[b] + f[n - a] + f[n - b] - f[n] - f[count] - f[a - count] - f[b - count] - f[n - a - b + count]
    return float((count / n * np.log(count / a * n / b) * np.exp(ways)).sum())


def _pairs(sizes: np.ndarray) -> int:
    return int((sizes * (sizes - 1) // 2).sum())

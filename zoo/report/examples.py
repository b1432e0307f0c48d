"""Which searches a report shows, and what each one finds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zoo.datasets.dataset import Dataset
from zoo.evaluation import nearest_neighbours

NEIGHBOURS = 6


@dataclass(frozen=True)
class Example:
    """A query and its nearest neighbours, nearest first: indices into the data set, cosines, and which share its class.

    found, similarities, hits: arrays [k].
    """

    query: int
    found: np.ndarray
    similarities: np.ndarray
    hits: np.ndarray


def choose_examples(rows: np.ndarray, dataset: Dataset, count: int = 8, seed: int = 0) -> list[Example]:
    """Up to `count` searches: half of them at random, then, at random too, such whose nearest is of another class.

    rows: unit embeddings [n, d] of the data set's images. Each searches all others; where the data set has the factor
    `query`, its queries search its gallery.
    """
    everything = search(rows, dataset)
    draw = np.random.default_rng(seed)
    order = [everything[i] for i in draw.permutation(len(everything))]
    chosen, rest = order[: (count + 1) // 2], order[(count + 1) // 2 :]
    return chosen + [example for example in rest if not example.hits[0]][: count - len(chosen)]


def search(rows: np.ndarray, dataset: Dataset) -> list[Example]:
    """Every search of the data set."""
    queries, similarities, found = neighbours(rows, dataset, NEIGHBOURS)
    hits = dataset.labels[found] == dataset.labels[queries, None]
    return [Example(int(q), *facts) for q, *facts in zip(queries, found, similarities, hits, strict=True)]


def neighbours(rows: np.ndarray, dataset: Dataset, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Who searches, int64 [q], and the `k` nearest of each: similarities float32 [q, k] and who they are, int64 [q, k].

    Each row of `rows`, float32 [n, d], searches all others; where the data set has the factor `query`, its queries
    search its gallery. k is cut to what there is.
    """
    asks = dataset.factors.get("query")
    everything = np.arange(len(rows))
    queries, gallery = (everything, everything) if asks is None else (everything[asks > 0], everything[asks == 0])
    k = min(k, len(gallery) - (asks is None))
    similarities, found = nearest_neighbours(rows[queries], rows[gallery], k, exclude_self=asks is None)
    return queries, similarities, gallery[found]

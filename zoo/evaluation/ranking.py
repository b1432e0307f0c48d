"""Metrics of the whole ranking: the reciprocal rank, and mean average precision in each published variant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from zoo.evaluation import gpu
from zoo.evaluation.gpu_ranking import ranks_on_gpu
from zoo.evaluation.inputs import Search, members_of, search_of
from zoo.evaluation.metrics import PerQuery, per_query_of
from zoo.evaluation.neighbours import as_depth

CHUNK_BYTES = 128 * 2**20
"""How large a chunk's similarities may be."""

_BLOCK = 2**20
_FEW = 32
"""Up to how many relatives it is quicker to count what lies above each than to sort the row."""


def ranking_metrics(
    embeddings: Any, labels: Any, queries: Any = None, query_labels: Any = None, k: int = 1000
) -> dict[str, float]:
    """Means over the queries of what the ranks of ALL their relatives say, as fractions.

    The arguments, the order of neighbours and the errors are those of `zoo.evaluation.retrieval_metrics`; a k that is
    no whole number of at least 1 is an error, and one beyond the gallery means all of it. With r_1 < ... < r_R the
    ranks, from 1, of a query's R relatives, so that i / r_i is the precision P(r_i) of the first r_i neighbours:

        mrr                         1 / r_1                            (Voorhees 1999, The TREC-8 QA Track Report)
        map                         1/R sum_i i / r_i                  (Manning et al. 2008, section 8.4)
        map_at_K                    the same sum over r_i <= K alone, still over R (`map_at_1000`)

    For comparison with published numbers alone, where each row searches all others. Code of Revisiting and DiVA leaves
    the query out of the ranking but counts it among its relatives, so that nothing scores above R / (R + 1):

        map_at_r_query_counted      1/(R+1) sum of i / r_i over r_i <= R + 1       (`mAP_c` there)
        map_at_K_query_counted      1/(R+1) sum of i / r_i over r_i <= K           (`mAP_1000` there)

    Time grows with queries x gallery x dimensions; beside the rows, memory stays near `CHUNK_BYTES`.
    """
    return ranking_per_query(embeddings, labels, queries, query_labels, k).means()


def ranking_per_query(
    embeddings: Any, labels: Any, queries: Any = None, query_labels: Any = None, k: int = 1000
) -> PerQuery:
    """`ranking_metrics` before the means are taken; the same arguments and errors."""
    k = as_depth(k, "k, the K of map_at_K,")
    search = search_of(embeddings, labels, queries, query_labels)
    scores = [_scores(ranks, k, search.leave_one_out) for ranks in relative_ranks(search)]
    return per_query_of({name: np.array([score[name] for score in scores]) for name in scores[0]}, search)


def relative_ranks(search: Search) -> Iterator[np.ndarray]:
    """For each query that has relatives: their ranks, from 1, ascending, int64 [R]."""
    relatives = _relatives_of(search)
    there = ranks_on_gpu(search.queries, search.gallery) if len(search.gallery) >= gpu.ON_GPU else None
    found = there.of(relatives, search.leave_one_out) if there else _counted(search, relatives)
    return (np.sort(ranks) for ranks in found if len(ranks))


def _relatives_of(search: Search) -> Callable[[int], np.ndarray]:
    """What gives the gallery rows of a query's class, without the query itself, ascending."""
    members = members_of(np.concatenate([search.codes, search.query_codes]))
    members = [rows[rows < len(search.codes)] for rows in members]

    def relatives(query: int) -> np.ndarray:
        rows = members[search.query_codes[query]]
        return rows[rows != query] if search.leave_one_out else rows

    return relatives


def _counted(search: Search, relatives: Callable[[int], np.ndarray]) -> Iterator[np.ndarray]:
    step = max(1, CHUNK_BYTES // (4 * len(search.gallery)))
    for start in range(0, len(search.queries), step):
        similar = _similarities(search.queries[start : start + step], search.gallery)
        if search.leave_one_out:
            similar[np.arange(len(similar)), np.arange(start, start + len(similar))] = -np.inf
        for query, row in enumerate(similar, start):
            yield _ranks(row, relatives(query))


def _similarities(queries: np.ndarray, gallery: np.ndarray) -> np.ndarray:
    """Inner products summed in double precision and rounded to float32, as `nearest_neighbours` orders by: [c, n]."""
    similar = np.empty((len(queries), len(gallery)), np.float32)
    queries = queries.astype(np.float64)
    step = max(1, _BLOCK // gallery.shape[1])
    for start in range(0, len(gallery), step):
        block = slice(start, start + step)
        similar[:, block] = queries @ gallery[block].astype(np.float64).T
    return similar


def _ranks(row: np.ndarray, relatives: np.ndarray) -> np.ndarray:
    """The places of the relatives in `row` ordered by similarity, descending, and equal ones by index."""
    above, up_to = _counts(row, row[relatives])
    if (up_to - above == 1).all():
        return up_to
    # Something is as similar as a relative: only the whole order says which comes first.
    ranks = np.empty(len(row), np.int64)
    ranks[np.argsort(-row, kind="stable")] = np.arange(1, len(row) + 1)
    return ranks[relatives]


def _counts(row: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many numbers of the row lie above each value, and how many above it or at it: int64."""
    if len(values) <= _FEW:
        counts = [(np.count_nonzero(row > value), np.count_nonzero(row >= value)) for value in values]
        above, up_to = np.array(counts, np.int64).reshape(-1, 2).T
        return above, up_to
    ascending = np.sort(row)
    below, up_to = np.searchsorted(ascending, values, "left"), np.searchsorted(ascending, values, "right")
    return len(row) - up_to, len(row) - below


def _scores(ranks: np.ndarray, k: int, leave_one_out: bool) -> dict[str, float]:
    relatives = len(ranks)
    precision = np.arange(1, relatives + 1) / ranks
    at_k = precision[ranks <= k].sum()
    scores = {"mrr": 1 / ranks[0], "map": precision.sum() / relatives, f"map_at_{k}": at_k / relatives}
    if leave_one_out:
        at_r = precision[ranks <= relatives + 1].sum()
        scores["map_at_r_query_counted"] = at_r / (relatives + 1)
        scores[f"map_at_{k}_query_counted"] = at_k / (relatives + 1)
    return scores

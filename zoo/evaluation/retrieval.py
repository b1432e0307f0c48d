"""R@k, P@1, R-precision, MAP@R, MRR, mAP variants.

Retrieval metrics by exact cosine search: recall at K, precision at 1, R-precision and MAP@R.

Metrics of the whole ranking: the reciprocal rank, and mean average precision in each published variant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zoo.errors import EvaluationError
from zoo.evaluation import gpu
from zoo.evaluation.gpu import ranks_on_gpu
from zoo.evaluation.inputs import RetrievalInputs, retrieval_inputs, rows_by_class
from zoo.evaluation.knn import check_k, neighbour_chunks

DEFAULT_K = (1, 2, 4, 8)


@dataclass(frozen=True)
class PerQuery:
    """Each metric of each query that has a relative, before any mean is taken.

    values: metric -> float64 [m]; rows: int64 [m], the queries' row numbers; classes: int64 [m], a number for each
    query's class; without_relatives: how many queries were left out because the gallery holds none of their class.
    """

    values: dict[str, np.ndarray]
    rows: np.ndarray
    classes: np.ndarray
    without_relatives: int

    def means(self) -> dict[str, float]:
        return {name: float(values.mean()) for name, values in self.values.items()}


def retrieval_metrics(
    embeddings: Any,
    labels: Any,
    k: Sequence[int] = DEFAULT_K,
    queries: Any = None,
    query_labels: Any = None,
) -> dict[str, float]:
    """Mean retrieval metrics over the queries, as fractions: recall_at_K, precision_at_1, r_precision and map_at_r.

    embeddings: the gallery, [n, d]; labels: n integers or strings. Without `queries` each row searches all others and
    is left out of its own neighbours by index; with `queries` [q, d] and `query_labels` the whole gallery is searched.
    Similarity is the cosine: rows are scaled to unit length here. Equal similarities are ordered by row.

    With R the number of relatives (gallery rows of the query's class, the query itself aside), P(i) the precision of
    the first i neighbours and rel(i) whether the i-th is a relative:

        recall_at_K   1 where one of the first K neighbours is a relative, else 0
        r_precision   P(R)
        map_at_r      1/R sum_{i <= R} P(i) rel(i)        (Musgrave et al. 2020, A Metric Learning Reality Check, 3.2)

    Queries without a relative are left out of the means. Raises `EvaluationError` when none has one, for NaN,
    infinite or zero rows (naming the first), labels that do not fit, and a K that is no whole number or that the
    gallery cannot fill.
    """
    return per_query(embeddings, labels, k, queries, query_labels).means()


def per_query(
    embeddings: Any,
    labels: Any,
    k: Sequence[int] = DEFAULT_K,
    queries: Any = None,
    query_labels: Any = None,
) -> PerQuery:
    """`retrieval_metrics` before the means are taken; the same arguments and errors."""
    search = retrieval_inputs(embeddings, labels, queries, query_labels)
    depths = check_depths(k)
    _check_available(depths, len(search.gallery) - search.leave_one_out)
    depth = max(1, *depths, int(search.relatives.max()))
    pieces = [
        measure_hits(search.codes[found] == search.query_codes[rows, None], search.relatives[rows], depths)
        for rows, _, found in neighbour_chunks(search.queries, search.gallery, depth, search.leave_one_out, exact=False)
    ]
    values = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    return build_per_query(values, search)


def build_per_query(values: dict[str, np.ndarray], search: RetrievalInputs) -> PerQuery:
    """The values [m] of the m queries that have relatives, in their order."""
    measured = np.flatnonzero(search.relatives)
    return PerQuery(values, measured, search.query_codes[measured], len(search.relatives) - len(measured))


def measure_hits(hits: np.ndarray, relatives: np.ndarray, k: Sequence[int]) -> dict[str, np.ndarray]:
    """The metrics of the queries that have relatives, float64 [m] each, from what a search has found.

    hits: bool [c, depth], whether each neighbour is a relative, nearest first; relatives: int64 [c], how many there
    are to find, none of them more than depth. As `retrieval_metrics` defines them, whatever index has searched.
    """
    hits, relatives = hits[relatives > 0], relatives[relatives > 0]
    rank = np.arange(1, hits.shape[1] + 1)
    within = hits & (rank <= relatives[:, None])
    precision = np.cumsum(within, axis=1) / rank
    return {
        **{f"recall_at_{K}": hits[:, :K].any(axis=1).astype(np.float64) for K in k},
        "precision_at_1": hits[:, 0].astype(np.float64),
        "r_precision": within.sum(axis=1) / relatives,
        "map_at_r": (precision * within).sum(axis=1) / relatives,
    }


def check_depths(k: Any) -> tuple[int, ...]:
    """Every K of recall_at_K. Raises `EvaluationError` for what lists no whole numbers of at least 1."""
    try:
        given = None if isinstance(k, str | bytes) else tuple(k)
    except TypeError:
        given = None
    if given is None:
        raise EvaluationError(f"k must list every K of recall_at_K, as (1, 2, 4, 8), not be {k!r}.")
    return tuple(check_k(depth, "every K of recall_at_K") for depth in given)


def _check_available(depths: Sequence[int], available: int) -> None:
    for depth in depths:
        if depth > available:
            raise EvaluationError(
                f"recall_at_{depth} needs {depth} neighbours, but a query has only {available}; leave it out of k."
            )


CHUNK_BYTES = 128 * 2**20
"""How large a chunk's similarities may be."""

_BLOCK_NUMBERS = 2**20
_COUNT_LIMIT = 32
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
    k = check_k(k, "k, the K of map_at_K,")
    search = retrieval_inputs(embeddings, labels, queries, query_labels)
    scores = [_scores(ranks, k, search.leave_one_out) for ranks in relative_ranks(search)]
    return build_per_query({name: np.array([score[name] for score in scores]) for name in scores[0]}, search)


def relative_ranks(search: RetrievalInputs) -> Iterator[np.ndarray]:
    """For each query that has relatives: their ranks, from 1, ascending, int64 [R]."""
    relatives = _relatives_by_query(search)
    there = ranks_on_gpu(search.queries, search.gallery) if len(search.gallery) >= gpu.MIN_ROWS else None
    found = there.of(relatives, search.leave_one_out) if there else _cpu_ranks(search, relatives)
    return (np.sort(ranks) for ranks in found if len(ranks))


def _relatives_by_query(search: RetrievalInputs) -> Callable[[int], np.ndarray]:
    """What gives the gallery rows of a query's class, without the query itself, ascending."""
    members = rows_by_class(np.concatenate([search.codes, search.query_codes]))
    members = [rows[rows < len(search.codes)] for rows in members]

    def relatives(query: int) -> np.ndarray:
        rows = members[search.query_codes[query]]
        return rows[rows != query] if search.leave_one_out else rows

    return relatives


def _cpu_ranks(search: RetrievalInputs, relatives: Callable[[int], np.ndarray]) -> Iterator[np.ndarray]:
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
    step = max(1, _BLOCK_NUMBERS // gallery.shape[1])
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
    if len(values) <= _COUNT_LIMIT:
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

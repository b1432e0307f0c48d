"""Retrieval metrics by exact cosine search, and metrics of the whole ranking.

`retrieval_metrics` gives recall at K, precision at 1, R-precision and MAP@R; `ranking_metrics` gives the reciprocal
rank and mean average precision in each published variant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zoo.data.dataset import BOTH
from zoo.errors import EvaluationError
from zoo.evaluation import gpu
from zoo.evaluation.inputs import RetrievalInputs, retrieval_inputs, rows_by_class
from zoo.evaluation.knn import check_k, neighbour_chunks
from zoo.evaluation.memory import release, search_budget
from zoo.evaluation.rerank.order import CANDIDATES, NONE, check_method, reranked

DEFAULT_K = (1, 2, 4, 8)

CHUNK_BYTES = 128 * 2**20
"""The largest size of a chunk's similarities."""

_BLOCK_NUMBERS = 2**20

_COUNT_LIMIT = 32
"""The largest number of relatives for which counting what is above each is faster than sorting the row."""


CLASS_MEANS = ("map_by_class",)
"""Metrics in which every class counts the same, however many queries it has."""


@dataclass(frozen=True)
class PerQuery:
    """Metrics of each query that has a relative, before any mean is taken.

    Attributes:
        values: Metric -> float64 [m].
        rows: The row numbers of the queries, int64 [m].
        classes: A class number for each query, int64 [m].
        without_relatives: The number of queries that were left out because the gallery has no row of their class.
    """

    values: dict[str, np.ndarray]
    rows: np.ndarray
    classes: np.ndarray
    without_relatives: int

    def means(self) -> dict[str, float]:
        """Return the mean of each metric over the queries; of those in `CLASS_MEANS` over the classes' means."""
        codes = np.unique(self.classes, return_inverse=True)[1]
        sizes = np.bincount(codes)
        return {
            name: float((np.bincount(codes, values) / sizes if name in CLASS_MEANS else values).mean())
            for name, values in self.values.items()
        }


def retrieval_metrics(
    embeddings: Any,
    labels: Any,
    k: Sequence[int] = DEFAULT_K,
    queries: Any = None,
    query_labels: Any = None,
) -> dict[str, float]:
    """Return mean retrieval metrics over the queries, as fractions.

    Without `queries` each row searches all others and is left out of its own neighbours by index; with `queries` the
    whole gallery is searched. Similarity is the cosine; equal similarities are ordered by row. Queries without a
    relative are left out of the means. With R the number of relatives (gallery rows of the query's class, without the
    query itself), P(i) the precision of the first i neighbours and rel(i) = 1 if the i-th is a relative, else 0:

        recall_at_K   1 if one of the first K neighbours is a relative, else 0
        r_precision   P(R)
        map_at_r      1/R sum_{i <= R} P(i) rel(i)        (Musgrave et al. 2020, A Metric Learning Reality Check, 3.2)

    Args:
        embeddings: The gallery, [n, d]; rows are scaled to unit length here.
        labels: Classes of the gallery, n integers or strings.
        k: Every K of recall_at_K.
        queries: The queries, [q, d].
        query_labels: Classes of the queries, q integers or strings.

    Returns:
        recall_at_K for each K, precision_at_1, r_precision and map_at_r.

    Raises:
        EvaluationError: If no query has a relative, a row is NaN, infinite or zero (the first is named), labels do not
            fit, or a K is not a whole number or exceeds the gallery.
    """
    return per_query(embeddings, labels, k, queries, query_labels).means()


def per_query(
    embeddings: Any,
    labels: Any,
    k: Sequence[int] = DEFAULT_K,
    queries: Any = None,
    query_labels: Any = None,
    rerank: str = NONE,
) -> PerQuery:
    """Return `retrieval_metrics` before the means are taken.

    Args:
        embeddings: The gallery, [n, d]; rows are scaled to unit length here.
        labels: Classes of the gallery, n integers or strings.
        k: Every K of recall_at_K.
        queries: The queries, [q, d].
        query_labels: Classes of the queries, q integers or strings.
        rerank: One of `zoo.evaluation.rerank.order.METHODS` that orders each query's neighbours, without labels.

    Raises:
        EvaluationError: If `retrieval_metrics` would raise it.
        UsageError: If there is no such re-ranking.
    """
    check_method(rerank)
    inputs = retrieval_inputs(embeddings, labels, queries, query_labels)
    depths, available = check_depths(k), len(inputs.gallery) - inputs.leave_one_out
    _check_available(depths, available)
    depth = max(1, *depths, int(inputs.relatives.max()))
    if rerank != NONE:
        depth = max(depth, min(CANDIDATES, available))
    own, pieces = np.arange(len(inputs.queries)), []
    for rows, _, near in neighbour_chunks(inputs.queries, inputs.gallery, depth, inputs.leave_one_out, exact=False):
        mine = own[rows] if inputs.leave_one_out else None
        indices = reranked(rerank, inputs.queries[rows], inputs.gallery, near, mine)
        hits = inputs.codes[indices] == inputs.query_codes[rows, None]
        pieces.append(measure_hits(hits, inputs.relatives[rows], depths))
    return build_per_query({name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}, inputs)


def per_query_of_parts(
    rows: np.ndarray, labels: np.ndarray, parts: np.ndarray, measure: Callable[..., PerQuery]
) -> PerQuery:
    """Return the metrics of queries of which some are in the gallery that they search, where none finds itself.

    Args:
        rows: Embeddings [n, d].
        labels: Their classes, integers [n].
        parts: The factor `query` [n]: 0 for the gallery, 1 for a query, 2 for both.
        measure: `per_query` or `ranking_per_query`, with further arguments.
    """
    gallery, asking = np.flatnonzero(parts != 1), np.flatnonzero(parts == 1)
    inside = measure(rows[gallery], labels[gallery])
    chosen = parts[gallery[inside.rows]] == BOTH
    results = [(gallery[inside.rows[chosen]], {name: values[chosen] for name, values in inside.values.items()})]
    if len(asking):
        outside = measure(rows[gallery], labels[gallery], queries=rows[asking], query_labels=labels[asking])
        results.append((asking[outside.rows], outside.values))
    measured = np.concatenate([numbers for numbers, _ in results])
    names = [name for name in results[0][1] if all(name in values for _, values in results)]
    values = {name: np.concatenate([values[name] for _, values in results]) for name in names}
    return PerQuery(values, measured, labels[measured], int((parts > 0).sum()) - len(measured))


def build_per_query(values: dict[str, np.ndarray], inputs: RetrievalInputs) -> PerQuery:
    """Return the values [m] of the m queries that have relatives, in their order, as `PerQuery`."""
    measured = np.flatnonzero(inputs.relatives)
    return PerQuery(values, measured, inputs.query_codes[measured], len(inputs.relatives) - len(measured))


def measure_hits(hits: np.ndarray, relatives: np.ndarray, k: Sequence[int]) -> dict[str, np.ndarray]:
    """Return the metrics of the queries that have relatives, from the hits of any index.

    Args:
        hits: Bool [c, depth], nearest first: the neighbour is a relative.
        relatives: The number of relatives of each query, int64 [c], at most depth.
        k: Every K of recall_at_K.

    Returns:
        Float64 [m] for each metric of `retrieval_metrics`.
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


def default_depths(available: int) -> tuple[int, ...]:
    """Return those of `DEFAULT_K` for which each query has enough neighbours."""
    return tuple(k for k in DEFAULT_K if k <= available)


def check_depths(k: Any) -> tuple[int, ...]:
    """Return every K of recall_at_K.

    Raises:
        EvaluationError: `k` is not a list of whole numbers of at least 1.
    """
    try:
        values = None if isinstance(k, str | bytes) else tuple(k)
    except TypeError:
        values = None
    if values is None:
        raise EvaluationError(
            f"k must list every K of recall_at_K, as (1, 2, 4, 8), not be {k!r}.", code="invalid-value"
        )
    return tuple(check_k(depth, "every K of recall_at_K") for depth in values)


def ranking_metrics(
    embeddings: Any, labels: Any, queries: Any = None, query_labels: Any = None, k: int = 1000
) -> dict[str, float]:
    """Return means over the queries of metrics of the ranks of ALL their relatives, as fractions.

    With r_1 < ... < r_R the ranks, from 1, of a query's R relatives, so that i / r_i is the precision P(r_i) of the
    first r_i neighbours:

        mrr                         1 / r_1                            (Voorhees 1999, The TREC-8 QA Track Report)
        map                         1/R sum_i i / r_i                  (Manning et al. 2008, section 8.4)
        map_at_K                    the same sum over r_i <= K only, still over R (`map_at_1000`)
        map_by_class                P(n), n the samples of the query's class with the query; the mean is over the
                                    classes' means (Roth et al. 2020, Revisiting, appendix A.3, its mAP)

    Only to compare with published numbers, and only where each row searches all others: the code of Revisiting and
    DiVA leaves the query out of the ranking but counts it among its relatives, so no score exceeds R / (R + 1):

        map_at_r_query_counted      1/(R+1) sum of i / r_i over r_i <= R + 1       (`mAP_c` there)
        map_at_K_query_counted      1/(R+1) sum of i / r_i over r_i <= K           (`mAP_1000` there)

    Time grows with queries x gallery x dimensions; memory, besides the rows, stays near `CHUNK_BYTES`. The order
    of neighbours is that of `retrieval_metrics`.

    Args:
        embeddings: The gallery, [n, d]; rows are scaled to unit length here.
        labels: Classes of the gallery, n integers or strings.
        queries: The queries, [q, d]; by default each row of the gallery searches all others.
        query_labels: Classes of the queries, q integers or strings.
        k: The K of map_at_K; a K beyond the gallery means all of it.

    Raises:
        EvaluationError: As `retrieval_metrics`, and for a k that is not a whole number of at least 1.
    """
    return ranking_per_query(embeddings, labels, queries, query_labels, k).means()


def ranking_per_query(
    embeddings: Any, labels: Any, queries: Any = None, query_labels: Any = None, k: int = 1000
) -> PerQuery:
    """Return `ranking_metrics` before the means are taken.

    Args:
        embeddings: The gallery, [n, d]; rows are scaled to unit length here.
        labels: Classes of the gallery, n integers or strings.
        queries: The queries, [q, d]; by default each row of the gallery searches all others.
        query_labels: Classes of the queries, q integers or strings.
        k: The K of map_at_K; a K beyond the gallery means all of it.

    Raises:
        EvaluationError: If `ranking_metrics` would raise it.
    """
    k = check_k(k, "k, the K of map_at_K,")
    inputs = retrieval_inputs(embeddings, labels, queries, query_labels)
    values: dict[str, np.ndarray] = {}
    measured = int(np.count_nonzero(inputs.relatives))
    for query, ranks in enumerate(relative_ranks(inputs)):
        scores = _scores(ranks, k, inputs.leave_one_out)
        values = values or {name: np.empty(measured) for name in scores}
        for name, score in scores.items():
            values[name][query] = score
    return build_per_query(values, inputs)


def relative_ranks(inputs: RetrievalInputs) -> Iterator[np.ndarray]:
    """Yield for each query that has relatives their ranks, from 1, ascending, int64 [R]."""
    relatives = _relatives_by_query(inputs)
    worthwhile = len(inputs.gallery) >= gpu.MIN_ROWS and search_budget(inputs.gallery) is None
    on_gpu = gpu.ranks_on_gpu(inputs.queries, inputs.gallery) if worthwhile else None
    all_ranks = on_gpu.ranks(relatives, inputs.leave_one_out) if on_gpu else _cpu_ranks(inputs, relatives)
    return (np.sort(ranks) for ranks in all_ranks if len(ranks))


def _check_available(depths: Sequence[int], available: int) -> None:
    for depth in depths:
        if depth > available:
            raise EvaluationError(
                f"recall_at_{depth} needs {depth} neighbours, but a query has only {available}; leave it out of k "
                "(-k).",
                code="too-few-samples",
            )


def _relatives_by_query(inputs: RetrievalInputs) -> Callable[[int], np.ndarray]:
    """Return a function from a query to the gallery rows of its class without the query itself, ascending."""
    members = rows_by_class(np.concatenate([inputs.codes, inputs.query_codes]))
    members = [rows[rows < len(inputs.codes)] for rows in members]

    def relatives(query: int) -> np.ndarray:
        rows = members[inputs.query_codes[query]]
        return rows[rows != query] if inputs.leave_one_out else rows

    return relatives


def _cpu_ranks(inputs: RetrievalInputs, relatives: Callable[[int], np.ndarray]) -> Iterator[np.ndarray]:
    budget = search_budget(inputs.gallery)
    step = max(1, (budget.chunk if budget else CHUNK_BYTES) // (4 * len(inputs.gallery)))
    for start in range(0, len(inputs.queries), step):
        similar = _similarities(inputs.queries[start : start + step], inputs.gallery)
        release(inputs.queries[start : start + step])
        if inputs.leave_one_out:
            similar[np.arange(len(similar)), np.arange(start, start + len(similar))] = -np.inf
        for query, row in enumerate(similar, start):
            yield _ranks(row, relatives(query))


def _similarities(queries: np.ndarray, gallery: np.ndarray) -> np.ndarray:
    """Return inner products [c, n] as `nearest_neighbours` orders by: summed in double precision, then float32."""
    similar = np.empty((len(queries), len(gallery)), np.float32)
    queries = queries.astype(np.float64)
    step = max(1, _BLOCK_NUMBERS // gallery.shape[1])
    if budget := search_budget(gallery):
        step = max(1, min(step, budget.chunk // (8 * len(queries))))
    for start in range(0, len(gallery), step):
        block = slice(start, start + step)
        similar[:, block] = queries @ gallery[block].astype(np.float64).T
        release(gallery[block])
    return similar


def _ranks(row: np.ndarray, relatives: np.ndarray) -> np.ndarray:
    """Return the places of the relatives in `row` ordered by similarity, descending, and equal ones by index."""
    above, up_to = _counts(row, row[relatives])
    if (up_to - above == 1).all():
        return up_to
    # Another row is as similar as a relative, so the whole order is needed.
    ranks = np.empty(len(row), np.int64)
    ranks[np.argsort(-row, kind="stable")] = np.arange(1, len(row) + 1)
    return ranks[relatives]


def _counts(row: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of entries of the row above each value, and of those above or equal: int64."""
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
    samples = relatives + leave_one_out
    scores["map_by_class"] = np.count_nonzero(ranks <= samples) / samples
    if leave_one_out:
        at_r = precision[ranks <= relatives + 1].sum()
        scores["map_at_r_query_counted"] = at_r / (relatives + 1)
        scores[f"map_at_{k}_query_counted"] = at_k / (relatives + 1)
    return scores

"""Exact nearest neighbours by inner product, block by block, with a proven bound on rounding.

Float32 matrix products find, for each query, the few gallery rows that could be among its k nearest; inner products in
double precision then decide the order. Where the queries are the gallery, each product serves two rows. Where torch is
loaded already, the first step runs on its GPU (module `gpu`) or with 8-bit integers (`knn_int8`),
which have bounds of their own and never change the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from numbers import Integral
from typing import Any

import numpy as np

from zoo.errors import EvaluationError
from zoo.evaluation.gpu import search_on_gpu, shortlist_width
from zoo.evaluation.knn_int8 import (
    AVX2_MAX_NUMBERS,
    Int8Products,
    PrefilteredProducts,
    can_multiply_int8,
    can_prefilter,
    prefilter_pays,
)
from zoo.evaluation.matmul import UNIT_ROUNDOFF, Float32Products, Pairs, Workers, norm_bounds, pair_products_double
from zoo.evaluation.memory import release, search_budget

CHUNK_BYTES = 64 * 2**20
"""The memory that a part of the work may take: lists of candidates, or a matrix of products."""

BLOCK = 1024
"""The least number of rows in a block of products, if there are as many."""

INT8_BLOCK = 3072
"""The number of rows in a block of 8-bit products: they are so fast that the overhead per block would count."""

SINGLE_BLOCK = 8192
"""The largest gallery that is one block: each query's k-th place is known at once, and few other pairs are kept."""

EMPTY = np.iinfo(np.int64).max

_MIN_BLOCKS = 16
"""The least number of blocks that the rows are divided into, so that all threads have some."""

_BLOCK_NUMBERS = 2**20
_LARGEST_PRODUCT = 1e37

Neighbours = tuple[slice, np.ndarray, np.ndarray]
"""A slice of c queries, their similarities float32 [c, k], and their indices int64 [c, k]."""

Shortlist = tuple[slice, np.ndarray, np.ndarray]
"""A slice of c queries, their sorted keys int64 [c, width], and the lists that have overflowed, bool [c]."""


def nearest_neighbours(
    queries: Any, gallery: Any, k: int, exclude_self: bool = False, chunk: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the k gallery rows of largest inner product with each query, by an exact search.

    A similarity is the inner product of the float32 rows, summed in double precision and rounded to float32; for rows
    of unit length it is the cosine. Neighbours are ordered by similarity, descending, and equal ones by index,
    ascending, including ties at the k-th place. Equal rows have equal similarities at any place and for any
    chunk (two ways of summing in double precision could differ only where the sum is within 1e-13 of halfway between
    two float32 numbers).

    Args:
        queries: The queries, [q, d], taken as float32.
        gallery: The gallery, [n, d], taken as float32.
        k: The number of neighbours.
        exclude_self: The queries are the gallery, row by row; row i is left out of the neighbours of query i by its
            index, so a duplicate of it elsewhere still counts.
        chunk: The largest number of queries that are searched at a time. It has little effect on memory; a chunk below
            1,024 rows gives up the symmetry of queries that are the gallery.

    Returns:
        Similarities float32 [q, k] and indices int64 [q, k].

    Raises:
        EvaluationError: If rows are not 2-D, finite and of one length, or k is below 1 or above the size of the
            gallery.
    """
    chunks = neighbour_chunks(queries, gallery, k, exclude_self, chunk)
    similarities = np.empty((len(queries), k), np.float32)
    indices = np.empty((len(queries), k), np.int64)
    for rows, chunk_similarities, chunk_indices in chunks:
        similarities[rows], indices[rows] = chunk_similarities, chunk_indices
    return similarities, indices


def neighbour_chunks(
    queries: Any, gallery: Any, k: int, exclude_self: bool = False, chunk: int | None = None, exact: bool = True
) -> Iterator[Neighbours]:
    """Yield the result of `nearest_neighbours` in chunks of queries.

    The arguments are checked at once; the chunks are computed on demand.

    Args:
        queries: The queries, [q, d], taken as float32.
        gallery: The gallery, [n, d], taken as float32.
        k: The number of neighbours.
        exclude_self: Whether row i is left out of the neighbours of query i; the queries are the gallery then.
        chunk: The largest number of queries that are searched at a time.
        exact: Whether similarities are summed in double precision. Without it only the indices are exact, and
            similarities are single precision sums, which is faster.

    Raises:
        EvaluationError: If rows are not 2-D, finite and of one length, or k is below 1 or above the size of the
            gallery.
    """
    same = queries is gallery
    gallery = as_rows(gallery, "gallery")
    queries = gallery if same else as_rows(queries, "queries")
    _check_arguments(queries, gallery, k, exclude_self, chunk)
    return _search(queries, gallery, k, _slack(queries, gallery), exclude_self, chunk, exact)


def as_rows(values: Any, name: str) -> np.ndarray:
    """Return `values` as float32 [n, d]; a memory-mapped float32 array (`np.memmap`) is returned itself.

    Raises:
        EvaluationError: If the values are not finite numbers of two dimensions.
    """
    if search_budget(values) is not None:
        return values
    given = check_matrix(values, name)
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinite and is reported below
        rows = np.ascontiguousarray(given, dtype=np.float32)
    finite = np.empty(len(rows), np.bool_)
    step = max(1, _BLOCK_NUMBERS // rows.shape[1])
    for start in range(0, len(rows), step):
        finite[start : start + step] = np.isfinite(rows[start : start + step]).all(axis=1)
    check_finite(finite, name, given)
    return values if is_memory_mapped(values) and np.shares_memory(values, rows) else rows


def check_matrix(values: Any, name: str) -> np.ndarray:
    """Return `values` as an array [n, d] of their own type; errors are those of `as_rows`, which checks the numbers."""
    try:
        rows = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged lists; torch tensors on a GPU or with gradients
        raise EvaluationError(f"{name} cannot be read as an array: {error}", code="invalid-embedding") from None
    if rows.ndim != 2 or rows.shape[1] == 0 or rows.dtype.kind not in "fiub":
        raise EvaluationError(
            f"{name} must be numbers of shape [rows, dimensions], not {rows.dtype} of shape {list(rows.shape)}.",
            code="invalid-embedding",
        )
    return rows


def check_finite(finite: np.ndarray, name: str, rows: np.ndarray, numbers: np.ndarray | None = None) -> None:
    """Raise `EvaluationError` unless rows are finite as float32, bool [n]: all `rows` as given, or those numbers."""
    if not finite.all():
        first = int(finite.argmin() if numbers is None else numbers[finite.argmin()])
        beyond = np.isfinite(rows[first]).all()
        raise EvaluationError(
            f"row {first} of {name} holds {'values beyond float32' if beyond else 'NaN or infinite values'} "
            f"({int((~finite).sum())} of {len(finite)} rows are not finite as float32); "
            f"{'scale the rows down' if beyond else 'embed again or drop those rows'}.",
            code="not-finite",
        )


def is_memory_mapped(values: Any) -> bool:
    """Return True for an array in a mapped file; what NumPy computes from one is an `np.memmap` too, but in memory."""
    return isinstance(values, np.memmap) and getattr(values, "_mmap", None) is not None


def check_k(k: Any, name: str) -> int:
    """Return `k`, a number of neighbours, as an int.

    Raises:
        EvaluationError: If it is not a whole number of at least 1.
    """
    if isinstance(k, bool) or not isinstance(k, Integral) or k < 1:
        raise EvaluationError(f"{name} must be a whole number of at least 1, not {k!r}.", code="invalid-value")
    return int(k)


class _Shortlists:
    """Candidates of n queries: up to `width` keys each, int64 [n, width], unordered until floors are raised.

    Attributes:
        counts: The number of candidates of each query, int64 [n].
        floors: Float32 [n], below which no product can be among a query's k nearest: the k-th largest so far, less the
            slack of rounding. -inf until there are k; +inf for a query that has overflowed.
        overflowed: Bool [n]. More rows are within the slack than fit (collapsed embeddings), so the list is void.
    """

    def __init__(self, n: int, k: int, slack: np.ndarray) -> None:
        self.k, self.slack, self.width = k, slack, shortlist_width(k)
        self.keys = np.full((n, self.width), EMPTY)
        self.counts = np.zeros(n, np.int64)
        self.floors = np.full(n, -np.inf, np.float32)
        self.overflowed = np.zeros(n, np.bool_)

    def add(self, block: slice, rows: np.ndarray, columns: np.ndarray, products: np.ndarray) -> None:
        """Offer candidates to the queries of a block.

        Args:
            block: The queries.
            rows: Query numbers, int64 [p], ascending and counted from the block's start.
            columns: Gallery row numbers, int64 [p].
            products: The products of these pairs, float32 [p].
        """
        above = np.flatnonzero(products >= self.floors[block][rows])
        rows, keys = rows[above], _pack_keys(products[above], columns[above])
        while len(rows):
            starts = np.searchsorted(rows, np.arange(len(self.counts[block])))
            places = np.arange(len(rows)) - (starts - self.counts[block])[rows]
            fits = places < self.width
            if fits.all():
                self.keys[block][rows, places] = keys
                self.counts[block] += np.bincount(rows, minlength=len(starts))
                break
            self.keys[block][rows[fits], places[fits]] = keys[fits]
            self.counts[block] += np.bincount(rows[fits], minlength=len(starts))
            self.raise_floors(block)
            self._void_full(block, np.unique(rows[~fits]))
            left = ~fits & (keys <= _floor_keys(self.floors[block])[rows])
            rows, keys = rows[left], keys[left]
        if self.counts[block].sum() > len(self.counts[block]) * (self.k + self.k // 4 + 4):
            self.raise_floors(block)

    def raise_floors(self, block: slice) -> None:
        """Sort the lists of a block, nearest first, and drop keys that are below the k-th by more than the slack."""
        keys = self.keys[block]
        keys.sort(axis=1)
        full = self.counts[block] >= self.k
        floors = (_key_products(keys[full, self.k - 1]) - self.slack[block][full]).astype(np.float32)
        self.floors[block][full] = np.maximum(self.floors[block][full], floors)
        keys[keys > _floor_keys(self.floors[block])[:, None]] = EMPTY
        self.counts[block] = np.count_nonzero(keys != EMPTY, axis=1)

    def _void_full(self, block: slice, rows: np.ndarray) -> None:
        """Void the lists of the rows that are full of candidates within the slack."""
        rows = rows[self.counts[block][rows] == self.width]
        self.overflowed[block][rows] = True
        self.floors[block][rows] = np.inf
        self.keys[block][rows] = EMPTY
        self.counts[block][rows] = 0


def _pack_keys(products: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return integers that ascend as products descend, and with equal products as columns ascend: int64.

    Columns must be below 2^32.
    """
    bits = (products + np.float32(0)).view(np.int32)  # the sum turns -0 into 0
    descending = ~(bits ^ ((bits >> 31) & np.int32(2**31 - 1)))
    keys: np.ndarray = (descending.astype(np.int64) << 32) | columns
    return keys


def _key_products(keys: np.ndarray) -> np.ndarray:
    """Return the products of `_pack_keys`, float32; NaN for `EMPTY`."""
    bits = ~(keys >> 32).astype(np.int32)
    return (bits ^ ((bits >> 31) & np.int32(2**31 - 1))).view(np.float32)


def _key_columns(keys: np.ndarray) -> np.ndarray:
    """Return the columns of `_pack_keys`, int64."""
    return keys & (2**32 - 1)


def _floor_keys(floors: np.ndarray) -> np.ndarray:
    """Return the largest keys whose products reach the floors, int64."""
    return _pack_keys(floors, np.full(len(floors), 2**32 - 1))


def _split_blocks(n: int, size: int) -> list[slice]:
    """Return slices of at most `size` that cover n rows."""
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def _shortlist_by_rows(
    workers: Workers,
    products: Float32Products,
    k: int,
    slack: np.ndarray,
    exclude_self: bool,
    sizes: tuple[int, int],
) -> Iterator[Shortlist]:
    """Yield the shortlists of one block of queries after the other.

    Args:
        workers: The threads that search the blocks of queries.
        products: Products of the queries [q, d] and the gallery [n, d].
        k: The number of neighbours.
        slack: The slack of rounding of each query, [q].
        exclude_self: Whether row i is left out of the list of query i.
        sizes: The largest numbers of rows of a block of queries and of a block of the gallery.
    """
    columns = _split_blocks(len(products.gallery), sizes[1])

    def search(rows: slice) -> Shortlist:
        lists = _Shortlists(rows.stop - rows.start, k, slack[rows])
        whole = slice(0, len(lists.counts))
        for block in columns:
            if block is columns[0]:
                floors, pairs = products.highest(rows, block, k + exclude_self, slack[rows])
                lists.floors[:] = floors
            else:
                pairs = products.reaching(rows, block, lists.floors, None)
            r, c, values = _without_self(pairs, block.start - rows.start) if exclude_self else pairs
            lists.add(whole, r, c + block.start, values)
        lists.raise_floors(whole)
        return rows, lists.keys, lists.overflowed

    return workers.map(search, _split_blocks(len(products.queries), sizes[0]))


def _shortlist_single_block(
    workers: Workers, products: Float32Products, k: int, slack: np.ndarray, exclude_self: bool, size: int
) -> Iterator[Shortlist]:
    """Yield the shortlists for a small gallery: a block of products spans it, so each query's k-th place is known.

    Args:
        workers: The threads that search the blocks of queries.
        products: Products of the queries [q, d] and the gallery [n, d].
        k: The number of neighbours.
        slack: The slack of rounding of each query, [q].
        exclude_self: Whether row i is left out of the list of query i.
        size: The largest number of queries in a block.
    """

    def search(rows: slice) -> Shortlist:
        for margin in (1.1, 2):
            gallery = slice(0, len(products.gallery))
            complete, pairs = products.highest(rows, gallery, k + exclude_self, slack[rows], margin)
            keys = _key_table(rows.stop - rows.start, k, *pairs, offset=-rows.start if exclude_self else None)
            floors = _key_products(keys[:, k - 1]) - slack[rows]
            if (floors >= complete).all():  # then no pair is missing; with the larger margin this is proven
                break
        keys[keys > _floor_keys(floors.astype(np.float32))[:, None]] = EMPTY
        return rows, keys, np.zeros(len(keys), np.bool_)

    return workers.map(search, _split_blocks(len(products.queries), size))


def _shortlist_by_symmetry(
    workers: Workers, products: Float32Products, k: int, slack: np.ndarray, size: int
) -> Iterator[Shortlist]:
    """Yield the shortlists of queries that are the gallery: every product serves its row and its column.

    The blocks on the diagonal come first: where the gallery is ordered by class they hold the nearest rows, and all
    further blocks meet high floors. The threads may see outdated floors, which only lets more pairs pass.

    Args:
        workers: The threads that multiply the blocks.
        products: Products of the rows [n, d] with themselves.
        k: The number of neighbours.
        slack: The slack of rounding of each row, [n].
        size: The largest number of rows in a block.
    """
    lists = _Shortlists(len(products.gallery), k, slack)
    blocks = _split_blocks(len(products.gallery), size)
    diagonal = workers.map(lambda rows: products.highest(rows, rows, k + 1, slack[rows]), blocks)
    for rows, (floors, pairs) in zip(blocks, diagonal, strict=True):
        r, c, values = _without_self(pairs, 0)
        lists.floors[rows] = floors
        lists.add(rows, r, c + rows.start, values)

    def multiply(pair: tuple[slice, slice]) -> tuple[Pairs, Pairs]:
        rows, columns = pair
        r, c, values = products.reaching(rows, columns, lists.floors[rows], lists.floors[columns])
        above = np.flatnonzero(values >= lists.floors[columns][c])
        # NumPy sorts 16-bit numbers by radix.
        order = above[np.argsort(c[above].astype(np.uint16), kind="stable")]
        return (r, c + columns.start, values), (c[order], r[order] + rows.start, values[order])

    results = workers.map(multiply, ((rows, columns) for i, rows in enumerate(blocks) for columns in blocks[i + 1 :]))
    for i, rows in enumerate(blocks):
        for columns, (row_pairs, column_pairs) in zip(blocks[i + 1 :], results, strict=False):
            lists.add(rows, *row_pairs)
            lists.add(columns, *column_pairs)
        lists.raise_floors(rows)
        yield rows, lists.keys[rows], lists.overflowed[rows]


def _key_table(
    queries: int, k: int, rows: np.ndarray, columns: np.ndarray, products: np.ndarray, offset: int | None
) -> np.ndarray:
    """Return the sorted keys of each query's pairs, which are given row by row: int64 [queries, k or more].

    `offset` is as in `_without_self`; None keeps the pair of a row with itself.
    """
    pair_keys = _pack_keys(products, columns)
    if offset is not None:
        pair_keys[rows == columns + offset] = EMPTY
    counts = np.bincount(rows, minlength=queries)
    width = np.arange(max(k, counts.max(initial=0)))
    keys = np.full((queries, len(width)), EMPTY)
    keys[width < counts[:, None]] = pair_keys
    keys.sort(axis=1)
    return keys


def _without_self(pairs: Pairs, offset: int) -> Pairs:
    """Return the pairs except those of a row with itself, whose column is `offset` less than the row."""
    rows, columns, products = pairs
    is_other = rows != columns + offset
    return rows[is_other], columns[is_other], products[is_other]


def _search(
    queries: np.ndarray,
    gallery: np.ndarray,
    k: int,
    slack: np.ndarray,
    exclude_self: bool,
    chunk: int | None,
    exact: bool,
) -> Iterator[Neighbours]:
    budget = search_budget(gallery)
    dense_bytes = budget.dense if budget else CHUNK_BYTES

    def repair(rows: slice, similarities: np.ndarray, indices: np.ndarray, void: np.ndarray) -> Neighbours:
        for part in _split_rows(rows.start + np.flatnonzero(void), len(gallery), dense_bytes):
            self_columns = part if exclude_self else None
            neighbours = _search_dense(queries[part], gallery, k, slack[part], self_columns)
            similarities[part - rows.start], indices[part - rows.start] = neighbours
        return rows, similarities, indices

    def finish(shortlist: Shortlist) -> Neighbours:
        rows, lists, overflowed = shortlist
        keys = _rank_shortlists(queries[rows], gallery, lists, slack[rows], k, exact)
        return repair(rows, _key_products(keys), _key_columns(keys), overflowed)

    if budget is None and len(gallery) >= BLOCK and (on_gpu := search_on_gpu(queries, gallery)):
        yield from (repair(*neighbours) for neighbours in on_gpu.nearest(k, slack, exclude_self, chunk))
        return
    products, shortlists = _plan(queries, gallery, k, slack, exclude_self, chunk)
    with products.workers() as workers:
        yield from workers.map(finish, shortlists(workers))


def _plan(
    queries: np.ndarray, gallery: np.ndarray, k: int, slack: np.ndarray, exclude_self: bool, chunk: int | None
) -> tuple[Float32Products, Callable[[Workers], Iterator[Shortlist]]]:
    """Choose the kind of products, and how to make shortlists: in a single block, by symmetry or by rows."""
    budget = search_budget(gallery)
    list_bytes = 8 * shortlist_width(k)
    size = max(1, min(chunk or BLOCK, len(queries), (budget.chunk if budget else CHUNK_BYTES) // list_bytes))
    # The lists of all queries may take as much memory as the gallery, or as a chunk.
    affordable = budget.symmetric if budget else list_bytes * len(gallery) <= max(gallery.nbytes, CHUNK_BYTES)
    if len(gallery) <= SINGLE_BLOCK:
        size = min(size, max(1, BLOCK // 2))
        products = _choose_products(queries, gallery, size, len(gallery))
        return products, lambda workers: _shortlist_single_block(workers, products, k, slack, exclude_self, size)
    side = INT8_BLOCK if budget is None and can_multiply_int8(gallery.shape[1]) else BLOCK
    if exclude_self and affordable and (chunk is None or chunk >= BLOCK):
        side = min(side, chunk or side, max(BLOCK, len(gallery) // _MIN_BLOCKS))
        products = _choose_products(queries, queries, side, side)
        return products, lambda workers: _shortlist_by_symmetry(workers, products, k, slack, side)
    sizes = size, max(BLOCK, side * side // size)
    products = _choose_products(queries, gallery, *sizes)
    return products, lambda workers: _shortlist_by_rows(workers, products, k, slack, exclude_self, sizes)


def _choose_products(queries: np.ndarray, gallery: np.ndarray, row_block: int, column_block: int) -> Float32Products:
    if search_budget(gallery) is not None:  # 8-bit copies of the rows would take memory
        return Float32Products(queries, gallery)
    if min(len(queries), len(gallery)) >= BLOCK and can_multiply_int8(gallery.shape[1]):
        return Int8Products(queries, gallery, row_block, column_block)
    several = column_block < len(gallery)  # a single block has no floors before it is multiplied
    pays = several and prefilter_pays(len(queries), row_block, gallery.size, AVX2_MAX_NUMBERS)
    if pays and can_prefilter(gallery.shape[1]):
        return PrefilteredProducts(queries, gallery, row_block, column_block)
    return Float32Products(queries, gallery)


def _split_rows(rows: np.ndarray, columns: int, table_bytes: int) -> list[np.ndarray]:
    """Return the rows in parts whose products with all columns fit a table."""
    size = max(1, table_bytes // (4 * columns))
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _rank_shortlists(
    queries: np.ndarray, gallery: np.ndarray, keys: np.ndarray, slack: np.ndarray, k: int, exact: bool
) -> np.ndarray:
    """Return the k nearest of each sorted shortlist, int64 keys [q, k], by inner products in double precision.

    Products that differ by more than the slack are in their true order already; only `exact` sums them again.
    """
    keys = keys[:, : np.count_nonzero(keys != EMPTY, axis=1).max(initial=k)].copy()
    doubtful = keys != EMPTY
    if not exact:
        products = _key_products(keys)
        close = products[:, :-1] - products[:, 1:] <= slack[:, None]  # False next to `EMPTY`, which gives NaN
        doubtful[:, 1:] = close
        doubtful[:, 0] = False
        doubtful[:, :-1] |= close
    rows, places = np.nonzero(doubtful)
    columns = _key_columns(keys[rows, places])
    keys[rows, places] = _pack_keys(pair_products_double(queries, gallery, rows, columns), columns)
    changed = np.flatnonzero(doubtful.any(axis=1))
    keys[changed] = np.sort(keys[changed], axis=1)
    return keys[:, :k]


def _check_arguments(queries: np.ndarray, gallery: np.ndarray, k: int, exclude_self: bool, chunk: int | None) -> None:
    if queries.shape[1] != gallery.shape[1]:
        raise EvaluationError(
            f"queries have {queries.shape[1]} dimensions and the gallery {gallery.shape[1]}.", code="invalid-embedding"
        )
    if exclude_self and queries is not gallery and not np.array_equal(queries, gallery):
        raise EvaluationError("with exclude_self the queries must be the gallery, row by row; they differ.")
    check_k(k, "k")
    if k > (available := len(gallery) - exclude_self):
        suffix = " besides the query" if exclude_self else ""
        raise EvaluationError(
            f"k is {k}, but the gallery has only {available} row(s){suffix}; use a smaller k.", code="too-few-samples"
        )
    if chunk is not None and chunk < 1:
        raise EvaluationError(f"chunk must be at least 1, not {chunk}.", code="invalid-value")


def _slack(queries: np.ndarray, gallery: np.ndarray) -> np.ndarray:
    """Return how far below a query's k-th largest float32 product a true neighbour's product may be: float64 [q].

    A product of d terms has an error of at most gamma_d |q| |g|, gamma_d = d u / (1 - d u), in any order of summation
    (Higham 2002, Accuracy and Stability of Numerical Algorithms, section 3.1); so has the k-th. The additional terms
    cover the rounding of the results and of the threshold; the last summand covers underflow.
    """
    terms = (queries.shape[1] + 8) * UNIT_ROUNDOFF
    norms = norm_bounds(queries)
    largest = (norms if queries is gallery else norm_bounds(gallery)).max()
    if len(norms) and norms.max() * largest > _LARGEST_PRODUCT:
        raise EvaluationError(
            "the rows are too large for float32 products; scale them to unit length.", code="too-large"
        )
    slack: np.ndarray = 2 * terms / (1 - terms) * norms * largest + 2 * queries.shape[1] * 2.0**-126
    return slack


def _search_dense(
    queries: np.ndarray, gallery: np.ndarray, k: int, slack: np.ndarray, self_columns: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Search with a dense matrix of products, for queries whose shortlist has overflowed.

    `self_columns`, int64 [q], are the gallery's rows that are the queries themselves, to be left out.
    """
    products = np.empty((len(queries), len(gallery)), np.float32)
    for block in _split_blocks(len(gallery), max(1, _BLOCK_NUMBERS // gallery.shape[1])):
        np.matmul(queries, gallery[block].T, out=products[:, block])
        release(gallery[block])
    if self_columns is not None:
        products[np.arange(len(self_columns)), self_columns] = -np.inf
    position = len(gallery) - k
    kth = np.partition(products, position, axis=1)[:, position]
    threshold = (kth - slack).astype(np.float32)
    rows, columns = np.divmod(np.flatnonzero(products >= threshold[:, None]), len(gallery))
    # Where most of the gallery could be near (large k, collapsed embeddings), a dense product costs less than pairs.
    if len(rows) > products.size // 16:
        _multiply_in_double(queries, gallery, out=products)
        exact = products[rows, columns]
    else:
        exact = pair_products_double(queries, gallery, rows, columns)
    return _first_k(rows, columns, exact, len(queries), k)


def _multiply_in_double(queries: np.ndarray, gallery: np.ndarray, out: np.ndarray) -> None:
    queries = queries.astype(np.float64)
    step = max(1, _BLOCK_NUMBERS // gallery.shape[1])
    for start in range(0, len(gallery), step):
        block = slice(start, start + step)
        out[:, block] = queries @ gallery[block].astype(np.float64).T
        release(gallery[block])


def _first_k(
    rows: np.ndarray, columns: np.ndarray, similarities: np.ndarray, queries: int, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Sort each query's candidates, given row by row with ascending columns, and keep k of each."""
    starts = np.searchsorted(rows, np.arange(queries + 1))
    position = np.arange(len(rows)) - starts[rows]
    width = int(np.diff(starts).max())
    table = np.full((queries, width), -np.inf, np.float32)
    indices = np.zeros((queries, width), np.int64)
    table[rows, position], indices[rows, position] = similarities, columns
    # A stable sort keeps equal similarities in the order of their columns.
    order = np.argsort(-table, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(table, order, axis=1), np.take_along_axis(indices, order, axis=1)

"""Exact k-NN with a rounding bound.

The gallery rows that may be among each query's k nearest, gathered block by block with a rising floor.

Exact nearest neighbours by inner product, block by block, on NumPy.

Matrix products find, for each query, the few gallery rows that could be among its k nearest, with a proven bound on
their rounding; inner products in double precision then decide the order. Where the queries are the gallery each
product serves two rows. Where torch is loaded anyway, all of it is done on its GPU (zoo.evaluation.gpu), or the
products are of 8-bit integers, all or most: other first steps with bounds of their own, never another result.
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

EMPTY = np.iinfo(np.int64).max


class Shortlists:
    """For each of n queries up to `width` candidates: keys int64 [n, width], in no order until floors are raised.

    floors: float32 [n], below which no product can be among a query's k nearest: the k-th largest seen, less the
        slack of rounding. -inf until there are k; +inf for a query that has overflowed.
    overflowed: bool [n], where more rows lie within the slack than fit (collapsed embeddings): such a list is void.
    """

    def __init__(self, n: int, k: int, slack: np.ndarray) -> None:
        self.k, self.slack, self.width = k, slack, shortlist_width(k)
        self.keys = np.full((n, self.width), EMPTY)
        self.counts = np.zeros(n, np.int64)
        self.floors = np.full(n, -np.inf, np.float32)
        self.overflowed = np.zeros(n, np.bool_)

    def add(self, block: slice, rows: np.ndarray, columns: np.ndarray, products: np.ndarray) -> None:
        """Offer candidates to the queries of a block: rows int64 [p], ascending and counted from the block's start."""
        chosen = np.flatnonzero(products >= self.floors[block][rows])
        rows, keys = rows[chosen], pack_keys(products[chosen], columns[chosen])
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
            self._give_up(block, np.unique(rows[~fits]))
            left = ~fits & (keys <= _floor_keys(self.floors[block])[rows])
            rows, keys = rows[left], keys[left]
        if self.counts[block].sum() > len(self.counts[block]) * (self.k + self.k // 4 + 4):
            self.raise_floors(block)

    def raise_floors(self, block: slice) -> None:
        """Sort the lists of a block, nearest first, and drop what lies below the k-th by more than the slack."""
        keys = self.keys[block]
        keys.sort(axis=1)
        full = self.counts[block] >= self.k
        floors = (key_products(keys[full, self.k - 1]) - self.slack[block][full]).astype(np.float32)
        self.floors[block][full] = np.maximum(self.floors[block][full], floors)
        keys[keys > _floor_keys(self.floors[block])[:, None]] = EMPTY
        self.counts[block] = np.count_nonzero(keys != EMPTY, axis=1)

    def _give_up(self, block: slice, rows: np.ndarray) -> None:
        """Mark those of the rows whose list is full of candidates that no floor parts."""
        rows = rows[self.counts[block][rows] == self.width]
        self.overflowed[block][rows] = True
        self.floors[block][rows] = np.inf
        self.keys[block][rows] = EMPTY
        self.counts[block][rows] = 0


def pack_keys(products: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Integers that ascend as products descend, equal products as columns ascend: int64. Columns below 2^32."""
    bits = (products + np.float32(0)).view(np.int32)  # the sum turns -0 into 0
    descending = ~(bits ^ ((bits >> 31) & np.int32(2**31 - 1)))
    keys: np.ndarray = (descending.astype(np.int64) << 32) | columns
    return keys


def _floor_keys(floors: np.ndarray) -> np.ndarray:
    """The largest keys whose products reach the floors, int64."""
    return pack_keys(floors, np.full(len(floors), 2**32 - 1))


def key_products(keys: np.ndarray) -> np.ndarray:
    """The products of `as_keys`, float32; NaN for `EMPTY`."""
    bits = ~(keys >> 32).astype(np.int32)
    return (bits ^ ((bits >> 31) & np.int32(2**31 - 1))).view(np.float32)


def key_columns(keys: np.ndarray) -> np.ndarray:
    """The columns of `as_keys`, int64."""
    return keys & (2**32 - 1)


def split_blocks(n: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


Shortlist = tuple[slice, np.ndarray, np.ndarray]
"""Of a block of queries: the slice, the sorted keys int64 [c, width], and where they overflowed, bool [c]."""


def shortlist_by_rows(
    workers: Workers,
    products: Float32Products,
    k: int,
    slack: np.ndarray,
    leave_out_self: bool,
    sizes: tuple[int, int],
) -> Iterator[Shortlist]:
    """The shortlists of each block of queries in turn. sizes: of the blocks, queries first."""
    columns = split_blocks(len(products.gallery), sizes[1])

    def of(rows: slice) -> Shortlist:
        lists = Shortlists(rows.stop - rows.start, k, slack[rows])
        whole = slice(0, len(lists.counts))
        for block in columns:
            if block is columns[0]:
                floors, pairs = products.highest(rows, block, k + leave_out_self, slack[rows])
                lists.floors[:] = floors
            else:
                pairs = products.reaching(rows, block, lists.floors, None)
            r, c, found = _without_self(pairs, block.start - rows.start) if leave_out_self else pairs
            lists.add(whole, r, c + block.start, found)
        lists.raise_floors(whole)
        return rows, lists.keys, lists.overflowed

    return workers.ahead(of, split_blocks(len(products.queries), sizes[0]))


def shortlist_single_block(
    workers: Workers, products: Float32Products, k: int, slack: np.ndarray, leave_out_self: bool, size: int
) -> Iterator[Shortlist]:
    """The same for a small gallery: a block of products spans it, so each query's k-th place is known at once."""

    def of(rows: slice) -> Shortlist:
        for doubt in (1.1, 2):
            gallery = slice(0, len(products.gallery))
            complete, pairs = products.highest(rows, gallery, k + leave_out_self, slack[rows], doubt)
            keys = _key_table(rows.stop - rows.start, k, *pairs, own=-rows.start if leave_out_self else None)
            floors = key_products(keys[:, k - 1]) - slack[rows]
            if (floors >= complete).all():  # so no pair is missing; with the larger doubt none can be
                break
        keys[keys > _floor_keys(floors.astype(np.float32))[:, None]] = EMPTY
        return rows, keys, np.zeros(len(keys), np.bool_)

    return workers.ahead(of, split_blocks(len(products.queries), size))


def _key_table(
    queries: int, k: int, rows: np.ndarray, columns: np.ndarray, products: np.ndarray, own: int | None
) -> np.ndarray:
    """The sorted keys of each query's pairs, which come row by row: int64 [queries, k or more].

    own: as in `_others`; None where a row's pair with itself counts.
    """
    paired = pack_keys(products, columns)
    if own is not None:
        paired[rows == columns + own] = EMPTY
    counts = np.bincount(rows, minlength=queries)
    width = np.arange(max(k, counts.max(initial=0)))
    keys = np.full((queries, len(width)), EMPTY)
    keys[width < counts[:, None]] = paired
    keys.sort(axis=1)
    return keys


def shortlist_by_symmetry(
    workers: Workers, products: Float32Products, k: int, slack: np.ndarray, size: int
) -> Iterator[Shortlist]:
    """The same where the queries are the gallery and each is left out: every product serves its row and its column.

    The blocks on the diagonal come first: where the gallery is ordered by class they hold what is near, and all
    further blocks meet high floors. The threads may see floors of a while ago, which only lets more pairs pass.
    """
    lists = Shortlists(len(products.gallery), k, slack)
    blocks = split_blocks(len(products.gallery), size)
    near = workers.ahead(lambda rows: products.highest(rows, rows, k + 1, slack[rows]), blocks)
    for rows, (floors, pairs) in zip(blocks, near, strict=True):
        r, c, found = _without_self(pairs, 0)
        lists.floors[rows] = floors
        lists.add(rows, r, c + rows.start, found)

    def meet(pair: tuple[slice, slice]) -> tuple[Pairs, Pairs]:
        rows, columns = pair
        r, c, found = products.reaching(rows, columns, lists.floors[rows], lists.floors[columns])
        chosen = np.flatnonzero(found >= lists.floors[columns][c])
        # Of 16 bits, numbers are sorted by radix.
        order = chosen[np.argsort(c[chosen].astype(np.uint16), kind="stable")]
        return (r, c + columns.start, found), (c[order], r[order] + rows.start, found[order])

    met = workers.ahead(meet, ((rows, columns) for i, rows in enumerate(blocks) for columns in blocks[i + 1 :]))
    for i, rows in enumerate(blocks):
        for columns, (of_rows, of_columns) in zip(blocks[i + 1 :], met, strict=False):
            lists.add(rows, *of_rows)
            lists.add(columns, *of_columns)
        lists.raise_floors(rows)
        yield rows, lists.keys[rows], lists.overflowed[rows]


def _without_self(pairs: Pairs, own: int) -> Pairs:
    """The pairs but those of a row with itself, which stand in the column `own` less than the row's."""
    rows, columns, products = pairs
    others = rows != columns + own
    return rows[others], columns[others], products[others]


CHUNK_BYTES = 64 * 2**20
"""How much memory a part of the work may take: lists of candidates, or a matrix of products."""

_CHECK_NUMBERS = 2**20
_MIN_BLOCKS = 16
"""Into how many blocks rows are parted at least, so that all threads have some."""
BLOCK = 1024
"""How many rows a block of products has at least, where there are as many."""
INT8_BLOCK = 3072
"""How many it has of 8-bit products, which are so quick that what is done once a block would count."""
SINGLE_BLOCK = 8192
"""Up to how many rows a gallery is one block: each query's k-th place is known at once, and few others are kept."""
_LARGEST_PRODUCT = 1e37


def nearest_neighbours(
    queries: Any, gallery: Any, k: int, exclude_self: bool = False, chunk: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The k gallery rows of largest inner product with each query: similarities float32 [q, k], indices int64 [q, k].

    queries: [q, d]; gallery: [n, d]; both are taken as float32. For rows of unit length the similarity is the cosine.
    exclude_self: the queries are the gallery, row by row; row i is left out of the neighbours of query i by its
        index, so a duplicate of it elsewhere still counts.
    chunk: how many queries at most are searched at a time. Memory beyond the result does not grow with it much, but a
        chunk below 1,024 rows gives up the symmetry of queries that are the gallery.

    The search is exact. A similarity is the inner product of the float32 rows, summed in double precision and rounded
    to float32. Neighbours come by similarity, descending; equal ones by index, ascending, also where the k-th place is
    shared. Equal rows have equal similarities wherever they stand and whatever the chunk (two ways of summing in
    double precision could part them only where the sum lies within 1e-13 of halfway between two float32 numbers).

    Raises `EvaluationError` for rows that are not 2-D, finite and of one length, and for a k below 1 or beyond the
    gallery.
    """
    chunks = neighbour_chunks(queries, gallery, k, exclude_self, chunk)
    similarities = np.empty((len(queries), k), np.float32)
    indices = np.empty((len(queries), k), np.int64)
    for rows, similar, found in chunks:
        similarities[rows], indices[rows] = similar, found
    return similarities, indices


def neighbour_chunks(
    queries: Any, gallery: Any, k: int, exclude_self: bool = False, chunk: int | None = None, exact: bool = True
) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """`nearest_neighbours` in pieces: (the queries' slice, similarities [c, k], indices [c, k]) for each chunk of c.

    exact: similarities too are as `nearest_neighbours` says; else only the indices are, and similarities are single
        precision sums, which is faster.

    The arguments are checked at once, the chunks are computed as they are asked for.
    """
    same = queries is gallery
    gallery = as_rows(gallery, "gallery")
    queries = gallery if same else as_rows(queries, "queries")
    _check_arguments(queries, gallery, k, exclude_self, chunk)
    return _search(queries, gallery, k, _slack(queries, gallery), exclude_self, chunk, exact)


def _search(
    queries: np.ndarray,
    gallery: np.ndarray,
    k: int,
    slack: np.ndarray,
    exclude_self: bool,
    chunk: int | None,
    exact: bool,
) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    def mended(
        rows: slice, similarities: np.ndarray, indices: np.ndarray, void: np.ndarray
    ) -> tuple[slice, np.ndarray, np.ndarray]:
        for piece in _split_rows(rows.start + np.flatnonzero(void), len(gallery)):
            own = piece if exclude_self else None
            found = _search_dense(queries[piece], gallery, k, slack[piece], own)
            similarities[piece - rows.start], indices[piece - rows.start] = found
        return rows, similarities, indices

    def finish(shortlist: Shortlist) -> tuple[slice, np.ndarray, np.ndarray]:
        rows, lists, overflowed = shortlist
        keys = _rank_shortlists(queries[rows], gallery, lists, slack[rows], k, exact)
        return mended(rows, key_products(keys), key_columns(keys), overflowed)

    if len(gallery) >= BLOCK and (there := search_on_gpu(queries, gallery)):
        yield from (mended(*found) for found in there.nearest(k, slack, exclude_self, chunk))
        return
    products, shortlists = _plan(queries, gallery, k, slack, exclude_self, chunk)
    with products.workers() as workers:
        yield from workers.ahead(finish, shortlists(workers))


def _plan(
    queries: np.ndarray, gallery: np.ndarray, k: int, slack: np.ndarray, exclude_self: bool, chunk: int | None
) -> tuple[Float32Products, Callable[[Workers], Iterator[Shortlist]]]:
    """How to multiply, and how to find the shortlists: at once, by symmetry or by rows."""
    size = max(1, min(chunk or BLOCK, len(queries), CHUNK_BYTES // (8 * shortlist_width(k))))
    # The lists of all queries may take as much memory as the gallery, or as a chunk.
    affordable = 8 * shortlist_width(k) * len(gallery) <= max(gallery.nbytes, CHUNK_BYTES)
    if len(gallery) <= SINGLE_BLOCK:
        size = min(size, max(1, BLOCK // 2))
        products = _choose_products(queries, gallery, size, len(gallery))
        return products, lambda workers: shortlist_single_block(workers, products, k, slack, exclude_self, size)
    side = INT8_BLOCK if can_multiply_int8(gallery.shape[1]) else BLOCK
    if exclude_self and affordable and (chunk is None or chunk >= BLOCK):
        side = min(side, chunk or side, max(BLOCK, len(gallery) // _MIN_BLOCKS))
        products = _choose_products(queries, queries, side, side)
        return products, lambda workers: shortlist_by_symmetry(workers, products, k, slack, side)
    sizes = size, max(BLOCK, side * side // size)
    products = _choose_products(queries, gallery, *sizes)
    return products, lambda workers: shortlist_by_rows(workers, products, k, slack, exclude_self, sizes)


def _choose_products(queries: np.ndarray, gallery: np.ndarray, row_block: int, column_block: int) -> Float32Products:
    if min(len(queries), len(gallery)) >= BLOCK and can_multiply_int8(gallery.shape[1]):
        return Int8Products(queries, gallery, row_block, column_block)
    several = column_block < len(gallery)  # of a single block nothing is known before it is multiplied
    if (
        several
        and prefilter_pays(len(queries), row_block, gallery.size, AVX2_MAX_NUMBERS)
        and can_prefilter(gallery.shape[1])
    ):
        return PrefilteredProducts(queries, gallery, row_block, column_block)
    return Float32Products(queries, gallery)


def _split_rows(rows: np.ndarray, columns: int) -> list[np.ndarray]:
    """The rows in parts whose products with all columns fit a chunk."""
    size = max(1, CHUNK_BYTES // (4 * columns))
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _rank_shortlists(
    queries: np.ndarray, gallery: np.ndarray, keys: np.ndarray, slack: np.ndarray, k: int, exact: bool
) -> np.ndarray:
    """The k nearest of each sorted shortlist, int64 keys [q, k], by inner products in double precision.

    Products that lie further apart than the slack are in their true order already; only `exact` sums them again.
    """
    keys = keys[:, : np.count_nonzero(keys != EMPTY, axis=1).max(initial=k)].copy()
    doubtful = keys != EMPTY
    if not exact:
        products = key_products(keys)
        close = products[:, :-1] - products[:, 1:] <= slack[:, None]  # not so beside `EMPTY`, which gives NaN
        doubtful[:, 1:] = close
        doubtful[:, 0] = False
        doubtful[:, :-1] |= close
    rows, places = np.nonzero(doubtful)
    columns = key_columns(keys[rows, places])
    keys[rows, places] = pack_keys(pair_products_double(queries, gallery, rows, columns), columns)
    changed = np.flatnonzero(doubtful.any(axis=1))
    keys[changed] = np.sort(keys[changed], axis=1)
    return keys[:, :k]


def as_rows(values: Any, name: str) -> np.ndarray:
    """`values` as float32 [n, d]; mapped ones (`np.memmap`) that are so already as they are.

    Raises `EvaluationError` unless they are finite numbers of two dimensions.
    """
    try:
        rows = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged lists; torch tensors on a GPU or with gradients
        raise EvaluationError(f"{name} cannot be read as an array: {error}") from None
    if rows.ndim != 2 or rows.shape[1] == 0 or rows.dtype.kind not in "fiub":
        raise EvaluationError(
            f"{name} must be numbers of shape [rows, dimensions], not {rows.dtype} of shape {list(rows.shape)}."
        )
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinite and is named below
        rows = np.ascontiguousarray(rows, dtype=np.float32)
    finite = np.empty(len(rows), np.bool_)
    step = max(1, _CHECK_NUMBERS // rows.shape[1])
    for start in range(0, len(rows), step):
        finite[start : start + step] = np.isfinite(rows[start : start + step]).all(axis=1)
    if not finite.all():
        raise EvaluationError(
            f"row {int(finite.argmin())} of {name} holds NaN or infinite values "
            f"({int((~finite).sum())} of {len(rows)} rows do); embed again or drop those rows."
        )
    return values if is_memory_mapped(values) and np.shares_memory(values, rows) else rows


def is_memory_mapped(values: Any) -> bool:
    """Whether they lie in a mapped file; what NumPy computes of such is an `np.memmap` as well, but in memory."""
    return isinstance(values, np.memmap) and getattr(values, "_mmap", None) is not None


def check_k(k: Any, name: str) -> int:
    """`k`, how many neighbours, as an int. Raises `EvaluationError` unless it is a whole number of at least 1."""
    if isinstance(k, bool) or not isinstance(k, Integral) or k < 1:
        raise EvaluationError(f"{name} must be a whole number of at least 1, not {k!r}.")
    return int(k)


def _check_arguments(queries: np.ndarray, gallery: np.ndarray, k: int, exclude_self: bool, chunk: int | None) -> None:
    if queries.shape[1] != gallery.shape[1]:
        raise EvaluationError(f"queries have {queries.shape[1]} dimensions and the gallery {gallery.shape[1]}.")
    if exclude_self and queries is not gallery and not np.array_equal(queries, gallery):
        raise EvaluationError("with exclude_self the queries must be the gallery, row by row; they differ.")
    check_k(k, "k")
    if k > (available := len(gallery) - exclude_self):
        beside = " beside the query" if exclude_self else ""
        raise EvaluationError(f"k is {k}, but the gallery has only {available} row(s){beside}; use a smaller k.")
    if chunk is not None and chunk < 1:
        raise EvaluationError(f"chunk must be at least 1, not {chunk}.")


def _slack(queries: np.ndarray, gallery: np.ndarray) -> np.ndarray:
    """How far below the k-th largest float32 product of a query a true neighbour's product may lie, float64 [q].

    A product of d terms is wrong by at most gamma_d |q| |g|, gamma_d = d u / (1 - d u), in whatever order it is summed
    (Higham 2002, Accuracy and Stability of Numerical Algorithms, section 3.1); both it and the k-th may be. The further
    terms cover the rounding of the results and of the threshold; the last summand covers underflow.
    """
    terms = (queries.shape[1] + 8) * UNIT_ROUNDOFF
    norms = norm_bounds(queries)
    largest = (norms if queries is gallery else norm_bounds(gallery)).max()
    if len(norms) and norms.max() * largest > _LARGEST_PRODUCT:
        raise EvaluationError("the rows are too large for float32 products; scale them to unit length.")
    slack: np.ndarray = 2 * terms / (1 - terms) * norms * largest + 2 * queries.shape[1] * 2.0**-126
    return slack


def _search_dense(
    queries: np.ndarray, gallery: np.ndarray, k: int, slack: np.ndarray, own: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    products = queries @ gallery.T
    if own is not None:
        products[np.arange(len(own)), own] = -np.inf
    place = len(gallery) - k
    kth = np.partition(products, place, axis=1)[:, place]
    threshold = (kth - slack).astype(np.float32)
    rows, columns = np.divmod(np.flatnonzero(products >= threshold[:, None]), len(gallery))
    # Where most of the gallery could be near (large k, collapsed embeddings), one dense product costs less than pairs.
    if len(rows) > products.size // 16:
        _multiply_in_double(queries, gallery, out=products)
        exact = products[rows, columns]
    else:
        exact = pair_products_double(queries, gallery, rows, columns)
    return _first_k(rows, columns, exact, len(queries), k)


def _multiply_in_double(queries: np.ndarray, gallery: np.ndarray, out: np.ndarray) -> None:
    queries = queries.astype(np.float64)
    step = max(1, _CHECK_NUMBERS // gallery.shape[1])
    for start in range(0, len(gallery), step):
        block = slice(start, start + step)
        out[:, block] = queries @ gallery[block].astype(np.float64).T


def _first_k(
    rows: np.ndarray, columns: np.ndarray, similarities: np.ndarray, queries: int, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Sort each query's candidates, given row by row with ascending columns, and keep k of each."""
    starts = np.searchsorted(rows, np.arange(queries + 1))
    place = np.arange(len(rows)) - starts[rows]
    width = int(np.diff(starts).max())
    table = np.full((queries, width), -np.inf, np.float32)
    names = np.zeros((queries, width), np.int64)
    table[rows, place], names[rows, place] = similarities, columns
    # A stable sort leaves equal similarities in the order of their columns.
    order = np.argsort(-table, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(table, order, axis=1), np.take_along_axis(names, order, axis=1)

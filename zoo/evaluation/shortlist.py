"""The gallery rows that may be among each query's k nearest, gathered block by block with a rising floor."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from zoo.evaluation.gpu import width_of
from zoo.evaluation.matmul import Float32Products, Pairs, Workers

EMPTY = np.iinfo(np.int64).max


class Shortlists:
    """For each of n queries up to `width` candidates: keys int64 [n, width], in no order until floors are raised.

    floors: float32 [n], below which no product can be among a query's k nearest: the k-th largest seen, less the
        slack of rounding. -inf until there are k; +inf for a query that has overflowed.
    overflowed: bool [n], where more rows lie within the slack than fit (collapsed embeddings): such a list is void.
    """

    def __init__(self, n: int, k: int, slack: np.ndarray) -> None:
        self.k, self.slack, self.width = k, slack, width_of(k)
        self.keys = np.full((n, self.width), EMPTY)
        self.counts = np.zeros(n, np.int64)
        self.floors = np.full(n, -np.inf, np.float32)
        self.overflowed = np.zeros(n, np.bool_)

    def add(self, block: slice, rows: np.ndarray, columns: np.ndarray, products: np.ndarray) -> None:
        """Offer candidates to the queries of a block: rows int64 [p], ascending and counted from the block's start."""
        chosen = np.flatnonzero(products >= self.floors[block][rows])
        rows, keys = rows[chosen], as_keys(products[chosen], columns[chosen])
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
            left = ~fits & (keys <= _highest_keys(self.floors[block])[rows])
            rows, keys = rows[left], keys[left]
        if self.counts[block].sum() > len(self.counts[block]) * (self.k + self.k // 4 + 4):
            self.raise_floors(block)

    def raise_floors(self, block: slice) -> None:
        """Sort the lists of a block, nearest first, and drop what lies below the k-th by more than the slack."""
        keys = self.keys[block]
        keys.sort(axis=1)
        full = self.counts[block] >= self.k
        floors = (products_of(keys[full, self.k - 1]) - self.slack[block][full]).astype(np.float32)
        self.floors[block][full] = np.maximum(self.floors[block][full], floors)
        keys[keys > _highest_keys(self.floors[block])[:, None]] = EMPTY
        self.counts[block] = np.count_nonzero(keys != EMPTY, axis=1)

    def _give_up(self, block: slice, rows: np.ndarray) -> None:
        """Mark those of the rows whose list is full of candidates that no floor parts."""
        rows = rows[self.counts[block][rows] == self.width]
        self.overflowed[block][rows] = True
        self.floors[block][rows] = np.inf
        self.keys[block][rows] = EMPTY
        self.counts[block][rows] = 0


def as_keys(products: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Integers that ascend as products descend, equal products as columns ascend: int64. Columns below 2^32."""
    bits = (products + np.float32(0)).view(np.int32)  # the sum turns -0 into 0
    descending = ~(bits ^ ((bits >> 31) & np.int32(2**31 - 1)))
    keys: np.ndarray = (descending.astype(np.int64) << 32) | columns
    return keys


def _highest_keys(floors: np.ndarray) -> np.ndarray:
    """The largest keys whose products reach the floors, int64."""
    return as_keys(floors, np.full(len(floors), 2**32 - 1))


def products_of(keys: np.ndarray) -> np.ndarray:
    """The products of `as_keys`, float32; NaN for `EMPTY`."""
    bits = ~(keys >> 32).astype(np.int32)
    return (bits ^ ((bits >> 31) & np.int32(2**31 - 1))).view(np.float32)


def columns_of(keys: np.ndarray) -> np.ndarray:
    """The columns of `as_keys`, int64."""
    return keys & (2**32 - 1)


def blocks_of(n: int, size: int) -> list[slice]:
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
    columns = blocks_of(len(products.gallery), sizes[1])

    def of(rows: slice) -> Shortlist:
        lists = Shortlists(rows.stop - rows.start, k, slack[rows])
        whole = slice(0, len(lists.counts))
        for block in columns:
            if block is columns[0]:
                floors, pairs = products.highest(rows, block, k + leave_out_self, slack[rows])
                lists.floors[:] = floors
            else:
                pairs = products.reaching(rows, block, lists.floors, None)
            r, c, found = _others(pairs, block.start - rows.start) if leave_out_self else pairs
            lists.add(whole, r, c + block.start, found)
        lists.raise_floors(whole)
        return rows, lists.keys, lists.overflowed

    return workers.ahead(of, blocks_of(len(products.queries), sizes[0]))


def shortlist_at_once(
    workers: Workers, products: Float32Products, k: int, slack: np.ndarray, leave_out_self: bool, size: int
) -> Iterator[Shortlist]:
    """The same for a small gallery: a block of products spans it, so each query's k-th place is known at once."""

    def of(rows: slice) -> Shortlist:
        for doubt in (1.1, 2):
            gallery = slice(0, len(products.gallery))
            complete, pairs = products.highest(rows, gallery, k + leave_out_self, slack[rows], doubt)
            keys = _table(rows.stop - rows.start, k, *pairs, own=-rows.start if leave_out_self else None)
            floors = products_of(keys[:, k - 1]) - slack[rows]
            if (floors >= complete).all():  # so no pair is missing; with the larger doubt none can be
                break
        keys[keys > _highest_keys(floors.astype(np.float32))[:, None]] = EMPTY
        return rows, keys, np.zeros(len(keys), np.bool_)

    return workers.ahead(of, blocks_of(len(products.queries), size))


def _table(
    queries: int, k: int, rows: np.ndarray, columns: np.ndarray, products: np.ndarray, own: int | None
) -> np.ndarray:
    """The sorted keys of each query's pairs, which come row by row: int64 [queries, k or more].

    own: as in `_others`; None where a row's pair with itself counts.
    """
    paired = as_keys(products, columns)
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
    blocks = blocks_of(len(products.gallery), size)
    near = workers.ahead(lambda rows: products.highest(rows, rows, k + 1, slack[rows]), blocks)
    for rows, (floors, pairs) in zip(blocks, near, strict=True):
        r, c, found = _others(pairs, 0)
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


def _others(pairs: Pairs, own: int) -> Pairs:
    """The pairs but those of a row with itself, which stand in the column `own` less than the row's."""
    rows, columns, products = pairs
    others = rows != columns + own
    return rows[others], columns[others], products[others]

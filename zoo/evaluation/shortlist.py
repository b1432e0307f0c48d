"""The gallery rows that may be among each query's k nearest, gathered block by block with a rising floor."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from zoo.evaluation.products import Float32Products

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

    def start(self, block: slice, products: np.ndarray, skip: int) -> None:
        """First floors, from the products with some of the gallery: the k-th largest, were `skip` of them to go."""
        if (place := products.shape[1] - self.k - skip) >= 0:
            kth = np.partition(products, place, axis=1)[:, place]
            self.floors[block] = kth - self.slack[block]

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
            left = ~fits & (keys <= self._highest_keys(block)[rows])
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
        keys[keys > self._highest_keys(block)[:, None]] = EMPTY
        self.counts[block] = np.count_nonzero(keys != EMPTY, axis=1)

    def _highest_keys(self, block: slice) -> np.ndarray:
        return as_keys(self.floors[block], np.full(len(self.floors[block]), 2**32 - 1))

    def _give_up(self, block: slice, rows: np.ndarray) -> None:
        """Mark those of the rows whose list is full of candidates that no floor parts."""
        rows = rows[self.counts[block][rows] == self.width]
        self.overflowed[block][rows] = True
        self.floors[block][rows] = np.inf
        self.keys[block][rows] = EMPTY
        self.counts[block][rows] = 0


def width_of(k: int) -> int:
    """How many candidates a list holds: twice what is asked for, and some."""
    return 2 * k + 32


def as_keys(products: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Integers that ascend as products descend, equal products as columns ascend: int64. Columns below 2^32."""
    bits = (products + np.float32(0)).view(np.int32)  # the sum turns -0 into 0
    descending = ~(bits ^ ((bits >> 31) & np.int32(2**31 - 1)))
    keys: np.ndarray = (descending.astype(np.int64) << 32) | columns
    return keys


def products_of(keys: np.ndarray) -> np.ndarray:
    """The products of `as_keys`, float32; NaN for `EMPTY`."""
    bits = ~(keys >> 32).astype(np.int32)
    return (bits ^ ((bits >> 31) & np.int32(2**31 - 1))).view(np.float32)


def columns_of(keys: np.ndarray) -> np.ndarray:
    """The columns of `as_keys`, int64."""
    return keys & (2**32 - 1)


def blocks_of(n: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def shortlist_by_rows(
    products: Float32Products, k: int, slack: np.ndarray, leave_out_self: bool, sizes: tuple[int, int]
) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """For each block of queries its sorted keys and where they overflowed. sizes: of the blocks, queries first."""
    columns = blocks_of(len(products.gallery), sizes[1])
    for rows in blocks_of(len(products.queries), sizes[0]):
        lists = Shortlists(rows.stop - rows.start, k, slack[rows])
        whole = slice(0, len(lists.counts))
        lists.start(whole, products.all_of(rows, columns[0]), leave_out_self)
        for block in columns:
            r, c, found = products.reaching(rows, block, lists.floors, None)
            c += block.start
            if leave_out_self:
                other = r + rows.start != c
                r, c, found = r[other], c[other], found[other]
            lists.add(whole, r, c, found)
        lists.raise_floors(whole)
        yield rows, lists.keys, lists.overflowed


def shortlist_by_symmetry(
    products: Float32Products, k: int, slack: np.ndarray, size: int
) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """The same where the queries are the gallery and each is left out: every product serves its row and its column.

    The blocks on the diagonal come first: where the gallery is ordered by class they hold what is near, and all
    further blocks meet high floors.
    """
    lists = Shortlists(len(products.gallery), k, slack)
    blocks = blocks_of(len(products.gallery), size)
    for rows in blocks:
        near = products.all_of(rows, rows)
        lists.start(rows, near, 1)
        r, c, found = products.where(near, lists.floors[rows])
        other = r != c
        lists.add(rows, r[other], c[other] + rows.start, found[other])
    for i, rows in enumerate(blocks):
        for columns in blocks[i + 1 :]:
            r, c, found = products.reaching(rows, columns, lists.floors[rows], lists.floors[columns])
            lists.add(rows, r, c + columns.start, found)
            chosen = np.flatnonzero(found >= lists.floors[columns][c])
            # Of 16 bits, numbers are sorted by radix.
            order = chosen[np.argsort(c[chosen].astype(np.uint16), kind="stable")]
            lists.add(columns, c[order], r[order] + rows.start, found[order])
        lists.raise_floors(rows)
        yield rows, lists.keys[rows], lists.overflowed[rows]

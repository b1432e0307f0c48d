"""Comparison of all items of a gallery: it brings the table of confirmed copies up to date.

Only items that were added since the last comparison are put into an index, and all items are searched in it, page by
page. Time and memory grow with the items and their copies, not with pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice

import numpy as np

from serving.duplicates.alignment import GreyPicture
from serving.duplicates.candidates import EXACT, ROWS_PER_LIST, CandidateIndex, build_index, lists
from serving.duplicates.pictures import Pair, Pictures, PictureTable
from serving.duplicates.rule import Evidence, confirm, confirm_nearest
from zoo.console import Progress

PICTURES = 400
"""Grey thumbnails that are kept, 200 to 400 kB each."""

ROWS = 200
"""Items whose candidates are read at a time."""

Facts = tuple[np.ndarray, np.ndarray]
"""The embedding, float32 [dim], and the hash, uint8 [32], of an item."""


@dataclass(frozen=True)
class ComparedItems:
    """Result of a comparison.

    Attributes:
        added: Items that were compared with all others.
        candidates: Comparisons of pairs that an index found.
        confirmed: Pairs of these that are copies.
    """

    added: int
    candidates: int
    confirmed: int


def compare(table: PictureTable, progress: bool = False, exact: bool | None = None) -> ComparedItems:
    """Compare the items that were added since the last comparison with all items, and write what was confirmed.

    After a change of the gallery's model, all items are compared again. An interrupted comparison begins again.

    Args:
        table: The tables of an open store.
        progress: Whether to show a progress bar.
        exact: Whether to search embeddings and hashes exactly; by default up to `EXACT` items.
    """
    since, now = table.compared(), table.store.change()
    added = table.count(since)
    if not since:
        table.forget()
    candidates = confirmed = 0
    if added:
        exact = added <= EXACT if exact is None else exact
        sample = None if exact else _sample(table, since, added)
        index = build_index(table.store.dim, added, table.pages(since), sample)
        comparison = CopySearch(table)
        with Progress("compare", table.count(), progress) as bar:
            for page in table.pages():
                start, found = bar.done, []
                for row, pair in comparison.confirmed(page, index):
                    if pair is None:
                        bar.update(start + row + 1 - bar.done)
                    else:
                        found.append(pair)
                table.add_pairs(found)
                bar.update(start + len(page.ids) - bar.done)
        candidates, confirmed = comparison.candidates, comparison.confirmed_pairs
    table.set_compared(now)
    return ComparedItems(added, candidates, confirmed)


class CopySearch:
    """Comparison of items with their candidates, each pair once."""

    def __init__(self, table: PictureTable) -> None:
        self._table = table
        self._read = lru_cache(PICTURES)(lambda content: GreyPicture(table.picture(content)))
        self._copies: dict[tuple[int, int], Evidence] = {}
        self._others: set[tuple[int, int, bool]] = set()

    @property
    def candidates(self) -> int:
        """Return the number of comparisons."""
        return len(self._copies) + len(self._others)

    @property
    def confirmed_pairs(self) -> int:
        """Return the number of pairs that are copies."""
        return len(self._copies)

    def confirmed(self, page: Pictures, index: CandidateIndex) -> Iterator[tuple[int, Pair | None]]:
        """Yield (row, pair) for each new pair of a page's item and a copy, and (row, None) after each row."""
        nearest = index.nearest(page)
        while rows := list(islice(nearest, ROWS)):
            others = sorted({item for row in rows for item in (*row.similar, *row.close)})
            known, vectors = self._table.store.content_embeddings(others)
            hashes = self._table.hashes(known)
            facts = {
                item: (vector, hashes[item]) for item, vector in zip(known, vectors, strict=True) if item in hashes
            }
            for one in rows:
                item = int(page.ids[one.row])
                similar, close = ([other for other in ids if other in facts] for ids in (one.similar, one.close))
                own = page.vectors[one.row], page.hashes[one.row]
                check = partial(self._check, item, own, facts)
                before = len(self._copies)
                for other, evidence in confirm_nearest(similar, close, check):
                    if len(self._copies) > before:
                        before = len(self._copies)
                        yield one.row, Pair(min(item, other), max(item, other), evidence)
                yield one.row, None

    def _check(self, item: int, own: Facts, facts: Mapping[int, Facts], other: int, is_near: bool) -> Evidence | None:
        pair = min(item, other), max(item, other)
        if pair in self._copies or (*pair, is_near) in self._others:
            return self._copies.get(pair)
        vector, picture = facts[other]
        similarity = min(1.0, float(own[0] @ vector))
        pictures = partial(self._read, item), partial(self._read, other)
        evidence = confirm(similarity, (own[1], picture), pictures, is_near)
        if evidence is None:
            self._others.add((*pair, is_near))
        else:
            self._copies[pair] = evidence
        return evidence


def _sample(table: PictureTable, since: int, added: int) -> np.ndarray:
    """Return embeddings, float32 [s, dim], evenly from all that were added after a change."""
    every = max(1, added // (ROWS_PER_LIST * lists(added)))
    return np.concatenate([page.vectors[::every] for page in table.pages(since)])

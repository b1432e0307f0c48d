"""Comparison of all items of a gallery: it brings the table of confirmed copies up to date.

Only items that were added since the last comparison are put into an index, and all items are searched in it, page by
page. Memory grows with the new items, not with pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from serving.duplicates.candidates import EXACT, ROWS_PER_LIST, build_index, lists
from serving.duplicates.pictures import PAGE, Pair, Pictures, PictureTable
from serving.duplicates.rule import confirm
from zoo.console import Progress

PICTURES = 1000
"""Grey thumbnails that are kept, 64 kB each."""


@dataclass(frozen=True)
class ComparedItems:
    """Result of a comparison.

    Attributes:
        added: Items that were compared with all others.
        candidates: Pairs that an index found.
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
        with Progress("compare", table.count(), progress) as bar:
            for page in table.pages():
                pairs = index.pairs(page)
                found = list(confirmed_pairs(table, page, pairs))
                table.add_pairs(found)
                candidates, confirmed = candidates + len(pairs), confirmed + len(found)
                bar.update(len(page.ids))
    table.set_compared(now)
    return ComparedItems(added, candidates, confirmed)


def confirmed_pairs(table: PictureTable, page: Pictures, pairs: np.ndarray) -> Iterator[Pair]:
    """Yield those of the pairs (row of the page, id of an item), int64 [m, 2], that are copies."""
    for start in range(0, len(pairs), PAGE):
        some = pairs[start : start + PAGE]
        others = sorted(set(some[:, 1].tolist()))
        known, vectors = table.store.content_embeddings(others)
        read = lru_cache(PICTURES)(table.picture)  # the same pictures are in many pairs
        hashes = table.hashes(known)
        places = {item: place for place, item in enumerate(known) if item in hashes}
        for row, other in some.tolist():
            if other not in places:  # removed meanwhile
                continue
            similarity = float(page.vectors[row] @ vectors[places[other]])
            item = int(page.ids[row])
            pictures = partial(read, item), partial(read, other)
            if evidence := confirm(min(1.0, similarity), (page.hashes[row], hashes[other]), pictures):
                yield Pair(min(item, other), max(item, other), evidence)


def _sample(table: PictureTable, since: int, added: int) -> np.ndarray:
    """Return embeddings, float32 [s, dim], evenly from all that were added after a change."""
    every = max(1, added // (ROWS_PER_LIST * lists(added)))
    return np.concatenate([page.vectors[::every] for page in table.pages(since)])

"""Some items from all over a gallery."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from serving.gallery.items import Item
from serving.gallery.rows import ITEM, item_of


def sample(read: Callable[..., list[tuple[Any, ...]]], n: int, seed: int | None) -> list[Item]:
    """`n` different items in random order; all of them where there are fewer. `read` runs queries of one snapshot."""
    first, last = read("SELECT min(id), max(id) FROM items")[0]
    if first is None:
        return []
    starts = random.Random(seed).sample(range(first, last + 1), min(2 * n, last + 1 - first))
    # The next item at or after a random id: quick at any size, and gaps left by removals do no harm.
    rows = [read(f"SELECT {ITEM} FROM items WHERE id >= ? ORDER BY id LIMIT 1", start)[0] for start in starts]
    # Gaps may have led to one item more than once; the first items make up the number.
    rows += read(f"SELECT {ITEM} FROM items ORDER BY id LIMIT ?", n)
    return [item_of(row) for row in {row[0]: row for row in rows}.values()][:n]

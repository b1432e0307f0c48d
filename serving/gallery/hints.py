"""What is said of what a filter names and no item has, and of a large gallery that was never tuned."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from serving.gallery.backends import backend_of
from serving.gallery.filters import Filter
from serving.gallery.gallery import Gallery
from zoo.errors import nearest

NOTED, COMPARED, LONGEST = 3, 2000, 80
"""So many unknown names are noted, each beside those of so many labels or items, and shown up to so many characters."""

LARGE = 100_000
"""With more items an approximate index is worth its making."""


def untuned(gallery: Gallery) -> str | None:
    """A sentence of a gallery that is searched exactly only because nobody has chosen otherwise; None of others."""
    items = gallery.count()
    if items <= LARGE or gallery.state("plan") is not None or backend_of(gallery.path) != "faiss":
        return None
    return (
        f"never tuned: each search looks at all {items:,} items. A faster index that finds 99 % of the nearest: "
        f"zoo gallery tune {gallery.path}"
    )


def notes(gallery: Gallery, chosen: Filter, found: bool) -> list[str]:
    """Of each label that no item has a sentence, with the nearest that there are; where nothing was found, also of each
    key that the metadata of the first items have not. Of the first few of both."""
    absent = list(islice((label for label in chosen.labels if not gallery.items(0, 1, label)), NOTED))
    known = [label for label, _ in gallery.overview.labels(COMPARED)[1]] if absent else []
    said = [f"No item has the label {_named(label, known)}" for label in absent]
    if found or not chosen.where:
        return said
    keys = gallery.overview.keys(COMPARED)
    whose = "No item has" if gallery.count() <= COMPARED else f"None of the first {COMPARED:,} items has"
    missing = islice((key for key in chosen.where if key not in keys), NOTED)
    return [*said, *(f"{whose} metadata called {_named(key, keys)}" for key in missing)]


def _named(name: str, known: Iterable[str]) -> str:
    short = name[:LONGEST]
    return f"{short!r}.{nearest(short, known)}"

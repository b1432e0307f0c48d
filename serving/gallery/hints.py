"""What is said of a label that a filter names and no item has, and of a large gallery that was never tuned."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from serving.gallery.backends import FOLLOWED, backend_of
from serving.gallery.gallery import Gallery
from zoo.errors import nearest

NOTED, COMPARED, LONGEST = 3, 2000, 80
"""So many unknown labels are noted, each beside so many of those that there are, and shown up to so many characters."""

LARGE = 100_000
"""With more items an approximate index is worth its making."""


def untuned(gallery: Gallery) -> str | None:
    """A sentence of a gallery that is searched exactly only because nobody has chosen otherwise; None of others."""
    items = gallery.count()
    follows = (gallery.path / FOLLOWED).is_file()  # it is tuned as the one that it follows
    if items <= LARGE or follows or gallery.state("plan") is not None or backend_of(gallery.path) != "faiss":
        return None
    return (
        f"never tuned: each search looks at all {items:,} items. A faster index that finds 99 % of the nearest: "
        f"zoo gallery tune {gallery.path}"
    )


def unknown_labels(gallery: Gallery, labels: Sequence[str]) -> list[str]:
    """Of each of these labels that no item has a sentence, with the nearest that there are; of the first few."""
    absent = list(islice((label[:LONGEST] for label in labels if not gallery.items(0, 1, label)), NOTED))
    known = [label for label, _ in gallery.overview.labels(COMPARED)[1]] if absent else []
    return [f"No item has the label {label!r}.{nearest(label, known)}" for label in absent]

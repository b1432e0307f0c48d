"""Whether the model as it is served still makes the embeddings that the gallery holds.

Labels are measured with the vectors of the gallery, which another runtime or precision of the model may have made.
Images that searches are made with are embedded by the one that is served; so a sample of the gallery's own is too.
"""

from __future__ import annotations

from typing import Any

from serving.gallery import Item
from serving.gallery.decoding import decode
from serving.gallery.originals import Originals, folders_of
from serving.searcher import Searcher
from zoo.errors import ImageError

SAMPLE = 32
LOOKED_FOR = 10 * SAMPLE
"""Of so many items the image files are looked for."""


def reproduced(searcher: Searcher) -> dict[str, Any]:
    """The least cosine of up to `SAMPLE` items' stored embeddings to those of their image files, embedded now.

    Files are taken where they have the content that they had. least_cosine: None where none was found, and not_measured
    says so. Items that were embedded by their thumbnails are left out.
    """
    cosines = _cosines(searcher)
    model = searcher.embedder
    return {
        "runtime": model.runtime,
        "precision": model.precision,
        "device": model.device,
        "images": len(cosines),
        "least_cosine": min(cosines, default=None),
        "not_measured": None if cosines else "none of the items' image files lies where it was indexed",
    }


def _cosines(searcher: Searcher) -> list[float]:
    gallery, found = searcher.gallery, []
    originals, items = Originals(folders_of(gallery)), gallery.sample(LOOKED_FOR, seed=0)
    small = gallery.from_thumbnails([item.id for item in items])
    for item in items:
        if item.id not in small and (cosine := _cosine(searcher, originals.read(item), item)) is not None:
            found.append(cosine)
            if len(found) == SAMPLE:
                break
    return found


def _cosine(searcher: Searcher, data: bytes | None, item: Item) -> float | None:
    try:
        pixels = None if data is None else decode(data, searcher.embedder.preprocessing, searcher.limits)[0]
    except ImageError:  # larger than this service takes
        return None
    if pixels is None:
        return None
    return float(searcher.embedder.embed_pixels(pixels[None])[0] @ searcher.gallery.embedding(item.id))

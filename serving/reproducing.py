"""Whether the model as it is served still makes the embeddings that the gallery holds.

Labels are measured with the vectors of the gallery, which another runtime or precision of the model may have made.
Images that searches are made with are embedded by the one that is served; so a sample of the gallery's own is too, and
how often the nearest is of the same label is compared with what the gallery's own vectors give.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from serving.gallery import Item
from serving.gallery.decoding import decode
from serving.gallery.originals import Originals, folders_of
from serving.searcher import Searcher
from zoo.errors import ImageError

SAMPLE, SECONDS = 256, 10.0
"""So many images are embedded, and no more once that has taken so long."""
LOOKED_FOR = 10 * SAMPLE
"""Of so many items the image files are looked for."""


def reproduced(searcher: Searcher) -> dict[str, Any]:
    """Of up to `SAMPLE` items whose image files have the content that they had: what the served model makes of them.

    least_cosine: of their stored embeddings to those of their files, embedded now. recall_at_1: of those that have a
    label, how many find another item of it nearest through the index, by the vectors stored and by those made now. None
    where there are none, and not_measured says so of the images. Items that were embedded by thumbnails are left out.
    """
    model, pairs = searcher.embedder, list(_pairs(searcher))
    cosines = [float(stored @ now) for _, stored, now in pairs]
    labelled = [pair for pair in pairs if pair[0].label is not None]
    return {
        "runtime": model.runtime,
        "precision": model.precision,
        "device": model.device,
        "images": len(cosines),
        "least_cosine": min(cosines, default=None),
        "recall_at_1": _recalls(searcher, labelled) if labelled else None,
        "not_measured": None if cosines else "none of the items' image files lies where it was indexed",
    }


Pair = tuple[Item, np.ndarray, np.ndarray]


def _pairs(searcher: Searcher) -> Iterator[Pair]:
    """Items with their unit embeddings, float32 [dim], as stored and as the served model makes them now."""
    gallery, ends, found = searcher.gallery, time.monotonic() + SECONDS, 0
    originals = Originals(folders_of(gallery))
    items = {item.id: item for item in gallery.sample(LOOKED_FOR, seed=0)}
    small = gallery.from_thumbnails(list(items))
    for item, stored in zip(*gallery.embeddings([one for one in items if one not in small]), strict=True):
        if (now := _embedded(searcher, originals.read(items[item]))) is not None:
            found += 1
            yield items[item], stored, now
        if found == SAMPLE or time.monotonic() > ends:
            return


def _embedded(searcher: Searcher, data: bytes | None) -> np.ndarray | None:
    try:
        pixels = None if data is None else decode(data, searcher.embedder.preprocessing, searcher.limits)[0]
    except ImageError:  # larger than this service takes
        return None
    return None if pixels is None else searcher.embedder.embed_pixels(pixels[None])[0]


def _recalls(searcher: Searcher, labelled: Sequence[Pair]) -> dict[str, Any]:
    def recall(rows: list[np.ndarray]) -> float:
        several = zip(searcher.gallery.search(np.stack(rows), 2), labelled, strict=True)
        nearest = [next((hit for hit in hits if hit.id != item.id), None) for hits, (item, _, _) in several]
        right = [
            hit is not None and hit.label == item.label for hit, (item, _, _) in zip(nearest, labelled, strict=True)
        ]
        return float(np.mean(right))

    stored, served = [row for _, row, _ in labelled], [row for _, _, row in labelled]
    return {"images": len(labelled), "stored": recall(stored), "served": recall(served)}

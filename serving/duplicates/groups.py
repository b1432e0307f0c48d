"""Groups of copies, each around its best copy.

Every member of a group was confirmed as a copy of the best one, so that no chain of pairs joins different pictures. The
best copy is the one of the most detail, pixels times sharpness, among those whose image file is still there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from serving.duplicates.pictures import Measures, Pair, PictureTable
from serving.duplicates.rule import Evidence
from serving.gallery.originals import Originals
from serving.gallery.types import Item
from zoo.console import Progress
from zoo.data.images import open_image
from zoo.errors import ImageError

BLOCK = 16
"""Side, in pixels, of the squares whose sharpness is measured."""

KEPT_AT_ONCE = 200
"""Measured items that are written at a time."""

FLAT = 1.0
"""Root mean square of the Laplacian, in grey levels, up to which a square is flat."""


@dataclass(frozen=True)
class Member:
    """A copy in a group, and why it is one; evidence: None for the best copy itself."""

    content: int
    evidence: Evidence | None


Rank = tuple[bool, float]
"""Whether the file of an image was found, and its detail; the largest is best."""


def group(pairs: Iterable[Pair], ranks: Mapping[int, Rank]) -> list[list[Member]]:
    """Return groups of two or more copies, the best copy first, the others by their distance.

    Items are taken in the order of their ranks; each that is in no group yet becomes the best copy of a new group,
    which its confirmed copies join unless they are in another one.

    Args:
        pairs: Confirmed pairs.
        ranks: Rank of each item in the pairs; of equal ones the smaller id is taken first.
    """
    links: defaultdict[int, dict[int, Evidence]] = defaultdict(dict)
    for pair in pairs:
        links[pair.first][pair.second] = links[pair.second][pair.first] = pair.evidence
    grouped: set[int] = set()
    groups = []
    for best in sorted(links, key=lambda item: (*ranks.get(item, (False, 0.0)), -item), reverse=True):
        copies = {item: evidence for item, evidence in links[best].items() if item not in grouped}
        if best in grouped or not copies:
            continue
        grouped.update((best, *copies))
        nearest = sorted(copies.items(), key=lambda copy: (copy[1].distance, copy[0]))
        groups.append([Member(best, None), *(Member(item, evidence) for item, evidence in nearest)])
    return sorted(groups, key=lambda members: members[0].content)


def rank_of(measures: Measures) -> Rank:
    """Return the rank by which the best copy is chosen: one whose file was found, with the most detail."""
    return measures.of_file, detail_of(measures)


def detail_of(measures: Measures) -> float:
    """Return pixels times sharpness; 0 where one of them is not known.

    The Laplacian grows with the square of the frequency, so that this is about the square of the cycles that a picture
    shows, which enlarging and reducing keep as far as no detail is lost: an enlarged copy is about equal.
    """
    if measures.width is None or measures.height is None or measures.sharpness is None:
        return 0.0
    return measures.width * measures.height * measures.sharpness


def measure(
    table: PictureTable, shown: Mapping[int, Sequence[Item]], originals: Originals, progress: bool = False
) -> dict[int, Measures]:
    """Return the measures of images, each with the items that show it, and keep those that are new.

    The sharpness is that of the image file, or of the thumbnail where the file is not found.
    """
    known = table.measures(list(shown))
    new: dict[int, Measures] = {}
    with Progress("sharpness", len(shown), progress) as bar:
        for content, items in shown.items():
            one = known.get(content, Measures(None, None, None))
            if one.sharpness is None:
                known[content] = new[content] = _measured(table, content, items, originals, one)
            if len(new) == KEPT_AT_ONCE:
                table.set_measures(new)
                new.clear()
            bar.update()
    table.set_measures(new)
    return known


def _measured(
    table: PictureTable, content: int, items: Sequence[Item], originals: Originals, known: Measures
) -> Measures:
    data = next(filter(None, map(originals.read, items)), None)
    try:
        image = open_image(data) if data else None
    except ImageError:
        image = None
    if image is not None:
        return Measures(image.width, image.height, sharpness(image))
    try:
        small = table.picture(content)
    except ImageError:  # a thumbnail that cannot be decoded
        return Measures(known.width, known.height, 0.0, of_file=False)
    return Measures(known.width, known.height, sharpness(small), of_file=False)


def sharpness(image: Image.Image) -> float:
    """Return the sharpness of a picture at its own size: the median contrast of its edges.

    It is the median over squares of the root mean square of the Laplacian, divided by the standard deviation of the
    pixels, so that brightness and contrast do not count. Flat squares, as in a frame, are left out of both, and the
    result is multiplied by the share of the others: pixels times sharpness then counts no flat ones. A picture that was
    enlarged or blurred has less sharpness. Noise counts as sharpness.
    """
    pixels = np.asarray(image.convert("L"), np.float32)
    if min(pixels.shape) < 3:
        return 0.0
    inside = pixels[1:-1, 1:-1]
    edges = 4 * inside - pixels[:-2, 1:-1] - pixels[2:, 1:-1] - pixels[1:-1, :-2] - pixels[1:-1, 2:]
    contrasts = np.sqrt((_squares(edges) ** 2).mean(axis=1))
    busy = contrasts > FLAT
    deviation = float(_squares(inside)[busy].std()) if busy.any() else 0.0
    return float(np.median(contrasts[busy])) / deviation * float(busy.mean()) if deviation else 0.0


def _squares(pixels: np.ndarray) -> np.ndarray:
    """Return the pixels of each whole square of a picture, [squares, pixels]."""
    side = min(BLOCK, *pixels.shape)
    rows, columns = pixels.shape[0] // side, pixels.shape[1] // side
    cut = pixels[: rows * side, : columns * side].reshape(rows, side, columns, side)
    return cut.transpose(0, 2, 1, 3).reshape(rows * columns, side * side)

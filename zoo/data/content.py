"""Content of image files: their SHA-256, byte-identical images of a data set, and the images that tell a class.

Names of files and folders say little about images: two data sets may both have a class "1", and one image may have two
names.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from heapq import nsmallest
from pathlib import Path

import numpy as np

from zoo.data.dataset import BOTH, QUERY, Dataset, file_size
from zoo.data.images import ImageLike
from zoo.files import sha256_of

DIGEST = 16
"""Hexadecimal digits of a SHA-256 that tell an image: of a million images, two are equal once in 37 million cases."""

CLASS_IMAGES = "class_images"
"""Entry of recipe.json: class -> `telling_digests`. Heads trained on a file of features lack it, as do shipped models
of glyphs."""

IMAGES_OF_CLASS = 8
"""Images that tell a class. They are those of the smallest hashes, so that of half of the class's images, at least one
of the eight is there in 255 of 256 cases."""

UNLABELLED_IMAGES = 4096
"""Images without a class ("") that are kept in the same way: they may be of many classes, each to be recognised."""


@dataclass(frozen=True)
class IdenticalPairs:
    """Numbers of pairs of byte-identical images of which one can find the other.

    Pairs of one label raise R@1, as the copy is the nearest image; pairs of different labels lower it.
    """

    same_label: int = 0
    different_labels: int = 0

    @property
    def text(self) -> str:
        """Return the numbers as a sentence."""
        return (
            f"byte-identical pairs: {self.same_label:,} with one label (they raise R@1), {self.different_labels:,} "
            "with different labels (they lower it)"
        )


def image_sha256(image: ImageLike) -> str:
    """Return the SHA-256 (hex) of an image file or of its bytes; "" for a decoded image."""
    if isinstance(image, str | os.PathLike):
        return sha256_of(Path(image))
    return hashlib.sha256(image).hexdigest() if isinstance(image, bytes) else ""


def count_identical_pairs(dataset: Dataset) -> IdenticalPairs:
    """Count the byte-identical image files of a data set. Only files of equal size are read.

    If its queries search its gallery, pairs of a query and an image of the gallery count, otherwise all pairs.
    """
    by_size: defaultdict[int | None, list[int]] = defaultdict(list)
    for row, image in enumerate(dataset.images):
        by_size[file_size(image)].append(row)
    same = different = 0
    for size, rows in by_size.items():
        if size is None or len(rows) == 1:
            continue
        for copies in _equal_content(dataset.images, rows):
            pairs, own = _pairs(dataset, np.array(copies))
            same, different = same + own, different + pairs - own
    return IdenticalPairs(same, different)


def _equal_content(images: Sequence[ImageLike], rows: Sequence[int]) -> Iterator[list[int]]:
    """Yield the rows of each group of two or more images of the same bytes."""
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for row in rows:
        with suppress(OSError):
            groups[image_sha256(images[row])].append(row)
    yield from (group for group in groups.values() if len(group) > 1)


def _pairs(dataset: Dataset, rows: np.ndarray) -> tuple[int, int]:
    """Return the number of pairs of rows of which one searches the other, and of those with one label."""
    labels = dataset.labels[rows]
    if QUERY not in dataset.factors:
        counts = Counter(labels.tolist()).values()
        return len(rows) * (len(rows) - 1) // 2, sum(n * (n - 1) // 2 for n in counts)
    parts = dataset.factors[QUERY][rows]
    both = Counter(labels[parts == BOTH].tolist())
    queries, gallery = Counter(labels[parts == 1].tolist()), Counter(labels[parts == 0].tolist())
    alone, together = queries + both, gallery + both
    same = sum(n * together[label] for label, n in alone.items()) - sum(n * (n + 1) // 2 for n in both.values())
    return alone.total() * together.total() - both.total() * (both.total() + 1) // 2, same


def digests_of_classes(dataset: Dataset) -> dict[str, frozenset[str]]:
    """Return the beginnings of the SHA-256 of each class's image files; images that are not files are left out."""
    digests: defaultdict[str, set[str]] = defaultdict(set)
    for image, label in zip(dataset.images, dataset.labels.tolist(), strict=True):
        if digest := _digest(image):
            digests[dataset.classes[label]].add(digest)
    return {name: frozenset(values) for name, values in digests.items()}


def digests_of_images(images: Iterable[ImageLike]) -> frozenset[str]:
    """Return the same of images whose classes are not known."""
    return frozenset(filter(None, map(_digest, images)))


def _digest(image: ImageLike) -> str:
    """Return the beginning of an image file's SHA-256; "" for a missing file, and for an image that is not a file."""
    with suppress(OSError, ValueError):  # ValueError: a null byte in its name
        return image_sha256(image)[:DIGEST]
    return ""


def telling_digests(digests: Mapping[str, frozenset[str]]) -> dict[str, str]:
    """Return the smallest digests of each class as one text, by which its images are recognised elsewhere."""
    return {
        name: " ".join(nsmallest(IMAGES_OF_CLASS if name else UNLABELLED_IMAGES, values))
        for name, values in digests.items()
    }

"""Images decoded in threads, in order; which of a person's own cannot be, each of them tried once."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from zoo.datasets.dataset import Dataset, subset
from zoo.errors import ImageError, none_readable
from zoo.images import ImageLike, open_image

Made = TypeVar("Made")


def in_threads(decode: Callable[[ImageLike], Made], images: Iterable[ImageLike]) -> Iterator[Made | ImageError]:
    """What `decode` makes of each image, or the error it raises, in order; a bounded number is in flight."""

    def attempt(image: ImageLike) -> Made | ImageError:
        try:
            return decode(image)
        except ImageError as error:
            return error

    threads = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(threads, thread_name_prefix="decode") as pool:
        waiting: deque[Future[Made | ImageError]] = deque()
        for image in images:
            waiting.append(pool.submit(attempt, image))
            if len(waiting) >= 16 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def readable(dataset: Dataset, progress: bool = False) -> tuple[Dataset, dict[str, ImageError]]:
    """The images that can be decoded, in their order, and what is wrong with each other one, by its source.

    Raises `ImageError` where none can be.
    """
    unreadable = unreadable_images(dataset, progress)
    if not unreadable:
        return dataset, unreadable
    if len(unreadable) == len(dataset):
        raise ImageError(none_readable(len(dataset), next(iter(unreadable.values()))))
    kept = np.array([source not in unreadable for source in dataset.sources])
    return subset(dataset, kept, dataset.split), unreadable


def unreadable_images(dataset: Dataset, progress: bool = False) -> dict[str, ImageError]:
    """What is wrong with each image that cannot be decoded, by its source."""
    from tqdm.auto import tqdm

    def attempt(image: ImageLike) -> None:
        open_image(image, draft=64)

    # A log file is spared the many lines that on a terminal are one.
    interval = 0.1 if sys.stderr.isatty() else 30
    found = in_threads(attempt, dataset.images)
    bar = tqdm(found, "check images", len(dataset), unit="image", disable=not progress, mininterval=interval)
    checked = zip(dataset.sources, bar, strict=True)
    return {source: error for source, error in checked if isinstance(error, ImageError)}

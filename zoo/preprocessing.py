"""From images to the uint8 pixels that every runtime takes: the one path that training, export and serving share."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from PIL import Image

from zoo.cards import Preprocessing
from zoo.errors import ImageError
from zoo.images import DEFAULT_LIMITS, ImageLike, Limits, open_image


def to_pixels(source: ImageLike, how: Preprocessing, limits: Limits = DEFAULT_LIMITS) -> np.ndarray:
    """One image as uint8 [crop, crop, channels]. Raises `ImageError` for what cannot be decoded."""
    image = open_image(source, limits, draft=how.resize).convert(how.mode)
    image = _centre_square(image, how)
    return np.asarray(image, dtype=np.uint8).reshape(how.shape)


def batches(
    images: Iterable[ImageLike],
    how: Preprocessing,
    batch_size: int,
    threads: int | None = None,
    unreadable: dict[int, ImageError] | None = None,
) -> Iterator[np.ndarray]:
    """Batches of pixels, uint8 [n, crop, crop, channels], in order, decoded in threads ahead of their use.

    unreadable: where it is given, images that cannot be read are left out of their batch and put there by their place.
    """
    threads = threads or len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(threads, thread_name_prefix="decode") as pool:
        # Two batches ahead keep the decoders busy while the network runs, without holding a whole folder in memory.
        waiting: deque[tuple[int, Future[np.ndarray]]] = deque()
        source = enumerate(images)
        exhausted = False
        while waiting or not exhausted:
            while not exhausted and len(waiting) < 2 * batch_size:
                try:
                    place, image = next(source)
                    waiting.append((place, pool.submit(to_pixels, image, how)))
                except StopIteration:
                    exhausted = True
            count = min(batch_size, len(waiting))
            if count:
                ready = [_pixels(*waiting.popleft(), unreadable) for _ in range(count)]
                if read := [pixels for pixels in ready if pixels is not None]:
                    yield np.stack(read)


def _pixels(place: int, decoded: Future[np.ndarray], unreadable: dict[int, ImageError] | None) -> np.ndarray | None:
    try:
        return decoded.result()
    except ImageError as error:
        if unreadable is None:
            raise
        unreadable[place] = error
        return None


def _centre_square(image: Image.Image, how: Preprocessing) -> Image.Image:
    """The centre crop of the image after its short side became `resize`.

    Cropped in the source's coordinates and resized in one step: a 1 x 100,000,000 image never becomes a wide one.
    """
    side = min(image.size) * how.crop / how.resize
    left, top = (image.width - side) / 2, (image.height - side) / 2
    box = left, top, left + side, top + side
    return image.resize((how.crop, how.crop), Image.Resampling[how.interpolation.upper()], box=box)

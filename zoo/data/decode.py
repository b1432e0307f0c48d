"""Decoding of images in threads: in order, in bounded memory, and with an optional cache on disk.

Everything that decodes many images uses `map_in_threads`: embedding (`decode_batches`), training (`decode`), the check
of a folder (`unreadable_images`), and in serving the indexing and the rebuilding of galleries.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image

from zoo import paths
from zoo.console import Progress
from zoo.data.dataset import Dataset, without
from zoo.data.images import ImageLike, in_mode, open_image
from zoo.data.preprocessing import Preprocessing, to_pixels
from zoo.errors import DatasetError, ImageError, UnreadableImagesError, none_readable_message
from zoo.files import atomic_folder, write_json
from zoo.paths import core_count

SKIP_HINT = ", or leave such images out with data.skip_unreadable=true"

Item = TypeVar("Item")
Result = TypeVar("Result")
Square = tuple[np.ndarray, float]


def map_in_threads(
    function: Callable[[Item], Result], items: Iterable[Item], ahead: int | None = None, together: int = 1
) -> Iterator[Result]:
    """Yield `function(item)` for each item, in order.

    Args:
        function: Called in as many threads as this process has processor cores. Its first error ends the iteration.
        items: Taken one after the other in the calling thread.
        ahead: Maximum number of items in flight or waiting to be taken (default: 16 per thread).
        together: Number of items that a thread gets at a time. Handing over one small image takes about as long as
            decoding it.
    """
    threads = core_count()
    limit = max(1, (ahead or 16 * threads) // together)

    def process(chunk: Sequence[Item]) -> list[Result]:
        return [function(item) for item in chunk]

    source = iter(items)
    waiting: deque[Future[list[Result]]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="decode") as pool:
        try:
            while chunk := list(islice(source, together)):
                waiting.append(pool.submit(process, chunk))
                if len(waiting) >= limit:
                    yield from waiting.popleft().result()
            while waiting:
                yield from waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def decode_in_threads(
    function: Callable[[Item], Result], items: Iterable[Item], ahead: int | None = None, together: int = 1
) -> Iterator[Result | ImageError]:
    """Yield `function(item)` for each item, or the `ImageError` that it raises; see `map_in_threads`.

    Args:
        function: Called in threads. An error other than `ImageError` ends the iteration.
        items: Taken one after the other in the calling thread.
        ahead: Maximum number of items in flight or waiting to be taken (default: 16 per thread).
        together: Number of items that a thread gets at a time.
    """

    def attempt(item: Item) -> Result | ImageError:
        try:
            return function(item)
        except ImageError as error:
            return error

    return map_in_threads(attempt, items, ahead, together)


def decode_batches(
    images: Iterable[ImageLike],
    preprocessing: Preprocessing,
    batch_size: int,
    unreadable: dict[int, ImageError] | None = None,
) -> Iterator[np.ndarray]:
    """Yield batches of pixels in order; threads decode the next batch meanwhile.

    Args:
        images: Taken batch by batch: at most two batches are in memory.
        preprocessing: The preprocessing of each image.
        batch_size: The number of images per batch.
        unreadable: Filled with the errors of unreadable images by their position; they are left out of their batch.

    Yields:
        uint8 [n, crop, crop, channels]; n is smaller than `batch_size` in the last batch and if images are left out.

    Raises:
        ImageError: If an image cannot be read and `unreadable` is not given; for the first one.
    """
    decoded = enumerate(decode_in_threads(lambda image: to_pixels(image, preprocessing), images, batch_size + 1))
    while batch := list(islice(decoded, batch_size)):
        errors = {position: error for position, error in batch if isinstance(error, ImageError)}
        if errors and unreadable is None:
            raise next(iter(errors.values()))
        if unreadable is not None:
            unreadable |= errors
        if pixels := [image for _, image in batch if not isinstance(image, ImageError)]:
            yield np.stack(pixels)


def _progress_bar(decoded: Iterator[Result], title: str, total: int, progress: bool) -> Iterator[Result]:
    with Progress(title, total, progress) as bar:
        for result in decoded:
            yield result
            bar.update()


def readable_subset(dataset: Dataset) -> tuple[Dataset, dict[str, ImageError]]:
    """Return the data set without unreadable images, and the errors of these by their source.

    Raises:
        ImageError: If none of the images can be decoded.
    """
    unreadable = unreadable_images(dataset)
    if len(unreadable) == len(dataset):
        raise ImageError(none_readable_message(len(dataset), next(iter(unreadable.values()))), code="no-images")
    return without(dataset, unreadable), unreadable


def unreadable_images(dataset: Dataset, progress: bool = False) -> dict[str, ImageError]:
    """Return the error of each image that cannot be decoded, by its source."""

    def attempt(image: ImageLike) -> None:
        open_image(image, draft=64)

    bar = _progress_bar(decode_in_threads(attempt, dataset.images), "check images", len(dataset), progress)
    checked = zip(dataset.sources, bar, strict=True)
    return {source: error for source, error in checked if isinstance(error, ImageError)}


@dataclass(frozen=True)
class Decoded:
    """Decoded images of a data set.

    Attributes:
        pixels: uint8 [n, side, side, channels].
        aspects: Width / height of the part of the image that each square shows, float32 [n].
        rows: Positions in the data set, int64 [n].
        skipped: Sources of images that could not be decoded.
    """

    pixels: np.ndarray
    aspects: np.ndarray
    rows: np.ndarray
    skipped: list[str]


@dataclass(frozen=True)
class Squares:
    """Preprocessing to squares.

    Attributes:
        preprocessing: Its `crop` is the side of the squares in pixels.
        whole: Squeeze the whole image into the square instead of cropping it.
        skip: Leave out images that cannot be decoded.
    """

    preprocessing: Preprocessing
    whole: bool = False
    skip: bool = False

    def decode(self, image: ImageLike) -> Square:
        """Decode one image. A large JPEG is decoded at a fraction of its size if that is enough (Pillow's draft)."""
        if not self.whole:
            return to_pixels(image, self.preprocessing), 1.0
        decoded = in_mode(open_image(image, draft=self.preprocessing.resize), self.preprocessing.mode)
        side, resampling = self.preprocessing.crop, Image.Resampling[self.preprocessing.interpolation.upper()]
        square = decoded.resize((side, side), resampling, reducing_gap=3.0)
        return np.asarray(square, np.uint8).reshape(self.preprocessing.shape), decoded.width / decoded.height


def decode(dataset: Dataset, rows: np.ndarray, squares: Squares, title: str, progress: bool = False) -> Decoded:
    """Return the decoded images of some rows. Image files are decoded once and kept under `ZOO_HOME/cache`.

    Args:
        dataset: The data set.
        rows: Positions in it, int64 [n].
        squares: The preprocessing.
        title: The progress bar's title.
        progress: Whether to show the bar.

    Raises:
        UnreadableImagesError: If images cannot be decoded and `squares.skip` is false.
    """
    if not all(isinstance(dataset.images[row], Path) for row in rows[:1]):
        pixels = np.empty((len(rows), *squares.preprocessing.shape), np.uint8)
        return _decode_into(pixels, dataset, rows, squares, title, progress)
    folder = paths.home() / "cache" / _cache_name(dataset, rows, squares)
    if not folder.exists():
        _write_cache(folder, dataset, rows, squares, title, progress)
    decoded = _read_cache(folder)
    if decoded.skipped and not squares.skip:
        reasons = dict.fromkeys(decoded.skipped, "an earlier run could not decode it")
        raise UnreadableImagesError(reasons, dataset.name, SKIP_HINT)
    return decoded


def _decode_into(
    pixels: np.ndarray, dataset: Dataset, rows: np.ndarray, squares: Squares, title: str, progress: bool
) -> Decoded:
    aspects: list[float] = []
    decoded_rows: list[int] = []
    unreadable: dict[str, ImageError] = {}
    decoded = decode_in_threads(squares.decode, (dataset.images[row] for row in rows))
    bar = _progress_bar(decoded, title, len(rows), progress)
    for row, square in zip(rows, bar, strict=True):
        if isinstance(square, ImageError):
            unreadable[dataset.sources[row]] = square
            continue
        pixels[len(decoded_rows)], aspect = square
        aspects.append(aspect)
        decoded_rows.append(row)
    if unreadable and not squares.skip:
        raise UnreadableImagesError(unreadable, dataset.name, SKIP_HINT)
    kept = pixels[: len(decoded_rows)]
    return Decoded(kept, np.array(aspects, np.float32), np.array(decoded_rows, np.int64), list(unreadable))


def _cache_name(dataset: Dataset, rows: np.ndarray, squares: Squares) -> str:
    """Return the cache folder's name, which depends on the files (path, size, modification time), rows and squares."""
    digest = hashlib.sha256(repr(replace(squares, skip=False)).encode() + np.ascontiguousarray(rows).tobytes())
    for row in rows:
        path = Path(dataset.images[row])
        try:
            stat = path.stat()
        except OSError:
            raise DatasetError(f"{path} of {dataset.name} does not exist any more.", code="not-found") from None
        digest.update(f"{path} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return f"{dataset.name}-{dataset.split}-{squares.preprocessing.crop}-{digest.hexdigest()[:12]}"


def _write_cache(
    folder: Path, dataset: Dataset, rows: np.ndarray, squares: Squares, title: str, progress: bool
) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(folder) as temporary:
        shape = (len(rows), *squares.preprocessing.shape)
        pixels = np.lib.format.open_memmap(temporary / "pixels.npy", mode="w+", dtype=np.uint8, shape=shape)
        decoded = _decode_into(pixels, dataset, rows, squares, title, progress)
        pixels.flush()
        np.save(temporary / "aspects.npy", decoded.aspects)
        np.save(temporary / "rows.npy", decoded.rows)
        write_json(temporary / "skipped.json", decoded.skipped)


def _read_cache(folder: Path) -> Decoded:
    rows = np.load(folder / "rows.npy")
    # Copy on write: torch wants arrays that it might write to.
    pixels = np.load(folder / "pixels.npy", mmap_mode="c")[: len(rows)]
    skipped = json.loads((folder / "skipped.json").read_text(encoding="utf-8"))
    return Decoded(pixels, np.load(folder / "aspects.npy"), rows, skipped)

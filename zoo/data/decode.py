"""Decoding of images in threads: in order, in bounded memory, and with an optional cache on disk.

Everything that decodes many images uses `map_in_threads`: embedding (`batches`), training (`decode`), the check of a
folder (`unreadable_images`), and in serving the indexing and the rebuilding of galleries.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image
from tqdm.auto import tqdm

from zoo import paths
from zoo.data.dataset import Dataset, subset
from zoo.data.images import ImageLike, open_image
from zoo.data.preprocessing import Preprocessing, to_pixels
from zoo.errors import DatasetError, ImageError, none_readable_message
from zoo.files import atomic_folder, write_json

SKIP_HINT = ", or leave such images out with data.skip_unreadable=true"

Item = TypeVar("Item")
Result = TypeVar("Result")
Square = tuple[np.ndarray, float]


def map_in_threads(
    function: Callable[[Item], Result], items: Iterable[Item], ahead: int | None = None, together: int = 1
) -> Iterator[Result]:
    """Yield what `function` makes of each item, in the order of the items.

    Args:
        function: Called in as many threads as this process has processor cores. Its first error ends the iteration.
        items: Taken one after the other in the calling thread.
        ahead: The most items that are in flight or wait to be taken (default: 16 per thread).
        together: The number of items that a thread gets at a time. To hand over one small image takes about as long
            as to decode it.
    """
    threads = len(os.sched_getaffinity(0))
    most = max(1, (ahead or 16 * threads) // together)

    def make(some: Sequence[Item]) -> list[Result]:
        return [function(item) for item in some]

    source = iter(items)
    waiting: deque[Future[list[Result]]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="decode") as pool:
        try:
            while some := list(islice(source, together)):
                waiting.append(pool.submit(make, some))
                if len(waiting) >= most:
                    yield from waiting.popleft().result()
            while waiting:
                yield from waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def decode_in_threads(
    function: Callable[[Item], Result], items: Iterable[Item], ahead: int | None = None, together: int = 1
) -> Iterator[Result | ImageError]:
    """Yield what `function` makes of each item, or the `ImageError` that it raises; see `map_in_threads`."""

    def attempt(item: Item) -> Result | ImageError:
        try:
            return function(item)
        except ImageError as error:
            return error

    return map_in_threads(attempt, items, ahead, together)


def decode_batches(
    images: Iterable[ImageLike],
    how: Preprocessing,
    batch_size: int,
    unreadable: dict[int, ImageError] | None = None,
) -> Iterator[np.ndarray]:
    """Yield batches of pixels, uint8 [n, crop, crop, channels], in order, decoded in threads ahead of their use.

    Args:
        images: Taken batch by batch: at most two batches are in memory.
        how: The preprocessing of each image.
        batch_size: The number of images per batch.
        unreadable: Filled with the errors of unreadable images by their position; they are left out of their batch.

    Raises:
        ImageError: The first image that cannot be read, if `unreadable` is None.
    """
    decoded = enumerate(decode_in_threads(lambda image: to_pixels(image, how), images, batch_size + 1))
    while some := list(islice(decoded, batch_size)):
        errors = {position: made for position, made in some if isinstance(made, ImageError)}
        if errors and unreadable is None:
            raise next(iter(errors.values()))
        if unreadable is not None:
            unreadable |= errors
        if read := [made for _, made in some if not isinstance(made, ImageError)]:
            yield np.stack(read)


def _progress_bar(decoded: Iterator[Result], title: str, total: int, progress: bool) -> Iterable[Result]:
    # On a terminal the bar is one line; a log file gets one line per update.
    interval = 0.1 if sys.stderr.isatty() else 30
    return tqdm(decoded, title, total, False, mininterval=interval, unit="image", disable=not progress)


def readable_subset(dataset: Dataset, progress: bool = False) -> tuple[Dataset, dict[str, ImageError]]:
    """Return the data set without unreadable images, and the errors of these by their source.

    Raises:
        ImageError: None of the images can be decoded.
    """
    unreadable = unreadable_images(dataset, progress)
    if not unreadable:
        return dataset, unreadable
    if len(unreadable) == len(dataset):
        raise ImageError(none_readable_message(len(dataset), next(iter(unreadable.values()))))
    kept = np.array([source not in unreadable for source in dataset.sources])
    return subset(dataset, kept, dataset.split), unreadable


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

    pixels: uint8 [n, side, side, c]. aspects: float32 [n], width / height of what each square shows. rows: int64 [n],
    positions in the data set. skipped: sources of images that could not be decoded.
    """

    pixels: np.ndarray
    aspects: np.ndarray
    rows: np.ndarray
    skipped: list[str]


@dataclass(frozen=True)
class Squares:
    """Preprocessing to squares of `how.crop` pixels. whole: squeeze instead of cropping. skip: leave out bad images."""

    how: Preprocessing
    whole: bool = False
    skip: bool = False

    def decode(self, image: ImageLike) -> Square:
        """Decode one image. A large JPEG is decoded at a fraction of its size if that is enough (Pillow's draft)."""
        if not self.whole:
            return to_pixels(image, self.how), 1.0
        decoded = open_image(image, draft=self.how.resize).convert(self.how.mode)
        filter_ = Image.Resampling[self.how.interpolation.upper()]
        square = decoded.resize((self.how.crop, self.how.crop), filter_, reducing_gap=3.0)
        return np.asarray(square, np.uint8).reshape(self.how.shape), decoded.width / decoded.height


def decode(dataset: Dataset, rows: np.ndarray, squares: Squares, title: str, progress: bool = False) -> Decoded:
    """Return the images of these rows. Image files are decoded once and kept under `ZOO_HOME/cache`.

    Args:
        dataset: The data set.
        rows: Positions in it, int64 [n].
        squares: The preprocessing.
        title: The progress bar's title.
        progress: Whether to show the bar.

    Raises:
        DatasetError: The first image that cannot be decoded, unless `squares.skip`.
    """
    if not all(isinstance(dataset.images[row], Path) for row in rows[:1]):
        pixels = np.empty((len(rows), *squares.how.shape), np.uint8)
        return _decode_into(pixels, dataset, rows, squares, title, progress)
    folder = paths.home() / "cache" / _cache_name(dataset, rows, squares)
    if not folder.exists():
        _write_cache(folder, dataset, rows, squares, title, progress)
    decoded = _read_cache(folder)
    if decoded.skipped and not squares.skip:
        raise unreadable_error(decoded.skipped[0], dataset.name, "as was found before.")
    return decoded


def unreadable_error(source: str, name: str, why: object, or_else: str = SKIP_HINT) -> DatasetError:
    """Return the error that names an unreadable image of a data set."""
    return DatasetError(f"{source} of {name} cannot be read: {why} Mend or remove it{or_else}.")


def _decode_into(
    pixels: np.ndarray, dataset: Dataset, rows: np.ndarray, squares: Squares, title: str, progress: bool
) -> Decoded:
    aspects: list[float] = []
    kept: list[int] = []
    skipped: list[str] = []
    decoded = decode_in_threads(squares.decode, (dataset.images[row] for row in rows))
    bar = _progress_bar(decoded, title, len(rows), progress)
    for row, square in zip(rows, bar, strict=True):
        if isinstance(square, ImageError):
            if not squares.skip:
                raise unreadable_error(dataset.sources[row], dataset.name, square)
            skipped.append(dataset.sources[row])
            continue
        pixels[len(kept)], aspect = square
        aspects.append(aspect)
        kept.append(row)
    return Decoded(pixels[: len(kept)], np.array(aspects, np.float32), np.array(kept, np.int64), skipped)


def _cache_name(dataset: Dataset, rows: np.ndarray, squares: Squares) -> str:
    """Return the cache folder's name: it depends on the files (path, size, time of change), rows and squares."""
    total = hashlib.sha256(repr(replace(squares, skip=False)).encode() + np.ascontiguousarray(rows).tobytes())
    for row in rows:
        path = Path(dataset.images[row])
        try:
            facts = path.stat()
        except OSError:
            raise DatasetError(f"{path} of {dataset.name} is not there any more.") from None
        total.update(f"{path} {facts.st_size} {facts.st_mtime_ns}\n".encode())
    return f"{dataset.name}-{dataset.split}-{squares.how.crop}-{total.hexdigest()[:12]}"


def _write_cache(
    folder: Path, dataset: Dataset, rows: np.ndarray, squares: Squares, title: str, progress: bool
) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(folder) as temporary:
        shape = (len(rows), *squares.how.shape)
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

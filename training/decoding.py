"""Images decoded once to uint8 squares of one size, in memory or in a memory-mapped cache beside the local zoo."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm.auto import tqdm

from zoo import paths
from zoo.datasets.dataset import Dataset
from zoo.errors import DatasetError, ImageError
from zoo.files import atomic_folder, write_json
from zoo.images import ImageLike, open_image
from zoo.preprocessing import Preprocessing, to_pixels
from zoo.reading import in_threads

SKIP = ", or leave such images out with data.skip_unreadable=true"

Square = tuple[np.ndarray, float]


@dataclass(frozen=True)
class Decoded:
    """pixels: uint8 [n, side, side, c]; aspects: float32 [n], width / height of what they show; rows: int64 [n], of the
    data set; skipped: sources of images that could not be decoded."""

    pixels: np.ndarray
    aspects: np.ndarray
    rows: np.ndarray
    skipped: list[str]


@dataclass(frozen=True)
class Squares:
    """How images become squares of `how.crop` pixels. whole: squeezed instead of cut. skip: go on past bad images."""

    how: Preprocessing
    whole: bool = False
    skip: bool = False

    def decode(self, image: ImageLike) -> Square:
        """One image. A large JPEG is decoded at a fraction of its size where that is enough (Pillow's draft mode)."""
        if not self.whole:
            return to_pixels(image, self.how), 1.0
        decoded = open_image(image, draft=self.how.resize).convert(self.how.mode)
        filter_ = Image.Resampling[self.how.interpolation.upper()]
        square = decoded.resize((self.how.crop, self.how.crop), filter_, reducing_gap=3.0)
        return np.asarray(square, np.uint8).reshape(self.how.shape), decoded.width / decoded.height


def decode(dataset: Dataset, rows: np.ndarray, squares: Squares, title: str, progress: bool = False) -> Decoded:
    """The images of these rows. Those in files of their own are decoded once and kept under `ZOO_HOME/cache`.

    Raises `DatasetError` naming the first image that cannot be decoded, unless `squares.skip`.
    """
    if not all(isinstance(dataset.images[row], Path) for row in rows[:1]):
        pixels = np.empty((len(rows), *squares.how.shape), np.uint8)
        return _fill(pixels, dataset, rows, squares, title, progress)
    folder = paths.home() / "cache" / _key(dataset, rows, squares)
    if not folder.exists():
        _write(folder, dataset, rows, squares, title, progress)
    decoded = _read(folder)
    if decoded.skipped and not squares.skip:
        raise unreadable(decoded.skipped[0], dataset.name, "as was found before.")
    return decoded


def unreadable(source: str, name: str, why: object, or_else: str = SKIP) -> DatasetError:
    return DatasetError(f"{source} of {name} cannot be read: {why} Mend or remove it{or_else}.")


def _fill(
    pixels: np.ndarray, dataset: Dataset, rows: np.ndarray, squares: Squares, title: str, progress: bool
) -> Decoded:
    aspects: list[float] = []
    kept: list[int] = []
    skipped: list[str] = []
    decoded = in_threads(squares.decode, (dataset.images[row] for row in rows))
    # A log file is spared the many lines that on a terminal are one.
    interval = 0.1 if sys.stderr.isatty() else 30
    bar = tqdm(decoded, title, len(rows), False, mininterval=interval, unit="image", disable=not progress)
    for row, square in zip(rows, bar, strict=True):
        if isinstance(square, ImageError):
            if not squares.skip:
                raise unreadable(dataset.sources[row], dataset.name, square)
            skipped.append(dataset.sources[row])
            continue
        pixels[len(kept)], aspect = square
        aspects.append(aspect)
        kept.append(row)
    return Decoded(pixels[: len(kept)], np.array(aspects, np.float32), np.array(kept, np.int64), skipped)


def _key(dataset: Dataset, rows: np.ndarray, squares: Squares) -> str:
    """Another name for other files (by path, size and time of change), rows or squares."""
    total = hashlib.sha256(repr(replace(squares, skip=False)).encode() + np.ascontiguousarray(rows).tobytes())
    for row in rows:
        path = Path(dataset.images[row])
        try:
            facts = path.stat()
        except OSError:
            raise DatasetError(f"{path} of {dataset.name} is not there any more.") from None
        total.update(f"{path} {facts.st_size} {facts.st_mtime_ns}\n".encode())
    return f"{dataset.name}-{dataset.split}-{squares.how.crop}-{total.hexdigest()[:12]}"


def _write(folder: Path, dataset: Dataset, rows: np.ndarray, squares: Squares, title: str, progress: bool) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(folder) as temporary:
        shape = (len(rows), *squares.how.shape)
        pixels = np.lib.format.open_memmap(temporary / "pixels.npy", mode="w+", dtype=np.uint8, shape=shape)
        decoded = _fill(pixels, dataset, rows, squares, title, progress)
        pixels.flush()
        np.save(temporary / "aspects.npy", decoded.aspects)
        np.save(temporary / "rows.npy", decoded.rows)
        write_json(temporary / "skipped.json", decoded.skipped)


def _read(folder: Path) -> Decoded:
    rows = np.load(folder / "rows.npy")
    # Copy on write: torch wants arrays that it might write to.
    pixels = np.load(folder / "pixels.npy", mmap_mode="c")[: len(rows)]
    skipped = json.loads((folder / "skipped.json").read_text(encoding="utf-8"))
    return Decoded(pixels, np.load(folder / "aspects.npy"), rows, skipped)

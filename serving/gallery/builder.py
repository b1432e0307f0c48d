"""Index a folder of images: decode and embed in batches, labels from the folders' names.

What is in the gallery already, by the SHA-256 of the file, is passed over before it is decoded; so a run that
was broken off, or a folder that has changed, is simply indexed again. An image that lies elsewhere now gets its new
source and label; one that is gone stays, and is reported. Of several files with the same content the first counts.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from serving.gallery.gallery import Gallery, is_gallery
from serving.gallery.items import Item, NewItem
from serving.gallery.thumbnails import SIDE, Thumbnail, make_thumbnail
from zoo.datasets.folder import list_images
from zoo.embedder import Embedder
from zoo.errors import GalleryError, ImageError, ImageTooLargeError, UsageError
from zoo.images import DEFAULT_LIMITS, SUFFIXES, open_image
from zoo.preprocessing import to_pixels


@dataclass
class Report:
    """What indexing a folder did.

    `already_there`: files whose content the gallery had, the `moved` among them; `moved`: items that got another
    source or label; `unreadable`: source and reason of every image that was left out; `not_in_folder`: sources of the
    gallery's items whose content the folder does not hold.
    """

    gallery: str
    found: int
    added: int = 0
    already_there: int = 0
    moved: int = 0
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    not_in_folder: list[str] = field(default_factory=list)
    items: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class ImageFile:
    """`source`: path below the folder that is indexed; `label`: the folder part of it, None at the top."""

    path: Path
    source: str
    label: str | None


@dataclass(frozen=True)
class _Decoded:
    file: ImageFile
    content_sha256: str
    pixels: np.ndarray
    thumbnail: Thumbnail


@dataclass(frozen=True)
class _Known:
    """A file whose content is the gallery's `item`."""

    item: Item

    @property
    def content_sha256(self) -> str:
        return self.item.content_sha256


def index_folder(
    embedder: Embedder, model_ref: str, folder: Path, out: Path, batch_size: int = 64, progress: bool = False
) -> Report:
    """Add all images below `folder` to the gallery `out`, which is made if it is not there.

    Each batch is one transaction. Images that cannot be read are left out and listed in the report.
    Raises `DatasetError` for a folder that cannot be read, `UsageError` for one without images,
    `ModelMismatchError` for another model's gallery and `GalleryError` if not one image could be read.
    """
    if batch_size < 1:
        raise UsageError(f"batch_size must be at least 1, not {batch_size}.")
    files = find_images(folder)
    report = Report(str(out), len(files))
    made_here = not is_gallery(out)
    gallery = Gallery.create(out, embedder.card, model_ref) if made_here else Gallery.open(out)
    with gallery:
        gallery.check_model(embedder.card)
        _fill(gallery, embedder, files, report, batch_size, progress)
        report.items = gallery.count()
    if report.items == 0:
        if made_here:
            shutil.rmtree(out)
        source, reason = report.unreadable[0]
        raise GalleryError(f"none of the {len(files)} images in {folder} could be read. {source}: {reason}")
    return report


def find_images(folder: Path) -> list[ImageFile]:
    """The image files below `folder`, as a data set of that folder has them (zoo.datasets.folder)."""
    folder = folder.expanduser()
    found = [_image_file(folder, path) for path in list_images(folder)]
    if not found:
        raise UsageError(f"{folder} holds no images ({', '.join(sorted(SUFFIXES))}).")
    return found


def _image_file(folder: Path, path: Path) -> ImageFile:
    below = path.relative_to(folder)
    label = below.parent.as_posix()
    return ImageFile(path, _text(below.as_posix()), None if label == "." else _text(label))


def _text(name: str) -> str:
    """A file name as text that can be stored, also where its bytes are no UTF-8."""
    return os.fsencode(name).decode("utf-8", "replace")


def _fill(
    gallery: Gallery, embedder: Embedder, files: Sequence[ImageFile], report: Report, batch_size: int, progress: bool
) -> None:
    def decode(file: ImageFile) -> _Decoded | _Known:
        return _decode(file, gallery, embedder)

    run = _Run(gallery, embedder, report, batch_size)
    with tqdm(total=len(files), unit="image", desc="index", disable=not progress) as bar:
        for file, outcome in _ahead(decode, files, window=2 * batch_size):
            try:
                image = outcome.result()
            except (ImageError, OSError) as error:
                report.unreadable.append((file.source, str(error)))
            else:
                run.take(file, image)
            bar.update()
    run.finish()


class _Run:
    """What one run over a folder gathers, and writes to the gallery batch by batch."""

    def __init__(self, gallery: Gallery, embedder: Embedder, report: Report, batch_size: int) -> None:
        self.gallery, self.embedder, self.report, self.batch_size = gallery, embedder, report, batch_size
        self.batch: list[_Decoded] = []
        self.places: list[tuple[int, str, str | None]] = []
        self.seen: set[str] = set()

    def take(self, file: ImageFile, image: _Decoded | _Known) -> None:
        if image.content_sha256 in self.seen:
            self.report.already_there += 1
            return
        self.seen.add(image.content_sha256)
        if isinstance(image, _Known):
            self._recognise(file, image.item)
        else:
            self.batch.append(image)
        if len(self.batch) == self.batch_size:
            self._add()

    def finish(self) -> None:
        if self.batch:
            self._add()
        if self.places:
            self.gallery.move(self.places)
        self.report.moved = len(self.places)
        contents = self.gallery.sources_by_content()
        self.report.not_in_folder = [source for content, source in contents.items() if content not in self.seen]

    def _recognise(self, file: ImageFile, item: Item) -> None:
        self.report.already_there += 1
        if (item.source, item.label) != (file.source, file.label):
            self.places.append((item.id, file.source, file.label))

    def _add(self) -> None:
        vectors = self.embedder.embed_pixels(np.stack([image.pixels for image in self.batch]))
        items = [
            NewItem(image.file.source, vector, image.thumbnail, image.content_sha256, image.file.label)
            for image, vector in zip(self.batch, vectors, strict=True)
        ]
        added = self.gallery.add(items)
        self.report.added += added.new
        self.report.already_there += len(items) - added.new
        self.batch.clear()


def _decode(file: ImageFile, gallery: Gallery, embedder: Embedder) -> _Decoded | _Known:
    """The image ready to be embedded, unless the gallery has its content. Raises `ImageError` or `OSError`."""
    size = file.path.stat().st_size
    if size > DEFAULT_LIMITS.max_bytes:
        raise ImageTooLargeError(f"the file has {size:,} bytes; at most {DEFAULT_LIMITS.max_bytes:,} are accepted.")
    data = file.path.read_bytes()
    content = hashlib.sha256(data).hexdigest()
    known = gallery.item_of_content(content)
    if known is not None:
        return _Known(known)
    pixels = to_pixels(data, embedder.preprocessing)
    return _Decoded(file, content, pixels, make_thumbnail(open_image(data, draft=SIDE)))


def _ahead(
    decode: Callable[[ImageFile], _Decoded | _Known], files: Sequence[ImageFile], window: int
) -> Iterator[tuple[ImageFile, Future[_Decoded | _Known]]]:
    """Each file with the outcome of decoding it, in order; up to `window` files are worked on ahead in threads."""
    waiting: deque[tuple[ImageFile, Future[_Decoded | _Known]]] = deque()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="decode") as pool:
        try:
            for file in files:
                waiting.append((file, pool.submit(decode, file)))
                if len(waiting) >= window:
                    yield waiting.popleft()
            while waiting:
                yield waiting.popleft()
        finally:
            for _, outcome in waiting:
                outcome.cancel()

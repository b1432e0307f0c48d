"""Index images: decode and embed in batches, labels from the folders' names or a CSV file.

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

from serving.gallery.decoding import decode
from serving.gallery.gallery import Gallery, is_gallery
from serving.gallery.image_files import ImageFile, find_images, read_labels, with_labels
from serving.gallery.items import Item, NewItem
from serving.gallery.thumbnails import Thumbnail
from zoo.embedder import Embedder
from zoo.errors import GalleryError, ImageError, ImageTooLargeError, UsageError
from zoo.images import DEFAULT_LIMITS


@dataclass
class Report:
    """What indexing a folder did.

    `already_there`: files whose content the gallery had, the `moved` among them; `moved`: items that got another
    source or label; `differing`: of single files that were there already, source, id and label of the item, where
    another label or other metadata was asked for, and `updated`, how many got it; `unreadable`: source and reason of
    every image that was left out; `not_in_folder`: sources of the gallery's items whose content the folder does not
    hold. Of labels from a file: `unlabelled`: images that it does not name; `labels_unused`: the paths that it names
    and the folder does not hold.
    """

    gallery: str
    found: int
    added: int = 0
    already_there: int = 0
    moved: int = 0
    differing: list[tuple[str, int, str | None]] = field(default_factory=list)
    updated: int = 0
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    not_in_folder: list[str] = field(default_factory=list)
    unlabelled: int = 0
    labels_unused: list[str] = field(default_factory=list)
    items: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


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
    embedder: Embedder,
    model_ref: str,
    folder: Path,
    out: Path,
    batch_size: int = 64,
    progress: bool = False,
    labels: Path | None = None,
) -> Report:
    """Add all images below `folder` to the gallery `out`, which is made if it is not there.

    Each batch is one transaction. Images that cannot be read are left out and listed in the report. `labels`: a CSV
    file with the columns path (below the folder) and label, in place of the folders' names.
    Raises `DatasetError` for a folder that cannot be read, `UsageError` for one without images or for a bad CSV file,
    `ModelMismatchError` for another model's gallery and `GalleryError` if not one image could be read.
    """
    files = find_images(folder)
    report = Report(str(out), len(files))
    if labels is not None:
        files = _labelled(files, labels, report)
    _check_batch_size(batch_size)
    made_here = not is_gallery(out)
    gallery = Gallery.create(out, embedder.card, model_ref) if made_here else Gallery.open(out)
    with gallery:
        gallery.check_model(embedder.card)
        run = _fill(gallery, embedder, files, report, batch_size, progress)
        run.follow()
        report.items = gallery.count()
    if report.items == 0:
        if made_here:
            shutil.rmtree(out)
        source, reason = report.unreadable[0]
        raise GalleryError(f"none of the {len(files)} images in {folder} could be read. {source}: {reason}")
    return report


def add_files(
    gallery: Gallery,
    embedder: Embedder,
    files: Sequence[ImageFile],
    batch_size: int = 64,
    progress: bool = False,
    update: bool = False,
) -> Report:
    """Add single files. Of content that is there already the older item stays as it is, and the report says where
    another label or other metadata was asked for; with `update` the item gets them.
    """
    gallery.check_model(embedder.card)
    _check_batch_size(batch_size)
    report = Report(str(gallery.path), len(files))
    run = _fill(gallery, embedder, files, report, batch_size, progress)
    for file, item in run.differing:
        report.differing.append((file.source, item.id, item.label))
        if update:
            gallery.describe(item.id, file.label or item.label, file.metadata or item.metadata)
            report.updated += 1
    report.items = gallery.count()
    return report


def _labelled(files: Sequence[ImageFile], path: Path, report: Report) -> list[ImageFile]:
    labels, sources = read_labels(path), {file.source for file in files}
    report.unlabelled = len(sources - labels.keys())
    report.labels_unused = sorted(labels.keys() - sources)
    if report.unlabelled == len(files):
        example = files[0].source
        raise UsageError(f"{path} names none of the {len(files)} images; paths are below the folder, as {example}.")
    return with_labels(files, labels)


def _check_batch_size(batch_size: int) -> None:
    if batch_size < 1:
        raise UsageError(f"batch_size must be at least 1, not {batch_size}.")


def _fill(
    gallery: Gallery, embedder: Embedder, files: Sequence[ImageFile], report: Report, batch_size: int, progress: bool
) -> _Run:
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
    return run


class _Run:
    """What one run over a folder gathers, and writes to the gallery batch by batch."""

    def __init__(self, gallery: Gallery, embedder: Embedder, report: Report, batch_size: int) -> None:
        self.gallery, self.embedder, self.report, self.batch_size = gallery, embedder, report, batch_size
        self.batch: list[_Decoded] = []
        self.places: list[tuple[int, str, str | None]] = []
        self.differing: list[tuple[ImageFile, Item]] = []
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

    def follow(self) -> None:
        """Give the items that lie elsewhere now their new place, and report those that the folder does not hold."""
        if self.places:
            self.gallery.move(self.places)
        self.report.moved = len(self.places)
        contents = self.gallery.sources_by_content()
        self.report.not_in_folder = [source for content, source in contents.items() if content not in self.seen]

    def _recognise(self, file: ImageFile, item: Item) -> None:
        self.report.already_there += 1
        if (item.source, item.label) != (file.source, file.label):
            self.places.append((item.id, file.source, file.label))
        if item.differs(file.label, file.metadata):
            self.differing.append((file, item))

    def _add(self) -> None:
        vectors = self.embedder.embed_pixels(np.stack([image.pixels for image in self.batch]))
        items = [
            NewItem(
                image.file.source, vector, image.thumbnail, image.content_sha256, image.file.label, image.file.metadata
            )
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
    return _Decoded(file, content, *decode(data, embedder.preprocessing))


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

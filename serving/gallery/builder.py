"""Index images: decode and embed in batches, labels from the folders' names or a CSV file, metadata from that file.

The file stands beside the folder, or is a table that lists the images itself.

What is in the gallery already, by the SHA-256 of the file, is passed over before it is decoded; so a run that
was broken off, or a folder that has changed, is simply indexed again. An image that lies elsewhere now gets its new
source and label; one that is gone is reported, and stays unless it is to be pruned. Of several files with the same
content the first counts.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from tqdm import tqdm

from serving.gallery.decoding import decode
from serving.gallery.gallery import Gallery, is_gallery
from serving.gallery.image_files import ImageFile, find_images, listed_images, read_image, root_of
from serving.gallery.indexing import Report, Run
from serving.gallery.items import AS_IT_IS, Item, NewItem
from serving.gallery.originals import folders_of, remember
from serving.gallery.thumbnails import Thumbnail
from zoo.data.decode import decode_in_threads
from zoo.data.table import LabelFile, is_table, read_label_file, read_table
from zoo.errors import GalleryError, ImageError, UsageError, none_readable_message
from zoo.models.load import Embedder
from zoo.paths import expand


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


Fill = Callable[[Run, Embedder, Sequence[ImageFile], int, bool], None]
"""Tells the run of every file, in order, and has it write what is new: run, model, files, batch size, progress."""


Agreed = Callable[[Gallery, list[int]], bool]
"""Whether these items of the gallery, by their ids, are to be removed."""


def index_folder(
    embedder: Embedder,
    model_ref: str,
    place: Path,
    out: Path,
    batch_size: int = 64,
    progress: bool = False,
    labels: Path | None = None,
    embed: Fill | None = None,
    update: bool = False,
    prune: Agreed | None = None,
) -> Report:
    """Add all images of `place`, a folder or a table of them, to the gallery `out`, which is made if it is not there.

    Each batch is one transaction. Images that cannot be read are left out and listed in the report. `labels`: a CSV
    file with the columns path (below the folder), label, in place of the folders' names, and others, which are metadata
    (zoo.data.table). A table has all of this itself; the source of an image is then its path below the
    table's folder, or its full path where it lies elsewhere. `embed`: where it is done, by default in this process
    (serving.gallery.distributed has another). An item that is there keeps a label that was given to it: a folder's name
    is taken over of images that moved and were labelled by their folder, what the file says always, none never; with
    `update` all are as `place` and `labels` have them. `prune`: items whose image is not among these are removed where
    it agrees.
    Raises `DatasetError` for a folder that cannot be read, `UsageError` for one without images or for a bad CSV file,
    `ModelMismatchError` for another model's gallery and `GalleryError` if not one image could be read.
    """
    files, said, report = _listed(place, out, labels)
    _check_batch_size(batch_size)
    made_here = not is_gallery(out)
    gallery = Gallery.create(out, embedder.card, model_ref) if made_here else Gallery.open(out)
    with gallery:
        gallery.check_model(embedder.card, model_ref)
        if prune is not None:
            _check_only(gallery, root_of(place))
        run = Run(gallery, report, said.labels is not None, said.columns, update)
        (embed or fill)(run, embedder, files, batch_size, progress)
        run.follow()
        remember(gallery, root_of(place))
        if prune is not None and (gone := run.to_prune()) and prune(gallery, gone):
            report.pruned = gallery.remove(gone)
        report.items = gallery.count()
    if report.items == 0:
        if made_here:
            shutil.rmtree(out)
        raise GalleryError(none_readable_message(len(files), ": ".join(report.unreadable[0])))
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
    run = Run(gallery, report)
    fill(run, embedder, files, batch_size, progress)
    for file, item in run.differing:
        report.differing.append((file.source, item.id, item.label))
        if update:
            gallery.describe(item.id, file.label or AS_IT_IS, file.metadata or AS_IT_IS)
            report.updated += 1
    report.items = gallery.count()
    return report


def _listed(place: Path, out: Path, labels: Path | None) -> tuple[list[ImageFile], LabelFile, Report]:
    """The image files of a folder or table, what a CSV file says of them, and a report of that."""
    if is_table(place):
        if labels is not None:
            raise UsageError(f"{place} is a table, and says labels itself; --labels goes with a folder of images.")
        said = read_table(expand(place))
        files = listed_images(place, said)
        return files, said, Report(str(out), len(files), metadata=said.columns)
    files, others = find_images(place, [out, *([labels] if labels else [])])
    report = Report(str(out), len(files), other_files=others)
    said = read_label_file(labels) if labels is not None else LabelFile()
    return (_described(files, said, labels, report) if labels is not None else files), said, report


def _described(files: Sequence[ImageFile], said: LabelFile, path: Path, report: Report) -> list[ImageFile]:
    """The files with what the file of labels says of them."""
    sources, named = {file.source for file in files}, said.metadata.keys()
    report.unlabelled, report.labels_unused = len(sources - named), sorted(named - sources)
    report.metadata = said.columns
    if report.unlabelled == len(files):
        example = files[0].source
        raise UsageError(f"{path} names none of the {len(files)} images; paths are below the folder, as {example}.")
    return [
        replace(
            file,
            label=file.label if said.labels is None else said.labels.get(file.source),
            metadata=said.metadata.get(file.source, {}),
        )
        for file in files
    ]


def _check_only(gallery: Gallery, folder: Path) -> None:
    """Raise `UsageError` where the gallery is also made of a folder that is there and does not lie in this one."""
    here = folder.expanduser().resolve()
    if others := [one for one in folders_of(gallery) if one.is_dir() and not one.is_relative_to(here)]:
        raise UsageError(
            f"the gallery was made of {others[0]} as well, whose images would all be pruned; remove items by their ids "
            "or their label (zoo gallery remove)."
        )


def _check_batch_size(batch_size: int) -> None:
    if batch_size < 1:
        raise UsageError(f"batch_size must be at least 1, not {batch_size}.")


def fill(run: Run, embedder: Embedder, files: Sequence[ImageFile], batch_size: int, progress: bool) -> None:
    """Embed the files and add them to the gallery; threads of this process decode up to two batches ahead."""
    batch: list[_Decoded] = []
    together = max(1, min(8, batch_size // 4))
    decoded = decode_in_threads(partial(_decode, run.gallery, embedder), files, 2 * batch_size, together)
    with tqdm(total=len(files), unit="image", desc="index", disable=not progress) as bar:
        for file, image in zip(files, decoded, strict=True):
            if isinstance(image, ImageError):
                run.leave_out(file, str(image))
            else:
                _take(run, file, image, batch)
            if len(batch) == batch_size:
                run.write(_embedded(embedder, batch))
                batch.clear()
            bar.update()
    if batch:
        run.write(_embedded(embedder, batch))


def _take(run: Run, file: ImageFile, image: _Decoded | _Known, batch: list[_Decoded]) -> None:
    if not run.is_first(file, image.content_sha256):
        return
    if isinstance(image, _Known):
        run.recognise(file, image.item)
    else:
        batch.append(image)


def _embedded(embedder: Embedder, batch: Sequence[_Decoded]) -> list[NewItem]:
    vectors = embedder.embed_pixels(np.stack([image.pixels for image in batch]))
    return [
        NewItem(image.file.source, vector, image.thumbnail, image.content_sha256, image.file.label, image.file.metadata)
        for image, vector in zip(batch, vectors, strict=True)
    ]


def _decode(gallery: Gallery, embedder: Embedder, file: ImageFile) -> _Decoded | _Known:
    """Return the image ready to be embedded, unless the gallery has its content. Raises `ImageError`."""
    try:
        data, content = read_image(file.path)
        known = gallery.item_of_content(content)
        if known is not None:
            return _Known(known)
        return _Decoded(file, content, *decode(data, embedder.preprocessing))
    except OSError as error:
        raise ImageError(f"the file cannot be read: {error.strerror or error}.") from None

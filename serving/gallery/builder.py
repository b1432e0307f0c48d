"""Index a folder of images: decode and embed in batches, labels from the folders' names.

What is in the gallery already, by the SHA-256 of the file, is passed over before it is decoded; so a run that
was broken off, or a folder that has grown, is simply indexed again.
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
from serving.gallery.items import NewItem
from serving.gallery.thumbnails import SIDE, Thumbnail, make_thumbnail
from zoo.embedder import Embedder
from zoo.errors import GalleryError, ImageError, ImageTooLargeError, UsageError
from zoo.images import DEFAULT_LIMITS, SUFFIXES, open_image
from zoo.preprocessing import to_pixels


@dataclass
class Report:
    """What indexing a folder did. `unreadable`: source and reason of every image that was left out."""

    gallery: str
    found: int
    added: int = 0
    already_there: int = 0
    unreadable: list[tuple[str, str]] = field(default_factory=list)
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


def index_folder(
    embedder: Embedder, model_ref: str, folder: Path, out: Path, batch_size: int = 64, progress: bool = False
) -> Report:
    """Add all images below `folder` to the gallery `out`, which is made if it is not there.

    Each batch is one transaction. Images that cannot be read are left out and listed in the report.
    Raises `UsageError` for a folder without images, `ModelMismatchError` for another model's gallery and
    `GalleryError` if not one image could be read.
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
    """The image files below `folder`, by their suffix, sorted; hidden files and folders are passed over."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder.")
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        images = [name for name in sorted(names) if _is_image(Path(parent, name))]
        found += [_image_file(folder, Path(parent, name)) for name in images]
    if not found:
        raise UsageError(f"{folder} holds no images ({', '.join(sorted(SUFFIXES))}).")
    return found


def _is_image(path: Path) -> bool:
    # is_file is false for a pipe or a device, which would block a reader for ever.
    return not path.name.startswith(".") and path.suffix.lower() in SUFFIXES and path.is_file()


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
    def decode(file: ImageFile) -> _Decoded | None:
        return _decode(file, gallery, embedder)

    batch: list[_Decoded] = []
    with tqdm(total=len(files), unit="image", desc="index", disable=not progress) as bar:
        for file, outcome in _ahead(decode, files, window=2 * batch_size):
            try:
                decoded = outcome.result()
            except (ImageError, OSError) as error:
                report.unreadable.append((file.source, str(error)))
            else:
                if decoded is None:
                    report.already_there += 1
                else:
                    batch.append(decoded)
            if len(batch) == batch_size:
                _add(gallery, embedder, batch, report)
                batch.clear()
            bar.update()
    if batch:
        _add(gallery, embedder, batch, report)


def _decode(file: ImageFile, gallery: Gallery, embedder: Embedder) -> _Decoded | None:
    """The image ready to be embedded, or None if the gallery has its content. Raises `ImageError` or `OSError`."""
    size = file.path.stat().st_size
    if size > DEFAULT_LIMITS.max_bytes:
        raise ImageTooLargeError(f"the file has {size:,} bytes; at most {DEFAULT_LIMITS.max_bytes:,} are accepted.")
    data = file.path.read_bytes()
    content = hashlib.sha256(data).hexdigest()
    if gallery.has_content(content):
        return None
    pixels = to_pixels(data, embedder.preprocessing)
    return _Decoded(file, content, pixels, make_thumbnail(open_image(data, draft=SIDE)))


def _add(gallery: Gallery, embedder: Embedder, batch: Sequence[_Decoded], report: Report) -> None:
    vectors = embedder.embed_pixels(np.stack([decoded.pixels for decoded in batch]))
    added = gallery.add(
        [
            NewItem(decoded.file.source, vector, decoded.thumbnail, decoded.content_sha256, decoded.file.label)
            for decoded, vector in zip(batch, vectors, strict=True)
        ]
    )
    report.added += added.new
    report.already_there += len(batch) - added.new


def _ahead(
    decode: Callable[[ImageFile], _Decoded | None], files: Sequence[ImageFile], window: int
) -> Iterator[tuple[ImageFile, Future[_Decoded | None]]]:
    """Each file with the outcome of decoding it, in order; up to `window` files are worked on ahead in threads."""
    waiting: deque[tuple[ImageFile, Future[_Decoded | None]]] = deque()
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

"""Indexing of image files into a gallery, from a folder or a table."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from serving.gallery.gallery import Gallery, is_gallery
from serving.gallery.types import (
    UNCHANGED,
    Item,
    ItemUpdate,
    NewItem,
    Thumbnail,
    Unchanged,
    decode_image,
    equal_metadata,
)
from zoo.data.decode import decode_in_threads
from zoo.data.folder import list_files
from zoo.data.images import DEFAULT_LIMITS, SUFFIXES
from zoo.data.table import LabelFile, image_path, is_table, read_label_file, read_table
from zoo.errors import GalleryError, ImageError, ImageTooLargeError, UsageError, none_readable_message
from zoo.models.load import Embedder
from zoo.paths import expand

_NAMED = 20
"""So many wrong names are shown."""

_KINDS = 5
"""So many kinds of other files are named."""

FOLDERS = "folders"
"""The gallery's state that names the folders that were indexed into it."""

Agreed = Callable[[Gallery, list[int]], bool]
"""Whether these items of the gallery, by their ids, are to be removed."""


@dataclass(frozen=True)
class ImageFile:
    """`source`: what the item is called, for a folder that is indexed the path below it; `label`: None for none."""

    path: Path
    source: str
    label: str | None
    metadata: Mapping[str, Any] = field(default_factory=dict)


def find_images(folder: Path, but: Sequence[Path] = ()) -> tuple[list[ImageFile], dict[str, int]]:
    """The image files below `folder`, as a data set of that folder has them (zoo.data.folder), and how many files
    of other kinds lie there, by their suffix ("" for none), the most frequent first; not `but`, nor what lies below.

    The label is the folder part of the path below `folder`, None for what lies at the top.
    """
    folder = folder.expanduser()
    images, others = list_files(folder)
    known = {path.expanduser().absolute() for path in but}
    others = [path for path in others if known.isdisjoint((path.absolute(), *path.absolute().parents))]
    kinds = dict(Counter(_text(path.suffix.lower()) for path in others).most_common())
    if not images:
        there = f"; there are {other_kinds(kinds)}" if kinds else ""
        raise UsageError(f"{folder} holds no images ({', '.join(sorted(SUFFIXES))}){there}.")
    return [_image_file(folder, path) for path in images], kinds


def listed_images(table: Path, said: LabelFile) -> list[ImageFile]:
    """The images of a table, in its order, with what it says of them.

    An image's source is its path below the table's folder, its full path where it lies elsewhere.
    """
    table = expand(table)
    root = _absolute(table.parent)
    if not said.metadata:
        raise UsageError(f"{table} lists no images.")
    files = []
    for name, metadata in said.metadata.items():
        path = _absolute(image_path(table, name))
        source = path.relative_to(root) if path.is_relative_to(root) else path
        files.append(ImageFile(path, _text(source.as_posix()), (said.labels or {}).get(name), metadata))
    return files


def root_of(place: Path) -> Path:
    """The folder below which sources are looked for: the one that is indexed, or that a table lies in."""
    return place.parent if is_table(place) else place


def other_kinds(kinds: Mapping[str, int]) -> str:
    """As "3 .avif, 2 without a suffix", of the most frequent."""
    shown = [f"{many:,} {kind or 'without a suffix'}" for kind, many in list(kinds.items())[:_KINDS]]
    rest = sum(list(kinds.values())[_KINDS:])
    return ", ".join(shown + ([f"{rest:,} others"] if rest else []))


def folder_of(source: str) -> str | None:
    """The folder part of a path below the folder that is indexed; None for what lies at the top."""
    return source.rpartition("/")[0] or None


def named_images(paths: Sequence[Path], label: str | None, metadata: Mapping[str, Any]) -> list[ImageFile]:
    """Image files as they were named, all with one label. Raises `UsageError` that names all folders and files that are
    not there.
    """
    wrong = [path for path in paths if not path.is_file()]
    if wrong:
        named = ", ".join(f"{one} ({_what(one)})" for one in wrong[:_NAMED])
        more = f", and {len(wrong) - _NAMED:,} more" if len(wrong) > _NAMED else ""
        raise UsageError(f"{len(wrong):,} of the {len(paths):,} named are no image files: {named}{more}.")
    return [ImageFile(path, _text(path.as_posix()), label, metadata) for path in paths]


def read_image(path: Path) -> tuple[bytes, str]:
    """What a file holds, and its SHA-256 in hex. Raises `ImageTooLargeError` before it is read, `ImageError` for
    a name that no file can have, and `OSError`."""
    try:
        size = path.stat().st_size
    except ValueError as error:
        raise ImageError(f"no file can have this name: {error}.") from None
    if size > DEFAULT_LIMITS.max_bytes:
        raise ImageTooLargeError(f"the file has {size:,} bytes; at most {DEFAULT_LIMITS.max_bytes:,} are accepted.")
    data = path.read_bytes()
    return data, hashlib.sha256(data).hexdigest()


@dataclass
class Report:
    """What indexing a folder or a table did.

    `already_there`: files whose content the gallery had, the `moved` among them; `moved`: items that got another
    source, label or metadata; `kept`: items that keep a label which is not their folder's; `differing`: of files that
    were there already, source, id and label of the item, where another label or other metadata was asked for, also of
    one image in two folders; and `updated`, how many got it; `unreadable`: source and reason of every image that was
    left out; `not_in_folder`: sources of the gallery's items whose content is not among the images indexed, and
    `pruned`, how many of them were removed; `other_files`: how many files of other kinds a folder holds, by suffix. Of
    a file of labels: `unlabelled`: images that it does not name; `labels_unused`: the paths that it names and the
    folder does not hold; `metadata`: its columns, or a table's, that are kept as metadata.
    """

    gallery: str
    found: int
    added: int = 0
    already_there: int = 0
    moved: int = 0
    kept: int = 0
    differing: list[tuple[str, int, str | None]] = field(default_factory=list)
    updated: int = 0
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    not_in_folder: list[str] = field(default_factory=list)
    pruned: int = 0
    other_files: dict[str, int] = field(default_factory=dict)
    unlabelled: int = 0
    labels_unused: list[str] = field(default_factory=list)
    metadata: tuple[str, ...] = ()
    items: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Run:
    """One run over files: it is told of each in their order, and writes to the gallery what is new."""

    def __init__(
        self,
        gallery: Gallery,
        report: Report,
        named: bool = False,
        keys: Sequence[str] = (),
        update: bool = False,
    ) -> None:
        """named: labels are of a file, not of folders; keys: of metadata that the files are given; update: labels and
        these keys replace all that items have, also by none."""
        self.gallery, self.report, self._named, self._keys, self._update = gallery, report, named, keys, update
        self.differing: list[tuple[ImageFile, Item]] = []
        self._places: list[ItemUpdate] = []
        self._seen: dict[str, ImageFile] = {}
        self._contested: list[tuple[ImageFile, str]] = []
        self._gone: dict[str, str] = {}

    def leave_out(self, file: ImageFile, reason: str) -> None:
        """The file cannot be read."""
        self.report.unreadable.append((file.source, reason))

    def is_first(self, file: ImageFile, content_sha256: str) -> bool:
        """Whether no earlier file had this content; one that had counts, and this one does not."""
        first = self._seen.setdefault(content_sha256, file)
        if first is file:
            return True
        self.report.already_there += 1
        if file.label not in (None, first.label) or not equal_metadata(file.metadata, first.metadata):
            self._contested.append((file, content_sha256))
        return False

    def recognise(self, file: ImageFile, item: Item | None) -> None:
        """The file is the first with the content of this item of the gallery; None: it was, and is removed by now."""
        self.report.already_there += 1
        if item is None:
            return
        label = self._label(file, item)
        self.report.kept += label != file.label and file.label is not None
        metadata = self._metadata(file, item)
        if (item.source, item.label) != (file.source, label) or metadata is not UNCHANGED:
            self._places.append(ItemUpdate(item.id, file.source, label, metadata))
        if item.differs(file.label, file.metadata):
            self.differing.append((file, item))

    def _label(self, file: ImageFile, item: Item) -> str | None:
        """What the item is to be labelled: as it is, unless the file says otherwise and nobody else has said it."""
        if self._update:
            return file.label
        of_folder = item.label in (None, folder_of(item.source)) and item.source != file.source
        return file.label if file.label is not None and (self._named or of_folder) else item.label

    def _metadata(self, file: ImageFile, item: Item) -> dict[str, Any] | Unchanged:
        """As it is, but for the keys of the file; what it leaves empty goes on an update alone."""
        if not self._keys:  # folders say nothing of them
            return UNCHANGED
        kept = {key: value for key, value in item.metadata.items() if not (self._update and key in self._keys)}
        changed = {**kept, **file.metadata}
        return UNCHANGED if equal_metadata(changed, item.metadata) else changed

    def write(self, items: Sequence[NewItem]) -> None:
        """Add items in one transaction; where another process added one of them meanwhile, that one stays."""
        added = self.gallery.add(items)
        self.report.added += added.new
        self.report.already_there += len(items) - added.new

    def follow(self) -> None:
        """Give the items that lie elsewhere now their new place, and report those that the folder does not hold."""
        if self._places:
            self.gallery.store.update(self._places)
        self.report.moved = len(self._places)
        for file, content in self._contested:
            if item := self.gallery.store.item_of_content(content):
                self.report.differing.append((file.source, item.id, item.label))
        contents = self.gallery.store.sources_by_content()
        self._gone = {content: source for content, source in contents.items() if content not in self._seen}
        self.report.not_in_folder = list(self._gone.values())

    def to_prune(self) -> list[int]:
        """The items, after `follow`, whose content the folder does not hold; not those whose file cannot be read now,
        and none where no file can be.
        """
        if not self._seen:
            return []
        unreadable = {source for source, _ in self.report.unreadable}
        gone = [content for content, source in self._gone.items() if source not in unreadable]
        return [item.id for item in map(self.gallery.store.item_of_content, gone) if item]


Fill = Callable[[Run, Embedder, Sequence[ImageFile], int, bool], None]
"""Tells the run of every file, in order, and has it write what is new: run, model, files, batch size, progress."""


def remember(gallery: Gallery, folder: Path) -> None:
    """Look for originals in this folder later."""
    known, folder = folders_of(gallery), folder.expanduser().resolve()
    if folder not in known:
        gallery.store.set_state(FOLDERS, json.dumps([str(one) for one in (*known, folder)]))


def folders_of(gallery: Gallery) -> list[Path]:
    """The folders that were indexed, the first one first."""
    return [Path(one) for one in json.loads(gallery.store.state(FOLDERS) or "[]")]


class Originals:
    """Image files of items. Safe to use from several threads."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = tuple(folders)

    def read(self, item: Item) -> bytes | None:
        """The item's image file; None where no file of its content is found."""
        for path in self._places(Path(item.source)):
            data = _content(path)
            if data is not None and hashlib.sha256(data).hexdigest() == item.content_sha256:
                return data
        return None

    def _places(self, source: Path) -> Iterator[Path]:
        # Clients of a service choose sources too; what they name must not lead out of the folders.
        if source.is_absolute():
            yield source
        elif ".." not in source.parts:
            yield from (folder / source for folder in self.folders)


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
    (serving.gallery.backends.ray has another). An item that is there keeps a label that was given to it: a folder's
    name is taken over of images that moved and were labelled by their folder, what the file says always, none never;
    with `update` all are as `place` and `labels` have them. `prune`: items whose image is not among these are removed
    where it agrees.
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
        report.items = gallery.store.count()
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
            gallery.store.describe(item.id, file.label or UNCHANGED, file.metadata or UNCHANGED)
            report.updated += 1
    report.items = gallery.store.count()
    return report


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


def _what(path: Path) -> str:
    return "a folder; index it with: zoo index" if path.is_dir() else "there is no such file"


def _image_file(folder: Path, path: Path) -> ImageFile:
    below = path.relative_to(folder)
    source = _text(below.as_posix())
    return ImageFile(path, source, folder_of(source))


def _absolute(path: Path) -> Path:
    """Without dots; links stay, as names are those that the user knows."""
    return Path(os.path.abspath(path))  # noqa: PTH100


def _text(name: str) -> str:
    """A file name as text that can be stored, also where its bytes are no UTF-8."""
    return os.fsencode(name).decode("utf-8", "replace")


def _content(path: Path) -> bytes | None:
    """What an ordinary file of a size that images have holds; pipes and devices are not opened."""
    try:
        facts = path.stat()
        if stat.S_ISREG(facts.st_mode) and 0 < facts.st_size <= DEFAULT_LIMITS.max_bytes:
            return path.read_bytes()
    except (OSError, ValueError):  # ValueError: a name that no file can have
        pass
    return None


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
        known = gallery.store.item_of_content(content)
        if known is not None:
            return _Known(known)
        return _Decoded(file, content, *decode_image(data, embedder.preprocessing))
    except OSError as error:
        raise ImageError(f"the file cannot be read: {error.strerror or error}.") from None

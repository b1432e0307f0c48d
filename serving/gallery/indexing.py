"""Indexing of image files into a gallery, from a folder or a table."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from serving.gallery.gallery import VectorGallery, delete_gallery, is_gallery
from serving.gallery.originals import indexed_folders, read_image, remember_files, remember_folder
from serving.gallery.types import (
    UNCHANGED,
    Item,
    ItemUpdate,
    NewItem,
    PutResult,
    Thumbnail,
    Unchanged,
    check_key,
    decode_image,
    equal_metadata,
    name_as_source,
)
from zoo.console import Progress, count
from zoo.data.decode import decode_in_threads
from zoo.data.images import SUFFIXES
from zoo.data.listing import leads_out, left_out_lines, list_files, shortened
from zoo.data.names import canonical
from zoo.data.table import LabelFile, as_text, image_paths, is_table, read_label_file, read_table
from zoo.errors import (
    GalleryError,
    ImageError,
    ItemNotFoundError,
    UsageError,
    check_at_least,
    command,
    none_readable_message,
)
from zoo.models.load import Embedder
from zoo.models.registry import reference
from zoo.paths import expand

BATCH_SIZE = 64
"""Images that are embedded at once."""

PHOTO_FACTS, PLACE_FACTS = ("taken", "camera", "width", "height"), ("latitude", "longitude")
"""What is known about a photograph, and becomes metadata of its item."""

FEW = 5
"""Notes about images that are printed."""

ConfirmPrune = Callable[[VectorGallery, list[int]], bool]
"""Decides whether the items with these ids are removed."""


@dataclass(frozen=True)
class ImageFile:
    """An image file to index.

    source: its name in the gallery, such as the path below the indexed folder; key: the user's own name of it.
    """

    path: Path
    source: str
    label: str | None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    key: str | None = None


def find_images(
    folder: Path, own: Sequence[Path] = (), follow_links: bool = False, exclude: Sequence[str] = ()
) -> tuple[list[ImageFile], IndexingReport]:
    """List the image files below a folder, as `zoo.data.listing` does.

    The label is the folder part of the path below `folder`; files at the top have none.

    Args:
        folder: The folder.
        own: Files and folders that do not count as other files.
        follow_links: Whether to follow links that lead out of the folder.
        exclude: Patterns of names that are left out.

    Returns:
        The images, and a report with everything that was left out.

    Raises:
        UsageError: There are no images.
    """
    folder = folder.expanduser()
    found = list_files(folder, follow_links, exclude)
    kept = {path.expanduser().absolute() for path in own}
    found.others = [pair for pair in found.others if kept.isdisjoint((pair[0].absolute(), *pair[0].absolute().parents))]
    report = IndexingReport("", len(found.images), **found.left_out(folder))
    if not found.images:
        lines = "".join(f"\n  {line}" for line in report_left_out(report))
        raise UsageError(f"{folder} holds no images ({', '.join(sorted(SUFFIXES))}).{lines}", code="no-images")
    sources = [_below(path, folder) for path in found.images]
    files = [ImageFile(path, source, _folder_label(source)) for path, source in zip(found.images, sources, strict=True)]
    return files, report


def report_left_out(report: IndexingReport) -> Iterator[str]:
    """Yield a line for each file and folder that was left out; those of one kind together where they are many."""
    yield from left_out_lines(report.unreadable, report.excluded, report.other_files, report.links_left_out)
    for source, note in report.notes[:FEW]:
        yield f"{source}: {note}"
    if (more := len(report.notes) - FEW) > 0:
        yield f"{count(more, 'more note')} about images; --json has all"


def listed_images(table: Path, rows: LabelFile) -> list[ImageFile]:
    """Return the images of a table in its order, with their labels and metadata.

    An image's source is its path below the table's folder, or its full path if it is elsewhere.
    """
    table = expand(table)
    root = _absolute(table.parent)
    if not rows.metadata:
        raise UsageError(f"{table} lists no images.", code="no-images")
    files = []
    paths = image_paths(table, rows.metadata)
    for path, (name, metadata) in zip(map(_absolute, paths), rows.metadata.items(), strict=True):
        source = path.relative_to(root) if path.is_relative_to(root) else path
        label, key = (rows.labels or {}).get(name), _checked_key(table, rows.keys.get(name))
        files.append(ImageFile(path, name_as_source(source.as_posix()), label, metadata, key))
    return files


def _checked_key(table: Path, key: str | None) -> str | None:
    try:
        return None if key is None else check_key(key)
    except UsageError as error:
        raise UsageError(f"{table}: {error}", code=error.code) from None


def source_root(images: Path) -> Path:
    """Return the folder that sources are relative to: the indexed folder, or the folder of a table."""
    return as_text(images).parent if is_table(images) else images


def _folder_label(source: str) -> str | None:
    """Return the folder part of a source, which is its label; None for a file at the top."""
    return canonical(source.rpartition("/")[0]) or None


def named_images(paths: Sequence[Path], label: str | None, metadata: Mapping[str, Any]) -> list[ImageFile]:
    """Return files given by name, all with one label. Raises `UsageError` that names those which are not files."""
    wrong = [
        f"{path} ({'a folder, which zoo index takes' if path.is_dir() else 'no such file'})"
        for path in paths
        if not path.is_file()
    ]
    if wrong:
        message = f"{len(wrong):,} of {len(paths):,} names are not image files: {shortened(wrong, 20)}."
        raise UsageError(message, code="not-found")
    return [ImageFile(path, name_as_source(path.as_posix()), label, metadata) for path in paths]


@dataclass
class IndexingReport:
    """Result of indexing a folder or a table.

    Attributes:
        gallery: The gallery.
        found: Number of image files.
        already_there: Number of files whose content the gallery had before.
        copies: Source of every file that has the content of an earlier file of the run, and that file's source.
        moved: Number of items that got another source, label or metadata.
        kept: Number of items that keep a label other than their folder's.
        differing: Source, id and label of items whose file asks for another label or other metadata.
        updated: How many of these got it.
        unreadable: Source and reason of every image that was left out.
        refused: Source and reason of every image whose key is not given to it, since the image has another key.
        replaced: Number of items that got another image under their key.
        not_in_folder: Sources of items whose content is not among the images.
        pruned: How many of these were removed.
        other_folder: Another folder that was indexed into the gallery, so that pruning is refused.
        links_left_out: Sources of links that lead out of the folder.
        other_files: Source of every file that is not an image, and how that is known.
        excluded: Source of every file and folder whose name is excluded, and the pattern.
        notes: Source of images about which something was assumed, and what.
        unlabelled: Number of images that the file of labels does not name.
        labels_unused: Paths in the file of labels that the folder does not hold.
        metadata: Columns that are kept as metadata.
        items: Number of items in the gallery.
    """

    gallery: str
    found: int
    added: int = 0
    replaced: int = 0
    already_there: int = 0
    copies: list[tuple[str, str]] = field(default_factory=list)
    moved: int = 0
    kept: int = 0
    differing: list[tuple[str, int, str | None]] = field(default_factory=list)
    updated: int = 0
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    not_in_folder: list[str] = field(default_factory=list)
    pruned: int = 0
    other_folder: str | None = None
    links_left_out: list[str] = field(default_factory=list)
    other_files: list[tuple[str, str]] = field(default_factory=list)
    excluded: list[tuple[str, str]] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)
    unlabelled: int = 0
    labels_unused: list[str] = field(default_factory=list)
    metadata: tuple[str, ...] = ()
    items: int = 0


class IndexingRun:
    """One run over image files, in their order: it writes new items, and moves and relabels known ones."""

    def __init__(
        self,
        gallery: VectorGallery,
        report: IndexingReport,
        labelled: bool = False,
        keys: Sequence[str] = (),
        update: bool = False,
        facts: Collection[str] = (),
    ) -> None:
        """Begin a run that counts in `report`.

        labelled: labels come from a file, not from folders; update: labels and the metadata `keys` of the files replace
        those of items, also by none; facts: what new items get as metadata, of what is known about the photograph.
        """
        self.facts = facts
        self.gallery, self.report, self._labelled, self._keys, self._update = gallery, report, labelled, keys, update
        self.differing: list[tuple[ImageFile, Item]] = []
        self._moves: list[ItemUpdate] = []
        self._keyed: list[tuple[ImageFile, ItemUpdate]] = []
        self._first: dict[str, ImageFile] = {}
        self._duplicates: list[tuple[ImageFile, str]] = []
        self._absent: dict[str, str] = {}

    def leave_out(self, file: ImageFile, reason: str) -> None:
        """Report a file that cannot be read."""
        self.report.unreadable.append((file.source, reason))

    def note(self, file: ImageFile, notes: Iterable[str]) -> None:
        """Report what was assumed about a file."""
        self.report.notes += [(file.source, text) for text in notes]

    def is_first(self, file: ImageFile, content_sha256: str) -> bool:
        """Return whether no earlier file of the run has this content; a later one does not become an item."""
        first = self._first.setdefault(content_sha256, file)
        if first is file:
            return True
        if file.source != first.source:
            self.report.copies.append((file.source, first.source))
        if file.key not in (None, first.key):
            self.report.refused.append((file.source, f"{first.source} is the same image, and has the key of the item"))
        if file.label not in (None, first.label) or not equal_metadata(file.metadata, first.metadata):
            self._duplicates.append((file, content_sha256))
        return False

    def recognise(self, file: ImageFile, item: Item | None) -> None:
        """Take over the source, label and metadata of a file whose content the gallery has; None: it was removed."""
        self.report.already_there += 1
        if item is None:
            return
        label = self._label(file, item)
        self.report.kept += label != file.label and file.label is not None
        metadata = self._metadata(file, item)
        update = ItemUpdate(item.id, file.source, label, metadata)
        if file.key not in (None, item.key):
            self._keyed.append((file, update))
        elif (item.source, item.label) != (file.source, label) or metadata is not UNCHANGED:
            self._moves.append(update)
        if item.differs(file.label, file.metadata):
            self.differing.append((file, item))

    def _label(self, file: ImageFile, item: Item) -> str | None:
        """Return the item's label: the file's, unless somebody labelled the item by hand."""
        if self._update:
            return file.label
        of_folder = item.label in (None, _folder_label(item.source)) and item.source != file.source
        return file.label if file.label is not None and (self._labelled or of_folder) else item.label

    def _metadata(self, file: ImageFile, item: Item) -> dict[str, Any] | Unchanged:
        """Return the item's metadata with the file's keys; empty values are removed by an update only."""
        if not self._keys:  # folders hold no metadata
            return UNCHANGED
        unchanged = {key: value for key, value in item.metadata.items() if not (self._update and key in self._keys)}
        metadata = {**unchanged, **file.metadata}
        return UNCHANGED if equal_metadata(metadata, item.metadata) else metadata

    def write(self, items: Sequence[NewItem]) -> None:
        """Add items, those with keys in a transaction of their own, which replaces the images that the keys had.

        An item without a key that another process added meanwhile stays.
        """
        plain, keyed = [item for item in items if item.key is None], [item for item in items if item.key is not None]
        if plain:
            added = self.gallery.add(plain)
            self.report.added += added.new
            self.report.already_there += len(plain) - added.new
        if keyed:
            self._put(keyed)

    def _put(self, items: Sequence[NewItem]) -> Counter[str]:
        """Put items by their keys; count and report the outcomes."""
        results = self.gallery.put(items)
        statuses = Counter[str](result.status for result in results)
        self.report.added += statuses["created"]
        self.report.replaced += statuses["replaced"]
        self.report.already_there += statuses["updated"] + statuses["unchanged"]
        self.report.refused += [
            (item.source, str(result.error)) for item, result in zip(items, results, strict=True) if result.error
        ]
        return statuses

    def _give_keys(self) -> None:
        """Give known images the keys of their files, unless they have others, and replace the images of these keys."""
        store = self.gallery.store
        for file, update in self._keyed:
            try:
                item = store.item(update.item)
                vector, thumbnail = store.embedding(item.id), store.thumbnail(item.id)
            except ItemNotFoundError:  # removed, or replaced by a file before
                continue
            metadata = item.metadata if isinstance(update.metadata, Unchanged) else update.metadata
            content, added = item.content_sha256, item.added_at
            new = NewItem(update.source, vector, thumbnail, content, update.label, metadata, added, file.key)
            self.report.already_there -= 1  # it was counted when it was recognised
            self.report.moved += self._put([new])["updated"]

    def finish(self) -> None:
        """Write moves, and report duplicates and the items that are not among the files."""
        store = self.gallery.store
        self._give_keys()
        if self._moves:
            store.update(self._moves)
        self.report.moved += len(self._moves)
        for file, content in self._duplicates:
            if item := store.item_of_content(content):
                self.report.differing.append((file.source, item.id, item.label))
        contents = store.sources_by_content()
        self._absent = {content: source for content, source in contents.items() if content not in self._first}
        self.report.not_in_folder = list(self._absent.values())

    def to_prune(self) -> list[int]:
        """Return, after `finish`, the ids of items that are not among the files.

        Items whose file cannot be read now are not among them; if no file can be read, none is.
        """
        unreadable = {source for source, _ in self.report.unreadable}  # files, and folders that may hold some

        def is_unread(source: str) -> bool:
            return not unreadable.isdisjoint((source, *map(str, PurePosixPath(source).parents)))

        absent = [content for content, source in self._absent.items() if self._first and not is_unread(source)]
        return [item.id for item in map(self.gallery.store.item_of_content, absent) if item]


Fill = Callable[[IndexingRun, Embedder, Sequence[ImageFile], int, bool], None]
"""Passes every file to the run, in order, and writes new items: run, model, files, batch size, progress."""


def index_folder(
    embedder: Embedder,
    model_ref: str,
    images: Path,
    out: str | Path,
    batch_size: int = BATCH_SIZE,
    progress: bool = False,
    labels: Path | None = None,
    embed: Fill | None = None,
    update: bool = False,
    prune: ConfirmPrune | None = None,
    follow_links: bool = False,
    exclude: Sequence[str] = (),
    location: bool = False,
) -> IndexingReport:
    """Add all images of a folder or table to a gallery, which is created if it does not exist.

    Each batch is one transaction. Unreadable images are left out and reported. An item that is already there keeps a
    label that was given to it by hand. A folder's name replaces the label of an image that moved and had its former
    folder's name; a label from a file always does, unless it is empty.

    Args:
        embedder: The model.
        model_ref: Name or folder that loads the model again.
        images: A folder, or a CSV table with paths, labels and metadata (`zoo.data.table`).
        out: The gallery.
        batch_size: Images per batch.
        progress: Whether to show a progress bar.
        labels: CSV file with the column image (or path), label and others, which are metadata; it replaces the
            folders' names. Its paths are below `images`, or relative to the file's folder. Not for a table.
        embed: Embeds the files; by default in this process (`serving.gallery.backends.ray` has another).
        update: Labels and metadata become those of `images` and `labels`, also where these are empty.
        prune: Decides whether items that are not among the images are removed.
        follow_links: Whether to follow links that lead out of the folder. By default these are left out and reported.
        exclude: Patterns of names in a folder that are left out (`zoo.data.listing.list_files`).
        location: Whether new items get the place that the camera wrote as metadata.

    Raises:
        DatasetError: The folder cannot be read.
        UsageError: There are no images, or the CSV file is wrong.
        ModelMismatchError: Another model embedded the gallery.
        GalleryError: No image can be read.
    """
    files, rows, report = _list_images(images, out, labels, follow_links, exclude)
    check_at_least("batch_size", batch_size, 1)
    is_new = not is_gallery(out)
    gallery = VectorGallery.create(out, embedder.card, model_ref) if is_new else VectorGallery.open(out)
    with gallery:
        gallery.check_model(embedder.card, model_ref)
        other = _other_folder(gallery, source_root(images))
        if prune is not None and other:
            raise UsageError(
                f"the gallery was indexed from {other} too, whose images would all be pruned. Remove items by id or "
                f"label: {command('gallery', 'remove', gallery.address, '--label', 'LABEL')}",
                code="overwrites-input",
            )
        report.other_folder = str(other) if other else None
        facts = (*PHOTO_FACTS, *(PLACE_FACTS if location else ()))
        run = IndexingRun(gallery, report, rows.labels is not None, rows.columns, update, facts)
        (embed or fill)(run, embedder, files, batch_size, progress)
        run.finish()
        remember_folder(gallery, source_root(images))
        remember_files(gallery, [file.path for file in files if follow_links or Path(file.source).is_absolute()])
        if prune is not None and (absent := run.to_prune()) and prune(gallery, absent):
            report.pruned = gallery.remove(absent)
        report.items = gallery.store.count()
    if report.items == 0:
        if is_new:
            delete_gallery(out)
        raise GalleryError(none_readable_message(len(files), ": ".join(report.unreadable[-1])), code="no-images")
    return report


def add_files(
    gallery: VectorGallery, embedder: Embedder, files: Sequence[ImageFile], progress: bool = False, update: bool = False
) -> IndexingReport:
    """Add single files to a gallery.

    An item that is already there stays, and the report names it if its file asks for another label or other metadata;
    with `update` it gets them. The source of a file is its path below an indexed folder, or its full path.
    """
    gallery.check_model(embedder.card, reference(embedder.folder))
    folders = indexed_folders(gallery)
    files = [replace(file, source=_source_below(file.path, folders)) for file in files]
    report = IndexingReport(gallery.address, len(files))
    run = IndexingRun(gallery, report)
    fill(run, embedder, files, BATCH_SIZE, progress)
    remember_files(gallery, [file.path for file in files])
    for file, item in run.differing:
        report.differing.append((file.source, item.id, item.label))
        if update:
            gallery.store.describe(item.id, file.label or UNCHANGED, file.metadata or UNCHANGED)
            report.updated += 1
    report.items = gallery.store.count()
    return report


def put_file(gallery: VectorGallery, embedder: Embedder, file: ImageFile, key: str) -> PutResult:
    """Create or replace the item with a key by an image file, its label and its metadata.

    Raises:
        ImageError: The file cannot be read.
        ItemConflictError: The image has another key.
        UsageError: The key is not valid.
    """
    gallery.check_model(embedder.card, reference(embedder.folder))
    file = replace(file, source=_source_below(file.path, indexed_folders(gallery)), key=check_key(key))
    data, content = _read_file(file)
    (item,) = _embedded(embedder, [_NewImage(file, content, *decode_image(data, embedder.preprocessing))])
    (result,) = gallery.put([item])
    if result.error is not None:
        raise result.error
    remember_files(gallery, [file.path])
    return result


def fill(run: IndexingRun, embedder: Embedder, files: Sequence[ImageFile], batch_size: int, progress: bool) -> None:
    """Embed the files and add them to the gallery; threads decode up to two batches ahead."""
    batch: list[_NewImage] = []
    chunk = max(1, min(8, batch_size // 4))
    decoded = decode_in_threads(partial(_decode, run.gallery, embedder), files, 2 * batch_size, chunk)
    with Progress("index", len(files), progress) as bar:
        for file, image in zip(files, decoded, strict=True):
            if isinstance(image, ImageError):
                run.leave_out(file, str(image))
            elif run.is_first(file, image.content_sha256):
                if isinstance(image, Item):
                    run.recognise(file, image)
                else:
                    batch.append(image)
                    run.note(file, image.notes)
            if len(batch) == batch_size:
                run.write(_embedded(embedder, batch, run.facts))
                batch.clear()
            bar.update()
    if batch:
        run.write(_embedded(embedder, batch, run.facts))


@dataclass(frozen=True)
class _NewImage:
    """A decoded image that the gallery does not have."""

    file: ImageFile
    content_sha256: str
    pixels: np.ndarray
    thumbnail: Thumbnail
    notes: tuple[str, ...]
    facts: Mapping[str, Any]


def _decode(gallery: VectorGallery, embedder: Embedder, file: ImageFile) -> _NewImage | Item:
    """Return a decoded image, or the item that has its content. Raises `ImageError`."""
    data, content = _read_file(file)
    item = gallery.store.item_of_content(content)
    return item or _NewImage(file, content, *decode_image(data, embedder.preprocessing))


def _read_file(file: ImageFile) -> tuple[bytes, str]:
    try:
        return read_image(file.path)
    except OSError as error:
        raise ImageError(f"the file cannot be read: {error.strerror or error}.") from None


def _embedded(embedder: Embedder, batch: Sequence[_NewImage], facts: Collection[str] = ()) -> list[NewItem]:
    vectors = embedder.embed_pixels(np.stack([image.pixels for image in batch]))
    return [
        new_item(
            replace(image.file, metadata=with_facts(image.file.metadata, image.facts, facts)),
            vector,
            image.thumbnail,
            image.content_sha256,
        )
        for image, vector in zip(batch, vectors, strict=True)
    ]


def with_facts(metadata: Mapping[str, Any], facts: Mapping[str, Any], wanted: Collection[str]) -> Mapping[str, Any]:
    """Return metadata with those facts about the photograph that are wanted and that they do not have."""
    return {**{name: value for name, value in facts.items() if name in wanted}, **metadata}


def new_item(file: ImageFile, vector: np.ndarray, thumbnail: Thumbnail, content_sha256: str) -> NewItem:
    """Return the item of an image file with its embedding, float32 [dim]."""
    return NewItem(file.source, vector, thumbnail, content_sha256, file.label, file.metadata, key=file.key)


def _source_below(path: Path, folders: Sequence[Path]) -> str:
    """Return the path of a file below the first of the folders that holds it, or its full path."""
    path = _absolute(path)
    resolved = path.parent.resolve() / path.name  # as the folders are
    below = next((resolved.relative_to(folder) for folder in folders if resolved.is_relative_to(folder)), path)
    return name_as_source(below.as_posix())


def _below(path: Path, folder: Path) -> str:
    """Return the source of a file below a folder."""
    return name_as_source(path.relative_to(folder).as_posix())


def _absolute(path: Path) -> Path:
    """Return a path without dots; symbolic links stay, because the user knows those names."""
    return Path(os.path.abspath(path))  # noqa: PTH100


def _list_images(
    images: Path, out: str | Path, labels: Path | None, follow_links: bool, exclude: Sequence[str]
) -> tuple[list[ImageFile], LabelFile, IndexingReport]:
    """Return the image files, the rows of a CSV file about them, and a report so far."""
    if is_table(images):
        if labels is not None:
            raise UsageError(
                f"{images} is a table and holds labels itself; --labels goes with a folder of images.",
                code="option-without-effect",
            )
        table = as_text(images)
        rows = read_table(table)
        files, links = _without_links(listed_images(table, rows), table.parent, follow_links)
        return files, rows, IndexingReport(str(out), len(files), metadata=rows.columns, links_left_out=links)
    files, report = find_images(images, [Path(out), *([labels] if labels else [])], follow_links, exclude)
    report.gallery = str(out)
    if labels is None:
        return files, LabelFile(), report
    rows = read_label_file(labels, {file.source for file in files}, images)
    return _described(files, rows, labels, report), rows, report


def _without_links(files: Sequence[ImageFile], root: Path, follow_links: bool) -> tuple[list[ImageFile], list[str]]:
    """Return the files of a table, and the sources of those below its folder that are links out of it."""
    real, folders = root.resolve(), dict[Path, bool]()

    def is_outside(path: Path) -> bool:
        if path.parent not in folders:
            folders[path.parent] = leads_out(path.parent, real)
        return folders[path.parent] or (path.is_symlink() and leads_out(path, real))

    links: list[str] = []
    kept: list[ImageFile] = []
    for file in files:
        with suppress(OSError, RuntimeError, ValueError):  # is reported where it is read
            if not follow_links and not Path(file.source).is_absolute() and is_outside(file.path):
                links.append(file.source)
                continue
        kept.append(file)
    return kept, links


def _described(files: Sequence[ImageFile], rows: LabelFile, path: Path, report: IndexingReport) -> list[ImageFile]:
    """Return the files with labels and metadata from a file of labels."""
    sources, names = {file.source for file in files}, rows.metadata.keys()
    report.unlabelled, report.labels_unused = len(sources - names), sorted(names - sources)
    report.metadata = rows.columns
    if report.unlabelled == len(files):
        example = files[0].source
        raise UsageError(
            f"{path} names none of the {len(files)} images; paths are below the folder, as {example}.", code="no-images"
        )
    return [
        replace(
            file,
            label=file.label if rows.labels is None else rows.labels.get(file.source),
            metadata=rows.metadata.get(file.source, {}),
            key=_checked_key(path, rows.keys.get(file.source)),
        )
        for file in files
    ]


def _other_folder(gallery: VectorGallery, folder: Path) -> Path | None:
    """Return another existing folder that was indexed into the gallery, whose items pruning would remove."""
    folder = folder.expanduser().resolve()
    others = (path for path in indexed_folders(gallery) if path.is_dir() and not path.is_relative_to(folder))
    return next(others, None)

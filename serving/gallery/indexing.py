"""Indexing of image files into a gallery, from a folder or a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from serving.gallery.gallery import VectorGallery, delete_gallery, is_gallery
from serving.gallery.image_files import (
    ImageFile,
    IndexingReport,
    folder_label,
    list_images,
    placed_below,
    source_root,
    without_dots,
)
from serving.gallery.matching import Matcher
from serving.gallery.originals import indexed_folders, read_image, remember_files, remember_folder
from serving.gallery.types import (
    UNCHANGED,
    Item,
    ItemPlace,
    ItemUpdate,
    NewItem,
    PutResult,
    Thumbnail,
    Unchanged,
    check_key,
    decode_image,
    equal_metadata,
)
from zoo.console import Progress
from zoo.data.decode import decode_in_threads
from zoo.data.table import PLAIN, LabelFile, TableFormat, is_table
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

BATCH_SIZE = 64
"""Images that are embedded at once."""

KNOWN_AT_ONCE = 1000
"""Most files of one step, for a folder of which the gallery has nearly all."""
SIDES = ("width", "height")
PHOTO_FACTS, PLACE_FACTS = ("taken", "camera", *SIDES), ("latitude", "longitude")
"""What is known about a photograph, and becomes metadata of its item."""

ConfirmPrune = Callable[[VectorGallery, list[int]], bool]
"""Decides whether the items with these ids are removed."""


@dataclass(frozen=True)
class ReadFile:
    """A file that was read.

    Attributes:
        vector: Its embedding, float32 [dim]; None if the gallery has the image already.
        facts: What is known about the photograph (`ReadImage`).
    """

    file: ImageFile
    content_sha256: str
    vector: np.ndarray | None = None
    thumbnail: Thumbnail | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


class IndexingRun:
    """One run over image files, in their order: it adds new items, and gives known ones their images and places."""

    def __init__(
        self,
        gallery: VectorGallery,
        report: IndexingReport,
        files: Sequence[ImageFile],
        rows: LabelFile | None = None,
        update: bool = False,
        readd: bool = False,
        facts: Collection[str] = (),
        follow_keys: bool = False,
    ) -> None:
        """Begin a run that counts in `report`.

        Args:
            gallery: The gallery.
            report: The report.
            files: All files of the run.
            rows: The table of labels and metadata, if they are not of folders.
            update: Labels and metadata of the files replace those of items, also by none, unless a table has no row.
            readd: Items that were removed are added again.
            facts: What items get as metadata, of what is known about the photograph.
            follow_keys: See `Matcher`.
        """
        self.gallery, self.report, self.update, self.facts = gallery, report, update, facts
        rows = rows or LabelFile()
        self._labelled, self._keys = rows.labelled, {column.name for column in rows.columns}
        places = gallery.store.places()
        self._items = Matcher(places, files, follow_keys)
        self._removed = Matcher([] if readd else gallery.store.removed_places(), files)
        self._followed: list[ItemPlace] = []
        self._pictures: dict[int, int] = {}
        self._replaced: list[tuple[str, str]] = []
        self._shown = Counter(place.content_sha256 for place in places)
        self._first: dict[str, ImageFile] = {}
        self._sources: dict[str, ImageFile] = {}
        self.differing: list[tuple[ImageFile, Item]] = []

    def has(self, content_sha256: str) -> bool:
        """Return whether the gallery has an image, so that it need not be embedded."""
        return self._shown[content_sha256] > 0

    def leave_out(self, file: ImageFile, reason: str) -> None:
        """Report a file that cannot be read; its items stay unchanged."""
        self.report.unreadable.append((file.source, reason))
        self._items.at_place(file)

    def note(self, file: ImageFile, notes: Iterable[str]) -> None:
        """Report what was assumed about a file."""
        self.report.notes += [(file.source, text) for text in notes]

    def write(self, files: Sequence[ReadFile]) -> None:
        """Write the items of some files, new ones in one transaction and known ones in another."""
        images = {read.content_sha256: read for read in files if read.vector is not None}
        new: list[NewItem] = []
        updates: list[tuple[ImageFile, ItemUpdate]] = []
        for read in files:
            file, content = read.file, read.content_sha256
            if not self._is_only_one(file):
                continue
            places = self._items.at_place(file, content) or self._items.moved(file, content, partial(self._shows, read))
            if not places and self._stays_out(read):
                continue
            self._note_copy(file, content)
            known = [item for item in map(self._item, places) if item is not None]
            self.report.already_there += len(places) - len(known)  # another process has removed them, and meant it
            try:
                if places:
                    updates += [(file, update) for item in known if (update := self._change(read, item, images))]
                else:
                    new.append(self._new_item(read, images))
            except ItemNotFoundError:
                self.leave_out(file, "its image was removed from the gallery meanwhile; run again")
        self._write(new, updates)
        self._shown.update(item.content_sha256 for item in new)
        for before, now in self._replaced:
            self._shown[before] -= 1
            self._shown[now] += 1
        self._replaced.clear()

    def _write(self, new: Sequence[NewItem], updates: Sequence[tuple[ImageFile, ItemUpdate]]) -> None:
        if new:
            added = self.gallery.add(new)
            self.report.added += added.new
            self.report.already_there += len(new) - added.new  # another process was faster
        if updates:
            refused = self.gallery.update([update for _, update in updates])
            self.report.refused += [
                (file.source, str(refused[update.item])) for file, update in updates if update.item in refused
            ]

    def _is_only_one(self, file: ImageFile) -> bool:
        """Return whether no other file of the run has this name in the gallery; report it otherwise."""
        first = self._sources.setdefault(f"{file.key or ''}\0{file.place}", file)
        if first is file:
            return True
        self.report.unreadable.append((file.source, f"{first.path.name!r} has the same name in the gallery"))
        return False

    def _stays_out(self, read: ReadFile) -> bool:
        """Return whether the item of a file was removed, and note where the file is now."""
        file, content = read.file, read.content_sha256
        removed = self._removed.at_place(file, content) or self._removed.moved(file, content)
        for place in removed:
            now = replace(place, source=file.source, folder=file.folder, content_sha256=content)
            if now != place:
                self._followed.append(now)
        if removed:
            self.report.stay_out.append(file.source)
        return bool(removed)

    def _shows(self, read: ReadFile, place: ItemPlace) -> bool:
        """Return whether an item's picture is that of a file, whose other bytes may differ."""
        if read.thumbnail is None:
            return False
        if place.id not in self._pictures:  # thousands of files may have one name
            with suppress(ItemNotFoundError):  # removed by another process
                self._pictures[place.id] = hash(self.gallery.store.thumbnail(place.id).data)
        return self._pictures.get(place.id) == hash(read.thumbnail.data)

    def _note_copy(self, file: ImageFile, content: str) -> None:
        first = self._first.setdefault(content, file)
        if first.place != file.place:
            self.report.copies.append((file.source, first.source))

    def _item(self, place: ItemPlace) -> Item | None:
        try:
            return self.gallery.store.item(place.id)
        except ItemNotFoundError:  # removed by another process
            return None

    def _change(self, read: ReadFile, item: Item, images: Mapping[str, ReadFile]) -> ItemUpdate | None:
        """Return what changes of an item by its file; None for nothing. Count it."""
        file, label = read.file, self._label(read.file, item)
        is_new_image = item.content_sha256 != read.content_sha256
        image = self._new_item(read, images) if is_new_image else None
        metadata = self._metadata(file, item, self._facts(read, item, image))
        self.report.kept += label != file.label and file.label is not None
        if item.differs(file.label, file.metadata):
            self.differing.append((file, item))
        key = UNCHANGED if file.key in (None, item.key) else file.key
        if item.key and file.key and item.key != file.key:
            self.report.renamed.append((item.key, file.key))
        is_described = (item.label, item.source) == (label, file.source) and metadata is UNCHANGED
        self.report.replaced += is_new_image
        self.report.already_there += not is_new_image
        if not is_new_image and is_described and key is UNCHANGED and self._items.folder_of(item.id) == file.folder:
            return None
        self.report.moved += not is_new_image and not (is_described and key is UNCHANGED)
        if is_new_image:
            self._replaced.append((item.content_sha256, read.content_sha256))
        return ItemUpdate(item.id, file.source, label, metadata, file.folder, key, image)

    def _label(self, file: ImageFile, item: Item) -> str | None:
        """Return the item's label: the file's, unless somebody labelled the item by hand."""
        if self.update and (file.listed or not self._labelled):
            return file.label
        of_folder = item.label in (None, folder_label(item.source)) and item.source != file.source
        return file.label if file.label is not None and (self._labelled or of_folder) else item.label

    def _facts(self, read: ReadFile, item: Item, image: NewItem | None) -> dict[str, Any]:
        """Return what an item's metadata get of its photograph; `image`: its new image, if it has one.

        They get what they lack, and the sides of the new image in place of those of the former one. Somebody may have
        written the other values: an update replaces them, else they stay, and are reported.
        """
        facts = _named(self.facts, read.facts if image is None else image.metadata)
        if image is None:
            return facts if self.update else {}
        had = item.metadata
        before, now = self.gallery.store.thumbnail(item.id).size, image.thumbnail.size
        if before and now and tuple(map(had.get, SIDES)) == before:
            had = {key: value for key, value in had.items() if key not in SIDES}
            facts |= dict(zip(SIDES, now, strict=True))
        if self.update:
            return facts
        kept = [key for key in facts if key not in read.file.metadata and had.get(key, facts[key]) != facts[key]]
        self.report.facts_kept += [(read.file.source, kept)] if kept else []
        return {key: value for key, value in facts.items() if key not in had}

    def _metadata(self, file: ImageFile, item: Item, facts: Mapping[str, Any]) -> dict[str, Any] | Unchanged:
        """Return the item's metadata with those of the photograph and the table; an update removes empty ones."""
        empty = self._keys if self.update and file.listed else ()
        stays = {key: value for key, value in item.metadata.items() if key not in empty}
        metadata = {**stays, **facts, **(file.metadata if self._keys else {})}  # of other files the caller decides
        return UNCHANGED if equal_metadata(metadata, item.metadata) else metadata

    def _new_item(self, read: ReadFile, images: Mapping[str, ReadFile]) -> NewItem:
        """Return the item of a file. Raises `ItemNotFoundError` if the gallery has lost its image."""
        image, file = images.get(read.content_sha256, read), read.file
        vector, thumbnail, facts = image.vector, image.thumbnail, image.facts
        if vector is None or thumbnail is None:
            store = self.gallery.store
            item = store.item_of_content(read.content_sha256)
            if item is None:
                raise ItemNotFoundError(f"the gallery has no image {read.content_sha256}.")
            vector, thumbnail, facts = store.embedding(item.id), store.thumbnail(item.id), item.metadata
        content = read.content_sha256
        metadata = {**_named(self.facts, facts), **file.metadata}
        return NewItem(file.source, vector, thumbnail, content, file.label, metadata, key=file.key, folder=file.folder)

    def finish(self) -> None:
        """Report the items that are not among the files, and note where removed ones are now."""
        if self._followed:
            self.gallery.store.move_removed(self._followed)
        self.report.not_in_folder = [place.source for place in self._absent()]

    def _absent(self) -> list[ItemPlace]:
        """Return the places of items that came from indexed folders and are not among the files.

        Items that a client sent or a command added from elsewhere are not in these folders.
        """
        folders = {folder.as_uri() for folder in indexed_folders(self.gallery)}  # some may be links now
        return [place for place in self._items.places if place.folder in folders and place.id not in self._items.found]

    def to_prune(self) -> list[ItemPlace]:
        """Return the places of items that are not among the files.

        Items whose file cannot be read now are not among them; if no file can be read, none is.
        """
        unreadable = {source for source, _ in self.report.unreadable}  # files, and folders that may hold some

        def is_unread(source: str) -> bool:
            return not unreadable.isdisjoint((source, *map(str, PurePosixPath(source).parents)))

        absent = self._absent() if self._first or self.report.stay_out else []
        return [place for place in absent if not is_unread(place.source)]


def _named(names: Iterable[str], values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in names if name in values}


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
    readd: bool = False,
    how: TableFormat = PLAIN,
    exclude: Sequence[str] = (),
    location: bool = False,
) -> IndexingReport:
    """Add all images of a folder or table to a gallery, which is created if it does not exist.

    An item is an image at a place: a file with other bytes is the same item with a new image, and a file elsewhere is
    another item, unless it has the bytes of one whose file is gone. Each batch is stored when it is embedded.
    Unreadable images are left out and reported. An item that is already there keeps a label that was given to it by
    hand. A folder's name replaces the label of an image that moved and had its former folder's name; a label from a
    file always does, unless it is empty.

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
        update: Labels and metadata become those of `images` and `labels`, also where these are empty, and of what the
            camera wrote. Images without a row in `labels` keep theirs.
        prune: Decides whether items that are not among the images are removed. With it, an item whose key no row has
            any more gets the new key of its image, so that nothing written by hand is removed with the former key.
        follow_links: Whether to follow links that lead out of the folder. By default these are left out and reported.
        readd: Whether images whose items somebody has removed are added again.
        how: How the cells of the table, or of `labels`, are written.
        exclude: Patterns of names in a folder that are left out (`zoo.data.listing.list_files`).
        location: Whether new items get the place that the camera wrote as metadata.

    Raises:
        DatasetError: The folder cannot be read.
        UsageError: There are no images, or the CSV file is wrong.
        ModelMismatchError: Another model embedded the gallery.
        GalleryError: No image can be read.
    """
    files, rows, report = list_images(images, out, labels, follow_links, exclude, how)
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
        remember_folder(gallery, source_root(images))
        run = IndexingRun(gallery, report, files, rows, update, readd, facts, follow_keys=prune is not None)
        (embed or fill)(run, embedder, files, batch_size, progress)
        run.finish()
        remember_files(gallery, [file.path for file in files if follow_links or Path(file.source).is_absolute()])
        if prune is not None and (absent := run.to_prune()):
            ids = [place.id for place in absent]
            if prune(gallery, ids):
                gallery.remove(ids)
                report.pruned = [place.key or place.source for place in absent]
        report.items = gallery.store.count()
    if report.items == 0 and not report.stay_out:
        if is_new:
            delete_gallery(out)
        raise GalleryError(_none_readable(images, files, report), code="no-images")
    return report


def _none_readable(images: Path, files: Sequence[ImageFile], report: IndexingReport) -> str:
    """Return the message that no image can be read; of a table without files, where they were looked for."""
    sources = {file.source for file in files}
    first = next(pair for pair in report.unreadable if pair[0] in sources)
    message = none_readable_message(len(files), ": ".join(first))
    if not is_table(images) or any(file.path.exists() for file in files):
        return message
    root = without_dots(source_root(images))
    other = command("index", "MODEL", "DIR", "--labels", images, "--out", "GALLERY")
    return f"{message} The table's paths are relative to {root}. Where they are below another folder: {other}"


def add_files(
    gallery: VectorGallery, embedder: Embedder, files: Sequence[ImageFile], progress: bool = False, update: bool = False
) -> IndexingReport:
    """Add single files to a gallery, also those whose items somebody has removed.

    An item that is already there gets the label and the metadata that it lacks. The report names it if its file asks
    for another label or other metadata; with `update` it gets these too. The source of a file is its path below an
    indexed folder, or its full path.
    """
    gallery.check_model(embedder.card, reference(embedder.folder))
    files = placed_below(files, indexed_folders(gallery))
    report = IndexingReport(gallery.address, len(files))
    run = IndexingRun(gallery, report, files, readd=True)
    fill(run, embedder, files, BATCH_SIZE, progress)
    remember_files(gallery, [file.path for file in files])
    for file, item in run.differing:
        label = file.label if file.label and (update or item.label is None) else UNCHANGED
        merge = partial(_merged, file.metadata, update)
        if label is not UNCHANGED or not equal_metadata(merge(item.metadata), item.metadata):
            gallery.store.describe(item.id, label, merge if file.metadata else UNCHANGED)
            report.updated += 1
        now = replace(item, label=item.label if isinstance(label, Unchanged) else label, metadata=merge(item.metadata))
        if update or now.differs(file.label, file.metadata):
            report.differing.append((file.source, item.id, item.label))
    report.items = gallery.store.count()
    return report


def _merged(metadata: Mapping[str, Any], update: bool, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the known metadata of an item with those that it lacks, and with `update` the others, too."""
    return {**known, **metadata} if update else {**metadata, **known}


def put_file(gallery: VectorGallery, embedder: Embedder, file: ImageFile, key: str) -> PutResult:
    """Create the item with a key, or give it an image file, its label and its metadata.

    Raises:
        ImageError: The file cannot be read.
        UsageError: The key is not valid.
    """
    gallery.check_model(embedder.card, reference(embedder.folder))
    (file,) = placed_below([replace(file, key=check_key(key))], indexed_folders(gallery))
    data, content = _read_file(file)
    pixels, thumbnail, notes, _ = decode_image(data, embedder.preprocessing)
    vector, described = embedder.embed_pixels(pixels[None])[0], (file.label, file.metadata)
    new = NewItem(file.source, vector, thumbnail, content, *described, key=key, folder=file.folder)
    (result,) = gallery.put([new])
    remember_files(gallery, [file.path])
    return replace(result, notes=notes)


def fill(run: IndexingRun, embedder: Embedder, files: Sequence[ImageFile], batch_size: int, progress: bool) -> None:
    """Embed the files and write their items; threads decode up to two batches ahead."""
    batch: list[_DecodedFile] = []
    new: set[str] = set()
    chunk = max(1, min(8, batch_size // 4))
    decoded = decode_in_threads(partial(_decode, run, embedder), files, 2 * batch_size, chunk)
    with Progress("index", len(files), progress) as bar:
        for file, image in zip(files, decoded, strict=True):
            if isinstance(image, ImageError):
                run.leave_out(file, str(image))
            else:
                batch.append(image)
                run.note(file, image.notes)
                new.update([] if run.has(image.content_sha256) else [image.content_sha256])
            if len(new) == batch_size or len(batch) == KNOWN_AT_ONCE:
                run.write(_embedded(run, embedder, batch))
                batch.clear()
                new.clear()
            bar.update()
    run.write(_embedded(run, embedder, batch))


@dataclass(frozen=True)
class _DecodedFile:
    """A file that was read. pixels: None if the gallery has the image."""

    file: ImageFile
    content_sha256: str
    pixels: np.ndarray | None = None
    thumbnail: Thumbnail | None = None
    notes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


def _decode(run: IndexingRun, embedder: Embedder, file: ImageFile) -> _DecodedFile:
    """Return a file, decoded unless the gallery has its image; an update reads what the camera wrote again.

    Raises:
        ImageError: If the file cannot be read.
    """
    data, content = _read_file(file)
    if run.has(content):
        facts = decode_image(data, embedder.preprocessing).facts if run.update and run.facts else {}
        return _DecodedFile(file, content, facts=facts)
    return _DecodedFile(file, content, *decode_image(data, embedder.preprocessing))


def _read_file(file: ImageFile) -> tuple[bytes, str]:
    try:
        return read_image(file.path)
    except OSError as error:
        raise ImageError(f"the file cannot be read: {error.strerror or error}.") from None


def _embedded(run: IndexingRun, embedder: Embedder, batch: Sequence[_DecodedFile]) -> list[ReadFile]:
    """Return the files with the embeddings of those images that the gallery does not have, each embedded once."""
    files, new = [], dict[str, _DecodedFile]()
    for image in batch:
        content = image.content_sha256
        if run.has(content) or content in new or (image := _with_pixels(run, embedder, image)).pixels is not None:
            files.append(image)
            new |= {} if run.has(content) else {content: new.get(content, image)}
    pixels = [image.pixels for image in new.values() if image.pixels is not None]
    vectors = embedder.embed_pixels(np.stack(pixels)) if pixels else ()
    embedded = {
        content: ReadFile(image.file, content, vector, image.thumbnail, image.facts)
        for (content, image), vector in zip(new.items(), vectors, strict=True)
    }
    known = (ReadFile(image.file, image.content_sha256, facts=image.facts) for image in files)
    return [replace(embedded.get(read.content_sha256, read), file=read.file) for read in known]


def _with_pixels(run: IndexingRun, embedder: Embedder, image: _DecodedFile) -> _DecodedFile:
    """Return a file that the gallery does not have, decoded; without pixels, and reported, if it has changed.

    The gallery may have lost an image, when an earlier file of the run gave the item that showed it another one.
    """
    if image.pixels is not None:
        return image
    try:
        again = _decode(run, embedder, image.file)
    except ImageError as error:
        run.leave_out(image.file, str(error))
        return image
    if again.content_sha256 == image.content_sha256:
        return again
    run.leave_out(image.file, "it was changed while it was read; run again")
    return image


def _other_folder(gallery: VectorGallery, folder: Path) -> Path | None:
    """Return another existing folder that was indexed into the gallery, whose items pruning would remove."""
    folder = folder.expanduser().resolve()
    others = (path for path in indexed_folders(gallery) if path.is_dir() and not path.resolve().is_relative_to(folder))
    return next(others, None)

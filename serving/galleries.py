"""A gallery with its model, filled from a folder of images and searched by images: `zoo.index` and `zoo.Gallery`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from serving.gallery.backends.milvus_client import address_of
from serving.gallery.backup import BackupInfo, backup, copy_gallery, restore, verify_gallery
from serving.gallery.calibration import QUERIES, calibrate_gallery, calibration_json
from serving.gallery.filters import Filter
from serving.gallery.gallery import (
    VectorGallery,
    check_exists,
    check_folder,
    filter_notes,
    is_gallery,
    model_at,
    shown_notes,
    tuning_advice,
)
from serving.gallery.image_files import IndexingReport, named_images
from serving.gallery.index_files import GenerationFacts, Tuning
from serving.gallery.indexing import BATCH_SIZE, ConfirmPrune, Fill, add_files, index_folder, put_file
from serving.gallery.parquet import export_gallery, import_gallery
from serving.gallery.query import QueryPart, SearchQuery
from serving.gallery.search import Models, Searcher, SearchOptions
from serving.gallery.types import (
    DEFAULT_K,
    Box,
    Hit,
    Item,
    ItemCopy,
    PutResult,
    Thumbnail,
    is_address,
    item_change,
    merged_metadata,
)
from zoo.console import note, note_once
from zoo.data import check_dataset_path
from zoo.data.columns import Kind
from zoo.data.dataset import FOLDER
from zoo.data.formats import table_of
from zoo.data.images import ImageLike
from zoo.data.listing import list_files
from zoo.data.names import canonical
from zoo.data.table import TableFormat, as_text, is_table
from zoo.errors import GalleryError, ItemNotFoundError, UsageError, check_at_least, command, nearest
from zoo.evaluation.calibration import Calibration
from zoo.evaluation.rerank.order import NONE, check_method
from zoo.files import LockHeldError
from zoo.models.load import AUTO, Embedder, load
from zoo.models.registry import ModelLike, model_reference, model_text
from zoo.models.results import Check
from zoo.paths import expand

if TYPE_CHECKING:
    from serving.duplicates.lookup import CopyFinder


@dataclass
class AddReport(IndexingReport):
    """Result of adding single images.

    Attributes:
        near_duplicates: Of each new item that looks like a copy of others its id, its source, and their ids (`of`).
    """

    near_duplicates: list[dict[str, Any]] = field(default_factory=list)


class Gallery:
    """A gallery together with its model, which is loaded for the first search.

    >>> with zoo.Gallery("gallery") as gallery:
    ...     hits = gallery.search("query.jpg", k=5)

    Attributes:
        address: Folder of the gallery, or its address in Milvus.
        report: What `zoo.index` did; empty for a gallery that was only opened.
    """

    def __init__(
        self,
        address: str | os.PathLike[str],
        model: ModelLike | None = None,
        runtime: str = AUTO,
        precision: str = "fp32",
        device: str | None = None,
    ) -> None:
        """Open a gallery.

        Args:
            address: Its folder, or its address in Milvus (milvus://host:port/name).
            model: Its model, if that is loaded; or its name or folder, if it has moved.
            runtime: As in `zoo.load`.
            precision: As in `zoo.load`.
            device: As in `zoo.load`, for ONNX Runtime and the index.

        Raises:
            GalleryNotFoundError: If there is no gallery.
        """
        self.address = os.fspath(address)
        self.report = IndexingReport(self.address, 0)
        self._model, self._models = model, Models(runtime, precision, device)
        check_exists(self.address)

    def __repr__(self) -> str:
        return f"Gallery({self.address!r}: {len(self):,} items of {self.vectors.card.name})"

    def __len__(self) -> int:
        return self.vectors.store.count()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @cached_property
    def vectors(self) -> VectorGallery:
        """The items, their embeddings and the index."""
        return VectorGallery.open(self.address, device=self._models.device)

    @cached_property
    def searcher(self) -> Searcher:
        """The gallery with its loaded model, as a service uses it."""
        model = self._model
        if isinstance(model, Embedder):
            return Searcher(self.vectors, model.matching(self.vectors.card))
        moved = None if model is None else model_text(model)
        return Searcher(self.vectors, self._models.load_for(self.vectors, moved))

    def search(
        self,
        image: ImageLike | None = None,
        *,
        item: int | str | None = None,
        text: str | None = None,
        query: Sequence[QueryPart] | None = None,
        k: int = DEFAULT_K,
        offset: int = 0,
        min_similarity: float | None = None,
        min_p: float | None = None,
        label: str | Sequence[str] = (),
        where: Mapping[str, Any] | None = None,
        crop: Box | None = None,
        rerank: str = NONE,
        group_by: str | None = None,
        fields: Sequence[str] = (),
    ) -> list[Hit]:
        """Return the images nearest to an image, to an item, to a text or to a sum of such parts; one of the four.

        >>> parts = [zoo.QueryPart("chair.jpg"), zoo.QueryPart(text="red"), zoo.QueryPart(text="leaves", weight=-1)]
        >>> hits = gallery.search(query=parts)

        The items of the query are not among the hits. A hit is the best described item of its image; `Hit.also` names
        the others.

        Args:
            image: The image to search by: a path, file bytes, a PIL image or a uint8 array.
            item: The id or the key of the item to search by.
            text: The text to search by, if the model has a text tower.
            query: The parts whose weighted sum to search by, at most 16.
            k: The number of hits.
            offset: The number of nearest items to skip.
            min_similarity: The lowest cosine of a hit.
            min_p: The lowest `p_same` of a hit, for a query of one picture in a calibrated gallery.
            label: The label, or several, that a hit may have (default: any).
            where: The metadata of a hit: of each key a value, a list of values, or a range `{"gte": 1900, "lt": 1950}`.
            crop: The part of the image to search by: left, top, right and bottom as fractions of its sides.
            rerank: "none", "expansion" (search again with the first hits), or an order of the first hits:
                "augmentation" (each together with its nearest), "diffusion" (over their neighbours), "reciprocal" (by
                shared neighbours).
            group_by: "label" or a key of the metadata: of the items with one value only the nearest is a hit.
            fields: The names of the metadata that the hits carry; "*" for all (default: none).

        Returns:
            The hits, the best first.

        Raises:
            UsageError: If none or several of the four are given, the parts cancel one another out (`no-direction`),
                or an option is out of range or does not go with the query.
            ImageError: If an image cannot be read.
            ItemNotFoundError: If the gallery does not have an item.
            ModelMismatchError: If another model embedded the gallery.
        """
        wanted = SearchQuery.of(image, item, text, query, crop)
        check_at_least("k", k, 1)
        check_at_least("offset", offset, 0)
        selection = _selection(label, where)
        order = check_method(rerank)
        options = SearchOptions(k, offset, min_similarity, min_p, selection, order, group_by, fields)
        result = self.searcher.find(wanted, options)
        if any(result.truncated):
            note("a text is longer than the model reads; its end was left out.")
        if wanted.picture and result.hits and result.hits[0].likely is None and (reason := self.searcher.no_line()):
            note_once(reason)
        note_filter(self.vectors, selection, bool(result.hits), group_by, fields, result.grouped)
        return result.hits

    def add(
        self,
        images: Sequence[str | os.PathLike[str]],
        label: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        update: bool = False,
        duplicates: bool = True,
        progress: bool = False,
    ) -> AddReport:
        """Add single image files; a folder or a table is for `zoo.index`, and `put` adds an image under a key.

        Args:
            images: The files.
            label: The label of all of them.
            metadata: JSON values to store with each.
            update: Give the label and the metadata also to images that are already there.
            duplicates: Report which new items look like copies of others; in Milvus this is not known.
            progress: Show a progress bar.

        Raises:
            UsageError: If some are not files, or the metadata cannot be stored.
            ModelMismatchError: If another model embedded the gallery.
        """
        files = named_images([expand(image) for image in images], label, metadata or {})
        before = self.vectors.store.change()
        report = add_files(self.vectors, self.searcher.embedder, files, progress, update)
        looked_up = duplicates and not is_address(self.address)
        return AddReport(**vars(report), near_duplicates=self._copies_since(before) if looked_up else [])

    def put(
        self,
        key: str,
        image: str | os.PathLike[str],
        label: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> PutResult:
        """Create or replace the item with a key: its image, label and metadata.

        Args:
            key: Your own name of the item: 1 to 256 characters of any Unicode without control characters.
            image: The file.
            label: The label (default: none).
            metadata: The metadata (default: none).

        Raises:
            UsageError: If it is not a file, the key is not valid, or the metadata cannot be stored.
            ImageError: If the image cannot be read.
            ModelMismatchError: If another model embedded the gallery.
        """
        (file,) = named_images([expand(image)], label, metadata or {})
        return put_file(self.vectors, self.searcher.embedder, file, key)

    def describe(
        self,
        item: int | str,
        label: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        unlabel: bool = False,
        key: str | None = None,
        replace: bool = False,
    ) -> Item:
        """Give an item another label, metadata or key, and return it. What is not given stays.

        Args:
            item: The id or the key of the item.
            label: The label.
            metadata: Metadata, which are merged into those of the item; None as a value removes a key.
            unlabel: Remove the label.
            key: Your own name of the item.
            replace: The metadata replace those of the item.

        Raises:
            ItemNotFoundError: If there is no such item.
            ItemConflictError: If the key is another item's.
            UsageError: If nothing is to change, or a value cannot be stored.
        """
        change = item_change(label, metadata, unlabel, key)
        if "metadata" in change and not replace:
            change["metadata"] = partial(merged_metadata, change["metadata"])
        if isinstance(item, str):
            return self.vectors.describe_key(item, **change)[0]
        self.vectors.store.describe(item, **change)
        return self.vectors.store.item(item)

    def remove(self, items: int | str | Sequence[int | str] = (), *, label: str | None = None) -> int:
        """Remove items by their ids or keys, or all of a label, and return how many of them were there.

        `zoo.index` does not bring them back, unless with `readd`.

        Args:
            items: An id or a key, or several.
            label: The label.

        Raises:
            UsageError: If both are given.
            ItemNotFoundError: If no item has the label.
        """
        store = self.vectors.store
        if label is not None:
            if items:
                raise UsageError("remove items or a label, not both.", code="conflicting-options")
            labels, wanted = store.labels(), canonical(label)
            numbers = [item for item, own in labels.items() if own == wanted]
            if not numbers:
                known = {own for own in labels.values() if own is not None}
                raise ItemNotFoundError(f"no item has the label {label!r}.{nearest(label, known)}")
            return self.vectors.remove(numbers, remember=True)
        numbers = []
        for item in [items] if isinstance(items, int | str) else items:
            with suppress(ItemNotFoundError):
                numbers.append(store.item_of_key(item).id if isinstance(item, str) else item)
        return self.vectors.remove(numbers, remember=True)

    def item(self, item: int | str) -> Item:
        """Return an item, by its id or its key.

        Raises:
            ItemNotFoundError: If there is no such item.
        """
        store = self.vectors.store
        return store.item_of_key(item) if isinstance(item, str) else store.item(item)

    def thumbnail(self, item: int | str) -> Thumbnail:
        """Return a small picture of an item, by its id or its key: PNG or JPEG, of no bytes if none is known.

        Raises:
            ItemNotFoundError: If there is no such item.
        """
        return self.vectors.store.thumbnail(self.item(item).id)

    def duplicates(self, item: int | str, mirrored: bool = True) -> list[ItemCopy]:
        """Return the copies of an item's picture, the nearest first.

        Args:
            item: The id or the key of the item.
            mirrored: Whether mirror images are copies too.

        Raises:
            ItemNotFoundError: If there is no such item.
            UsageError: If the gallery is in Milvus (code "not-available").
        """
        return self._copies.items_of(self.vectors, self.item(item).id, mirrored)

    @cached_property
    def _copies(self) -> CopyFinder:
        from serving.duplicates.lookup import CopyFinder  # takes a while

        return CopyFinder()

    def _copies_since(self, change: int) -> list[dict[str, Any]]:
        """Return `AddReport.near_duplicates` of the items that were added after a change."""
        from serving.duplicates.lookup import folder_store

        store = self.vectors.store
        copies = self._copies.copies_of_new(self.vectors, folder_store(self.vectors).items_since(change))
        items = store.items_by_id(list(copies))
        return [
            {"id": item, "source": items[item].source, "of": [copy.item for copy in others]}
            for item, others in copies.items()
            if item in items
        ]

    def labels(self, limit: int = 1000) -> dict[str, int]:
        """Return the number of items of each label, the most frequent label first.

        Args:
            limit: The most labels.

        Raises:
            UsageError: If it is not positive.
        """
        check_at_least("limit", limit, 1)
        return dict(self.vectors.store.overview.labels(limit)[1])

    def count(self, label: str | Sequence[str] = (), where: Mapping[str, Any] | None = None) -> int:
        """Return the number of items of a label and with metadata as for `search`.

        Args:
            label: The label, or several.
            where: The metadata.

        Raises:
            UsageError: If `where` is not a filter.
        """
        return self.vectors.store.count(_selection(label, where))

    def items(
        self,
        label: str | Sequence[str] = (),
        where: Mapping[str, Any] | None = None,
        *,
        offset: int = 0,
        limit: int = 50,
    ) -> list[Item]:
        """Return the items of a label and with metadata as for `search`, by id.

        Args:
            label: The label, or several.
            where: The metadata.
            offset: Leave out the first items.
            limit: The most items; 0 for all.

        Raises:
            UsageError: If `where` is not a filter, or a number is negative.
        """
        check_at_least("--offset (offset)", offset, 0)
        check_at_least("--limit (limit)", limit, 0)
        selection = _selection(label, where)
        items = self.vectors.store.items(offset, limit or -1, selection)
        note_filter(self.vectors, selection, bool(items) or self.vectors.store.count(selection) > 0)
        return items

    def stats(self) -> dict[str, Any]:
        """Return facts about the items, the model, the index and the calibration, as `zoo gallery stats --json`."""
        card, other, index = self.vectors.card, self.vectors.other_model(), self.vectors.index.stats()
        return {
            **asdict(self.vectors.store.stats()),
            "model": card.name,
            "fingerprint": card.fingerprint,
            "other_model": {"name": other[0].name, "role": other[2]} if other else None,
            "dim": card.dim,
            "metric": "cosine",
            "index": {**asdict(index), "hint": tuning_advice(self.vectors)},
            "calibration": calibration_json(self.vectors),
        }

    def compact(self) -> GenerationFacts | None:
        """Rewrite the index with all changes since, and return its facts; None for an empty gallery.

        Searches and writes of other processes go on meanwhile.

        Raises:
            UsageError: If the gallery is in Milvus (code "not-available").
        """
        return self.vectors.index.compact()

    def tune(
        self, recall: float = 0.99, k: int = 10, kind: Sequence[str] = ()
    ) -> tuple[GenerationFacts | None, Tuning]:
        """Search from now on with the fastest index of a recall, measured on the gallery itself.

        Args:
            recall: The share of the k nearest items to find.
            k: The number of nearest items.
            kind: Measure only these kinds of index beside exact search.

        Returns:
            The facts of the chosen index, None for an empty gallery; and the measurement of each kind.

        Raises:
            UsageError: If a number is out of range, or a kind does not exist.
        """
        return self.vectors.index.tune(recall, k, kind)

    def evaluate(self) -> dict[str, Any]:
        """Measure the labelled items exactly and through the index, and calibrate the probabilities of `search`.

        Returns:
            The values that `zoo.Client.evaluate` has, of which `steps` has the metrics; they are kept in the gallery.

        Raises:
            EvaluationError: If no two items share a label.
            GalleryError: If another process measures the gallery.
        """
        from serving.gallery.evaluate import evaluate_gallery, served_model_report

        try:
            with self.vectors.store.evaluation_lock():
                return evaluate_gallery(self.vectors, served_model_report(self.searcher))
        except LockHeldError:
            raise GalleryError(f"{self.address} is being evaluated.", code="being-evaluated") from None

    def calibrate(self, queries: int = QUERIES) -> Calibration:
        """Fit the probability that a hit is of the query's class, on the labelled items; searches return it then.

        Raises:
            EvaluationError: If the labels do not allow it: too few, all of one kind, or unrelated to similarity.
        """
        check_at_least("queries", queries, 1)
        return calibrate_gallery(self.vectors, queries)

    def verify(self) -> list[Check]:
        """Check the database, the index and its searches; the checks tell what does not hold.

        Raises:
            UsageError: If the gallery is in Milvus (code "not-available").
        """
        return list(verify_gallery(check_folder(self.address, "Milvus checks its collections itself.")))

    def backup(self, out: str | os.PathLike[str]) -> BackupInfo:
        """Copy the gallery, which may be in use, to a new folder; `zoo gallery restore` makes a gallery of it again.

        Raises:
            GalleryError: If the gallery is damaged, or the copy cannot be written.
        """
        advice = f"use Milvus's own backup, or: {command('gallery', 'export', self.address, out)}"
        return backup(check_folder(self.address, advice), expand(out))

    def export(self, out: str | os.PathLike[str]) -> int:
        """Write items.parquet and a plain FAISS index to a new folder, and return the number of items.

        Raises:
            UsageError: If the folder is not new or empty.
            GalleryError: If it cannot be written.
        """
        return export_gallery(self.address, expand(out))

    def copy(self, out: str | os.PathLike[str]) -> tuple[int, int]:
        """Copy the gallery to a folder or an address in Milvus; return the number of items, and of the new ones there.

        Images that exist there are skipped, so that the same call continues after an interruption.

        Raises:
            ModelMismatchError: If another model embedded the gallery that is there.
            GalleryError: If a gallery is damaged or cannot be reached.
        """
        return copy_gallery(self.address, os.fspath(out))

    @classmethod
    def restore(cls, backup: str | os.PathLike[str], out: str | os.PathLike[str]) -> Self:
        """Make a gallery from a backup, verify it, and return it.

        Args:
            backup: A folder that `backup` has written.
            out: A new folder.

        Raises:
            GalleryError: If a file of the backup has changed, or the gallery is not valid.
        """
        restore(expand(backup), expand(out))
        return cls(out)

    @classmethod
    def read_export(cls, export: str | os.PathLike[str], out: str | os.PathLike[str]) -> Self:
        """Add the items of an export to a gallery, which is made if it does not exist, and return it.

        Args:
            export: A folder that `export` has written.
            out: The gallery: a folder, or an address in Milvus.

        Raises:
            GalleryError: If the export is incomplete or damaged.
            ModelMismatchError: If another model embedded the gallery.
        """
        import_gallery(expand(export), os.fspath(out))
        return cls(out)

    def close(self) -> None:
        """Close the gallery."""
        if "vectors" in self.__dict__:
            self.vectors.close()


def index(
    model: ModelLike,
    images: Any,
    out: str | os.PathLike[str],
    *,
    labels: str | os.PathLike[str] | None = None,
    runtime: str = AUTO,
    precision: str = "fp32",
    dim: int | None = None,
    batch_size: int = BATCH_SIZE,
    update: bool = False,
    prune: ConfirmPrune | None = None,
    follow_links: bool = False,
    readd: bool = False,
    delimiter: str | None = None,
    encoding: str = "utf-8",
    columns: Mapping[str, Kind] | None = None,
    exclude: Sequence[str] = (),
    location: bool = False,
    embed: Fill | None = None,
    progress: bool = False,
) -> Gallery:
    """Add all images of a folder or a table to a gallery, which is made if it does not exist, and return it.

    >>> gallery = zoo.index("photos", "pictures/", out="gallery")
    >>> gallery.search("query.jpg", k=5)

    Images that cannot be read are left out; `Gallery.report` names them.

    Args:
        model: The model: a name, a folder, a loaded model, or what `zoo.train` and `zoo.finetune` return.
        images: A folder, whose subfolders are the labels; a table with the column image (or path), label and key, whose
            further columns are stored as metadata; or a data set, as `zoo.train` takes it.
        out: The gallery: a folder, or an address in Milvus.
        labels: A table with the columns image (or path) and label, in place of the folders' names.
        runtime: As in `zoo.load`.
        precision: As in `zoo.load`.
        dim: Numbers of the embeddings, if fewer than the model's, as in `zoo.load`; by default those of a gallery that
            exists, else the model's.
        batch_size: Images per batch.
        update: Give existing items the labels and metadata of this run, even if a client has set others. Images
            without a row in `labels` keep theirs.
        prune: Called with the gallery and the ids of the items whose image is not among these; they are removed if it
            returns True. None keeps them.
        follow_links: Follow links that lead out of the folder.
        readd: Add images again whose items somebody has removed.
        delimiter: What separates the cells of a table (default: a comma, or a tab in a .tsv).
        encoding: Encoding of a table.
        columns: Kinds of columns of a table ("number", "decimal-comma", "boolean" or "text") by name (default: what
            most cells are).
        exclude: Patterns of names of files and folders, such as "*_edited", that are left out besides thumbnails, bins
            and hidden files (`zoo.data.listing.EXCLUDED`); one with ! before it is not left out.
        location: Store the place that the camera wrote as metadata, beside date, camera and size.
        embed: Embeds the files elsewhere (default: in this process).
        progress: Show a progress bar.

    Raises:
        ModelNotFoundError: If there is no such model.
        DatasetError: If the folder or the table cannot be read.
        UsageError: If there are no images, or a table is wrong.
        ModelMismatchError: If another model embedded the gallery.
    """
    source, address = expand(table_of(images)), os.fspath(out)
    address = address_of(address).text if is_address(address) else address
    check_dataset_path(source, FOLDER)  # before the model is loaded, which takes a second
    embedder = model if isinstance(model, Embedder) else load(model, runtime, precision, images=_image_count(source))
    if dim is not None:
        embedder = embedder.shortened(dim)
    elif is_gallery(address):
        embedder = embedder.matching(model_at(address)[0])
    report = index_folder(
        embedder,
        model_reference(model),
        source,
        address,
        batch_size,
        progress,
        labels=None if labels is None else expand(labels),
        embed=embed,
        update=update,
        prune=prune,
        follow_links=follow_links,
        readd=readd,
        how=TableFormat(delimiter, encoding, columns or {}),
        exclude=exclude,
        location=location,
    )
    gallery = Gallery(address, embedder)
    gallery.report = report
    return gallery


def _selection(label: str | Sequence[str], where: Mapping[str, Any] | None) -> Filter:
    return Filter((label,) if isinstance(label, str) else tuple(label), dict(where or {}))


def note_filter(
    gallery: VectorGallery,
    selection: Filter,
    has_items: bool,
    group_by: str | None = None,
    fields: Sequence[str] = (),
    grouped: int | None = None,
) -> None:
    """Print on stderr which labels, groups and fields are missing; if nothing was found, all unknown keys."""
    for text in [*filter_notes(gallery, selection, has_items), *shown_notes(gallery, group_by, fields, grouped)]:
        note(f"{text[:1].lower()}{text[1:]}")


def _image_count(images: Path) -> int:
    """Return about how many images there are in a folder or a table."""
    return len(as_text(images).read_bytes().splitlines()) if is_table(images) else len(list_files(images).images)

"""A gallery with its model, filled from a folder of images and searched by images: `zoo.index` and `zoo.Gallery`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

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
from serving.gallery.index_files import GenerationFacts, Tuning
from serving.gallery.indexing import (
    BATCH_SIZE,
    ConfirmPrune,
    Fill,
    IndexingReport,
    add_files,
    index_folder,
    named_images,
)
from serving.gallery.parquet import export_gallery, import_gallery
from serving.gallery.query import QueryPart, SearchQuery
from serving.gallery.search import Models, Searcher, SearchOptions
from serving.gallery.types import DEFAULT_K, Box, Hit, Item, is_address
from zoo.console import note, note_once
from zoo.data import check_dataset_path
from zoo.data.columns import Kind
from zoo.data.dataset import FOLDER
from zoo.data.formats import table_of
from zoo.data.images import ImageLike
from zoo.data.listing import list_files
from zoo.data.table import TableFormat, as_text, is_table
from zoo.errors import check_at_least, command
from zoo.evaluation.calibration import Calibration
from zoo.evaluation.rerank.order import NONE, check_method
from zoo.models.load import AUTO, Embedder, load
from zoo.models.registry import ModelLike, model_reference, model_text
from zoo.models.results import Check
from zoo.paths import expand


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
        progress: bool = False,
    ) -> IndexingReport:
        """Add single image files; a folder or a table is for `zoo.index`.

        Args:
            images: The files.
            label: The label of all of them.
            metadata: JSON values to store with each.
            update: Give the label and the metadata also to images that are already there.
            progress: Show a progress bar.

        Raises:
            UsageError: If some are not files, or the metadata cannot be stored.
            ModelMismatchError: If another model embedded the gallery.
        """
        files = named_images([expand(image) for image in images], label, metadata or {})
        return add_files(self.vectors, self.searcher.embedder, files, progress, update)

    def remove(self, ids: Sequence[int | str]) -> int:
        """Remove items by their ids or keys, and return how many of the ids were there.

        `zoo.index` does not bring them back, unless with `readd`.

        Raises:
            ItemNotFoundError: If no item has a key.
        """
        store = self.vectors.store
        numbers = [store.item_of_key(item).id if isinstance(item, str) else item for item in ids]
        return self.vectors.remove(numbers, remember=True)

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
        check_at_least("offset", offset, 0)
        check_at_least("limit", limit, 0)
        return self.vectors.store.items(offset, limit or -1, _selection(label, where))

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

    def copy(self, backend: str | os.PathLike[str]) -> tuple[int, int]:
        """Copy the gallery to a folder or an address in Milvus; return the number of items, and of the new ones there.

        Images that exist there are skipped, so that the same call continues after an interruption.

        Raises:
            ModelMismatchError: If another model embedded the gallery that is there.
            GalleryError: If a gallery is damaged or cannot be reached.
        """
        return copy_gallery(self.address, os.fspath(backend))

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
    def read_export(cls, export: str | os.PathLike[str], gallery: str | os.PathLike[str]) -> Self:
        """Add the items of an export to a gallery, which is made if it does not exist, and return it.

        Args:
            export: A folder that `export` has written.
            gallery: The gallery: a folder, or an address in Milvus.

        Raises:
            GalleryError: If the export is incomplete or damaged.
            ModelMismatchError: If another model embedded the gallery.
        """
        import_gallery(expand(export), os.fspath(gallery))
        return cls(gallery)

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
        update: Give existing items the labels and metadata of this run, even if a client has set others.
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

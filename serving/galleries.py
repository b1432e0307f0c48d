"""A gallery with its model, filled from a folder of images and searched by images: `zoo.index` and `zoo.Gallery`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from serving.gallery.backends.milvus_client import address_of
from serving.gallery.filters import Filter
from serving.gallery.gallery import (
    VectorGallery,
    check_exists,
    filter_notes,
    is_gallery,
    model_at,
    shown_notes,
)
from serving.gallery.indexing import BATCH_SIZE, ConfirmPrune, Fill, IndexingReport, index_folder
from serving.gallery.query import QueryPart, SearchQuery
from serving.gallery.search import Models, Searcher, SearchOptions
from serving.gallery.types import DEFAULT_K, Hit, is_address
from zoo.console import note, note_once
from zoo.data import check_dataset_path
from zoo.data.columns import Kind
from zoo.data.dataset import FOLDER
from zoo.data.formats import table_of
from zoo.data.images import ImageLike
from zoo.data.listing import list_files
from zoo.data.table import TableFormat, as_text, is_table
from zoo.errors import check_at_least
from zoo.models.load import AUTO, Embedder, load
from zoo.models.registry import ModelLike, model_reference
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
        model: str | Embedder | None = None,
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
        return Searcher(self.vectors, self._models.load_for(self.vectors, model))

    def search(
        self,
        image: ImageLike | None = None,
        *,
        item: int | str | None = None,
        text: str | None = None,
        query: Sequence[QueryPart] | None = None,
        k: int = DEFAULT_K,
        label: str | Sequence[str] = (),
        where: Mapping[str, Any] | None = None,
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
            label: The label, or several, that a hit may have (default: any).
            where: The metadata of a hit: of each key a value, a list of values, or a range `{"gte": 1900, "lt": 1950}`.
            group_by: "label" or a key of the metadata: of the items with one value only the nearest is a hit.
            fields: The names of the metadata that the hits carry; "*" for all (default: none).

        Returns:
            The hits, the best first.

        Raises:
            UsageError: If none or several of the four are given, the parts cancel one another out (`no-direction`), or
                k is not positive.
            ImageError: If an image cannot be read.
            ItemNotFoundError: If the gallery does not have an item.
            ModelMismatchError: If another model embedded the gallery.
        """
        wanted = SearchQuery.of(image, item, text, query)
        check_at_least("k", k, 1)
        selection = Filter((label,) if isinstance(label, str) else tuple(label), dict(where or {}))
        options = SearchOptions(k, selection=selection, group_by=group_by, fields=fields)
        result = self.searcher.find(wanted, options)
        if any(result.truncated):
            note("a text is longer than the model reads; its end was left out.")
        if wanted.picture and result.hits and result.hits[0].likely is None and (reason := self.searcher.no_line()):
            note_once(reason)
        note_filter(self.vectors, selection, bool(result.hits), group_by, fields, result.grouped)
        return result.hits

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

"""Embeddings that the gallery's model computed elsewhere, indexed by key (`zoo index --vectors --table`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from serving.gallery.gallery import VectorGallery, delete_gallery, is_gallery
from serving.gallery.types import NewItem, metadata_json, vector_item
from zoo.console import Progress
from zoo.data.columns import Column
from zoo.data.table import PLAIN, KeyedRow, TableFormat, read_keyed_rows
from zoo.errors import UsageError
from zoo.evaluation.embeddings import Embeddings, read_embeddings, table_path
from zoo.models.card import Card

BATCH = 2000
"""Rows of one transaction."""


@dataclass
class VectorReport:
    """Result of indexing vectors.

    refused: key and reason of each row that was not written; columns: of the metadata; items: of the gallery.
    """

    gallery: str
    rows: int
    created: int = 0
    replaced: int = 0
    updated: int = 0
    unchanged: int = 0
    refused: list[tuple[str, str]] = field(default_factory=list)
    columns: tuple[Column, ...] = ()
    items: int = 0


def index_vectors(
    card: Card,
    model_ref: str,
    vectors: Path,
    table: Path,
    out: str | Path,
    fingerprint: str | None = None,
    how: TableFormat = PLAIN,
) -> VectorReport:
    """Create or replace items by key from embeddings, in a gallery that is created if it does not exist.

    Args:
        card: The model that computed the embeddings.
        model_ref: The name or folder that loads it.
        vectors: Embeddings [n, dim] in .npy, .safetensors or .npz. The record of `zoo embed` names their model.
        table: The keys, labels and metadata of the rows in their order (`read_keyed_rows`).
        out: The gallery.
        fingerprint: The fingerprint of the model that computed the embeddings, for a file without a record.
        how: How the cells of the table are written.

    Returns:
        The report. A row with a bad key, NaN, infinity or only zeros is refused; the others are written.

    Raises:
        UsageError: If the files do not fit together, the embeddings are or may be of another model, or no row is
            accepted (code "no-images"); a gallery is not made for that.
        ModelMismatchError: If another model embedded the gallery.
    """
    embeddings, (described, columns) = read_embeddings(vectors), read_keyed_rows(table, how)
    _check_model(vectors, embeddings, card, fingerprint)
    rows = embeddings.rows
    if rows.ndim != 2 or rows.shape[1] != card.dim or rows.dtype.kind not in "fiu":
        shape = " x ".join(map(str, rows.shape))
        message = f"{vectors} holds {shape} numbers ({rows.dtype}); expected rows of {card.dim} of {card.name}."
        raise UsageError(message, code="invalid-embedding")
    if len(rows) != len(described):
        message = f"{vectors} has {len(rows):,} rows and {table} describes {len(described):,}."
        raise UsageError(message, code="invalid-table")
    if embeddings.record is not None and table.resolve() == table_path(vectors).resolve():
        embeddings.record.check_images(table, [row.source for row in described])
    is_new = not is_gallery(out)
    made = VectorGallery.create(out, card, model_ref) if is_new else VectorGallery.open(out)
    report = VectorReport(str(out), len(rows), columns=columns)
    with made as gallery, Progress("index", len(rows), True) as bar:
        gallery.check_model(card, model_ref)
        for start in range(0, len(rows), BATCH):
            batch = described[start : start + BATCH]
            _put(gallery, batch, rows[start : start + BATCH], report)
            bar.update(len(batch))
        report.items = gallery.store.count()
    if len(report.refused) == len(rows):
        if is_new and not report.items:
            delete_gallery(out)
        cause = "it has no rows."
        if report.refused:
            cause = f"none of its rows was accepted. The first, {': '.join(report.refused[0])}"
        remedy = "Compute the embeddings again, for example with zoo embed, or correct the table."
        raise UsageError(f"{vectors} was not indexed: {cause} {remedy}", code="no-images")
    return report


def _check_model(path: Path, embeddings: Embeddings, card: Card, fingerprint: str | None) -> None:
    if embeddings.record is not None:
        embeddings.record.check_model(path, card)
    elif fingerprint is None:
        raise UsageError(
            f"{path} has no record of the model that computed it. Name that model's fingerprint with --fingerprint, as "
            f"zoo info and POST /embed show it; that of {card.name} is {card.fingerprint}.",
            code="missing-value",
        )
    if fingerprint not in (None, card.fingerprint):
        message = f"--fingerprint is not that of {card.name}, which is {card.fingerprint}."
        raise UsageError(message, code="other-model")


def _put(gallery: VectorGallery, described: Sequence[KeyedRow], vectors: np.ndarray, report: VectorReport) -> None:
    items = []
    for row, vector in zip(described, vectors, strict=True):
        try:
            items.append(_item(row, vector, gallery.card.dim))
        except UsageError as error:
            report.refused.append((row.key, str(error)))
    results = gallery.put(items) if items else []
    counts = Counter(result.status for result in results)
    report.created += counts["created"]
    report.replaced += counts["replaced"]
    report.updated += counts["updated"]
    report.unchanged += counts["unchanged"]


def _item(row: KeyedRow, vector: np.ndarray, dim: int) -> NewItem:
    try:
        metadata_json(row.metadata)
    except ValueError as error:
        raise UsageError(f"the metadata cannot be stored: {error}.", code="invalid-value") from None
    return vector_item(row.key, vector, dim, row.source, row.label, row.metadata)

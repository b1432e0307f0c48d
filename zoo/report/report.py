"""The report of a model: its scores, what it finds, and the shape of its embedding space, as one page."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, MutableMapping
from io import BytesIO

import numpy as np

from zoo.datasets.dataset import Dataset, part_of
from zoo.embedder import Embedder
from zoo.errors import ImageError, UsageError
from zoo.evaluation import Evaluation, evaluate
from zoo.evaluation.evaluate import embedded, of_model
from zoo.evaluation.structure import spectral_decay
from zoo.images import ImageLike, open_image
from zoo.report import pictures, projection
from zoo.report.certainty import certainty
from zoo.report.examples import Example, choose_examples
from zoo.report.history import recall_by_epoch
from zoo.report.page import Section, legend, page, paragraph, picture, table, thumbnail

MAPS = ("pca", "tsne")
POINTS = 2000
"""At most so many images are on the map."""
THUMBNAIL = 128


def report(
    model: Embedder,
    dataset: Dataset,
    mapping: str = "pca",
    batch_size: int = 64,
    progress: bool = False,
    unreadable: MutableMapping[str, ImageError] | None = None,
) -> str:
    """The HTML page of a model on a data set. It asks for nothing outside itself; what comes from files is escaped.

    mapping: "pca" or "tsne", how the embeddings come onto a plane. unreadable: takes, by source, what is wrong with the
    images of a folder or table that cannot be read, which are left out and counted on the page.

    Raises the errors of `Embedder.embed` and `zoo.evaluate`, `UsageError` for an unknown mapping,
    `MissingDependencyError` without matplotlib or, for t-SNE, scikit-learn.
    """
    parts = sections(model, dataset, mapping, batch_size, progress, unreadable)
    return page(f"{model.card.name} on {dataset.name}, {part_of(dataset.split)}", parts)


def sections(
    model: Embedder,
    dataset: Dataset,
    mapping: str = "pca",
    batch_size: int = 64,
    progress: bool = False,
    unreadable: MutableMapping[str, ImageError] | None = None,
) -> list[Section]:
    """The parts of that page, and its errors."""
    _check(mapping)
    listed = len(dataset)
    rows, dataset = embedded(model, dataset, batch_size, progress, {} if unreadable is None else unreadable)
    measured = dataclasses.replace(of_model(evaluate(rows, dataset), model), unreadable=listed - len(dataset))
    return [
        _scores(measured),
        _model(model),
        _examples(choose_examples(rows, dataset), dataset),
        _map(rows, dataset, mapping),
        _spectrum(rows, dataset.split),
        certainty(rows, dataset),
        *_history(model),
    ]


def _check(mapping: str) -> None:
    """Before anything is embedded, which may take long."""
    if mapping not in MAPS:
        raise UsageError(f"there is no map {mapping!r}; expected {' or '.join(MAPS)}.")
    pictures.check_available()
    if mapping == "tsne":
        projection.check_available()


def _scores(measured: Evaluation) -> Section:
    bounds = {name: f"{low:.4f} to {high:.4f}" for name, (low, high) in measured.intervals.items()}
    rows = [[name, f"{value:.4f}", bounds.get(name, "-")] for name, value in measured.metrics.items()]
    queries = measured.queries - measured.queries_without_relatives
    text = (
        f"{queries:,} queries of {measured.classes:,} classes; {measured.protocol}; {measured.runtime} in "
        f"{measured.precision}; {measured.date}."
    )
    if measured.queries_without_relatives:
        text += f" {measured.queries_without_relatives:,} images alone in their class were left out as queries."
    if measured.unreadable:
        images = "image" if measured.unreadable == 1 else "images"
        text += f" {measured.unreadable:,} {images} could not be read; the scores are of the others."
    return Section(
        "Scores", table(("metric", "value", "95 % over classes"), rows, ("value",)) + paragraph(text), "half"
    )


def _model(model: Embedder) -> Section:
    card = model.card
    facts = {
        "method": card.method,
        "trained on": card.dataset,
        "architecture": card.architecture,
        "dimension": str(card.dim),
        "heads": ", ".join(f"{head.name} ({head.dim})" for head in card.heads) or "-",
        "licence": card.licence,
        "sources": ", ".join(card.sources) or "-",
        "fingerprint": card.fingerprint[:16],
    }
    return Section("Model", table(("what", "value"), list(map(list, facts.items()))), "half")


def _examples(examples: Iterable[Example], dataset: Dataset) -> Section:
    text = (
        "Each row: a query and its nearest neighbours, nearest first, with their cosine. Green: of the query's class; "
        "red and dashed: of another. The first four queries are drawn at random, the others among those whose nearest "
        "neighbour is of another class."
    )
    return Section("What it finds", paragraph(text) + "".join(_row(example, dataset) for example in examples))


def _row(example: Example, dataset: Dataset) -> str:
    def name(index: int) -> str:
        return dataset.classes[dataset.labels[index]]

    parts = [thumbnail(_jpeg(dataset.images[example.query]), f"query: {name(example.query)}")]
    for index, similarity, hit in zip(example.found, example.similarities, example.hits, strict=True):
        caption = f"{similarity:.2f} {name(index)}"
        parts.append(thumbnail(_jpeg(dataset.images[index]), caption, "good" if hit else "bad"))
    return f'<div class="row">{"".join(parts)}</div>'


def _jpeg(image: ImageLike) -> bytes:
    small = open_image(image, draft=THUMBNAIL).convert("RGB")
    small.thumbnail((THUMBNAIL, THUMBNAIL))
    out = BytesIO()
    small.save(out, "JPEG", quality=82)
    return out.getvalue()


def _map(rows: np.ndarray, dataset: Dataset, mapping: str) -> Section:
    shown = np.sort(np.random.default_rng(0).permutation(len(rows))[:POINTS])
    plane, text = _plane(rows[shown], mapping)
    groups, picked = _groups(dataset.labels[shown])
    image = picture(pictures.embedding_map(plane, groups), "image/png", f"Map of {len(shown)} embeddings")
    names = legend((dataset.classes[label] for label in picked), pictures.COLOURS)
    text = f"{len(shown):,} images, {len(picked)} classes in colour. {text}"
    return Section("Map of the embeddings", image + names + paragraph(text), "tall")


def _plane(rows: np.ndarray, mapping: str) -> tuple[np.ndarray, str]:
    """The rows on a plane [n, 2] and what is to be said of it."""
    if mapping == "tsne":
        return projection.neighbour_embedding(rows), "t-SNE; distances between groups mean little."
    plane, share = projection.principal_components(rows)
    return plane, f"The two principal components; they hold {share:.0%} of the variance."


def _groups(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each label [n] the number of its colour, -1 for none, and the labels that have one, evenly spaced."""
    classes = np.unique(labels)
    picked = classes[np.unique(np.linspace(0, len(classes) - 1, len(pictures.COLOURS)).astype(int))]
    places = np.searchsorted(picked, labels)
    return np.where(np.isin(labels, picked), places, -1), picked


def _spectrum(rows: np.ndarray, split: str) -> Section:
    values = np.linalg.svd(rows.astype(np.float64), compute_uv=False)
    text = (
        f"Spectral decay {spectral_decay(rows):.3f} ({part_of(split)}): how far the singular values are from even "
        "(dashed); 0 where all directions are used alike. Revisiting measures it on training data."
    )
    image = picture(pictures.spectrum(values), "image/svg+xml", "Singular values of the embeddings")
    return Section("Singular values", image + paragraph(text), "half")


def _history(model: Embedder) -> list[Section]:
    series = recall_by_epoch(model.folder)
    if not series:
        return []
    image = picture(pictures.curves(series), "image/svg+xml", "R@1 by epoch")
    text = "From the folder's log; validation is on classes held out of the training split."
    return [Section("R@1 by epoch", image + legend(series, pictures.COLOURS) + paragraph(text), "half")]

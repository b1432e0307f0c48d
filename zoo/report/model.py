"""The report of a model: its scores, example searches and the shape of its embedding space, as one HTML page."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from zoo.console import count, interval_text
from zoo.data.dataset import Dataset, dataset_title, split_title
from zoo.data.images import ImageLike, open_image
from zoo.errors import ImageError, UsageError
from zoo.evaluation import Evaluation, evaluate, nearest_neighbours
from zoo.evaluation.calibration import DEPTH, Bin, expected_calibration_error, held_out_bins, pairs_of_searches
from zoo.evaluation.evaluate import attribute_to_model, embed_dataset
from zoo.evaluation.structure import spectral_decay
from zoo.files import open_file
from zoo.models.card import read_head, read_origin
from zoo.models.load import Embedder
from zoo.models.results import data_title, metric_table, origin_text
from zoo.render import Table
from zoo.report import figures
from zoo.report.html import SVG, ImageTile, Legend, Paragraph, Picture, Section, Thumbnails, figure_section, page

PROJECTIONS = ("pca", "tsne")
MAP_POINTS = 2000
"""The largest number of images on the map."""
THUMBNAIL_SIZE = 128
EXAMPLES = 8
"""The largest number of example searches."""
EXAMPLE_NEIGHBOURS = 6
CALIBRATION_QUERIES = 2000
"""The largest number of queries, drawn at random, as a gallery calibrates itself."""
LOG_FILE = "log.jsonl"


@dataclass(frozen=True)
class ExampleSearch:
    """A query and its nearest neighbours, nearest first.

    Attributes:
        query: Index of the query in the data set.
        neighbours: Indices of the neighbours, [k].
        similarities: Their cosines, [k].
        hits: Whether each shares the query's class, [k].
    """

    query: int
    neighbours: np.ndarray
    similarities: np.ndarray
    hits: np.ndarray


def report(
    model: Embedder,
    dataset: Dataset,
    mapping: str = "pca",
    batch_size: int = 64,
    progress: bool = False,
    unreadable: MutableMapping[str, ImageError] | None = None,
) -> str:
    """Return the HTML page of a model on a data set.

    The page asks nothing of the network; text from files is escaped.

    Args:
        model: The model.
        dataset: The images that it embeds.
        mapping: "pca" or "tsne": the projection of embeddings onto the plane.
        batch_size: Images per batch.
        progress: Whether to show a progress bar.
        unreadable: Receives, by source, the errors of images that cannot be read. Such images are left out and counted
            on the page.

    Raises:
        UsageError: If the mapping is unknown.
        MissingDependencyError: If matplotlib or, for t-SNE, scikit-learn is not installed.
        ZooError: The errors of `Embedder.embed` and `zoo.evaluate`.
    """
    parts = sections(model, dataset, mapping, batch_size, progress, unreadable)
    return page(f"{model.card.name} on {dataset.title}, {split_title(dataset.split)}", parts)


def sections(
    model: Embedder,
    dataset: Dataset,
    mapping: str = "pca",
    batch_size: int = 64,
    progress: bool = False,
    unreadable: MutableMapping[str, ImageError] | None = None,
) -> list[Section]:
    """Return the sections of the page that `report` makes.

    Args:
        model: The model.
        dataset: The images that it embeds.
        mapping: "pca" or "tsne": the projection of embeddings onto the plane.
        batch_size: Images per batch.
        progress: Whether to show a progress bar.
        unreadable: Receives, by source, the errors of images that cannot be read.

    Raises:
        ZooError: If `report` would raise it.
    """
    _check_projection(mapping)
    listed = len(dataset)
    rows, dataset = embed_dataset(model, dataset, batch_size, progress, {} if unreadable is None else unreadable)
    measured = dataclasses.replace(attribute_to_model(evaluate(rows, dataset), model), unreadable=listed - len(dataset))
    return [
        _scores_section(measured),
        _model_section(model),
        _examples_section(choose_examples(rows, dataset), dataset),
        _map_section(rows, dataset, mapping),
        _spectrum_section(rows, dataset.split),
        calibration_section(rows, dataset),
        *_history_sections(model),
    ]


def choose_examples(rows: np.ndarray, dataset: Dataset) -> list[ExampleSearch]:
    """Choose `EXAMPLES` searches: half at random, then, also at random, some whose nearest is of another class.

    Args:
        rows: Unit embeddings [n, d] of the data set's images.
        dataset: Each image searches all others; with the factor `query`, its queries search its gallery.
    """
    searches = example_searches(rows, dataset)
    draw = np.random.default_rng(0)
    order = [searches[i] for i in draw.permutation(len(searches))]
    failures = [example for example in order[EXAMPLES // 2 :] if not example.hits[0]]
    return order[: EXAMPLES // 2] + failures[: EXAMPLES - EXAMPLES // 2]


def example_searches(rows: np.ndarray, dataset: Dataset) -> list[ExampleSearch]:
    """Return every search of the data set; rows are its unit embeddings [n, d]."""
    queries, similarities, neighbours = _query_neighbours(rows, dataset, EXAMPLE_NEIGHBOURS)
    hits = dataset.labels[neighbours] == dataset.labels[queries, None]
    return [ExampleSearch(int(q), *facts) for q, *facts in zip(queries, neighbours, similarities, hits, strict=True)]


def _query_neighbours(rows: np.ndarray, dataset: Dataset, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the nearest neighbours of every query.

    Args:
        rows: Unit embeddings float32 [n, d] of the data set's images.
        dataset: Each image searches all others; with the factor `query`, its queries search its gallery.
        k: Neighbours per query, at most as many as there are.

    Returns:
        The queries, int64 [q], and the similarities, float32 [q, k], and indices, int64 [q, k], of their neighbours.
    """
    is_query = dataset.factors.get("query")
    indices = np.arange(len(rows))
    queries, gallery = (indices, indices) if is_query is None else (indices[is_query > 0], indices[is_query == 0])
    k = min(k, len(gallery) - (is_query is None))
    similarities, neighbours = nearest_neighbours(rows[queries], rows[gallery], k, exclude_self=is_query is None)
    return queries, similarities, gallery[neighbours]


def calibration_bins(rows: np.ndarray, dataset: Dataset) -> list[Bin]:
    """Measure the reliability of p_same, the probability that a neighbour is of the query's class.

    p_same is fitted to the queries of every second class and read at the others, and the other way round.

    Args:
        rows: Unit embeddings float32 [n, d] of the data set's images.
        dataset: The images with their classes.

    Returns:
        The bins; empty if a half allows no fit, as with fewer than four classes.
    """
    queries, similarities, neighbours = _query_neighbours(rows, dataset, DEPTH)
    sample = np.sort(np.random.default_rng(0).permutation(len(queries))[:CALIBRATION_QUERIES])
    classes = dataset.labels[queries[sample]]
    same = (dataset.labels[neighbours[sample]] == classes[:, None]).astype(int)
    return held_out_bins(pairs_of_searches(similarities[sample], same, classes))


def calibration_section(rows: np.ndarray, dataset: Dataset) -> Section:
    """Return the reliability diagram of p_same with its numbers; arguments as in `calibration_bins`."""
    bins = calibration_bins(rows, dataset)
    if not bins:
        text = "Not measured: that takes queries of at least four classes, with and without neighbours of their class."
        return Section("p_same", [Paragraph(text)], "half")
    picture = Picture(figures.reliability(bins), SVG, "How often neighbours are of the query's class")
    columns = ("promised", "observed", "95 % interval", "neighbours")
    rows_of_bins = [
        [
            f"{bin_.probability:.3f}",
            f"{bin_.share:.3f}",
            interval_text((bin_.low, bin_.high), digits=3),
            f"{bin_.count:,}",
        ]
        for bin_ in bins
    ]
    return Section(
        "p_same", [picture, Paragraph(_calibration_text(bins)), Table(columns, rows_of_bins, columns)], "half"
    )


def recall_by_epoch(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Read every logged recall at 1 from the log of a model folder.

    Lines that are not the record of an epoch are skipped.

    Args:
        folder: The model folder.

    Returns:
        By key: (epoch, fraction) in the file's order. Empty without a log or such keys.
    """
    return recalls_of(epoch_records(folder))


def epoch_records(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of epochs in a folder's log; none without a log. Other lines are skipped."""
    try:
        with open_file(folder / LOG_FILE) as file:
            lines = file.read().decode().splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for line in lines:
        if (record := _epoch_record(line)) is not None:
            yield record


def recalls_of(records: Iterable[dict[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """Return `recall_by_epoch` of records of epochs."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for record in records:
        for key, value in record.items():
            if key.endswith("recall_at_1") and type(value) in (int, float) and math.isfinite(value):
                curves.setdefault(key, []).append((record["epoch"], float(value)))
    return curves


def _check_projection(mapping: str) -> None:
    """Check the projection before anything is embedded, which may take long."""
    if mapping not in PROJECTIONS:
        message = f"unknown projection {mapping!r}; expected {' or '.join(PROJECTIONS)}."
        raise UsageError(message, code="unknown-name")
    figures.check_matplotlib()
    if mapping == "tsne":
        figures.check_scikit_learn()


def _scores_section(measured: Evaluation) -> Section:
    table = metric_table(measured.metrics, measured.intervals)
    return Section("Scores", [table, Paragraph(_scores_text(measured))], "half")


def _scores_text(measured: Evaluation) -> str:
    facts = measured.to_json()
    text = f"{data_title(facts)}; {measured.runtime} in {measured.precision}; {origin_text(facts)}."
    if measured.queries_without_relatives:
        text += f" {count(measured.queries_without_relatives, 'image')} alone in their class were left out as queries."
    if measured.unreadable:
        text += f" {count(measured.unreadable, 'image')} could not be read; the scores are of the others."
    return text


def _model_section(model: Embedder) -> Section:
    card = model.card
    facts = {
        "description": card.description or "-",
        "recipe": read_origin(model.folder).text or "-",
        "method": card.method,
        "head": read_head(model.folder) or "-",
        "trained on": dataset_title(card.dataset),
        "architecture": card.architecture,
        "dimension": str(card.dim),
        "heads": ", ".join(f"{head.name} ({head.dim})" for head in card.heads) or "-",
        "licence": card.licence_text,
        "sources": ", ".join(card.sources) or "-",
        "fingerprint": card.fingerprint[:16],
    }
    return Section("Model", [Table(("what", "value"), list(facts.items()))], "half")


def _examples_section(examples: Iterable[ExampleSearch], dataset: Dataset) -> Section:
    text = (
        "Each row: a query and its nearest neighbours, nearest first, with their cosine. Green: of the query's class; "
        "red and dashed: of another. The first four queries are drawn at random, the others among those whose nearest "
        "neighbour is of another class."
    )
    return Section("What it finds", [Paragraph(text), *(_thumbnails(example, dataset) for example in examples)])


def _thumbnails(example: ExampleSearch, dataset: Dataset) -> Thumbnails:
    def name(index: int) -> str:
        return dataset.classes[dataset.labels[index]]

    images = [ImageTile(_jpeg(dataset.images[example.query]), f"query: {name(example.query)}")]
    for index, similarity, hit in zip(example.neighbours, example.similarities, example.hits, strict=True):
        caption = f"{similarity:.2f} {name(index)}"
        images.append(ImageTile(_jpeg(dataset.images[index]), caption, "good" if hit else "bad"))
    return Thumbnails(images)


def _jpeg(image: ImageLike) -> bytes:
    small = open_image(image, draft=THUMBNAIL_SIZE).convert("RGB")
    small.thumbnail((THUMBNAIL_SIZE, THUMBNAIL_SIZE))
    file = BytesIO()
    small.save(file, "JPEG", quality=82)
    return file.getvalue()


def _map_section(rows: np.ndarray, dataset: Dataset, mapping: str) -> Section:
    shown = np.sort(np.random.default_rng(0).permutation(len(rows))[:MAP_POINTS])
    plane, text = _projection(rows[shown], mapping)
    groups, coloured = _colour_groups(dataset.labels[shown])
    picture = Picture(figures.embedding_map(plane, groups), "image/png", f"Map of {len(shown)} embeddings")
    legend = Legend([dataset.classes[label] for label in coloured], figures.COLOURS)
    text = f"{count(len(shown), 'image')}, {count(len(coloured), 'class')} in colour. {text}"
    return Section("Map of the embeddings", [picture, legend, Paragraph(text)], "tall")


def _projection(rows: np.ndarray, mapping: str) -> tuple[np.ndarray, str]:
    """Return the rows on a plane [n, 2] and a sentence about the projection."""
    if mapping == "tsne":
        return figures.tsne(rows), "t-SNE; distances between groups mean little."
    plane, share = figures.principal_components(rows)
    return plane, f"The two principal components; they hold {share:.0%} of the variance."


def _colour_groups(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the colour number of each label [n], -1 for grey, and the evenly spaced labels that have a colour."""
    classes = np.unique(labels)
    coloured = classes[np.unique(np.linspace(0, len(classes) - 1, len(figures.COLOURS)).astype(int))]
    places = np.searchsorted(coloured, labels)
    return np.where(np.isin(labels, coloured), places, -1), coloured


def _spectrum_section(rows: np.ndarray, split: str) -> Section:
    values = np.linalg.svd(rows.astype(np.float64), compute_uv=False)
    text = (
        f"Spectral decay {spectral_decay(rows):.3f} ({split_title(split)}): how far the singular values are from even "
        "(dashed); 0 where all directions are used alike. Revisiting measures it on training data."
    )
    picture = Picture(figures.spectrum(values), SVG, "Singular values of the embeddings")
    return Section("Singular values", [picture, Paragraph(text)], "half")


def _calibration_text(bins: list[Bin]) -> str:
    return (
        "The probability that a neighbour is of the query's class, by its similarity above the query's background (the "
        "mean similarity of its 21st to 50th neighbour): what was promised and what was "
        f"so, in tenths of it, of {count(sum(bin_.count for bin_ in bins), 'neighbour')}; on the dashed line the two "
        "agree. "
        f"Expected calibration error {expected_calibration_error(bins):.3f}. The curve was fitted to one half of the "
        "classes and judged on the other, and the other way round."
    )


def _history_sections(model: Embedder) -> list[Section]:
    series = recall_by_epoch(model.folder)
    if not series:
        return []
    text = "From the folder's log; validation is on classes held out of the training split."
    return [figure_section("R@1 by epoch", figures.curves(series), series, text)]


def _epoch_record(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and type(record.get("epoch")) is int else None

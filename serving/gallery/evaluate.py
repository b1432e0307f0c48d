"""Retrieval scores of a served gallery, step by step: torch, ONNX variants, vectors, index.

The models embed a data set. The gallery's steps search it with its own labelled items, exactly and through its index.
If the images of the data set are the gallery's items (same SHA-256), all steps compare the same images.
"""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from serving.gallery.calibration import (
    calibrate_pairs,
    calibration_json,
    known_pairs,
)
from serving.gallery.gallery import VectorGallery
from serving.gallery.index import NO_ROW
from serving.gallery.originals import Originals
from serving.gallery.search import Searcher
from serving.gallery.tune import drop_self, label_codes
from serving.gallery.types import DEFAULT_K, Block, Item, identify_items
from zoo.data.content import image_sha256
from zoo.data.dataset import Dataset
from zoo.data.preprocessing import to_pixels
from zoo.errors import EvaluationError, ImageError, check_at_least
from zoo.evaluation import PerQuery, intervals_over_classes, per_query
from zoo.evaluation.calibration import Bin, held_out_bins
from zoo.evaluation.evaluate import search_arguments
from zoo.evaluation.retrieval import measure_hits
from zoo.evaluation.statistics import SHARE, SIGNED, Bounds, class_scores, difference_over_classes, judge
from zoo.models.load import load
from zoo.models.names import find_model
from zoo.models.onnx_runtime import GRAPH_FILES

SAMPLE, SECONDS = 256, 10.0
"""Bounds of a check of the served model: number of images, and time."""

CANDIDATES = 10 * SAMPLE
"""Number of items whose image files are looked for."""

Pair = tuple[Item, np.ndarray, np.ndarray]
FACT = "evaluation"
"""Name under which the store keeps the last evaluation."""

METRIC_TITLES = {"recall_at_1": "R@1", "map_at_r": "MAP@R"}
METRICS = tuple(METRIC_TITLES)
"""Metrics that compare models."""

DEPTHS = (1, 5, 10)
"""The K of the reported R@K."""

_NAMES = (*(f"recall_at_{k}" for k in DEPTHS), "map_at_r")
NEIGHBOURS_AT_ONCE = 2**20
"""Number of neighbours held at a time, some 100 bytes each: MAP@R needs as many as a label has items."""


def served_model_report(searcher: Searcher) -> dict[str, Any]:
    """Compare stored embeddings with those that the served model computes today.

    Takes up to `SAMPLE` items whose image files still have their content, without items embedded by thumbnails.

    Returns:
        `least_cosine` between the two embeddings of an item, and `recall_at_1` of labelled items through the index by
        either; None where there are no such items. `not_measured` gives the reason.
    """
    model, pairs = searcher.embedder, _pairs(searcher)
    cosines = [float(stored @ now) for _, stored, now in pairs]
    labelled = [pair for pair in pairs if pair[0].label is not None]
    return {
        "runtime": model.runtime,
        "precision": model.precision,
        "device": model.device,
        "images": len(cosines),
        "least_cosine": min(cosines, default=None),
        "recall_at_1": _recalls(searcher, labelled) if labelled else None,
        "not_measured": None if cosines else "no image file of an item is where it was indexed",
    }


@dataclass(frozen=True)
class Step:
    """One measured step.

    Attributes:
        name: Runtime and precision, or index.
        of: What is measured: "data set" or "gallery".
        measured: The metrics of each query.
    """

    name: str
    of: str
    measured: PerQuery


def _model_steps(model: str, dataset: Dataset, with_torch: bool) -> Iterator[Step]:
    """Measure a data set as each runtime and precision of a model embeds it: torch, then the ONNX variants."""
    folder = find_model(model)
    variants = [("onnx", precision) for precision, file in GRAPH_FILES.items() if (folder / file).is_file()]
    for runtime, precision in [*([("torch", "fp32")] if with_torch else []), *variants]:
        embedder = load(folder, runtime=runtime, precision=precision)
        arguments = search_arguments(embedder.embed(dataset.images), dataset.labels, dataset)
        others = len(arguments["embeddings"]) - ("queries" not in arguments)
        measured = per_query(**arguments, k=_depths(others))
        yield Step(f"{embedder.runtime} {embedder.precision}", "data set", measured)


def gallery_steps(gallery: VectorGallery, queries: int = 2000) -> list[Step]:
    """Measure a gallery with at most `queries` of its labelled items: by exact search, then through its index.

    Items without a label can be found, but are not queries.

    Raises:
        EvaluationError: No two items share a label.
    """
    items = LabelledItems.of(gallery)
    block = items.vectors(items.ids[_sample(items.query_rows(), queries)])
    exact, indexed = (items.measure(block, exact) for exact in (True, False))
    kind = gallery.index.stats().kind
    return [Step("gallery, exact", "gallery", exact), Step(f"gallery, {kind} index", "gallery", indexed)]


def model_change_steps(
    before: VectorGallery, after: VectorGallery, queries: int = 2000, learnt: Collection[str] = ()
) -> list[Step]:
    """Measure two models of a gallery by exact search with the same at most `queries` items.

    Args:
        before: The gallery with the present model.
        after: The gallery with the new model.
        queries: Greatest number of queries.
        learnt: Labels that a model learnt from. Their items do not search, but are found.

    Raises:
        EvaluationError: No two items of both share a label (`too-few-samples`), or all labels are in `learnt`
            (`evaluation`).
    """
    old, new = LabelledItems.of(before), LabelledItems.of(after)
    shared = np.intersect1d(old.ids[old.query_rows()], new.ids[new.query_rows()])
    if not len(shared):
        raise EvaluationError(
            f"no two items of {before.address} that both models embed share a label.", code="too-few-samples"
        )
    if learnt:
        labels = before.store.content_labels()
        shared = np.array([item for item in shared.tolist() if labels[item] not in learnt], np.int64)
        if not len(shared):
            raise EvaluationError("a model learnt from all labels of the gallery.")
    ids = _sample(shared, queries)
    blocks = [items.vectors(ids) for items in (old, new)]
    both = np.intersect1d(blocks[0][0], blocks[1][0])
    steps = []
    for items, (present, vectors) in zip((old, new), blocks, strict=True):
        measured = items.measure((both, vectors[np.isin(present, both)]), exact=True)
        steps.append(Step(items.gallery.card.name, "gallery", measured))
    return steps


@dataclass(frozen=True)
class LabelledItems:
    """The images of a gallery as queries for one another.

    Attributes:
        gallery: The gallery.
        ids: All images, int64 [n], ascending, each of which counts once.
        codes: Class of each image, int64 [n]; -1 without a label, or if its items have several.
        relatives: Number of other images with the same label, int64 [n].
    """

    gallery: VectorGallery
    ids: np.ndarray
    codes: np.ndarray
    relatives: np.ndarray

    @classmethod
    def of(cls, gallery: VectorGallery) -> LabelledItems:
        """Read the labels of a gallery. Raises `EvaluationError` where no two items share a label."""
        ids = gallery.index.current().ids()
        codes = label_codes(gallery.store.content_labels(), ids)
        labelled = codes >= 0
        if not labelled.any():
            raise EvaluationError(f"{gallery.address} has no labelled items to measure it by.", code="no-labels")
        relatives = np.bincount(codes[labelled])[codes] - 1
        if not relatives[labelled].any():
            raise EvaluationError(
                f"no two items of {gallery.address} share a label, so no result is right or wrong.",
                code="too-few-samples",
            )
        return cls(gallery, ids, codes, relatives)

    def query_rows(self) -> np.ndarray:
        """Return the rows of items with relatives, int64, ascending."""
        return np.flatnonzero((self.codes >= 0) & (self.relatives > 0))

    def vectors(self, ids: np.ndarray) -> Block:
        """Return those of the ids that are still in the gallery, and their vectors."""
        return self.gallery.index.current().vectors_of(ids)

    def measure(self, queries: Block, exact: bool) -> PerQuery:
        """Return the metrics of queries that have relatives, each without itself among its neighbours.

        Raises:
            EvaluationError: There are no queries.
        """
        if not len(queries[0]):
            raise EvaluationError(f"{self.gallery.address} was emptied while it was measured. Measure it again.")
        rows, vectors = np.searchsorted(self.ids, queries[0]), queries[1]
        depth = int(self.relatives[rows].max())
        size = max(1, NEIGHBOURS_AT_ONCE // (depth + 1))
        parts = [slice(start, start + size) for start in range(0, len(rows), size)]
        pieces = [self._values(rows[part], vectors[part], depth, exact) for part in parts]
        values = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
        return PerQuery(values, rows, self.codes[rows], 0)

    def _values(self, rows: np.ndarray, vectors: np.ndarray, depth: int, exact: bool) -> dict[str, np.ndarray]:
        """Return metrics of some rows, float64 [q]: R@K of a search's results, the others at `depth`."""
        relatives = self.relatives[rows]
        nearest, deep = (self._hits(rows, vectors, k, exact) for k in (DEFAULT_K, depth))
        first = measure_hits(nearest, relatives, _depths(len(self.ids) - 1))
        recalls = {name: values for name, values in first.items() if name.startswith("recall_at_")}
        return {**measure_hits(deep, relatives, (1,)), **recalls}

    def _hits(self, rows: np.ndarray, vectors: np.ndarray, depth: int, exact: bool) -> np.ndarray:
        """Return whether each of the `depth` nearest others shares the query's label, bool [q, depth]."""
        k = min(depth, len(self.ids) - 1) + 1
        _, ids = self.gallery.neighbours(vectors, k, exact)
        # There are fewer where items were removed after the labels were read.
        ids = np.pad(ids, ((0, 0), (0, k - ids.shape[1])), constant_values=NO_ROW)
        neighbours = drop_self(ids, ids, self.ids[rows])
        places = np.minimum(np.searchsorted(self.ids, neighbours), len(self.ids) - 1)
        labelled = self.ids[places] == neighbours  # False for items added after the labels were read
        hits: np.ndarray = labelled & (self.codes[places] == self.codes[rows][:, None])
        return hits


def _in_order_of_items(dataset: Dataset, gallery: VectorGallery) -> Dataset | None:
    """Return the data set in the order of the gallery's items, with their labels.

    None unless its images are the gallery's items, by SHA-256, and all items are labelled.
    """
    labels, ids = gallery.store.content_labels(), gallery.store.ids_by_content()
    if not len(dataset) == len(ids) == len(labels) or None in labels.values():
        return None
    images = {image_sha256(image): image for image in dataset.images}
    if images.keys() != ids.keys():
        return None
    by_id = {ids[content]: image for content, image in images.items()}
    classes, codes = np.unique([label or "" for label in labels.values()], return_inverse=True)
    names = [str(item_id) for item_id in labels]
    ordered = [by_id[item_id] for item_id in labels]
    labelled = Dataset(dataset.name, dataset.split, ordered, codes.astype(np.int64), tuple(classes.tolist()), names)
    return replace(labelled, own_name=dataset.own_name)


def report(steps: Sequence[Step], joined: bool) -> list[dict[str, Any]]:
    """Return each step's metrics with intervals, and its loss since the previous and since the first step.

    The interval of a loss is of paired differences on the same queries, over classes; so are the verdicts
    (`zoo.evaluation.statistics.judge`).

    Args:
        steps: The steps in order.
        joined: Whether data set and gallery hold the same images; otherwise each is compared with itself only.
    """
    rows: list[dict[str, Any]] = []
    names = [name for name in _NAMES if all(name in step.measured.values for step in steps)]
    for number, step in enumerate(steps):
        before = [earlier for earlier in steps[:number] if joined or earlier.of == step.of]
        values = {name: step.measured.values[name] for name in names}
        rows.append(
            {
                "step": step.name,
                "of": step.of,
                "queries": len(step.measured.rows),
                "classes": len(np.unique(step.measured.classes)),
                "metrics": {name: float(value.mean()) for name, value in values.items()},
                "intervals": _intervals(values, step.measured.classes),
                "loss": _loss(before[-1], step, names) if before else None,
                "loss_in_all": _loss(before[0], step, names) if before else None,
            }
        )
    return rows


def measure(
    gallery: VectorGallery, model: str, dataset: Dataset | None, with_torch: bool | None = None, queries: int = 2000
) -> dict[str, Any]:
    """Return the report of `zoo benchmark served` as JSON.

    Args:
        gallery: The gallery.
        model: Name or folder of its model.
        dataset: A data set to measure the model on, if any.
        with_torch: Whether to measure with torch; None: where it is installed.
        queries: Greatest number of queries in the gallery.
    """
    torch_too = importlib.util.find_spec("torch") is not None if with_torch is None else with_torch
    same = _in_order_of_items(dataset, gallery) if dataset else None
    dataset, joined = same or dataset, same is not None
    steps = list(_model_steps(model, dataset, torch_too)) if dataset else []
    steps += gallery_steps(gallery, max(queries, gallery.store.count()) if joined else queries)
    return {
        "gallery": gallery.address,
        "items": gallery.store.count(),
        "model": gallery.card.name,
        "fingerprint": gallery.card.fingerprint,
        "dataset": dataset.name if dataset else None,
        "data": asdict(dataset.identity) if dataset else None,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "same_images": joined,
        "index": asdict(gallery.index.stats()),
        "index_recall_at_10": gallery.recall(DEFAULT_K),
        "steps": report(steps, joined),
    }


def evaluate_gallery(gallery: VectorGallery, served_model: dict[str, Any] | None = None) -> dict[str, Any]:
    """Measure a gallery, calibrate it, and keep both, and the comparison `served_model`, with it.

    Raises:
        EvaluationError: If no two items share a label.
    """
    steps = report(gallery_steps(gallery), joined=True)
    bins, not_calibrated = _calibrate(gallery)
    stats = gallery.store.stats()
    values = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "items": stats.items,
        "change": stats.change,
        "model": gallery.card.identity,
        "data": asdict(identify_items(gallery.address, gallery.store.contents())),
        "index_recall_at_10": gallery.recall(DEFAULT_K),
        "served_model": served_model,
        "steps": steps,
        "calibration": calibration_json(gallery),
        "not_calibrated": not_calibrated,
        "reliability": [asdict(reliability_bin) for reliability_bin in bins],
    }
    gallery.store.set_fact(FACT, json.dumps(values))
    return values


def last_evaluation(gallery: VectorGallery) -> dict[str, Any] | None:
    """Return the last evaluation that `evaluate_gallery` stored; None without one."""
    text = gallery.store.fact(FACT)
    return None if text is None else dict(json.loads(text))


def _calibrate(gallery: VectorGallery) -> tuple[list[Bin], str | None]:
    """Return the reliability of a new calibration, or the reason against one."""
    try:
        known = known_pairs(gallery)
        calibrate_pairs(gallery, known)
    except EvaluationError as error:
        return [], str(error)
    return held_out_bins(known.pairs), None


def _pairs(searcher: Searcher) -> list[Pair]:
    """Return items with their unit embeddings, float32 [dim]: the stored one, and today's by the served model."""
    store, deadline, pairs = searcher.gallery.store, time.monotonic() + SECONDS, list[Pair]()
    originals = Originals.of(searcher.gallery)
    items = {item.id: item for item in store.sample(CANDIDATES, seed=0)}
    small = store.from_thumbnails(list(items))
    for item_id, stored in zip(*store.embeddings([item for item in items if item not in small]), strict=True):
        data, how = originals.read(items[item_id]), searcher.embedder.preprocessing
        with suppress(ImageError):  # larger than this service accepts
            if data is not None:
                now = searcher.embedder.embed_pixels(to_pixels(data, how, searcher.limits)[None])[0]
                pairs.append((items[item_id], stored, now))
        if len(pairs) == SAMPLE or time.monotonic() > deadline:
            break
    return pairs


def _recalls(searcher: Searcher, labelled: Sequence[Pair]) -> dict[str, Any]:
    def recall(rows: list[np.ndarray]) -> float:
        found = [
            next((hit.label for hit in hits if not hit.shows(item.id)), None)
            for hits, (item, _, _) in zip(searcher.gallery.search(np.stack(rows), 2), labelled, strict=True)
        ]
        return float(np.mean([label == item.label for label, (item, _, _) in zip(found, labelled, strict=True)]))

    stored, served = [row for _, row, _ in labelled], [row for _, _, row in labelled]
    return {"images": len(labelled), "stored": recall(stored), "served": recall(served)}


def _sample(rows: np.ndarray, n: int) -> np.ndarray:
    check_at_least("queries", n, 1)
    return rows if len(rows) <= n else np.sort(np.random.default_rng(0).choice(rows, n, replace=False))


def _depths(others: int) -> tuple[int, ...]:
    """Return those of `DEPTHS` that this many neighbours can fill."""
    return tuple(k for k in DEPTHS if k <= others)


def _loss(before: Step, after: Step, names: Sequence[str]) -> dict[str, Any]:
    values = {name: before.measured.values[name] - after.measured.values[name] for name in names}
    return {
        "since": before.name,
        **{name: float(value.mean()) for name, value in values.items()},
        "intervals": _intervals(values, after.measured.classes, SIGNED),
        "verdicts": _verdicts(before, after, [name for name in METRICS if name in names]),
    }


def _verdicts(before: Step, after: Step, names: Sequence[str]) -> dict[str, str]:
    """Return whether the second step is better or worse than the first, by metric; the metrics are one family."""
    first, second = (class_scores(step.measured.values, step.measured.classes, names) for step in (after, before))
    verdicts = judge([difference_over_classes(first, second, name) for name in names], [None] * len(names))
    return {name: verdict.word for name, verdict in zip(names, verdicts, strict=True)}


def _intervals(values: dict[str, np.ndarray], classes: np.ndarray, bounds: Bounds = SHARE) -> dict[str, list[float]]:
    if len(np.unique(classes)) < 2:
        return {}
    return {name: list(ends) for name, ends in intervals_over_classes(values, classes, bounds).items()}

"""Retrieval scores of a served gallery, step by step: torch, ONNX variants, vectors, index.

The models embed a data set. The gallery's steps search it with its own labelled items, exactly and through its index.
If the images of the data set are the gallery's items (same SHA-256), all steps compare the same images.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from serving.gallery.gallery import Gallery
from serving.gallery.index import NO_ROW
from serving.gallery.indexing import Originals, folders_of
from serving.gallery.search import Searcher
from serving.gallery.tune import drop_self, label_codes
from serving.gallery.types import Block, Item, decode_image
from zoo.data.dataset import Dataset
from zoo.data.images import ImageLike
from zoo.errors import EvaluationError, ImageError, UsageError
from zoo.evaluation import PerQuery, bootstrap_intervals, per_query
from zoo.evaluation.evaluate import search_arguments
from zoo.evaluation.retrieval import measure_hits
from zoo.models.load import Embedder, find_model, load
from zoo.models.onnx_runtime import GRAPH_FILES

SAMPLE, SECONDS = 256, 10.0
"""So many images are embedded, and no more once that has taken so long."""

LOOKED_FOR = 10 * SAMPLE
"""Of so many items the image files are looked for."""

Pair = tuple[Item, np.ndarray, np.ndarray]
METRICS = ("recall_at_1", "map_at_r")
"""By which models are compared."""

DEPTHS = (1, 5, 10)
"""The K of the R@K that are told."""

_NAMES = (*(f"recall_at_{k}" for k in DEPTHS), "map_at_r")
SERVED_K = 10
"""The k that a search has by default: R@K is that of its first results."""

AT_ONCE = 2**20
"""So many neighbours are looked at in one go, each of some 100 bytes: a label of many items has as many to be found."""


def reproduced(searcher: Searcher) -> dict[str, Any]:
    """Of up to `SAMPLE` items whose image files have the content that they had: what the served model makes of them.

    least_cosine: of their stored embeddings to those of their files, embedded now. recall_at_1: of those that have a
    label, how many find another item of it nearest through the index, by the vectors stored and by those made now. None
    where there are none, and not_measured says so of the images. Items that were embedded by thumbnails are left out.
    """
    model, pairs = searcher.embedder, list(_pairs(searcher))
    cosines = [float(stored @ now) for _, stored, now in pairs]
    labelled = [pair for pair in pairs if pair[0].label is not None]
    return {
        "runtime": model.runtime,
        "precision": model.precision,
        "device": model.device,
        "images": len(cosines),
        "least_cosine": min(cosines, default=None),
        "recall_at_1": _recalls(searcher, labelled) if labelled else None,
        "not_measured": None if cosines else "none of the items' image files lies where it was indexed",
    }


@dataclass(frozen=True)
class Step:
    """One step of the way. of: what is measured, "data set" or "gallery"; measured: the metrics of each query."""

    name: str
    of: str
    measured: PerQuery


def model_steps(model: str, dataset: Dataset, with_torch: bool, batch_size: int = 64) -> Iterator[Step]:
    """The data set as each runtime and precision of the model folder embeds it: torch, then the ONNX variants."""
    for embedder in _variants(find_model(model), with_torch):
        rows = embedder.embed(dataset.images, batch_size)
        asked = search_arguments(rows, dataset.labels, dataset)
        others = len(asked["embeddings"]) - ("queries" not in asked)
        measured = per_query(**asked, k=_depths(others))
        yield Step(f"{embedder.runtime} {embedder.precision}", "data set", measured)


def gallery_steps(gallery: Gallery, queries: int = 2000) -> list[Step]:
    """The gallery searched by its labelled items, at most so many of them: exactly, then through its index.

    Items without a label are found but do not search. Raises `EvaluationError` where no two items share a label.
    """
    labelled = Labelled.of(gallery)
    asks = labelled.asking(labelled.ids[_some(labelled.can_ask(), queries)])
    exactly, indexed = (labelled.measured(asks, exact) for exact in (True, False))
    kind = gallery.index.stats().kind
    return [Step("gallery, exact", "gallery", exactly), Step(f"gallery, {kind} index", "gallery", indexed)]


def model_change_steps(before: Gallery, after: Gallery, queries: int = 2000) -> list[Step]:
    """The same items searched for by the same ones of them, at most so many, exactly, with each of two models.

    `after`: the gallery with its other model, which may lack items. Raises `EvaluationError` as `gallery_steps`.
    """
    old, new = Labelled.of(before), Labelled.of(after)
    shared = np.intersect1d(old.ids[old.can_ask()], new.ids[new.can_ask()])
    if not len(shared):
        raise EvaluationError(f"no two items of {before.path} that both models embed share a label.")
    asks = _some(shared, queries)
    asking = [one.asking(asks) for one in (old, new)]
    both = np.intersect1d(asking[0][0], asking[1][0])
    steps = []
    for one, (ids, vectors) in zip((old, new), asking, strict=True):
        measured = one.measured((both, vectors[np.isin(ids, both)]), exact=True)
        steps.append(Step(one.gallery.card.name, "gallery", measured))
    return steps


@dataclass(frozen=True)
class Labelled:
    """A gallery's items, as they search one another.

    ids: int64 [n], ascending; codes: int64 [n], the class, -1 for an item without a label; relatives: int64 [n], how
    many others share the label.
    """

    gallery: Gallery
    ids: np.ndarray
    codes: np.ndarray
    relatives: np.ndarray

    @classmethod
    def of(cls, gallery: Gallery) -> Labelled:
        """Raises `EvaluationError` where no two items share a label."""
        ids = gallery.index.current().ids()
        codes = label_codes(gallery.store.labels(), ids)
        labelled = codes >= 0
        if not labelled.any():
            raise EvaluationError(f"{gallery.path} has no labelled items to measure it by.")
        relatives = np.bincount(codes[labelled])[codes] - 1
        if not relatives[labelled].any():
            raise EvaluationError(
                f"no two items of {gallery.path} share a label, so nothing can be found right or wrong."
            )
        return cls(gallery, ids, codes, relatives)

    def can_ask(self) -> np.ndarray:
        """The rows that have a relative, int64, ascending."""
        return np.flatnonzero((self.codes >= 0) & (self.relatives > 0))

    def asking(self, ids: np.ndarray) -> Block:
        """Those of the ids that are still there, with their vectors."""
        return self.gallery.index.current().vectors_of(ids)

    def measured(self, asking: Block, exact: bool) -> PerQuery:
        """The metrics of items that have relatives, each left out of its own neighbours.

        Raises `EvaluationError` where none of them is left.
        """
        if not len(asking[0]):
            raise EvaluationError(f"{self.gallery.path} was emptied while it was measured. Measure it again.")
        asks, vectors = np.searchsorted(self.ids, asking[0]), asking[1]
        depth = int(self.relatives[asks].max())
        size = max(1, AT_ONCE // (depth + 1))
        parts = [slice(start, start + size) for start in range(0, len(asks), size)]
        pieces = [self._values(asks[part], vectors[part], depth, exact) for part in parts]
        values = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
        return PerQuery(values, asks, self.codes[asks], 0)

    def _values(self, asks: np.ndarray, vectors: np.ndarray, depth: int, exact: bool) -> dict[str, np.ndarray]:
        """Each metric of some of the rows, float64 [q]: R@K of what a search gives, the others `depth` deep."""
        relatives = self.relatives[asks]
        nearest, deep = (self._hits(asks, vectors, k, exact) for k in (SERVED_K, depth))
        first = measure_hits(nearest, relatives, _depths(len(self.ids) - 1))
        recalls = {name: values for name, values in first.items() if name.startswith("recall_at_")}
        return {**measure_hits(deep, relatives, (1,)), **recalls}

    def _hits(self, asks: np.ndarray, vectors: np.ndarray, depth: int, exact: bool) -> np.ndarray:
        """Whether each of the `depth` nearest others shares the query's label, bool [q, depth]."""
        wanted = min(depth, len(self.ids) - 1) + 1
        _, found = self.gallery.neighbours(vectors, wanted, exact)
        # There are fewer where items went since the labels were read.
        found = np.pad(found, ((0, 0), (0, wanted - found.shape[1])), constant_values=NO_ROW)
        others = drop_self(found, found, self.ids[asks])
        rows = np.minimum(np.searchsorted(self.ids, others), len(self.ids) - 1)
        known = self.ids[rows] == others  # not so for what was added since the labels were read
        hits: np.ndarray = known & (self.codes[rows] == self.codes[asks][:, None])
        return hits


def same_images(dataset: Dataset, gallery: Gallery) -> bool:
    """Whether the data set's images are exactly the gallery's items, by the SHA-256 of their files, all labelled."""
    contents = gallery.store.ids_by_content()
    if len(dataset) != len(contents) or None in gallery.store.labels().values():
        return False
    hashes = (_content(image) for image in dataset.images)
    return {content for content in hashes if content} == contents.keys()


def report(steps: Sequence[Step], joined: bool) -> list[dict[str, Any]]:
    """Each step's metrics with intervals over classes, what it loses since the step before, and since the first.

    A step loses only against steps over the same images. The interval of a loss is of paired differences: the same
    queries, classes resampled as in `zoo.evaluation.bootstrap_intervals`.
    """
    rows: list[dict[str, Any]] = []
    told = [name for name in _NAMES if all(name in step.measured.values for step in steps)]
    for number, step in enumerate(steps):
        before = [one for one in steps[:number] if joined or one.of == step.of]
        values = {name: step.measured.values[name] for name in told}
        rows.append(
            {
                "step": step.name,
                "of": step.of,
                "queries": len(step.measured.rows),
                "metrics": {name: float(value.mean()) for name, value in values.items()},
                "intervals": _intervals(values, step.measured.classes),
                "loss": _loss(before[-1], step, told) if before else None,
                "loss_in_all": _loss(before[0], step, told) if before else None,
            }
        )
    return rows


def measure(
    gallery: Gallery, model: str, dataset: Dataset | None, with_torch: bool | None = None, queries: int = 2000
) -> dict[str, Any]:
    """The whole report of `zoo benchmark served`, as JSON. with_torch: None takes torch where it is installed."""
    torch_too = importlib.util.find_spec("torch") is not None if with_torch is None else with_torch
    joined = dataset is not None and same_images(dataset, gallery)
    if dataset is not None and joined:
        dataset = _as_in(gallery, dataset)
    steps = list(model_steps(model, dataset, torch_too)) if dataset else []
    steps += gallery_steps(gallery, max(queries, gallery.store.count()) if joined else queries)
    return {
        "gallery": str(gallery.path),
        "items": gallery.store.count(),
        "model": gallery.card.name,
        "dataset": dataset.name if dataset else None,
        "same_images": joined,
        "index": asdict(gallery.index.stats()),
        "index_recall_at_10": gallery.recall(SERVED_K),
        "steps": report(steps, joined),
    }


def _pairs(searcher: Searcher) -> Iterator[Pair]:
    """Items with their unit embeddings, float32 [dim], as stored and as the served model makes them now."""
    gallery, ends, found = searcher.gallery, time.monotonic() + SECONDS, 0
    originals = Originals(folders_of(gallery))
    items = {item.id: item for item in gallery.store.sample(LOOKED_FOR, seed=0)}
    small = gallery.store.from_thumbnails(list(items))
    for item, stored in zip(*gallery.store.embeddings([one for one in items if one not in small]), strict=True):
        if (now := _embedded(searcher, originals.read(items[item]))) is not None:
            found += 1
            yield items[item], stored, now
        if found == SAMPLE or time.monotonic() > ends:
            return


def _embedded(searcher: Searcher, data: bytes | None) -> np.ndarray | None:
    try:
        pixels = None if data is None else decode_image(data, searcher.embedder.preprocessing, searcher.limits)[0]
    except ImageError:  # larger than this service takes
        return None
    return None if pixels is None else searcher.embedder.embed_pixels(pixels[None])[0]


def _recalls(searcher: Searcher, labelled: Sequence[Pair]) -> dict[str, Any]:
    def recall(rows: list[np.ndarray]) -> float:
        several = zip(searcher.gallery.search(np.stack(rows), 2), labelled, strict=True)
        nearest = [next((hit for hit in hits if hit.id != item.id), None) for hits, (item, _, _) in several]
        right = [
            hit is not None and hit.label == item.label for hit, (item, _, _) in zip(nearest, labelled, strict=True)
        ]
        return float(np.mean(right))

    stored, served = [row for _, row, _ in labelled], [row for _, _, row in labelled]
    return {"images": len(labelled), "stored": recall(stored), "served": recall(served)}


def _variants(folder: Path, with_torch: bool) -> Iterator[Embedder]:
    if with_torch:
        yield load(folder, runtime="torch")
    for precision, file in GRAPH_FILES.items():
        if (folder / file).is_file():
            yield load(folder, runtime="onnx", precision=precision)


def _some(rows: np.ndarray, n: int) -> np.ndarray:
    if n < 1:
        raise UsageError(f"queries must be at least 1, not {n}.")
    return rows if len(rows) <= n else np.sort(np.random.default_rng(0).choice(rows, n, replace=False))


def _as_in(gallery: Gallery, dataset: Dataset) -> Dataset:
    """The data set in the order of the gallery's items, with their labels."""
    by_content = {_content(image): number for number, image in enumerate(dataset.images)}
    contents = {item_id: content for content, item_id in gallery.store.ids_by_content().items()}
    labels = {item_id: label or "" for item_id, label in gallery.store.labels().items()}
    images = [dataset.images[by_content[contents[item_id]]] for item_id in labels]
    classes = tuple(sorted(set(labels.values())))
    codes = np.searchsorted(classes, list(labels.values())).astype(np.int64)
    return Dataset(dataset.name, dataset.split, images, codes, classes, [str(item_id) for item_id in labels])


def _content(image: ImageLike) -> str | None:
    """The SHA-256 (hex) of an image file; None for an image that is no file."""
    if isinstance(image, str | os.PathLike):
        return hashlib.sha256(Path(image).read_bytes()).hexdigest()
    return hashlib.sha256(image).hexdigest() if isinstance(image, bytes) else None


def _depths(others: int) -> tuple[int, ...]:
    """Those of `DEPTHS` that so many neighbours can fill."""
    return tuple(k for k in DEPTHS if k <= others)


def _loss(before: Step, after: Step, names: Sequence[str]) -> dict[str, Any]:
    values = {name: before.measured.values[name] - after.measured.values[name] for name in names}
    return {
        "since": before.name,
        **{name: float(value.mean()) for name, value in values.items()},
        "intervals": _intervals(values, after.measured.classes),
    }


def _intervals(values: dict[str, np.ndarray], classes: np.ndarray) -> dict[str, list[float]]:
    if len(np.unique(classes)) < 2:
        return {}
    return {name: list(bounds) for name, bounds in bootstrap_intervals(values, classes).items()}

"""Search by image: embed a query, find neighbours, filter, re-rank, calibrate."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from PIL import Image

from serving.gallery.feedback import MarkedPairs
from serving.gallery.filters import EVERYTHING, Filter
from serving.gallery.gallery import Gallery, model_at
from serving.gallery.tune import SearchableIndex, drop_self, label_codes, nearest_of_sample
from serving.gallery.types import Hit
from serving.metrics import stage
from zoo.data.images import DEFAULT_LIMITS, ImageLike, Limits, open_image
from zoo.data.preprocessing import to_pixels
from zoo.errors import EvaluationError, ModelFolderError, ModelNotFoundError, UsageError, VariantNotFoundError
from zoo.evaluation.calibration import Bin, Calibration, calibrate, held_out_probabilities, reliability_bins
from zoo.models.card import read_card
from zoo.models.golden import GOLDEN_FILE, read_golden
from zoo.models.load import Embedder, find_model, load
from zoo.models.onnx_runtime import graph_file
from zoo.models.results import GOLDEN_FLOORS
from zoo.models.text_tower import read_golden_text

FACT = "calibration"
NEIGHBOURS = 10
ENOUGH_MARKS = 20
"""So many marks suffice where there are no labels."""

NO_ERROR = (
    "not measured: that takes queries of at least four labels, or as many without one, and pairs of either half of "
    "them that a curve can be fitted to"
)
"""Why a calibration has no error."""

NONE, EXPANSION, RECIPROCAL = "none", "expansion", "reciprocal"
KINDS = (NONE, EXPANSION, RECIPROCAL)
DEFAULT_K = 10
EXPANDED_BY = 10
CANDIDATES = 200
"""How many of the nearest are re-ranked at least, whatever page is asked for, as cuts leave out some of them; by shared
neighbours so many alone, those behind them keep their order."""

Box = tuple[float, float, float, float]
logger = logging.getLogger(__name__)
MAX_DRAFT = 2**16
READY_SECONDS = 1.0


@dataclass(frozen=True)
class Pairs:
    """What is known of the gallery's own pairs: neighbours of labelled items, then the results that users marked.

    similarities: float32 [n]; same: bool [n], whether the two are of one class; classes: int64 [n], the class of the
    query, or a number of its own where that is not known. neighbours: how many of each labelled item, 0 without
    labels; marked: how many of the n were marked; left_out: how many marks are not among them, as another model
    measured them and their query was an image that was sent, which nobody has kept.
    """

    similarities: np.ndarray
    same: np.ndarray
    classes: np.ndarray
    neighbours: int
    marked: int
    left_out: int = 0


def calibrate_gallery(gallery: Gallery, queries: int = 2000) -> Calibration:
    """Fit the probability that a neighbour is of the query's class, and keep it; at most so many items search.

    Raises `EvaluationError` where labels and marks do not allow it: too few, or all alike, or nothing to do with
    similarity.
    """
    return calibrate_by(gallery, pairs_of(gallery, queries))


def calibrate_by(gallery: Gallery, pairs: Pairs) -> Calibration:
    """As `calibrate_gallery`, of pairs that are at hand."""
    fitted = calibrate(pairs.similarities, pairs.same, pairs.classes)
    fitted = replace(fitted, neighbours=pairs.neighbours, marked=pairs.marked)
    gallery.store.set_fact(FACT, json.dumps(fitted.to_json()))
    return fitted


def held_out_bins(pairs: Pairs) -> list[Bin]:
    """The reliability of p_same on queries of classes that it was not fitted to; none where that cannot be measured."""
    chances = held_out_probabilities(pairs.similarities, pairs.same, pairs.classes)
    return [] if chances is None else reliability_bins(chances, pairs.same)


def pairs_of(gallery: Gallery, queries: int = 2000) -> Pairs:
    """The nearest labelled others of at most so many labelled items, and all marked results.

    Raises `EvaluationError` where fewer than two items are labelled and there are not enough marks either.
    """
    index, labels = gallery.index.current(), gallery.store.labels()
    ids = index.ids()
    codes = label_codes(labels, ids)
    near, same, classes = _neighbours(index, ids[codes >= 0], codes[codes >= 0], queries)
    marks = gallery.store.marks.pairs()
    if not near.size and len(marks.same) < ENOUGH_MARKS:
        without = f" ({left_out_note(marks.left_out)})" if marks.left_out else ""
        raise EvaluationError(
            f"{gallery.path} has fewer than two labelled items, and {len(marks.same)} marked results{without}; "
            f"{ENOUGH_MARKS} marks would do without labels."
        )
    numbers = {labels.get(item): code for item, code in zip(ids.tolist(), codes.tolist(), strict=True) if code >= 0}
    marked = _classes_of(marks, numbers)
    return Pairs(
        np.concatenate([near.ravel(), marks.similarities]),
        np.concatenate([same.ravel(), marks.same]),
        np.concatenate([np.repeat(classes, near.shape[1]), marked]),
        near.shape[1],
        len(marked),
        marks.left_out,
    )


def left_out_note(count: int) -> str:
    return (
        f"{count:,} more left out: the model before measured them, and the images that were searched by are not kept; "
        "mark their results again"
    )


def calibration_of(gallery: Gallery) -> Calibration | None:
    """The one that was kept; None where the gallery was never calibrated."""
    text = gallery.store.fact(FACT)
    return None if text is None else Calibration.from_json(json.loads(text))


def told(calibration: Calibration | None) -> dict[str, Any] | None:
    """A calibration as answers give it, with the reason where its error was not measured."""
    if calibration is None:
        return None
    return {**calibration.to_json(), "error_not_measured": NO_ERROR if calibration.error is None else None}


def expanded(query: np.ndarray, neighbours: np.ndarray, alpha: float = 3.0) -> np.ndarray:
    """The unit vector of the query and its first neighbours, each weighted by its similarity to the power `alpha`.

    query: unit row [d]; neighbours: unit rows [m, d], the nearest first. The expanded query is searched with once more
    (Radenovic et al. 2019, Fine-tuning CNN Image Retrieval with No Human Annotation, section 3.5; alpha 0 is the
    average query expansion of Chum et al. 2007). Neighbours on the other side of the sphere have no weight.
    """
    weights = np.clip(neighbours @ query, 0, None) ** alpha
    total = query + weights @ neighbours
    return total / np.linalg.norm(total)


def k_reciprocal(query: np.ndarray, candidates: np.ndarray, k1: int = 20, k2: int = 6, keep: float = 0.3) -> np.ndarray:
    """Distances [m] of the candidates by the neighbours that they share with the query; smaller is nearer.

    query: unit row [d]; candidates: unit rows [m, d]. (1 - keep) times the Jaccard distance of k-reciprocal neighbours
    plus keep times the squared Euclidean distance (Zhong et al. 2017, Re-ranking Person Re-identification with
    k-reciprocal Encoding, equations 2 to 12; k1, k2 and keep are its section 4). The paper's gallery is the candidates
    here. O(m^2 d) time, O(m^2) memory.
    """
    rows = np.concatenate([query[None], candidates]).astype(np.float64)
    distances = np.clip(2 - 2 * rows @ rows.T, 0, None)
    np.fill_diagonal(distances, 0)
    order = np.argsort(distances, axis=1, kind="stable")
    members = _expanded_sets(order, min(k1, len(rows) - 1))
    weights = np.where(members, np.exp(-distances), 0.0)  # equation 7
    weights = np.stack([weights[nearest].mean(axis=0) for nearest in order[:, : min(k2, len(rows))]])  # equation 11
    shared = np.minimum(weights[0], weights[1:]).sum(axis=1)
    together = np.maximum(weights[0], weights[1:]).sum(axis=1)
    return (1 - keep) * (1 - shared / together) + keep * distances[0, 1:]


@dataclass(frozen=True)
class Ask:
    """Which of the nearest are wanted.

    k results from the `offset`-th on, of items that `chosen` lets through; `min_similarity` and `min_p` (of p_same)
    leave out less similar ones. crop: left, top, right, bottom of the image, as fractions of its sides. rerank: one of
    serving.gallery.search.KINDS.
    """

    k: int = DEFAULT_K
    offset: int = 0
    min_similarity: float | None = None
    min_p: float | None = None
    chosen: Filter = EVERYTHING
    crop: Box | None = None
    rerank: str = NONE


@dataclass(frozen=True)
class Reranked(Hit):
    """A hit in an order other than that of the similarity to the query; rerank_score: what it is in, descending."""

    rerank_score: float


def find(
    gallery: Gallery,
    embedding: np.ndarray,
    ask: Ask,
    leave_out: Sequence[int] = (),
    calibration: Calibration | None = None,
) -> list[Hit]:
    """embedding: unit row, float32 [1, dim]; calibration: the gallery's, without which `min_p` raises `UsageError`."""
    least = _least_similarity(ask, calibration)
    wanted = ask.offset + ask.k
    reranked = max(wanted, CANDIDATES)
    if ask.rerank == RECIPROCAL:
        hits = _by_shared_neighbours(gallery, embedding, ask, leave_out, reranked)
    elif ask.rerank == EXPANSION:
        hits = _by_expansion(gallery, embedding, ask, leave_out, reranked)
    else:
        hits = gallery.search(embedding, wanted, leave_out, selection=ask.chosen)[0]
    return [hit for hit in hits if hit.similarity >= least][ask.offset : wanted]


class Models:
    """Loaded models by their fingerprint; one that no searcher holds any more is let go. Safe to use from several
    threads.
    """

    def __init__(
        self, runtime: str = "onnx", precision: str = "fp32", device: str | None = None, or_fp32: bool = False
    ) -> None:
        """As `zoo.load` takes them. or_fp32: whether a model that has no variant of that precision is loaded in fp32:
        a gallery in use may be given such a model, and a slower answer is better than none.
        """
        self._runtime, self._precision, self._device, self._or_fp32 = runtime, precision, device, or_fp32
        self._lock = threading.Lock()
        self._loaded: WeakValueDictionary[str, Embedder] = WeakValueDictionary()

    @property
    def device(self) -> str:
        """What they run on, as `zoo.load` takes it for ONNX."""
        return self._device or "cpu"

    def of(self, gallery: Gallery, ref: str | None = None) -> Embedder:
        """The gallery's model; `ref`: its name or folder now, if it has moved."""
        try:
            return self.get(gallery.card.fingerprint, ref or gallery.model_ref)
        except ModelNotFoundError as error:
            if ref is not None:
                raise
            raise ModelNotFoundError(
                f"{error} It is the model of {gallery.path}; if it lies elsewhere now, name it: --model MODEL."
            ) from None

    def get(self, fingerprint: str, ref: str) -> Embedder:
        """The model of that fingerprint, where it is loaded; else what `ref` names."""
        with self._lock:
            found = self._loaded.get(fingerprint)
            if found is None:
                found = self._load(ref)
                self._loaded[found.card.fingerprint] = found
            return found

    def _load(self, ref: str) -> Embedder:
        try:
            return load(ref, self._runtime, self._precision, self._device)
        except VariantNotFoundError as error:
            if not self._or_fp32 or self._precision == "fp32":
                raise
            logger.warning("%s Until then it is served in fp32.", str(error))
            return load(ref, self._runtime, "fp32", self._device)


def check_variant(gallery: Path, model: str | None, precision: str) -> None:
    """Raise `VariantNotFoundError` where the model that a gallery has now lacks the ONNX variant.

    model: its name or folder now, if it has moved. Raises `UsageError` for a precision that there is not.
    """
    folder = find_model(model or model_at(gallery)[1])
    graph_file(folder, read_card(folder), precision)


class Searcher:
    """Finds the items of `gallery` nearest to an image. Safe to use from several threads with the ONNX runtime."""

    def __init__(self, gallery: Gallery, embedder: Embedder, limits: Limits = DEFAULT_LIMITS) -> None:
        """Raises `ModelMismatchError` unless the gallery was embedded by this very model."""
        gallery.check_model(embedder.card)
        self.gallery, self.embedder, self.limits = gallery, embedder, limits
        self._probe, self._expected = self._golden()
        self._looking, self._looked = threading.Lock(), (-math.inf, False)
        if not self.is_ready():
            raise ModelFolderError(
                f"{embedder.card.name} does not give its golden image the embedding it should. Check it: "
                f"zoo verify {embedder.folder}"
            )

    @classmethod
    def open(
        cls,
        path: str | Path,
        model: str | None = None,
        limits: Limits = DEFAULT_LIMITS,
        models: Models | None = None,
    ) -> Searcher:
        """Open a gallery and load its model, one of `models` where that has it already.

        model: where that model lies now, if it has moved. The gallery's index is searched on what they run on.
        """
        models = models or Models()
        gallery = Gallery.open(path, device=models.device)
        try:
            return cls(gallery, models.of(gallery, model), limits)
        except BaseException:
            gallery.close()
            raise

    def close(self) -> None:
        self.gallery.close()

    def embed(self, image: ImageLike, crop: Box | None = None) -> np.ndarray:
        """The image's unit embedding, float32 [1, dim]; of a part of it, where `crop` says so. Raises `ImageError`."""
        with stage("decode"):
            pixels = to_pixels(self._part(image, crop), self.embedder.preprocessing, self.limits)
        with stage("embed"):
            return self.embedder.embed_pixels(pixels[None])

    def embed_text(self, text: str) -> tuple[np.ndarray, bool]:
        """The text's unit embedding, float32 [1, dim], and whether its end was left out.

        Raises `NoTextTowerError` where the model embeds images alone, and `TextError` for a text with nothing in it.
        """
        with stage("embed"):
            tower = self.embedder.text_tower
            tokens = tower.tokens([text])
            return tower.embed(tokens), tokens.truncated[0]

    def check_texts(self) -> None:
        """Read the model's text tower, where it has one, which else the first query waits for, and try it.

        Raises `ModelFolderError` where a golden text does not get the embedding it should.
        """
        if self.embedder.card.text is None:
            return
        texts, expected = read_golden_text(self.embedder.folder)
        if float(self.embed_text(texts[0])[0][0] @ expected[0]) < GOLDEN_FLOORS["int8"]:
            raise ModelFolderError(
                f"{self.embedder.card.name} does not give its golden text the embedding it should. Check it: "
                f"zoo verify {self.embedder.folder}"
            )

    def by_image(self, image: ImageLike, k: int, chosen: Filter = EVERYTHING) -> list[Hit]:
        """The `k` items nearest to an image. Raises `ImageError`."""
        return self.search(self.embed(image), Ask(k, chosen=chosen))

    def by_item(self, item_id: int, k: int, chosen: Filter = EVERYTHING) -> list[Hit]:
        """The `k` items nearest to an item, itself left out. Raises `ItemNotFoundError`."""
        return self.search(self.gallery.store.embedding(item_id)[None], Ask(k, chosen=chosen), item_id)

    def by_text(self, text: str, k: int, chosen: Filter = EVERYTHING) -> tuple[list[Hit], bool]:
        """The `k` items nearest to a text, and whether its end was left out. Raises `TextError`."""
        embedding, truncated = self.embed_text(text)
        return self.search(embedding, Ask(k, chosen=chosen)), truncated

    def search(
        self, embedding: np.ndarray, ask: Ask, leave_out: int | None = None, calibration: Calibration | None = None
    ) -> list[Hit]:
        """What `ask` wants of the nearest to a unit row, float32 [1, dim]; the item `leave_out` is not among them.

        Raises `UsageError` for a `min_p` without the gallery's calibration.
        """
        with stage("find"):
            return find(self.gallery, embedding, ask, () if leave_out is None else (leave_out,), calibration)

    def is_ready(self) -> bool:
        """Whether a golden image still goes all the way: decoded, embedded to the vector it should be, searched.

        Anybody may ask, without a key and as often as they like; it is looked at once a second at most.
        """
        with self._looking:
            looked, was = self._looked
            if time.monotonic() - looked > READY_SECONDS:
                was = False
                try:
                    was = self._goes_all_the_way()
                finally:
                    self._looked = time.monotonic(), was
        return was

    def _goes_all_the_way(self) -> bool:
        embedding = self.embed(self._probe)
        self.gallery.search(embedding, 1)
        return float(embedding[0] @ self._expected) >= GOLDEN_FLOORS[self.embedder.precision]

    def _part(self, image: ImageLike, crop: Box | None) -> ImageLike:
        if crop is None:
            return image
        left, top, right, bottom = crop
        # As many pixels must be left of the part as the network wants of a whole image.
        draft = math.ceil(self.embedder.preprocessing.resize / min(right - left, bottom - top))
        whole = open_image(image, self.limits, min(draft, MAX_DRAFT))
        x, y = np.array([left, right]) * whole.width, np.array([top, bottom]) * whole.height
        box = int(x[0]), int(y[0]), max(int(x[0]) + 1, round(x[1])), max(int(y[0]) + 1, round(y[1]))
        return whole.crop(box)

    def _golden(self) -> tuple[bytes, np.ndarray]:
        """An image file and the embedding float32 [dim] it must have; without a golden file, the one it has now."""
        if (self.embedder.folder / GOLDEN_FILE).is_file():
            images, embeddings = read_golden(self.embedder.folder)
            return _png(images[0]), embeddings[0]
        noise = _png(np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8))
        return noise, self.embed(noise)[0]


def _neighbours(
    index: SearchableIndex, ids: np.ndarray, codes: np.ndarray, queries: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of some of the ids: similarities float32 [q, k], whether the neighbour shares the code [q, k], own codes [q]."""
    k = min(NEIGHBOURS, len(ids) - 1)
    if k < 1:
        return np.empty((0, 0), np.float32), np.empty((0, 0), bool), np.empty(0, np.int64)
    (asks, _), (similarities, found) = nearest_of_sample(len(ids), lambda rows: index.vectors_of(ids[rows]), k, queries)
    near, others = drop_self(similarities, found, asks), drop_self(found, found, asks)
    own = codes[np.searchsorted(ids, asks)]
    return near, codes[np.searchsorted(ids, others)] == own[:, None], own


def _classes_of(marks: MarkedPairs, numbers: dict[str | None, int]) -> np.ndarray:
    """The number of each query's label; of a query without a label one of its own."""
    own: dict[str, int] = {}
    first = max(numbers.values(), default=-1) + 1
    codes = [
        numbers[label] if label in numbers and label is not None else own.setdefault(query, first + len(own))
        for query, label in zip(marks.queries, marks.labels, strict=True)
    ]
    return np.array(codes, np.int64)


def _expanded_sets(order: np.ndarray, k: int) -> np.ndarray:
    """Bool [n, n]: row i marks R*(i, k), its k-reciprocal neighbours and those of theirs (equation 5)."""
    whole, half = _reciprocal(order, k), _reciprocal(order, max(1, k // 2))
    common = whole.astype(np.int32) @ half.T.astype(np.int32)
    taken = whole & (3 * common >= 2 * half.sum(axis=1))
    return whole | (taken.astype(np.int32) @ half.astype(np.int32) > 0)


def _reciprocal(order: np.ndarray, k: int) -> np.ndarray:
    """Bool [n, n]: both are among the other's `k` nearest; each is its own neighbour besides (equation 3)."""
    near = np.zeros(order.shape, bool)
    np.put_along_axis(near, order[:, : k + 1], True, axis=1)
    return near & near.T


def _by_expansion(gallery: Gallery, embedding: np.ndarray, ask: Ask, leave_out: Sequence[int], many: int) -> list[Hit]:
    """Nearest to the query and its neighbours together; `similarity` is to the query alone, as p_same is of that."""
    first = gallery.search(embedding, EXPANDED_BY, leave_out, selection=ask.chosen)[0]
    together = expanded(embedding[0], gallery.store.embeddings([hit.id for hit in first])[1])[None].astype(np.float32)
    hits = {hit.id: hit for hit in gallery.search(together, many, leave_out, selection=ask.chosen)[0]}
    present, vectors = gallery.store.embeddings(list(hits))
    similarities = np.clip(vectors.astype(np.float64) @ embedding[0].astype(np.float64), -1, 1)
    return [
        Reranked(**{**vars(hits[found]), "similarity": float(similarity)}, rerank_score=hits[found].similarity)
        for found, similarity in zip(present, similarities, strict=True)
    ]


def _by_shared_neighbours(
    gallery: Gallery, embedding: np.ndarray, ask: Ask, leave_out: Sequence[int], many: int
) -> list[Hit]:
    hits = gallery.search(embedding, many, leave_out, selection=ask.chosen)[0]
    nearest = {hit.id: hit for hit in hits[:CANDIDATES]}
    present, vectors = gallery.store.embeddings(list(nearest))
    if not present:
        return hits[CANDIDATES:]
    head, distances = [nearest[found] for found in present], k_reciprocal(embedding[0], vectors)
    order = np.argsort(distances, kind="stable")
    first = [Reranked(**vars(head[i]), rerank_score=float(1 - distances[i])) for i in order]
    return [*first, *hits[CANDIDATES:]]


def _least_similarity(ask: Ask, calibration: Calibration | None) -> float:
    least = -np.inf if ask.min_similarity is None else ask.min_similarity
    if ask.min_p is None:
        return least
    if calibration is None:
        raise UsageError(
            "min_p needs a calibration, which this gallery does not have. Label some items, or mark results, then: "
            "POST /evaluate, or zoo gallery calibrate."
        )
    return max(least, calibration.similarity_at(ask.min_p))


def _png(image: np.ndarray) -> bytes:
    out = BytesIO()
    Image.fromarray(image).save(out, "PNG")
    return out.getvalue()

"""Search of a gallery: `Searcher.find` embeds a query, finds its neighbours, re-ranks, calibrates, cuts, paginates."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, cast
from weakref import WeakValueDictionary

import numpy as np

from serving.gallery.calibration import background_of, stored_calibration
from serving.gallery.encoder import Encoder, Timer, untimed
from serving.gallery.filters import EVERYTHING, Filter
from serving.gallery.gallery import VectorGallery
from serving.gallery.index import NO_ROW, Index
from serving.gallery.query import QueryPart, SearchQuery
from serving.gallery.types import ALL_FIELDS, DEFAULT_K, LABEL, Block, Hit, Item, OtherItem, check_key, is_address
from zoo.data.images import DEFAULT_LIMITS, Limits
from zoo.errors import ItemNotFoundError, ModelNotFoundError, UsageError, VariantNotFoundError, command
from zoo.evaluation.calibration import DEPTH, Background, Calibration, background
from zoo.evaluation.relevance import LEAST_SAMPLE, LINE, SAMPLE, Spread, read_curve, spread_of
from zoo.evaluation.rerank.order import CANDIDATES, EXPANSION, NONE, SCORES
from zoo.evaluation.rerank.scores import NEIGHBOURS, expanded
from zoo.models.card import Card
from zoo.models.load import Embedder, load
from zoo.models.registry import reference

logger = logging.getLogger(__name__)
GROUPED = 10_000
"""Nearest images, beyond the places that a search asks for, among which it finds its groups: one may have a million."""
MIN_P_OF_PICTURES = "min_p is of pairs of images; use min_similarity for texts and for sums of several parts."
RENEWED, MOST_SPREADS = 0.1, 100_000
"""Changes of a gallery, as a share of its sample, after which another is drawn; images whose spread is kept (20 MB)."""


@dataclass(frozen=True)
class SearchOptions:
    """Options of a search.

    Attributes:
        k: Number of results.
        offset: Rank of the first result, from 0.
        min_similarity: Least cosine of a result.
        min_p: Least p_same of a result (`Hit`); needs the gallery's calibration.
        selection: Labels and metadata that results must have.
        group_by: "label" or a key of the metadata: of the items with one value only the nearest is a result. An image
            without a value is a group of its own. Groups are found among the nearest `GROUPED` images.
        fields: Keys of the metadata that results carry; `ALL_FIELDS` for all.
        rerank: A name of `zoo.evaluation.rerank.order.METHODS`. It looks at `CANDIDATES` items or more on any page,
            as cuts remove some.
    """

    k: int = DEFAULT_K
    offset: int = 0
    min_similarity: float | None = None
    min_p: float | None = None
    selection: Filter = EVERYTHING
    rerank: str = NONE
    group_by: str | None = None
    fields: Sequence[str] = ()


@dataclass(frozen=True)
class SearchResult:
    """The hits of a query, the best first.

    Attributes:
        truncated: For each part of the query, whether the model did not read the end of its text.
        items: For each part, the id of the item that it is.
        grouped: The number of nearest images among which groups were found, if they are fewer than asked for although
            the gallery has more images.
    """

    hits: list[Hit]
    truncated: tuple[bool, ...]
    items: tuple[int | None, ...]
    grouped: int | None = None


class _Embedded(NamedTuple):
    """Part of a query: its unit embedding float32 [1, dim], whether its text was truncated, and its item's id."""

    vector: np.ndarray
    truncated: bool = False
    item: int | None = None


class Searcher(Encoder):
    """A gallery together with its model. Safe to use from several threads with the ONNX runtime."""

    def __init__(
        self, gallery: VectorGallery, embedder: Embedder, limits: Limits = DEFAULT_LIMITS, timer: Timer = untimed
    ) -> None:
        """Bind a gallery, which the searcher closes, to its model, and try a golden image.

        Raises:
            ModelMismatchError: Another model embedded the gallery.
            ModelFolderError: The golden image does not get its embedding.
        """
        gallery.check_model(embedder.card, reference(embedder.folder))
        self.gallery = gallery
        self._curve, self._sample = read_curve(embedder.folder), _Sample(gallery)
        super().__init__(embedder, limits, timer)

    @classmethod
    def open(
        cls,
        path: str | Path,
        model: str | None = None,
        limits: Limits = DEFAULT_LIMITS,
        models: Models | None = None,
        timer: Timer = untimed,
    ) -> Searcher:
        """Open a gallery and load its model, which is `model` if it has moved.

        With `models` these are loaded once, and the index is searched on their device. `timer` is called around each
        stage of a search.
        """
        models = models or Models()
        gallery = VectorGallery.open(path, device=models.device)
        try:
            return cls(gallery, models.load_for(gallery, model), limits, timer)
        except BaseException:
            gallery.close()
            raise

    def close(self) -> None:
        self.gallery.close()

    def find(
        self, query: SearchQuery, options: SearchOptions, images: Mapping[int, np.ndarray] = MappingProxyType({})
    ) -> SearchResult:
        """Return a page of the items nearest to a query. Its own items are not among the results.

        Args:
            query: The query.
            options: The options.
            images: The embeddings, float32 [1, dim], of images that this searcher has embedded already, by the number
                of their part.

        Raises:
            ImageError: An image cannot be read.
            ItemNotFoundError: The gallery does not have an item, or no item with a key.
            NoTextTowerError: The model embeds images only.
            TextError: A text is empty.
            UsageError: `min_p` without a calibration or for another query than a picture, what cannot be a key, or
                parts that cancel one another out.
        """
        picture = query.picture
        # The calibration is fitted to pairs of images.
        calibration = None if picture is None else stored_calibration(self.gallery)
        if options.min_p is not None:
            _check_min_p(picture, calibration)
        parts = [
            _Embedded(images[number]) if number in images else self._embedded(part)
            for number, part in enumerate(query.parts)
        ]
        vector, items = query.combined([part.vector for part in parts]), tuple(part.item for part in parts)
        own = [item for item in items if item is not None]
        end = options.offset + options.k
        with self._timer("find"):
            hits, base, grouped = self._grouped_hits(own, vector, options, end, calibration is not None)
        if calibration is not None and base is not None:
            hits = _calibrated(hits, calibration, base, self._copy_of(picture))
        elif picture is not None and options.rerank == NONE:
            hits = self._judged(hits, vector, items[0])
        page = [hit for hit in hits if _is_likely(hit, options)][options.offset : end]
        truncated = tuple(part.truncated for part in parts)
        return SearchResult(self._with_metadata(page, options.fields), truncated, items, grouped)

    def _with_metadata(self, hits: list[Hit], fields: Sequence[str]) -> list[Hit]:
        """Return hits with the metadata under some keys; without keys unchanged."""
        if not fields:
            return hits
        items, chosen = self.gallery.store.items_by_id([hit.id for hit in hits]), set(fields)

        def metadata(item: Item) -> dict[str, Any]:
            return {key: value for key, value in item.metadata.items() if ALL_FIELDS in chosen or key in chosen}

        return [replace(hit, metadata=metadata(items[hit.id])) if hit.id in items else hit for hit in hits]

    def _grouped_hits(
        self, own: Sequence[int], vector: np.ndarray, options: SearchOptions, end: int, with_background: bool
    ) -> tuple[list[Hit], Background | None, int | None]:
        """Return the first `end` hits or more as `_ranked_hits` does; with `group_by` the nearest of each group.

        The third value is `SearchResult.grouped`.
        """
        depth = end if options.rerank == NONE else max(end, CANDIDATES)
        most = depth + GROUPED
        while True:
            hits, base = self._ranked_hits(own, vector, options, depth, with_background)
            if options.group_by is None:
                return hits, base, None
            groups = self._nearest_of_groups(hits, options)
            if len(groups) >= end or len(hits) < depth:
                return groups, base, None
            if depth == most:
                return groups, base, most
            depth = min(4 * depth, most)

    def _nearest_of_groups(self, hits: Sequence[Hit], options: SearchOptions) -> list[Hit]:
        """Return the first hit of each value that items of the hits have; an image without one is its own group."""
        shown = {hit.id: [hit.id, *(other.id for other in hit.also)] for hit in hits}
        items = self.gallery.store.items_by_id([item for ids in shown.values() for item in ids])
        seen: set[str] = set()
        groups = []
        for hit in hits:
            present = [items[item] for item in shown[hit.id] if item in items]
            values = {item.id: _group_of(item, str(options.group_by)) for item in present}
            groups += [hit] if all(value is None for value in values.values()) else []
            for item in present:
                name = json.dumps(values[item.id], sort_keys=True)
                if values[item.id] is None or name in seen:
                    continue
                seen.add(name)
                also = tuple(OtherItem(one.id, one.source, one.label, one.key) for one in present if one is not item)
                group = replace(hit, id=item.id, label=item.label, source=item.source, key=item.key)
                groups.append(replace(group, also=also, group=values[item.id]))
        return groups

    def _ranked_hits(
        self, own: Sequence[int], vector: np.ndarray, options: SearchOptions, depth: int, with_background: bool
    ) -> tuple[list[Hit], Background | None]:
        """Return the first `depth` hits or more, in order, and the query's background (None if not asked for).

        own: ids of the query's items, which are left out.
        """
        plain = with_background and not options.selection and options.rerank != EXPANSION

        def neighbours(of: np.ndarray, k: int) -> list[Hit]:
            return self.gallery.search(of, k, own, selection=options.selection)[0]

        if options.rerank == EXPANSION:
            wider = self._expanded_query(vector, neighbours(vector, NEIGHBOURS))
            return self._rescored(vector, neighbours(wider, depth)), self._background(own, vector, with_background)
        near = neighbours(vector, max(depth, DEPTH + 1) if plain else depth)
        hits = near if options.rerank == NONE else self._reordered(options.rerank, vector, near)
        if plain:  # the background is among these hits
            return hits, background(_similarities(near))
        return hits, self._background(own, vector, with_background)

    def _background(self, own: Sequence[int], vector: np.ndarray, wanted: bool) -> Background | None:
        return background_of(self.gallery, vector, own[0] if own else None) if wanted else None

    def no_line(self) -> str:
        """Return why the model's default curve does not tell which results are likely; "" if it does, or has none."""
        if self._curve is None:
            return ""
        if is_address(self.gallery.address):
            told = "a gallery in Milvus needs labels for it"
            return (
                f"which results are likely is not told: {told}. {command('gallery', 'calibrate', self.gallery.address)}"
            )
        images = len(_index_of(self.gallery))
        told = f"that takes {LEAST_SAMPLE} images, and the gallery holds {images}"
        return f"which results are likely is not told: {told}." if images < LEAST_SAMPLE else ""

    def _judged(self, hits: list[Hit], vector: np.ndarray, item: int | None) -> list[Hit]:
        """Return hits with `likely` by the model's default curve, if it has one and the gallery enough items."""
        spread = None if self._curve is None else self._sample.spread(vector[0], item)
        if self._curve is None or spread is None:
            return hits
        contrasts = spread.contrasts(_similarities(hits))
        likely = self._curve.likely(contrasts)  # by the query's background; theirs can only make fewer of it
        if likely:
            own = self._sample.spreads([hit.id for hit in hits[:likely]])
            if own is not None:
                contrasts[:likely] = np.minimum(contrasts[:likely], own.contrasts(_similarities(hits[:likely])))
            likely = self._curve.likely(contrasts)
        return [replace(hit, likely=rank < likely) for rank, hit in enumerate(hits)]

    def _copy_of(self, picture: QueryPart | None) -> int | None:
        """Return the item whose file has the bytes of the query's image, or of the file that it names."""
        if picture is None or not isinstance(picture.image, bytes | str | Path) or picture.crop is not None:
            return None
        data = picture.image if isinstance(picture.image, bytes) else Path(picture.image).read_bytes()
        item = self.gallery.store.item_of_content(hashlib.sha256(data).hexdigest())
        return item.id if item else None

    def _use(self, embedding: np.ndarray) -> None:
        self.gallery.search(embedding, 1)

    def _embedded(self, part: QueryPart) -> _Embedded:
        if part.text is not None:
            return _Embedded(*self.embed_text(part.text))
        if isinstance(part.item, str):
            item, vector = self._keyed_item(part.item)
            return _Embedded(vector, item=item)
        if part.item is not None:
            return _Embedded(self.gallery.store.embedding(part.item)[None], item=part.item)
        assert part.image is not None
        return _Embedded(self.embed(part.image, part.crop))

    def _keyed_item(self, key: str) -> tuple[int, np.ndarray]:
        """Return the id and the unit embedding, float32 [1, dim], of the item with a key."""
        check_key(key)
        while True:
            item = self.gallery.store.item_of_key(key).id
            try:
                return item, self.gallery.store.embedding(item)[None]
            except ItemNotFoundError:  # replaced or removed by another process
                continue

    def _expanded_query(self, vector: np.ndarray, neighbours: Sequence[Hit]) -> np.ndarray:
        """Return the query expanded by its neighbours, float32 [1, dim]."""
        _, vectors = self.gallery.store.embeddings([hit.id for hit in neighbours])
        return expanded(vector[0], vectors)[None].astype(np.float32)

    def _rescored(self, vector: np.ndarray, hits: Sequence[Hit]) -> list[Hit]:
        """Return hits of an expanded query; `similarity` is to the query itself, as p_same needs it."""
        by_id = {hit.id: hit for hit in hits}
        ids, vectors = self.gallery.store.embeddings(list(by_id))
        similarities = np.clip(vectors.astype(np.float64) @ vector[0].astype(np.float64), -1, 1).tolist()
        return [
            replace(by_id[item_id], similarity=similarity, rerank_score=by_id[item_id].similarity)
            for item_id, similarity in zip(ids, similarities, strict=True)
        ]

    def _reordered(self, method: str, vector: np.ndarray, hits: list[Hit]) -> list[Hit]:
        """Order the first `CANDIDATES` hits by a method of `zoo.evaluation.rerank.order.SCORES`."""
        found = dict(zip(*self.gallery.store.embeddings([hit.id for hit in hits[:CANDIDATES]]), strict=True))
        candidates = [hit for hit in hits[:CANDIDATES] if hit.id in found]
        if not candidates:
            return hits[CANDIDATES:]
        scores = SCORES[method](vector[0], np.stack([found[hit.id] for hit in candidates]))
        order = np.argsort(-scores, kind="stable")
        return [*(replace(candidates[i], rerank_score=float(scores[i])) for i in order), *hits[CANDIDATES:]]


class _Sample:
    """Vectors of a sample of a gallery's images, drawn evenly, and again after many changes. Threads may share it."""

    def __init__(self, gallery: VectorGallery) -> None:
        self._gallery, self._lock = gallery, threading.Lock()
        self._drawn: Block = np.empty(0, np.int64), np.empty((0, gallery.card.dim), np.float32)
        self._change, self._count, self._spreads = -1, 0, dict[int, tuple[float, float]]()

    def spread(self, vector: np.ndarray, exclude: int | None = None) -> Spread | None:
        """Return the spread of the similarities of a vector, float32 [dim], to all images but that of an item."""
        (ids, sample), _ = self._current()
        similarities = sample @ vector
        own = [] if exclude is None else list(self._gallery.store.contents_of([exclude]).values())
        return spread_of(similarities[ids != own[0]] if own else similarities)

    def spreads(self, items: Sequence[int]) -> Spread | None:
        """Return the spreads of the images of some items; None if one was removed. Each image is compared once."""
        (_, sample), known = self._current()
        contents = self._gallery.store.contents_of(items)
        if new := sorted(set(contents.values()) - known.keys()):
            ids, vectors = self._gallery.index.current().vectors_of(np.array(new))
            spread = spread_of(vectors @ sample.T)
            if spread is not None:
                pairs = zip(spread.mean.tolist(), spread.deviation.tolist(), strict=True)
                known |= dict(zip(ids.tolist(), pairs, strict=True))
        found = [known.get(contents.get(item, NO_ROW)) for item in items]
        return None if None in found else Spread(*np.array(found).T)

    def _current(self) -> tuple[Block, dict[int, tuple[float, float]]]:
        """Return the ids and vectors of the sample, and the spreads of images to it by id."""
        if is_address(self._gallery.address):  # all ids of a Milvus would be read
            return self._drawn, self._spreads
        index = _index_of(self._gallery)
        with self._lock:
            changes = max(index.change - self._change, abs(len(index) - self._count))  # one may concern many images
            if self._change < 0 or changes > RENEWED * len(self._drawn[0]):
                self._drawn, self._spreads = _drawn_evenly(index), {}
                self._change, self._count = index.change, len(index)
            if len(self._spreads) > MOST_SPREADS:
                self._spreads = {}
            return self._drawn, self._spreads


def _index_of(gallery: VectorGallery) -> Index:
    """Return the index of a gallery in a folder."""
    return cast(Index, gallery.index.current())


def _drawn_evenly(index: Index) -> Block:
    """Return the ids and vectors of `SAMPLE` images of an index, or of all."""
    ids = index.ids()
    rows = np.arange(min(SAMPLE, len(ids))) * len(ids) // max(1, min(SAMPLE, len(ids)))
    return index.vectors_of(np.sort(ids[rows]))


class Models:
    """Loaded models by fingerprint, each loaded once and released with its last searcher. Safe to use from threads."""

    def __init__(
        self, runtime: str = "onnx", precision: str = "fp32", device: str | None = None, or_fp32: bool = False
    ) -> None:
        """Set how models are loaded, as for `zoo.load`.

        or_fp32: a model without a variant of this precision is loaded in fp32. A gallery in use may be given such a
        model, and a slower answer is better than none.
        """
        self._runtime, self._precision, self._device, self._or_fp32 = runtime, precision, device, or_fp32
        self._lock = threading.Lock()
        self._loaded: WeakValueDictionary[str, Embedder] = WeakValueDictionary()

    @property
    def device(self) -> str:
        """The device of models and index, as `zoo.load` takes it for ONNX."""
        return self._device or "cpu"

    def load_for(self, gallery: VectorGallery, ref: str | None = None) -> Embedder:
        """Return the gallery's model; `ref`: its name or folder, if it has moved."""
        try:
            return self.load(gallery.card, ref or gallery.model_ref)
        except ModelNotFoundError as error:
            if ref is not None:
                raise
            origin = f"It is the model of {gallery.address}. If it has moved, name it with --model MODEL."
            raise ModelNotFoundError(f"{str(error).rstrip('.')}. {origin}") from None

    def load(self, card: Card, ref: str) -> Embedder:
        """Return the model of a card, in its dimension; load `ref` if it is not loaded yet."""
        with self._lock:
            embedder = self._loaded.get(card.fingerprint)
            if embedder is None:
                embedder = self.open(ref).matching(card)
                self._loaded[embedder.card.fingerprint] = embedder
            return embedder

    def open(self, ref: str) -> Embedder:
        """Load a model, by its name or folder."""
        try:
            return load(ref, self._runtime, self._precision, self._device)
        except VariantNotFoundError as error:
            if not self._or_fp32 or self._precision == "fp32":
                raise
            logger.warning("served in fp32: %s", str(error))
            return load(ref, self._runtime, "fp32", self._device)


def _check_min_p(picture: QueryPart | None, calibration: Calibration | None) -> None:
    if picture is None:
        raise UsageError(MIN_P_OF_PICTURES, code="min-p-without-picture")
    if calibration is None:
        raise UsageError(
            "min_p needs a calibration, which this gallery does not have. Label some items, then "
            "send POST /evaluate or run zoo gallery calibrate GALLERY.",
            code="no-calibration",
        )


def _similarities(hits: Sequence[Hit]) -> np.ndarray:
    return np.array([hit.similarity for hit in hits])


def _group_of(item: Item, group_by: str) -> Any:
    """Return the value by which an item is grouped."""
    return item.label if group_by == LABEL else item.metadata.get(group_by)


def _is_likely(hit: Hit, options: SearchOptions) -> bool:
    """Return whether a hit reaches `min_similarity` and `min_p`."""
    similar = options.min_similarity is None or hit.similarity >= options.min_similarity
    return similar and (options.min_p is None or (hit.p_same is not None and hit.p_same >= options.min_p))


def _calibrated(hits: Sequence[Hit], calibration: Calibration, base: Background, copy: int | None) -> list[Hit]:
    """Return hits with p_same, to four digits; `base` is the query's background, `copy` the item that is its file."""
    similarities = [hit.similarity for hit in hits]
    chances = calibration.probability(similarities, base.level, base.nearest).round(4).tolist()
    chances = [
        1.0 if copy is not None and hit.shows(copy) else chance for hit, chance in zip(hits, chances, strict=True)
    ]
    return [replace(hit, p_same=p, likely=p >= LINE) for hit, p in zip(hits, chances, strict=True)]

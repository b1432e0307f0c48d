"""From an embedding to the hits that were asked for: filters, cuts, pages, re-ranking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from serving.gallery import Gallery, Hit
from serving.gallery.filters import EVERYTHING, Filter
from serving.reranking import EXPANSION, NONE, RECIPROCAL, expanded, k_reciprocal
from zoo.errors import UsageError
from zoo.evaluation.calibration import Calibration

DEFAULT_K = 10
EXPANDED_BY = 10
CANDIDATES = 200
"""How many of the nearest are re-ranked at least, whatever page is asked for, as cuts leave out some of them; by shared
neighbours so many alone, those behind them keep their order."""


Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Ask:
    """Which of the nearest are wanted.

    k results from the `offset`-th on, of items that `chosen` lets through; `min_similarity` and `min_p` (of p_same)
    leave out less similar ones. crop: left, top, right, bottom of the image, as fractions of its sides. rerank: one of
    serving.reranking.KINDS.
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
        hits = gallery.search(embedding, wanted, leave_out, chosen=ask.chosen)[0]
    return [hit for hit in hits if hit.similarity >= least][ask.offset : wanted]


def _by_expansion(gallery: Gallery, embedding: np.ndarray, ask: Ask, leave_out: Sequence[int], many: int) -> list[Hit]:
    """Nearest to the query and its neighbours together; `similarity` is to the query alone, as p_same is of that."""
    first = gallery.search(embedding, EXPANDED_BY, leave_out, chosen=ask.chosen)[0]
    together = expanded(embedding[0], gallery.embeddings([hit.id for hit in first])[1])[None].astype(np.float32)
    hits = {hit.id: hit for hit in gallery.search(together, many, leave_out, chosen=ask.chosen)[0]}
    present, vectors = gallery.embeddings(list(hits))
    similarities = np.clip(vectors.astype(np.float64) @ embedding[0].astype(np.float64), -1, 1)
    return [
        Reranked(**{**vars(hits[found]), "similarity": float(similarity)}, rerank_score=hits[found].similarity)
        for found, similarity in zip(present, similarities, strict=True)
    ]


def _by_shared_neighbours(
    gallery: Gallery, embedding: np.ndarray, ask: Ask, leave_out: Sequence[int], many: int
) -> list[Hit]:
    hits = gallery.search(embedding, many, leave_out, chosen=ask.chosen)[0]
    nearest = {hit.id: hit for hit in hits[:CANDIDATES]}
    present, vectors = gallery.embeddings(list(nearest))
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

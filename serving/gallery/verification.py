"""Whether a gallery is whole: the store by itself, the index against the store, searches against exact search."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from serving.gallery.backends import backend_of
from serving.gallery.compaction import read_plan
from serving.gallery.gallery import STORE, Gallery
from serving.gallery.generation import NONE, check_hashes, read_facts
from serving.gallery.index import Index
from serving.gallery.items import Block, Reading, equal_blocks
from serving.gallery.measuring import nearest_in
from serving.gallery.milvus import MilvusIndex
from serving.gallery.rows import is_unit
from serving.gallery.store import Store
from zoo.errors import GalleryError, GalleryNotFoundError
from zoo.models.results import Check

QUERIES, K = 100, 10


def verify_gallery(path: Path) -> Iterator[Check]:
    """Every check of a gallery in turn, against writers at work too. Raises `GalleryNotFoundError`."""
    try:
        opened = Gallery.open(path)
    except GalleryNotFoundError:
        raise
    except GalleryError as error:
        yield Check("database", False, str(error))
        return
    with opened as gallery, Store(path / STORE).closing() as store:
        problems = store.problems()
        yield Check("database", not problems, "; ".join(problems) or f"{store.count():,} items")
        try:
            found = _compared(gallery, store)
        except GalleryError as error:
            yield Check("embeddings", False, str(error))
            return
        wrong = found.not_unit
        yield Check(
            "embeddings", wrong is None, "unit rows" if wrong is None else f"of item {wrong} not of unit length"
        )
        in_milvus = gallery.index_stats().kind == "milvus"
        yield _in_milvus(path, len(found.index.ids())) if in_milvus else _files(path, store)
        other = "holds other vectors than the store; run zoo gallery compact"
        yield Check("index", found.equal, f"holds change {found.number}" if found.equal else other)
        if len(found.queries):
            yield _exact(found)
        if gallery.index_stats().recall is not None:
            yield _recall(gallery, store)


@dataclass(frozen=True)
class _Compared:
    """Store and index after change `number`.

    not_unit: an item whose embedding is not of unit length; equal: whether the index holds what the store does;
    queries: float32 [q, dim], some of the store's; nearest: float32 [q, k], the similarities of their nearest in it.
    """

    number: int
    index: Index | MilvusIndex
    not_unit: int | None
    equal: bool
    queries: np.ndarray
    nearest: np.ndarray


def _compared(gallery: Gallery, store: Store) -> _Compared:
    for _ in range(100):
        index = gallery.index()
        with store.reading_since(0) as whole:
            if whole.number != index.change:
                continue
            found = _look_through(whole, index, store)
        # An index that processes share may have been written to.
        if found.equal or store.change() == found.number:
            return found
    raise GalleryError("the gallery is written to without a pause; verify it when it is quieter.")


def _look_through(whole: Reading, index: Index | MilvusIndex, store: Store) -> _Compared:
    """All of the store's vectors once, block by block."""
    wrong, equal, count = [], True, 0
    _, queries = store.embeddings([item.id for item in store.sample(QUERIES, seed=0)])
    queries = queries[is_unit(queries)]

    def good() -> Iterator[Block]:
        nonlocal equal, count
        for ids, vectors in whole.blocks:
            count += len(ids)
            equal = equal and equal_blocks(index.vectors_of(ids), (ids, vectors))
            unit = is_unit(vectors)
            wrong.extend(ids[~unit].tolist())
            yield ids[unit], vectors[unit]

    nearest, _ = nearest_in(good(), queries, K)
    equal = equal and count == len(index.ids())
    return _Compared(whole.number, index, min(wrong, default=None), equal, queries, nearest)


def _files(path: Path, store: Store) -> Check:
    name = store.position()[1]
    if not name or name.startswith(NONE):
        return Check("generation", None, "none was written yet; searches use the store's vectors")
    try:
        facts = read_facts(path / name)
        check_hashes(path / name, facts)
    except (OSError, ValueError, TypeError, KeyError) as error:
        if store.position()[1] != name:
            return _files(path, store)
        return Check("generation", False, f"{name}: {error}; run zoo gallery compact")
    return Check("generation", True, f"{name}, {facts.setting.kind}, {facts.count:,} vectors")


def _in_milvus(path: Path, count: int) -> Check:
    return Check("generation", None, f"there are no files of an index here; {backend_of(path)} holds {count:,} vectors")


def _exact(found: _Compared) -> Check:
    """Exact search of the gallery beside the exact core over the store's vectors."""
    got, _ = found.index.search(found.queries, K, exact=True)
    equal = got.shape == found.nearest.shape and bool(np.allclose(got, found.nearest, atol=1e-5))
    what = "equal" if equal else "differ from"
    return Check("search", equal, f"{len(found.queries)} searches {what} exact search of the store")


def _recall(gallery: Gallery, store: Store) -> Check:
    plan = read_plan(store)
    recall = gallery.recall(plan.k) or 1.0
    return Check(
        "recall", recall >= plan.recall - 0.01, f"{recall:.4f} of the {plan.k} nearest; tuned for {plan.recall}"
    )

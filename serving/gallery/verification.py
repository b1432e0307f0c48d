"""Whether a gallery is whole: the store by itself, the index against the store, searches against exact search."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from serving.gallery.backends import backend_of
from serving.gallery.compaction import read_plan
from serving.gallery.gallery import STORE, Gallery
from serving.gallery.generation import NONE, check_hashes, read_facts
from serving.gallery.items import Changes
from serving.gallery.store import Store
from zoo.errors import GalleryError, GalleryNotFoundError
from zoo.evaluation import nearest_neighbours
from zoo.verify import Check

QUERIES = 100


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
            content, ids, vectors = _same_moment(gallery, store)
        except GalleryError as error:
            yield Check("embeddings", False, str(error))
            return
        yield _unit(content)
        yield _files(path, store) if gallery.index_stats().kind != "milvus" else _in_milvus(path, len(ids))
        equal = np.array_equal(ids, content.ids) and np.array_equal(vectors, content.vectors)
        detail = (
            f"holds change {content.number}" if equal else "holds other vectors than the store; run zoo gallery compact"
        )
        yield Check("index", equal, detail)
        if len(ids):
            yield _exact(gallery, content)
        if gallery.index_stats().recall is not None:
            yield _recall(gallery, store)


def _same_moment(gallery: Gallery, store: Store) -> tuple[Changes, np.ndarray, np.ndarray]:
    """What the store holds, and what the index does, after the same change."""
    for _ in range(100):
        before = store.change()
        ids, vectors = gallery.vectors()
        content = store.changes_since(0)
        if content.number == before:
            return content, ids, vectors
    raise GalleryError("the gallery is written to without a pause; verify it when it is quieter.")


def _unit(content: Changes) -> Check:
    norms = np.linalg.norm(content.vectors.astype(np.float64), axis=1)
    wrong = content.ids[~(np.abs(norms - 1) < 1e-3)]
    return Check("embeddings", not len(wrong), f"of item {wrong[0]} not of unit length" if len(wrong) else "unit rows")


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


def _exact(gallery: Gallery, content: Changes) -> Check:
    """Exact search of the gallery beside the exact core over the store's vectors."""
    rows = np.random.default_rng(0).choice(len(content.ids), min(QUERIES, len(content.ids)), replace=False)
    k = min(10, len(content.ids))
    expected, _ = nearest_neighbours(content.vectors[rows], content.vectors, k)
    got, _ = gallery.neighbours(content.vectors[rows], k, exact=True)
    equal = got.shape == expected.shape and bool(np.allclose(got, expected, atol=1e-5))
    return Check(
        "search", equal, f"{len(rows)} searches {'equal' if equal else 'differ from'} exact search of the store"
    )


def _recall(gallery: Gallery, store: Store) -> Check:
    plan = read_plan(store)
    recall = gallery.recall(plan.k) or 1.0
    return Check(
        "recall", recall >= plan.recall - 0.01, f"{recall:.4f} of the {plan.k} nearest; tuned for {plan.recall}"
    )

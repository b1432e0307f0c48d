"""Vectors in blocks of any size: files, indexes and searches equal those of all vectors together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import faiss
import numpy as np
import pytest

from serving.gallery import VectorGallery, tune
from serving.gallery import store as gallery_store
from serving.gallery.backup import verify_gallery
from serving.gallery.gallery import STORE
from serving.gallery.index import Index, Segment, stored_vectors
from serving.gallery.index_files import EXACT, compact, open_generation
from serving.gallery.store import Store
from serving.gallery.tune import nearest_in_blocks, sample_index, sample_vectors
from serving.gallery.types import Block
from tests.raising import raises
from tests.serving.gallery.test_gallery import CARD, DIM, new_items, unit_rows
from tests.serving.gallery.test_index import clustered
from tests.serving.toys import content
from zoo.errors import GalleryError

KEPT = [n for n in range(1, 101) if n % 7]


@pytest.fixture(params=[1, 3, 30, 86, 1000])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Sizes of blocks that divide the number of vectors, and others."""
    monkeypatch.setattr(gallery_store, "BLOCK_ROWS", request.param)
    monkeypatch.setattr(tune, "BLOCK_BYTES", 4 * DIM * request.param)
    return int(request.param)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Gallery of items 1 to 100, of which every seventh was removed, in ten changes."""
    vectors = unit_rows(100)
    with VectorGallery.create(tmp_path / "g", CARD, "toy") as gallery:
        for start in range(0, 100, 10):
            gallery.add(new_items(vectors[start : start + 10], start))
            gallery.remove([n for n in range(start - 9, start + 1) if n > 0 and n % 7 == 0])
        gallery.remove([n for n in range(91, 101) if n % 7 == 0])
    return tmp_path / "g"


def kept_vectors() -> np.ndarray:
    return unit_rows(100)[np.array(KEPT) - 1]


def blocks_of(vectors: np.ndarray, ids: np.ndarray, size: int) -> Iterator[Block]:
    return ((ids[start : start + size], vectors[start : start + size]) for start in range(0, len(ids), size))


def test_blocks_contain_all_vectors(path: Path, block: int) -> None:
    with closing(Store(path / STORE)) as store:
        with store.stream_changes(0) as whole:
            read = list(whole.blocks)
        assert max(len(ids) for ids, _ in read) == min(block, len(KEPT))
        assert np.concatenate([ids for ids, _ in read]).tolist() == KEPT
        np.testing.assert_array_equal(np.concatenate([vectors for _, vectors in read]), kept_vectors())
        assert (whole.number, whole.count, whole.removed.tolist()) == (store.change(), len(KEPT), [])
        with store.stream_changes(9) as later:
            assert [n for ids, _ in later.blocks for n in ids.tolist()] == [n for n in KEPT if n > 50]
        assert sorted(later.removed.tolist()) == [n for n in range(1, 101) if n % 7 == 0 and n > 40]
        with store.stream_changes(store.change()) as nothing:
            assert list(nothing.blocks) == []


def test_blocks_are_of_one_moment(path: Path, block: int) -> None:
    with closing(Store(path / STORE)) as store, closing(Store(path / STORE)) as writer:
        with store.stream_changes(0) as whole:
            read = [next(iter(whole.blocks))]
            writer.remove(KEPT[-50:])
            writer.add(new_items(unit_rows(3, seed=9), 100))
            read += whole.blocks
        assert np.concatenate([ids for ids, _ in read]).tolist() == KEPT


def test_compaction_writes_the_file_of_faiss(path: Path, block: int) -> None:
    with closing(Store(path / STORE)) as store:
        facts = compact(path, store)
        assert facts is not None
        assert (facts.count, facts.change) == (len(KEPT), store.change())
        folder = path / store.position()[1]
        frozen, _ = open_generation(folder, store.fingerprint, store.dim)
    expected = faiss.IndexFlatIP(DIM)
    expected.add(kept_vectors())
    faiss.write_index(expected, str(path / "expected"))
    assert (folder / EXACT).read_bytes() == (path / "expected").read_bytes()
    assert frozen.ids.tolist() == KEPT
    np.testing.assert_array_equal(stored_vectors(frozen.exact), kept_vectors())


def test_gallery_without_a_generation_is_read_in_blocks(path: Path, block: int) -> None:
    with VectorGallery.open(path) as gallery:
        ids, vectors = content(gallery)
        assert (ids.tolist(), gallery.index.stats().waiting) == (KEPT, len(KEPT))
        np.testing.assert_array_equal(vectors, kept_vectors())
        gallery.add(new_items(unit_rows(5, seed=5), 100))
        gallery.remove(KEPT[::2])
        left = [*KEPT[1::2], *range(101, 106)]
        assert content(gallery)[0].tolist() == left
        gallery.index.compact()
        gallery.remove(left[:3])
        assert content(gallery)[0].tolist() == left[3:]
    with VectorGallery.open(path) as again:
        assert (again.index.stats().frozen, again.index.stats().waiting) == (len(left), 3)
        assert content(again)[0].tolist() == left[3:]
    assert [check for check in verify_gallery(path) if check.ok is False] == []


def test_vectors_of_some_ids(path: Path) -> None:
    with VectorGallery.open(path) as gallery:
        gallery.index.compact()
        gallery.add(new_items(unit_rows(2, seed=5), 100))
        gallery.remove([1, 101])
        ids, vectors = gallery.index.current().vectors_of(np.array([0, 1, 7, 8, 99, 101, 102, 999]))
        assert ids.tolist() == [8, 99, 102]
        np.testing.assert_array_equal(vectors, [*unit_rows(100)[[7, 98]], unit_rows(2, seed=5)[1]])
        assert gallery.index.current().vectors_of(np.empty(0, np.int64))[1].shape == (0, DIM)


@pytest.mark.parametrize("k", [1, 5, 40, 90])
def test_nearest_in_blocks_equals_a_naive_search(k: int) -> None:
    """Twins too: of equal ones the first, whichever block they are in. Against a naive float64 loop."""
    vectors = np.concatenate([clustered(60), clustered(30)])
    ids, queries = np.arange(3, 3 + 2 * 90, 2), clustered(4, seed=3)
    products = [[float(q.astype(np.float64) @ v.astype(np.float64)) for v in vectors] for q in queries]
    expected = [ids[sorted(range(90), key=lambda i: (-np.float32(row[i]), i))[:k]].tolist() for row in products]
    for size in (1, 7, 30, 90, 100):
        similarities, found = nearest_in_blocks(blocks_of(vectors, ids, size), queries, k)
        assert found.tolist() == expected
        np.testing.assert_allclose(similarities, -np.sort(-np.array(products), axis=1)[:, :k], atol=1e-6)
    assert nearest_in_blocks([], queries, k)[1].shape == (4, 0)
    assert nearest_in_blocks(blocks_of(vectors, ids, 7), queries[:0], k)[1].shape == (0, 0)


def test_sample_does_not_depend_on_blocks(block: int) -> None:
    vectors, ids = clustered(200), np.arange(10, 10 + 3 * 200, 3)
    exact = faiss.IndexFlatIP(DIM)
    exact.add(vectors)
    index = Index(DIM)
    index._new = Segment(exact, ids)
    products = vectors.astype(np.float64) @ vectors.T.astype(np.float64)
    np.fill_diagonal(products, -np.inf)
    for sample in (sample_vectors(ids, vectors, 5, queries=50), sample_index(index, 5, queries=50)):
        assert sample is not None
        own = (sample.ids - 10) // 3
        np.testing.assert_array_equal(sample.vectors, vectors[own])
        np.testing.assert_allclose(sample.kth, -np.sort(-products[own], axis=1)[:, 4], atol=1e-6)


def test_verify_finds_damage_in_any_block(path: Path, block: int) -> None:
    with VectorGallery.open(path) as gallery:
        gallery.index.compact()
    with closing(Store(path / STORE)) as store, store.database.transaction() as db:
        db.execute(
            "UPDATE embeddings SET embedding = ? WHERE content = 50", (np.full(DIM, np.nan, np.float32).tobytes(),)
        )
    checks = {check.name: check for check in verify_gallery(path)}
    assert (checks["embeddings"].ok, checks["index"].ok) == (False, False)
    assert checks["embeddings"].detail == "that of item 50 has not unit length"
    with closing(Store(path / STORE)) as store:
        with store.database.transaction() as db:
            db.execute("UPDATE embeddings SET embedding = x'00' WHERE content = 51")
        with raises(GalleryError, "damaged-gallery"):
            compact(path, store)
        assert not list(path.glob(".index-*"))
        generation = store.position()[1]
    assert [folder.name for folder in path.glob("index-*")] == [generation]

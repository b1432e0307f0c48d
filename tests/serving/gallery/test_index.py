"""Kinds of index: neighbours, removals, tuning."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.gallery import VectorGallery, index_files
from serving.gallery.gallery import STORE
from serving.gallery.index import KINDS, FrozenIndex, Index, IndexSetting, build_index, find_kind
from serving.gallery.index_files import EXACT, IDS, TuningPlan, compact
from serving.gallery.store import Store
from serving.gallery.tune import IndexMeasurement, measure_kind, measure_recall, sample_vectors
from serving.gallery.types import StoreChanges
from tests.raising import raises
from tests.serving.gallery.test_gallery import CARD, DIM, new_items
from tests.serving.running import ROOT
from tests.serving.toys import content
from zoo.errors import UsageError

N = 1200


def clustered(n: int = N, dim: int = DIM, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(40, dim))[rng.integers(40, size=n)] + 0.3 * rng.normal(size=(n, dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def frozen_of(name: str, vectors: np.ndarray, setting: IndexSetting) -> FrozenIndex:
    exact, approximate = (
        build_index(KINDS["flat"], vectors),
        None if name == "flat" else build_index(KINDS[name], vectors),
    )
    return FrozenIndex(exact, np.arange(10, 10 + 3 * len(vectors), 3), approximate, setting)


def thorough(name: str) -> IndexSetting:
    return IndexSetting(name, KINDS[name].efforts[-1], KINDS[name].shortlists[-1])


def naive(vectors: dict[int, np.ndarray], query: np.ndarray, k: int) -> list[int]:
    products = {i: float(v.astype(np.float64) @ query.astype(np.float64)) for i, v in vectors.items()}
    return sorted(products, key=lambda i: (-products[i], i))[:k]


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_equals_a_naive_search(name: str) -> None:
    """Compare a thorough setting as built, with removals, and with added vectors."""
    vectors, queries = clustered(), clustered(6, seed=7)
    vectors_by_id = dict(zip(range(10, 10 + 3 * N, 3), vectors, strict=True))
    index = Index(DIM, frozen_of(name, vectors, thorough(name)), change=5)
    for step in range(3):
        _, ids = index.search(queries, 8)
        assert ids.tolist() == [naive(vectors_by_id, query, 8) for query in queries]
        gone = ids[:, :4].ravel()
        new = {20_000 + 100 * step + i: row for i, row in enumerate(clustered(30, seed=step + 1))}
        vectors_by_id = {i: v for i, v in vectors_by_id.items() if i not in gone} | new
        changes = StoreChanges(
            6 + step, len(vectors_by_id), np.unique(gone), [(np.array(list(new)), np.stack(list(new.values())))]
        )
        index.apply(changes)
        assert len(index) == len(vectors_by_id) == changes.count
    ids, rows = content(index)
    assert ids.tolist() == list(vectors_by_id)
    np.testing.assert_array_equal(rows, np.stack(list(vectors_by_id.values())))


@pytest.mark.parametrize("name", KINDS)
def test_fast_settings_fill_every_place_with_exact_similarities(name: str) -> None:
    vectors, queries = clustered(), clustered(6, seed=7)
    fast = IndexSetting(name, KINDS[name].efforts[0], 1)
    index = Index(DIM, frozen_of(name, vectors, fast))
    for k in (1, 10, 40, 41, N, 2 * N):
        similarities, ids = index.search(queries, k)
        assert ids.shape == (6, min(k, N))
        assert all(len(set(row)) == len(row) for row in ids.tolist())
        products = np.einsum("qd,qkd->qk", queries.astype(np.float64), vectors[(ids - 10) // 3].astype(np.float64))
        np.testing.assert_allclose(similarities, products, atol=1e-6)
        assert (np.diff(similarities, axis=1) <= 0).all()
    _, exact = index.search(queries, 5, exact=True)
    vectors_by_id = dict(zip(range(10, 10 + 3 * N, 3), vectors, strict=True))
    assert exact.tolist() == [naive(vectors_by_id, query, 5) for query in queries]


def test_recall_equals_a_naive_count() -> None:
    vectors, k = clustered(), 5
    index = Index(DIM, frozen_of("ivf-pq", vectors, IndexSetting("ivf-pq", 1, 1)))
    sample = sample_vectors(np.arange(10, 10 + 3 * N, 3), vectors, k, queries=40)
    assert sample
    vectors_by_id = dict(zip(range(10, 10 + 3 * N, 3), vectors, strict=True))
    found = 0
    for own, query in zip(sample.ids.tolist(), sample.vectors, strict=True):
        others = [i for i in naive(vectors_by_id, query, k + 1) if i != own][:k]
        _, (got,) = index.search(query[None], k + 1)
        found += len(set(others) & set(got.tolist()))
    assert measure_recall(index, sample) == pytest.approx(found / (40 * k), abs=0.011)
    assert measure_recall(index, sample) < 1
    assert measure_recall(Index(DIM, frozen_of("flat", vectors, IndexSetting())), sample) == 1


def test_recall_of_duplicates_and_of_few_vectors() -> None:
    twins = np.repeat(clustered(3), 100, axis=0)
    sample = sample_vectors(np.arange(300), twins, 10, queries=50)
    assert sample
    np.testing.assert_allclose(sample.kth, 1, atol=1e-6)
    exact = build_index(KINDS["flat"], twins)
    assert measure_recall(Index(DIM, FrozenIndex(exact, np.arange(300))), sample) == 1
    assert sample_vectors(np.arange(1), clustered(1), 10) is None
    two = sample_vectors(np.arange(2), clustered(2), 10)
    assert two is not None
    assert two.k == 1
    assert measure_kind("ivf-pq", FrozenIndex(exact, np.arange(300)), twins, sample, 0.5) is None, "too small"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with VectorGallery.create(tmp_path / "g", CARD, "toy") as gallery:
        gallery.add(new_items(clustered(400)))
    return tmp_path / "g"


def test_tuning_chooses_a_fast_kind_with_the_recall(path: Path) -> None:
    with VectorGallery.open(path) as gallery:
        facts, rows = gallery.index.tune(0.9, 5, ["hnsw", "ivf-pq"])
        measured = dict(rows)
        assert list(measured) == ["flat", "hnsw", "ivf-pq"]
        assert measured["ivf-pq"] is None, "too few vectors"
        assert measured["flat"] is not None
        assert measured["flat"].recall == 1
        assert facts is not None
        hnsw = measured["hnsw"]
        assert hnsw is not None
        best = hnsw if hnsw.milliseconds < 0.9 * measured["flat"].milliseconds else measured["flat"]
        stats = gallery.index.stats()
        assert (stats.kind, stats.recall, stats.k) == (best.setting.kind, best.recall, 5)
        assert stats.frozen == 400
        assert stats.bytes > 400 * DIM * 4
    with VectorGallery.open(path) as again:
        assert again.index.stats() == stats
        with raises(UsageError, "invalid-value", "1.2"):
            again.index.tune(1.2)
        with raises(UsageError, "unknown-name", "hnsw"):
            again.index.tune(0.9, kinds=["hnws"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("milliseconds", "chosen"),
    [
        ({"flat": 1.0, "flat-fp16": 0.95, "hnsw": 0.91}, "flat"),  # nearly as fast: exact search stays
        ({"flat": 1.0, "flat-fp16": 0.95, "hnsw": 0.89}, "hnsw"),
        ({"flat": 1.0, "flat-fp16": 0.5, "hnsw": 0.46}, "flat-fp16"),
        ({"flat": 1.0, "flat-fp16": 0.5, "hnsw": 0.44}, "hnsw"),
        ({"flat": 1.0, "hnsw": 2.0}, "flat"),
    ],
)
def test_simplest_of_nearly_equal_kinds_is_chosen(
    path: Path, monkeypatch: pytest.MonkeyPatch, milliseconds: dict[str, float], chosen: str
) -> None:
    def measured(name: str, *args: Any) -> tuple[FrozenIndex, IndexMeasurement]:
        found = measure_kind(name, *args)
        assert found is not None
        return found[0], replace(found[1], milliseconds=milliseconds[name])

    monkeypatch.setattr(index_files, "measure_kind", measured)
    with VectorGallery.open(path) as gallery:
        facts, rows = gallery.index.tune(0.5, 5, list(reversed(milliseconds)))
        assert [name for name, _ in rows] == list(milliseconds), "the simplest first"
        assert facts is not None
        assert facts.setting.kind == gallery.index.stats().kind == chosen


def test_compaction_keeps_the_kind_and_its_recall(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with VectorGallery.open(path) as gallery, closing(Store(path / STORE)) as store:
        store.set_state("plan", '{"kind": "hnsw", "recall": 0.95, "k": 5}')
        gallery.add(new_items(clustered(200, seed=3), 400))
        facts = compact(path, store)
        assert facts is not None
        assert (facts.setting.kind, facts.count) == ("hnsw", 600)
        assert facts.recall is not None
        assert facts.recall >= 0.95
        assert gallery.index.stats().kind == "hnsw"
        gallery.remove(range(1, 550))
        assert len(gallery.search(clustered(1), 100)[0]) == 51
        gallery.index.compact()
        assert gallery.index.stats().kind == "flat"
        assert "no hnsw index of these 51 vectors" in caplog.text
        gallery.remove(range(550, 601))
        assert gallery.index.compact() is None
        assert not list(path.glob("index-*"))
        assert gallery.search(clustered(1), 3) == [[]]


def test_files_open_with_faiss_and_numpy_alone(path: Path) -> None:
    import faiss

    with VectorGallery.open(path) as gallery:
        gallery.index.compact()
        folder = path / gallery.index.stats().generation
        expected = [hit.id for hit in gallery.search(clustered(1, seed=5), 9)[0]]
    _, rows = faiss.read_index(str(folder / EXACT)).search(clustered(1, seed=5), 9)
    assert np.load(folder / IDS)[rows[0]].tolist() == expected


def test_unknown_kind_is_refused() -> None:
    assert find_kind("hnsw") is KINDS["hnsw"]
    with raises(UsageError, "unknown-name", "lsh", *KINDS):
        find_kind("lsh")
    assert TuningPlan().kind == "flat"


@pytest.mark.slow
def test_search_works_with_patched_faiss() -> None:
    """Use a process of its own, because torch_utils patches FAISS for the whole process."""
    code = (
        "import faiss, faiss.contrib.torch_utils, numpy as np\n"
        "from serving.gallery.index import Segment\n"
        "rows = np.eye(4, dtype=np.float32)\n"
        "index = faiss.IndexFlatIP(4); index.add(rows)\n"
        "segment = Segment(index, np.arange(4)); segment.remove(np.array([2]))\n"
        "print(segment.search(rows[[2, 1]], 1)[1].ravel().tolist()[1])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.stdout, done.returncode) == ("1\n", 0), done.stderr

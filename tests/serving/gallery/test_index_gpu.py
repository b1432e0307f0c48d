"""Search on a GPU finds the neighbours of the CPU, with removed rows and with a failing GPU.

Only the GPU is not real. A flat index of FAISS takes its place, with the documented limits of one on a GPU (no selector
of rows, at most 2,048 neighbours, one caller at a time) and with slightly different sums.
"""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.gallery import VectorGallery
from serving.gallery.index import FLAT, GPU_MAX_K, Index, stored_vectors
from serving.gallery.search import Models, Searcher
from serving.gallery.types import StoreChanges
from tests.serving.gallery.test_gallery import CARD, DIM, expected, new_items, unit_rows
from tests.serving.gallery.test_index import clustered, frozen_of, naive, thorough
from zoo.models.load import load


class Copy:
    """FAISS's index on a GPU."""

    searches = 0
    fails = wrong = False
    busy = threading.Lock()

    def __init__(self, resources: Any, number: int, exact: faiss.Index) -> None:
        rows = np.array(stored_vectors(exact))
        if resources.room < rows.nbytes:
            raise RuntimeError("Error in virtual void* faiss::gpu::StandardGpuResourcesImpl::allocMemory")
        assert 0 <= number < faiss.get_num_gpus()
        noise = np.random.default_rng(0).normal(size=rows.shape).astype(np.float32)
        self._index = faiss.IndexFlatIP(exact.d)
        self._index.add(noise if Copy.wrong else rows + 1e-7 * noise)

    def search_c(self, n: int, given: Any, k: int, out: Any, found: Any, parameters: Any) -> None:
        assert parameters is None, "a GPU's flat index takes no selector"
        assert k <= 2048
        assert Copy.busy.acquire(blocking=False), "one caller at a time"
        try:
            Copy.searches += 1
            if Copy.fails:
                raise RuntimeError("CUDA error 700 an illegal memory access was encountered")
            self._index.search_c(n, given, k, out, found, None)
        finally:
            Copy.busy.release()


class Resources:
    room = 2**40

    def setTempMemory(self, size: int) -> None:  # noqa: N802  # FAISS's name
        assert 0 < size < 2**28, "FAISS would take 1.5 GiB by default"


@pytest.fixture(autouse=True)
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("searches", 0), ("fails", False), ("wrong", False)):
        monkeypatch.setattr(Copy, name, value)
    monkeypatch.setattr(Resources, "room", 2**40)
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1)
    monkeypatch.setattr(faiss, "StandardGpuResources", Resources, raising=False)
    monkeypatch.setattr(faiss, "index_cpu_to_gpu", Copy, raising=False)


def on_gpu(name: str = "flat", vectors: np.ndarray | None = None, device: str = "cuda") -> Index:
    rows = clustered() if vectors is None else vectors
    return Index(DIM, frozen_of(name, rows, FLAT if name == "flat" else thorough(name)), device=device)


def by_id(vectors: np.ndarray) -> dict[int, np.ndarray]:
    return dict(zip(range(10, 10 + 3 * len(vectors), 3), vectors, strict=True))


def changes(new: dict[int, np.ndarray], removed: list[int]) -> StoreChanges:
    vectors = np.array(list(new.values()), np.float32).reshape(-1, DIM)
    return StoreChanges(1, 0, np.array(removed, np.int64), [(np.array(list(new), np.int64), vectors)])


def gpu_was_used() -> bool:
    found, Copy.searches = Copy.searches > 0, 0
    return found


@pytest.mark.parametrize("name", ["flat", "hnsw", "ivf-rabitq"])
def test_every_kind_is_searched_exactly(name: str) -> None:
    vectors, queries = clustered(), clustered(6, seed=7)
    index, known = on_gpu(name), by_id(vectors)
    assert index.device == "cuda:0"
    assert gpu_was_used(), "compared with the CPU when it was made"
    for k in (1, 8, 500):
        similarities, ids = index.search(queries, k)
        assert gpu_was_used()
        assert ids.tolist() == [naive(known, query, k) for query in queries]
        products = [[float(known[i].astype(np.float64) @ q) for i in row] for row, q in zip(ids, queries, strict=True)]
        assert np.allclose(similarities, products, atol=1e-6)


@settings(max_examples=40)
@given(
    n=st.integers(1, 60),
    gone=st.sets(st.integers(0, 59)),
    new=st.integers(0, 9),
    k=st.integers(1, 70),
    q=st.integers(0, 4),
)
def test_search_equals_a_naive_search_after_changes(n: int, gone: set[int], new: int, k: int, q: int) -> None:
    vectors, queries = unit_rows(n), unit_rows(q, seed=5)
    index, known = on_gpu(vectors=vectors), by_id(vectors)
    removed = [10 + 3 * row for row in gone if row < n]
    added = dict(zip(range(1000, 1000 + new), unit_rows(new, seed=6), strict=True))
    index.apply(changes(added, removed))
    known = {i: v for i, v in (known | added).items() if i not in removed}
    assert index.search(queries, k)[1].tolist() == [naive(known, query, k) for query in queries]


def test_more_rows_were_removed_than_a_gpu_can_skip() -> None:
    """Remove the 3,000 nearest of a query, more than the 2,048 that a GPU returns."""
    vectors = clustered(4000)
    index, known, query = on_gpu(vectors=vectors), by_id(vectors), clustered(1, seed=7)
    nearest = naive(known, query[0], 3000)
    index.apply(changes({}, nearest))
    left = {i: v for i, v in known.items() if i not in set(nearest)}
    assert index.search(query, 5)[1].tolist() == [naive(left, query[0], 5)]


def test_cpu_does_what_a_gpu_cannot() -> None:
    vectors, queries = clustered(2500), clustered(2, seed=7)
    index, known = on_gpu(vectors=vectors), by_id(vectors)
    gpu_was_used()
    some = np.array(sorted(known)[::9])
    for k, more in ((GPU_MAX_K + 1, {}), (5, {"exact": True}), (5, {"among": some})):
        among = {i: known[i] for i in some.tolist()} if "among" in more else known
        assert index.search(queries, k, **more)[1].tolist() == [naive(among, query, k) for query in queries]
        assert not gpu_was_used(), more
    assert index.search(queries, GPU_MAX_K)[1].shape == (2, GPU_MAX_K)
    assert gpu_was_used()


@pytest.mark.parametrize("device", ["cpu", "cuda:1", "cuda:", "cuda:x", "rocm"])
def test_other_devices_use_the_cpu(device: str) -> None:
    assert on_gpu(device=device).device == "cpu"


def test_faiss_without_a_gpu_uses_the_cpu(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.undo()
    assert on_gpu().device == "cpu"
    assert not caplog.records


def test_empty_gallery_uses_the_cpu() -> None:
    index = Index(DIM, device="cuda")
    assert (index.device, index.search(unit_rows(1), 3)[1].shape) == ("cpu", (1, 0))


@pytest.mark.parametrize("mistake", ["room", "wrong"])
def test_gpu_that_fails_at_first_is_not_used(
    mistake: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(*((Resources, "room", 100) if mistake == "room" else (Copy, "wrong", True)))
    index, queries = on_gpu(), clustered(3, seed=7)
    assert index.device == "cpu"
    (record,) = caplog.records
    assert (mistake == "room") == ("allocMemory" in record.getMessage())
    assert index.search(queries, 4)[1].tolist() == [naive(by_id(clustered()), query, 4) for query in queries]


def test_gpu_that_fails_later_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    index, queries = on_gpu(), clustered(3, seed=7)
    Copy.fails = True
    for _ in range(3):
        assert index.search(queries, 4)[1].tolist() == [naive(by_id(clustered()), query, 4) for query in queries]
    assert index.device == "cpu"
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_threads_share_a_gpu() -> None:
    index, queries = on_gpu(), clustered(4, seed=7)
    known = [naive(by_id(clustered()), query, 5) for query in queries]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: index.search(queries, 5)[1].tolist(), range(200)))
    assert found == [known] * 200
    assert index.device == "cuda:0"


def test_gallery_is_searched_on_the_gpu_after_each_compaction(tmp_path: Path) -> None:
    vectors = unit_rows(200)
    with VectorGallery.create(tmp_path / "g", CARD, "toy") as gallery:
        gallery.add(new_items(vectors))
        gallery.index.compact()
        assert gallery.index.stats().device == "cpu"
    with VectorGallery.open(tmp_path / "g", device="cuda:0") as gallery:
        assert gallery.index.stats().device == "cuda:0"
        gallery.remove([1, 2, 3])
        gallery.add(new_items(unit_rows(5, seed=3), 200))
        known = dict(enumerate(np.concatenate([vectors, unit_rows(5, seed=3)]), 1))
        known = {i: v for i, v in known.items() if i > 3}
        for _ in range(2):
            queries = unit_rows(4, seed=99)
            hits = gallery.search(queries, 6)
            wanted = [[i for i, _ in row] for row in expected(queries, known, 6)]
            assert [[hit.id for hit in row] for row in hits] == wanted
            assert gpu_was_used()
            gallery.index.compact()


def test_service_searches_on_the_device_of_its_models(
    model_folder: Path, gallery_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    folder = Path(shutil.copytree(gallery_folder, tmp_path / "g"))
    with VectorGallery.open(folder) as gallery:
        gallery.index.compact()

    def loaded(ref: str, runtime: str, precision: str, device: str | None) -> Any:
        asked.append(device)
        return load(ref, runtime, precision)

    monkeypatch.setattr("serving.gallery.search.load", loaded)
    for device, expected_device in ((None, "cpu"), ("cuda", "cuda:0")):
        searcher = Searcher.open(folder, str(model_folder), models=Models(device=device))
        assert searcher.gallery.index.stats().device == expected_device
        searcher.close()
    assert asked == [None, "cuda"]

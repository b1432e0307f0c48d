"""Kinds of index: neighbours, removals, tuning."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.gallery import VectorGallery, index_files
from serving.gallery.filters import Filter
from serving.gallery.gallery import STORE
from serving.gallery.index import KINDS, FrozenIndex, Index, IndexSetting, build_index, find_kind
from serving.gallery.index_files import EXACT, FACTS, IDS, TuningPlan, compact
from serving.gallery.store import Store
from serving.gallery.tune import IndexMeasurement, measure_kind, measure_recall, sample_vectors
from serving.gallery.types import StoreChanges
from tests.children import run_python
from tests.commandline import run_here
from tests.raising import raises
from tests.serving.gallery.test_gallery import CARD, DIM, generation, new_items
from tests.serving.running import ROOT
from tests.serving.toys import content
from zoo.errors import UsageError
from zoo.files import sha256_of

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
def test_new_vectors_are_found_after_all_frozen_ones_were_removed(name: str) -> None:
    vectors, new = clustered(), clustered(30, seed=1)
    index = Index(DIM, frozen_of(name, vectors, thorough(name)))
    assert index.search(vectors[:2], 0)[1].shape == (2, 0)
    ids = np.arange(20_000, 20_030)
    index.apply(StoreChanges(1, len(new), np.arange(10, 10 + 3 * N, 3), [(ids, new)]))
    expected = naive(dict(zip(ids.tolist(), new, strict=True)), vectors[0], 5)
    assert index.search(vectors[:1], 5)[1].tolist() == [expected]
    index.apply(StoreChanges(2, 0, ids, []))
    assert index.search(vectors[:2], 5)[1].shape == (2, 0)


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
    index = Index(DIM, frozen_of("ivf-rabitq", vectors, IndexSetting("ivf-rabitq", 1, 1)))
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
    assert measure_kind("ivf-rabitq", FrozenIndex(exact, np.arange(300)), twins, sample, 0.5) is None, "too small"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with VectorGallery.create(tmp_path / "g", CARD, "toy") as gallery:
        gallery.add(new_items(clustered(400)))
    return tmp_path / "g"


@pytest.fixture
def many(tmp_path: Path) -> Path:
    with VectorGallery.create(tmp_path / "many", CARD, "toy") as gallery:
        gallery.add(new_items(clustered()))
    return tmp_path / "many"


def test_tuning_chooses_a_fast_kind_with_the_recall(path: Path) -> None:
    with VectorGallery.open(path) as gallery:
        facts, rows = gallery.index.tune(0.9, 5, ["hnsw", "ivf-rabitq"])
        measured = dict(rows)
        assert list(measured) == ["flat", "hnsw", "ivf-rabitq"]
        assert measured["ivf-rabitq"] is None, "too few vectors"
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


@pytest.mark.parametrize(
    ("milliseconds", "floor", "chosen", "measured"),
    [
        ({"flat": 1.0, "ivf-rabitq": 0.5}, 0.5, "ivf-rabitq", ["flat", "ivf-rabitq"]),
        ({"flat": 1.0, "hnsw": 0.2, "ivf-rabitq": 0.95}, 0.5, "hnsw", list(KINDS)),  # not faster than flat search
        ({"flat": 1.0, "hnsw": 0.2}, 0.5, "hnsw", list(KINDS)),  # lacks the recall
    ],
)
def test_bits_are_measured_before_all_other_kinds_of_many_vectors(
    many: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    milliseconds: dict[str, float],
    floor: float,
    chosen: str,
    measured: list[str],
) -> None:
    def timed(name: str, *args: Any) -> tuple[FrozenIndex, IndexMeasurement] | None:
        result = measure_kind(name, *args) if name in milliseconds else None
        return result and (result[0], replace(result[1], milliseconds=milliseconds[name]))

    monkeypatch.setattr(index_files, "measure_kind", timed)
    monkeypatch.setattr(index_files, "COMPACT_ITEMS", N - 1)
    run_here("gallery tune", many, "--recall", floor, "-k", 5, "--json")
    outcome = json.loads(capsys.readouterr().out)
    assert outcome["chosen"]["setting"]["kind"] == chosen
    assert list(outcome["measured"]) == measured
    monkeypatch.setattr(index_files, "COMPACT_ITEMS", N)
    run_here("gallery tune", many, "--recall", floor, "-k", 5, "--json")
    assert list(json.loads(capsys.readouterr().out)["measured"]) == list(KINDS)


def test_bits_with_exact_scores_survive_every_change_of_a_gallery(many: Path) -> None:
    """Compare with a naive search: as built, by label, after removals and additions, opened again, compacted again."""
    vectors = dict(enumerate(clustered(), 1))
    queries = clustered()[::60] + 0.05 * np.random.default_rng(1).normal(size=(20, DIM))
    queries = (queries / np.linalg.norm(queries, axis=1, keepdims=True)).astype(np.float32)
    with closing(Store(many / STORE)) as store:
        store.set_state("plan", json.dumps({"kind": "ivf-rabitq", "recall": 0.95, "k": 10}))
    run_here("gallery compact", many)

    def check(gallery: VectorGallery) -> None:
        assert gallery.index.stats().kind == "ivf-rabitq"
        hits = gallery.search(queries, 10)
        expected = [naive(vectors, query, 10) for query in queries]
        recall = [len({hit.id for hit in row} & set(right)) for row, right in zip(hits, expected, strict=True)]
        assert np.mean(recall) >= 9.3
        for row, query in zip(hits, queries, strict=True):
            products = [float(vectors[hit.id].astype(np.float64) @ query.astype(np.float64)) for hit in row]
            np.testing.assert_allclose([hit.similarity for hit in row], products, atol=1e-6)
        label = gallery.store.item(next(iter(vectors))).label or ""
        ids = [item for item, name in gallery.store.labels().items() if name == label]
        (some,) = gallery.search(queries[:1], 10, selection=Filter((label,)))
        assert [hit.id for hit in some] == naive({item: vectors[item] for item in ids}, queries[0], 10)

    with VectorGallery.open(many) as gallery:
        check(gallery)
        gone = [hit.id for row in gallery.search(queries, 2) for hit in row]
        gallery.remove(gone)
        for item in set(gone):
            del vectors[item]
        check(gallery)
        new = clustered(60, seed=8)
        vectors |= zip(gallery.add(new_items(new, N)).ids, new, strict=True)
        check(gallery)
    with VectorGallery.open(many) as gallery:
        assert gallery.index.stats().waiting == len(set(gone)) + 60
        check(gallery)
        gallery.index.compact()
        assert gallery.index.stats().waiting == 0
        check(gallery)
    run_here("gallery verify", many)


def test_index_of_an_unknown_kind_is_built_again(many: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Name a kind that another version had, in the plan and in the files."""
    vectors = dict(enumerate(clustered(), 1))
    with closing(Store(many / STORE)) as store:
        store.set_state("plan", json.dumps({"kind": "ivf-rabitq", "recall": 0.9, "k": 10}))
        facts = compact(many, store)
        assert facts is not None
        file = generation(many) / FACTS
        file.write_text(file.read_text().replace("ivf-rabitq", "ivf-pq"))
        store.set_state("generation sha256", sha256_of(file))
        store.set_state("plan", json.dumps({"kind": "ivf-pq", "recall": 0.9, "k": 10}))
    queries = clustered(5, seed=7)
    with VectorGallery.open(many) as gallery:
        for _ in range(2):
            hits = gallery.search(queries, 10)
            assert [[hit.id for hit in row] for row in hits] == [naive(vectors, query, 10) for query in queries]
            gallery.index.compact()
            assert gallery.index.stats().kind == "flat"
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 2
    run_here("gallery tune", many, "--kind", "ivf-rabitq")
    run_here("gallery verify", many)


@pytest.mark.slow
@pytest.mark.parametrize("level", ["AVX2", "AVX512", "ARM_NEON"])
def test_recall_of_bits_is_the_same_on_every_processor(level: str) -> None:
    import faiss

    if not faiss.SIMDConfig.is_simd_level_available(getattr(faiss, f"SIMDLevel_{level}")):
        pytest.skip(f"this processor has no {level}")
    code = (
        "import os, sys; os.environ['FAISS_SIMD_LEVEL'] = sys.argv[1]\n"
        "from tests.serving.gallery.test_index import *\n"
        "vectors = clustered(3000, 100)\n"
        "sample = sample_vectors(np.arange(10, 9010, 3), vectors, 10, 200)\n"
        "frozen = frozen_of('ivf-rabitq', vectors, IndexSetting('ivf-rabitq', 8, 4))\n"
        "print(measure_recall(Index(100, frozen), sample))"
    )
    plain, fast = (float(run_python(code, name)) for name in ("NONE", level))
    assert min(plain, fast) > 0.8
    assert abs(plain - fast) < 0.01


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

"""Gallery folders: adding, searching, damage, and hints about labels and tuning."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.gallery import NewItem, Thumbnail, VectorGallery
from serving.gallery import gallery as gallery_module
from serving.gallery.filters import Filter
from serving.gallery.index import Index
from serving.gallery.index_files import EXACT, FACTS
from serving.gallery.types import StoreChanges
from tests.commandline import run_here
from tests.raising import raises
from zoo.data.preprocessing import Preprocessing
from zoo.errors import (
    GalleryError,
    GalleryExistsError,
    GalleryNotFoundError,
    ItemNotFoundError,
    ModelMismatchError,
    UsageError,
)
from zoo.models.card import Card

DIM = 6
CARD = Card("toy", "none", "none", "none", "none", DIM, Preprocessing(8, 8), files={"model.safetensors": "0" * 64})


def unit_rows(n: int, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(n, DIM))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def new_items(vectors: np.ndarray, start: int = 0) -> list[NewItem]:
    picture = Thumbnail(b"", "image/png")
    return [
        NewItem(f"{n}.png", vector, picture, f"{n:064x}", f"label {n % 5}") for n, vector in enumerate(vectors, start)
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with VectorGallery.create(tmp_path / "g", CARD, "toy") as gallery:
        gallery.add(new_items(unit_rows(200)))
        gallery.index.compact()
    return tmp_path / "g"


def generation(path: Path) -> Path:
    (folder,) = path.glob("index-*")
    return folder


def expected(queries: np.ndarray, vectors: dict[int, np.ndarray], k: int) -> list[list[tuple[int, float]]]:
    """Compute and sort all products in float64."""
    rows = []
    for query in queries.astype(np.float64):
        products = [(sum(float(a) * float(b) for a, b in zip(query, v, strict=True)), i) for i, v in vectors.items()]
        rows.append([(i, s) for s, i in sorted(products, key=lambda pair: (-pair[0], pair[1]))[:k]])
    return rows


def assert_hits(
    gallery: VectorGallery, vectors: dict[int, np.ndarray], k: int = 7, exclude: tuple[int, ...] = ()
) -> None:
    queries = unit_rows(5, seed=99)
    wanted = expected(queries, {i: v for i, v in vectors.items() if i not in exclude}, k)
    got = gallery.search(queries, k, exclude_ids=exclude)
    assert [[hit.id for hit in hits] for hits in got] == [[i for i, _ in row] for row in wanted]
    for hits, row in zip(got, wanted, strict=True):
        np.testing.assert_allclose([hit.similarity for hit in hits], [s for _, s in row], atol=1e-6)
        assert all((hit.label, hit.source) == (f"label {(hit.id - 1) % 5}", f"{hit.id - 1}.png") for hit in hits)


def by_id(vectors: np.ndarray) -> dict[int, np.ndarray]:
    return dict(enumerate(vectors, 1))


def test_search_equals_a_naive_loop(path: Path) -> None:
    vectors = by_id(unit_rows(200))
    with VectorGallery.open(path) as gallery:
        for k in (1, 7, 200, 1000):
            assert_hits(gallery, vectors, k)
        best = expected(unit_rows(5, seed=99), vectors, 3)[0]
        assert_hits(gallery, vectors, exclude=tuple(i for i, _ in best))
        gallery.remove([i for i, _ in best])
        assert_hits(gallery, {i: v for i, v in vectors.items() if i not in dict(best)})


@settings(max_examples=20)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=12), st.randoms(use_true_random=False))
def test_updated_index_equals_a_naive_search(steps: list[tuple[bool, int]], rng: object) -> None:
    alive: dict[int, np.ndarray] = {}
    index, next_id, change = Index(DIM), 1, 0
    for add, count in steps:
        vectors = unit_rows(count, seed=next_id) if add else unit_rows(0)
        ids = np.arange(next_id, next_id + len(vectors))
        gone = np.array([] if add else sorted(alive)[:count], np.int64)
        alive = {i: v for i, v in alive.items() if i not in gone} | dict(zip(ids.tolist(), vectors, strict=True))
        next_id, change = next_id + len(vectors), change + 1
        index.apply(StoreChanges(change, len(alive), gone, [(ids, vectors)]))
    assert len(index) == len(alive)
    _, ids = index.search(unit_rows(3, seed=99), 4)
    wanted = expected(unit_rows(3, seed=99), alive, 4)
    assert ids.tolist() == [[i for i, _ in row] for row in wanted]


def test_equal_similarities_are_ordered_by_id(tmp_path: Path) -> None:
    with VectorGallery.create(tmp_path / "g", CARD, "toy") as gallery:
        gallery.add(new_items(np.repeat(unit_rows(2), 3, axis=0)))
        (hits,) = gallery.search(unit_rows(1), 6)
        assert [hit.id for hit in hits] == [1, 2, 3, 4, 5, 6]
        assert hits[0].similarity <= 1


def damage_missing(folder: Path) -> None:
    shutil.rmtree(folder)


def damage_garbage(folder: Path) -> None:
    (folder / EXACT).write_bytes(b"garbage" * 1000)


def damage_cut(folder: Path) -> None:
    (folder / EXACT).write_bytes((folder / EXACT).read_bytes()[:-100])


def damage_one_bit(folder: Path) -> None:
    data = bytearray((folder / EXACT).read_bytes())
    data[len(data) // 2] ^= 0x40
    (folder / EXACT).write_bytes(data)


def damage_facts(folder: Path) -> None:
    (folder / FACTS).write_text("{")


def change_facts(folder: Path, **changes: object) -> None:
    (folder / FACTS).write_text(json.dumps({**json.loads((folder / FACTS).read_text()), **changes}))


def damage_unknown_fact(folder: Path) -> None:
    change_facts(folder, more=1)


def damage_missing_fact(folder: Path) -> None:
    (folder / FACTS).write_text(json.dumps({"setting": {}}))


def damage_unknown_kind(folder: Path) -> None:
    change_facts(folder, setting={"kind": "quantum", "effort": 1, "shortlist": 1})


def damage_other_model(folder: Path) -> None:
    change_facts(folder, fingerprint="another")


@pytest.mark.slow
@pytest.mark.parametrize("damage", [value for name, value in list(globals().items()) if name.startswith("damage_")])
def test_damaged_generation_is_replaced(path: Path, damage: object, caplog) -> None:
    with caplog.at_level("INFO"), VectorGallery.open(path):
        assert not caplog.records
    damage(generation(path))  # type: ignore[operator]
    with caplog.at_level("INFO"), VectorGallery.open(path) as gallery:
        assert "the index is built from the store" in caplog.text
        assert_hits(gallery, by_id(unit_rows(200)))
        assert gallery.index.stats().waiting == 200
        gallery.index.compact()
        assert gallery.index.stats().waiting == 0
        assert_hits(gallery, by_id(unit_rows(200)))
    caplog.clear()
    with caplog.at_level("INFO"), VectorGallery.open(path) as gallery:
        assert not caplog.records
        assert_hits(gallery, by_id(unit_rows(200)))


def test_generation_of_another_history_is_replaced(path: Path, tmp_path: Path) -> None:
    """Restore the store from a backup and change it: equal change number and count, but other vectors."""
    shutil.copytree(path, tmp_path / "backup")
    with VectorGallery.open(path) as gallery:
        gallery.add(new_items(unit_rows(1, seed=5), 200))
        gallery.index.compact()
    with VectorGallery.open(tmp_path / "backup") as restored:
        restored.add(new_items(unit_rows(1, seed=6), 200))
        restored.index.compact()
    shutil.rmtree(generation(tmp_path / "backup"))
    shutil.copytree(generation(path), tmp_path / "backup" / generation(path).name)
    with VectorGallery.open(tmp_path / "backup") as restored:
        assert_hits(restored, by_id(np.concatenate([unit_rows(200), unit_rows(1, seed=6)])))
        (hits,) = restored.search(unit_rows(1, seed=6), 1)
        assert hits[0].similarity == pytest.approx(1, abs=1e-6)


def test_next_search_finds_what_another_process_wrote(path: Path) -> None:
    vectors = by_id(unit_rows(200))
    with VectorGallery.open(path) as reader, VectorGallery.open(path) as writer:
        assert_hits(reader, vectors)
        added = unit_rows(50, seed=3)
        writer.add(new_items(added, 200))
        vectors |= dict(enumerate(added, 201))
        assert_hits(reader, vectors)
        writer.remove(range(1, 100))
        assert_hits(reader, {i: v for i, v in vectors.items() if i >= 100})


def test_search_during_changes(path: Path) -> None:
    failures: list[Exception] = []
    stop = threading.Event()
    with VectorGallery.open(path) as gallery:

        def read() -> None:
            try:
                while not stop.is_set():
                    for hits in gallery.search(unit_rows(2, seed=7), 5):
                        assert len({hit.id for hit in hits}) == len(hits)
                        assert [h.similarity for h in hits] == sorted((h.similarity for h in hits), reverse=True)
            except Exception as error:
                failures.append(error)

        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        for round_number in range(30):
            gallery.add(new_items(unit_rows(20, seed=round_number), 1000 + 20 * round_number))
            gallery.remove(range(1 + 5 * round_number, 6 + 5 * round_number))
        stop.set()
        for reader in readers:
            reader.join()
        assert failures == []
        assert gallery.store.count() == 200 + 600 - 150
        assert len(gallery.search(unit_rows(1), 1000)[0]) == 650


def test_other_model_is_refused(path: Path) -> None:
    other = replace(CARD, name="other", files={"model.safetensors": "1" * 64})
    with VectorGallery.open(path) as gallery:
        gallery.check_model(replace(CARD, name="same-weights"))
        with raises(ModelMismatchError, None, "toy", "other"):
            gallery.check_model(other)
    values = json.loads((path / "model.json").read_text())
    (path / "model.json").write_text(json.dumps({**values, "card": other.to_json()}))
    with raises(GalleryError, "other-model"):
        VectorGallery.open(path)


@pytest.mark.parametrize("text", ["", "{}", "[]", "nonsense", '{"ref": "toy", "card": {"schema": 1}}'])
def test_damaged_model_file_is_refused(path: Path, text: str) -> None:
    (path / "model.json").write_text(text)
    with raises(GalleryError, "damaged-gallery", path / "model.json"):
        VectorGallery.open(path)


def test_new_gallery_needs_a_new_folder(path: Path, tmp_path: Path) -> None:
    with raises(GalleryExistsError):
        VectorGallery.create(path, CARD, "toy")
    (tmp_path / "file").write_text("precious")
    with raises(GalleryExistsError):
        VectorGallery.create(tmp_path / "file", CARD, "toy")
    with raises(GalleryError, "not-writable"):
        VectorGallery.create(tmp_path / "file" / "below", CARD, "toy")
    with raises(GalleryNotFoundError, None, tmp_path / "nowhere"):
        VectorGallery.open(tmp_path / "nowhere")
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.parametrize(
    "vectors",
    [np.zeros(DIM, np.float32), np.zeros((1, DIM + 1), np.float32), np.full((1, DIM), np.nan, np.float32)],
)
def test_invalid_queries_are_refused(path: Path, vectors: np.ndarray) -> None:
    with VectorGallery.open(path) as gallery:
        with raises(UsageError, "invalid-value"):
            gallery.search(vectors, 3)
        with raises(UsageError, "invalid-value"):
            gallery.search(unit_rows(1), 0)
        with pytest.raises(ItemNotFoundError):
            gallery.store.item(12345)


def test_empty_gallery_has_no_hits(tmp_path: Path) -> None:
    with VectorGallery.create(tmp_path / "g", CARD, "toy") as gallery:
        assert gallery.search(unit_rows(2), 5) == [[], []]
        assert gallery.search(unit_rows(0), 5) == []
        gallery.add(new_items(unit_rows(3)))
        gallery.remove([1, 2, 3])
        assert gallery.search(unit_rows(2), 5) == [[], []]
    with VectorGallery.open(tmp_path / "g") as gallery:
        assert gallery.search(unit_rows(2), 5) == [[], []]


@pytest.fixture
def gallery(model_folder: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    run_here("index", model_folder, pictures, "--out", tmp_path / "g")
    assert "tune" not in capsys.readouterr().out
    return tmp_path / "g"


def test_large_gallery_is_advised_to_tune_once(
    gallery: Path,
    model_folder: Path,
    pictures: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(gallery_module, "TUNING_ITEMS", 23)
    run_here("index", model_folder, pictures, "--out", gallery)
    advice = capsys.readouterr().out.splitlines()[-1]
    assert "24 items" in advice
    assert f"zoo gallery tune {gallery}" in advice
    run_here("gallery stats", gallery)
    assert advice in capsys.readouterr().out
    run_here("gallery stats", gallery, "--json")
    assert json.loads(capsys.readouterr().out)["index"]["hint"] == advice
    run_here("gallery tune", gallery, "--kind", "flat")
    run_here("gallery stats", gallery)
    run_here("index", model_folder, pictures, "--out", gallery)
    assert "zoo gallery tune" not in capsys.readouterr().out


def test_small_gallery_is_not_advised_to_tune(
    gallery: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gallery_module, "TUNING_ITEMS", 24)
    run_here("gallery stats", gallery)
    assert "tune" not in capsys.readouterr().out
    run_here("gallery stats", gallery, "--json")
    assert json.loads(capsys.readouterr().out)["index"]["hint"] is None


def test_unknown_metadata_keys_are_noted_without_hits(gallery: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    misspelt = Filter(where={"yeer": 1908, "Rome": "x", "year": [1908], "none": None})
    with VectorGallery.open(gallery) as opened:
        opened.store.describe(2, None, {"year": 1908, "none": None})
        opened.store.describe(3, None, {"place": [], "Rome": {"x": 1}})
        assert gallery_module.filter_notes(opened, misspelt, found=False) == [
            "No item has metadata called 'yeer'. Did you mean 'year'?"
        ]
        assert gallery_module.filter_notes(opened, misspelt, found=True) == []
        assert (
            len(gallery_module.filter_notes(opened, Filter(("zzz",), {str(n): n for n in range(9)}), found=False)) == 4
        )
        monkeypatch.setattr(gallery_module, "COMPARED_NAMES", 2)
        assert gallery_module.filter_notes(opened, Filter(where={"place": "Rome"}), found=False) == [
            "None of the first 2 items has metadata called 'place'."
        ]


def test_types_load_neither_faiss_nor_sqlite() -> None:
    """The client uses the types without the service's libraries."""
    code = (
        "import sys; from serving.gallery import Hit, Item; import serving.gallery.types; "
        "sys.exit(not {'faiss', 'sqlite3', 'torch'}.isdisjoint(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

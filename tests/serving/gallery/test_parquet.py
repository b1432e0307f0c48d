"""Export of galleries to Parquet and FAISS, and import."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import faiss
import numpy as np
import pytest
from pyarrow import parquet

from serving.gallery import Gallery
from serving.gallery.feedback import QueryImage
from serving.gallery.parquet import INDEX, ITEMS, MARKS, ImportedItems, export_gallery, import_gallery
from tests.commandline import run_here
from tests.raising import raises
from tests.serving.gallery.test_database import full_disk
from tests.serving.gallery.test_gallery import CARD, new_items, unit_rows
from zoo.errors import GalleryError, GalleryNotFoundError, ModelMismatchError, UsageError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with Gallery.create(tmp_path / "g", CARD, "toy") as gallery:
        items = new_items(unit_rows(1200))
        gallery.add([replace(items[0], label=None, metadata={"year": 1908, "ä": ["ü"]}), *items[1:]])
        gallery.remove([5, 7])
    return tmp_path / "g"


def test_an_export_opens_without_us(path: Path, tmp_path: Path) -> None:
    assert export_gallery(path, tmp_path / "out") == 1198
    rows = parquet.read_table(tmp_path / "out" / ITEMS).to_pylist()
    index = faiss.read_index(str(tmp_path / "out" / INDEX))
    with Gallery.open(path) as gallery:
        for row in rows[:: len(rows) // 20]:
            item = gallery.store.item(row["id"])
            assert (row["source"], row["label"], row["added_at"]) == (item.source, item.label, item.added_at)
            assert json.loads(row["metadata"]) == item.metadata
            np.testing.assert_array_equal(np.array(row["embedding"], np.float32), gallery.store.embedding(item.id))
            assert row["thumbnail_type"] == "image/png"
        queries = unit_rows(5, seed=9)
        similarities, ids = index.search(queries, 6)
        hits = gallery.search(queries, 6)
        assert ids.tolist() == [[hit.id for hit in row] for row in hits]
        np.testing.assert_allclose(similarities, [[hit.similarity for hit in row] for row in hits], atol=1e-6)
    with raises(UsageError, "folder-exists"):
        export_gallery(path, tmp_path / "out")


def test_an_export_reads_back(path: Path, tmp_path: Path) -> None:
    export_gallery(path, tmp_path / "out")
    assert import_gallery(tmp_path / "out", tmp_path / "new") == ImportedItems(1198, 1198, None)
    with Gallery.open(path) as old, Gallery.open(tmp_path / "new") as new:
        assert new.model_ref == old.model_ref
        for before, after in zip(old.store.items(limit=2000), new.store.items(limit=2000), strict=True):
            assert replace(after, id=before.id, change=before.change) == before
            np.testing.assert_array_equal(new.store.embedding(after.id), old.store.embedding(before.id))
        assert new.store.thumbnail(1) == old.store.thumbnail(1)
    assert import_gallery(tmp_path / "out", path) == ImportedItems(1198, 0, None), "all of it is there"


def test_a_full_disk_is_named_and_nothing_is_left(path: Path, tmp_path: Path) -> None:
    with Gallery.open(path) as gallery:
        gallery.add(new_items(unit_rows(3000, seed=1), 200))
    there = set(tmp_path.iterdir())
    # SQLite itself maps 32 KiB; the file of the vectors is larger.
    with full_disk(2**15), raises(GalleryError, "not-writable", tmp_path / "copy"):
        export_gallery(path, tmp_path / "copy")
    assert set(tmp_path.iterdir()) == there


def test_exports_of_other_models_and_damaged_ones_are_refused(path: Path, tmp_path: Path) -> None:
    export_gallery(path, tmp_path / "out")
    other = replace(CARD, name="other", files={"model.safetensors": "1" * 64})
    with Gallery.create(tmp_path / "other", other, "other"):
        pass
    with pytest.raises(ModelMismatchError):
        import_gallery(tmp_path / "out", tmp_path / "other")
    data = (tmp_path / "out" / ITEMS).read_bytes()
    (tmp_path / "out" / ITEMS).write_bytes(data[:-50])
    with raises(GalleryError, "not-readable"):
        import_gallery(tmp_path / "out", tmp_path / "new")
    (tmp_path / "out" / ITEMS).unlink()
    with raises(GalleryNotFoundError, "no-export"):
        import_gallery(tmp_path / "out", tmp_path / "new")
    with raises(GalleryNotFoundError, "no-export"):
        import_gallery(tmp_path / "nothing", tmp_path / "new")
    with raises(GalleryNotFoundError, "no-export", "zoo gallery backup"):
        import_gallery(path, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_table_of_something_else_is_refused(path: Path, tmp_path: Path) -> None:
    export_gallery(path, tmp_path / "out")
    table = parquet.read_table(tmp_path / "out" / ITEMS)
    parquet.write_table(table.drop_columns(["embedding"]), tmp_path / "out" / ITEMS)
    with raises(GalleryError, "damaged-record", "embedding"):
        import_gallery(tmp_path / "out", tmp_path / "new")


def mark_some(path: Path) -> None:
    with Gallery.open(path) as gallery:
        gallery.store.marks.put(2, 3, True)
        gallery.store.marks.put(3, 2, False)
        gallery.store.marks.put(QueryImage("f" * 64, unit_rows(1, seed=5)[0], 'käse, "eins".jpg'), 1, True)


def test_marks_go_along_with_their_items(path: Path, tmp_path: Path) -> None:
    mark_some(path)
    export_gallery(path, tmp_path / "out")
    import_gallery(tmp_path / "out", tmp_path / "new")
    with Gallery.open(path) as old, Gallery.open(tmp_path / "new") as new:
        for before, after in zip(old.store.marks.all(), new.store.marks.all(), strict=True):
            assert replace(after, id=before.id, item=before.item, query_item=before.query_item) == before
            assert new.store.item(after.item).content_sha256 == old.store.item(before.item).content_sha256
        last = list(new.store.marks.all())[-1]
        new.store.marks.remove(last.id)
    import_gallery(tmp_path / "out", tmp_path / "new")
    with Gallery.open(tmp_path / "new") as new:
        assert new.store.marks.counts().total == 3
    (tmp_path / "out" / MARKS).write_bytes(b"no parquet")
    with raises(GalleryError, "not-readable", "marks"):
        import_gallery(tmp_path / "out", tmp_path / "none")
    (tmp_path / "out" / MARKS).unlink()  # as in an export of before there were marks
    assert import_gallery(tmp_path / "out", tmp_path / "without") == ImportedItems(1198, 1198, None)


def test_pairs_to_train_on(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mark_some(path)
    vectors = unit_rows(1200).astype(float)
    query = unit_rows(1, seed=5)[0].astype(float)
    expected = [  # items 1, 2, 3 are vectors 0, 1, 2, with labels by their number modulo 5
        ("1.png", f"{1:064x}", 2, "label 1", "2.png", f"{2:064x}", 3, "label 2", 1, vectors[1] @ vectors[2]),
        ("2.png", f"{2:064x}", 3, "label 2", "1.png", f"{1:064x}", 2, "label 1", 0, vectors[1] @ vectors[2]),
        ('käse, "eins".jpg', "f" * 64, None, None, "0.png", f"{0:064x}", 1, None, 1, query @ vectors[0]),
    ]
    run(path, "--pairs", tmp_path / "pairs.csv")
    assert "3 marked pairs" in capsys.readouterr().out
    run(path, tmp_path / "out", "--pairs", tmp_path / "pairs.parquet", "--json")
    assert json.loads(capsys.readouterr().out)["pairs"] == 3
    rows = parquet.read_table(tmp_path / "pairs.parquet").to_pylist()
    with (tmp_path / "pairs.csv").open(encoding="utf-8", newline="") as file:
        texts = list(csv.DictReader(file))
    for row, text, one in zip(rows, texts, expected, strict=True):
        assert list(row) == list(text)
        values = list(row.values())
        assert values[:9] == list(one[:9])
        assert values[9] == pytest.approx(one[9], abs=1e-6)
        assert row["model"] == CARD.fingerprint
        assert datetime.fromisoformat(row["marked_at"]).tzinfo == UTC
        assert list(text.values()) == ["" if value is None else str(value) for value in values]
    before = (tmp_path / "pairs.csv").read_bytes()
    with raises(UsageError, "file-exists"):
        run(path, "--pairs", tmp_path / "pairs.csv")
    run(path, "--pairs", tmp_path / "pairs.csv", "--replace")
    assert (tmp_path / "pairs.csv").read_bytes() == before
    capsys.readouterr()
    for mistaken in (("--replace",), (tmp_path / "out2", "--replace"), ("--pairs", tmp_path)):
        with pytest.raises(UsageError):
            run(path, *mistaken)
    for words in ((), ("--pairs", tmp_path / "pairs.xlsx"), ("--pairs", tmp_path / "pairs.csv" / "pairs.csv")):
        with pytest.raises(UsageError):
            run(path, *words)


def test_pairs_of_a_gallery_without_marks_into_a_new_folder(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(path, "--pairs", tmp_path / "new" / "pairs.csv")
    said = capsys.readouterr()
    assert f"made the folder {tmp_path / 'new'}" in said.err
    assert "no result of" in said.err
    assert "POST /feedback" in said.err
    assert "0 marked pairs" in said.out


def run(*words: object) -> None:
    run_here("gallery export", *words)

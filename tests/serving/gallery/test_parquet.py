"""Export of galleries to Parquet and FAISS, and import."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import faiss
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import compute, parquet

from serving.gallery import VectorGallery
from serving.gallery.parquet import INDEX, ITEMS, REMOVED, ImportedItems, export_gallery, import_gallery
from serving.gallery.types import ItemPlace
from tests.raising import raises
from tests.serving.gallery.test_database import full_disk
from tests.serving.gallery.test_gallery import CARD, new_items, unit_rows
from zoo.errors import GalleryError, GalleryNotFoundError, ModelMismatchError, UsageError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with VectorGallery.create(tmp_path / "g", CARD, "toy") as gallery:
        items = new_items(unit_rows(1200))
        gallery.add([replace(items[0], label=None, metadata={"year": 1908, "ä": ["ü"]}), *items[1:]])
        gallery.remove([5, 7])
    return tmp_path / "g"


def test_an_export_opens_without_us(path: Path, tmp_path: Path) -> None:
    assert export_gallery(path, tmp_path / "out") == 1198
    rows = parquet.read_table(tmp_path / "out" / ITEMS).to_pylist()
    index = faiss.read_index(str(tmp_path / "out" / INDEX))
    with VectorGallery.open(path) as gallery:
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
    with raises(UsageError, "already-exists"):
        export_gallery(path, tmp_path / "out")


def test_metadata_are_columns_that_others_filter_by(tmp_path: Path) -> None:
    address = tmp_path / "typed"
    values = [{"year": 1999, "shop": "a", "size": 1, "label": "own"}, {"year": 2010, "sold": True, "size": 0.5}]
    with VectorGallery.create(address, CARD, "toy") as gallery:
        items = zip(new_items(unit_rows(2)), values, strict=True)
        gallery.add([replace(item, metadata=metadata) for item, metadata in items])
    export_gallery(address, tmp_path / "export")
    table = parquet.read_table(tmp_path / "export" / "items.parquet")
    late = table.filter(compute.greater(table["year"], 2000)).to_pylist()
    assert [row["sold"] for row in late] == [True]
    assert table["size"].to_pylist() == [1.0, 0.5]
    assert table["metadata_label"].to_pylist() == ["own", None]
    import_gallery(tmp_path / "export", tmp_path / "back")
    with VectorGallery.open(tmp_path / "back") as gallery:
        assert [found.metadata for found, _, _ in gallery.store.rows()] == values


def test_an_export_reads_back(path: Path, tmp_path: Path) -> None:
    export_gallery(path, tmp_path / "out")
    assert import_gallery(tmp_path / "out", tmp_path / "new") == ImportedItems(1198, 1198, None)
    with VectorGallery.open(path) as old, VectorGallery.open(tmp_path / "new") as new:
        assert new.model_ref == old.model_ref
        for before, after in zip(old.store.items(limit=2000), new.store.items(limit=2000), strict=True):
            assert replace(after, id=before.id, change=before.change) == before
            np.testing.assert_array_equal(new.store.embedding(after.id), old.store.embedding(before.id))
        assert new.store.thumbnail(1) == old.store.thumbnail(1)
    assert import_gallery(tmp_path / "out", path) == ImportedItems(1198, 0, None), "all of it is there"


PLACED = "file:///pictures"


def test_removed_items_stay_removed_but_not_where_the_gallery_has_them(tmp_path: Path) -> None:
    items = [
        replace(item, folder=PLACED, key=key)
        for item, key in zip(new_items(unit_rows(4)), (None, "a", None, "b"), strict=True)
    ]
    with VectorGallery.create(tmp_path / "g", CARD, "toy") as gallery:
        gallery.add(items)
        gallery.remove([1, 2, 3], remember=True)
    export_gallery(tmp_path / "g", tmp_path / "out")
    with VectorGallery.create(tmp_path / "other", CARD, "toy") as gallery:
        gallery.add([items[2]])
    for _ in range(2):  # a second import adds nothing
        import_gallery(tmp_path / "out", tmp_path / "other")
        with VectorGallery.open(tmp_path / "other") as gallery:
            removed = [(place.source, place.key, place.folder) for place in gallery.store.removed_places()]
            assert removed == [("0.png", None, PLACED), ("1.png", "a", PLACED)]
            assert {item.source for item in gallery.store.items()} == {"2.png", "3.png"}


def test_any_number_of_removed_items_is_carried_over(tmp_path: Path) -> None:
    places = [ItemPlace(0, f"{number}/{'a' * 4000}.png", None, PLACED, f"{number:064x}") for number in range(5000)]
    with VectorGallery.create(tmp_path / "g", CARD, "toy") as gallery:
        gallery.add(new_items(unit_rows(2)))
        gallery.note_removed(places)
    export_gallery(tmp_path / "g", tmp_path / "out")
    import_gallery(tmp_path / "out", tmp_path / "back")
    with VectorGallery.open(tmp_path / "back") as gallery:
        assert [replace(place, id=0) for place in gallery.store.removed_places()] == places


DIGEST = "0" * 64
PLACE = {"source": "a.png", "key": None, "folder": PLACED, "content_sha256": DIGEST}


@pytest.mark.parametrize(
    "wrong",
    [
        {"source": None},
        {"source": ""},
        {"source": "a\nb"},
        {"source": "a\0"},
        {"source": "a" * 5000},
        {"source": "a" * 10**6},
        {"source": 3},
        {"source": b"\xff\xfe"},
        {"source": ["a"]},
        {"source": {"path": "a"}},
        {"key": ""},
        {"key": "a\0"},
        {"key": "k" * 300},
        {"folder": "http://elsewhere/"},
        {"folder": "file:///a%00b"},
        {"folder": 1.5},
        {"content_sha256": None},
        {"content_sha256": DIGEST.upper().replace("0", "A")},
        {"content_sha256": "0"},
    ],
    ids=lambda wrong: f"{wrong!r:.40}",
)
def test_hand_made_places_of_removed_items_are_refused_before_anything_is_imported(
    path: Path, tmp_path: Path, wrong: dict[str, object]
) -> None:
    export_gallery(path, tmp_path / "out")
    parquet.write_table(pa.Table.from_pylist([PLACE | wrong]), tmp_path / "out" / REMOVED)
    refused(tmp_path)


def test_places_of_removed_items_that_would_fill_the_memory_are_refused(path: Path, tmp_path: Path) -> None:
    """Of few bytes: 200,000 places of 4,000 characters, whose distinct values are written once."""
    export_gallery(path, tmp_path / "out")
    table = pa.table({name: pa.array([value] * 200_000, pa.string()) for name, value in PLACE.items()})
    table = table.set_column(0, "source", pa.array(["a" * 4000] * 200_000, pa.string()))
    parquet.write_table(table, tmp_path / "out" / REMOVED, compression="zstd")
    assert (tmp_path / "out" / REMOVED).stat().st_size < 10**6
    refused(tmp_path)


@pytest.mark.parametrize("form", ["text", "other columns", "half of them", "a folder", "a link to a folder"])
def test_another_file_is_no_list_of_removed_items(path: Path, tmp_path: Path, form: str) -> None:
    export_gallery(path, tmp_path / "out")
    file = tmp_path / "out" / REMOVED
    if form == "text":
        file.write_text('[["a.png", null, null, "0"]]')
    elif form == "a folder":
        file.mkdir()
    elif form == "a link to a folder":
        file.symlink_to(tmp_path)
    else:
        parquet.write_table(pa.table({"source" if form == "half of them" else "other": ["a.png"]}), file)
    refused(tmp_path)


def refused(folder: Path) -> None:
    """Assert that nothing of the export is imported."""
    with raises(GalleryError, "damaged-file"):
        import_gallery(folder / "out", folder / "new")
    assert not (folder / "new").exists()


def test_a_full_disk_is_named_and_nothing_is_left(path: Path, tmp_path: Path) -> None:
    with VectorGallery.open(path) as gallery:
        gallery.add(new_items(unit_rows(3000, seed=1), 200))
    there = set(tmp_path.iterdir())
    # SQLite itself maps 32 KiB; the file of the vectors is larger.
    with full_disk(2**15), raises(GalleryError, "not-writable", tmp_path / "copy"):
        export_gallery(path, tmp_path / "copy")
    assert set(tmp_path.iterdir()) == there


def test_exports_of_other_models_and_damaged_ones_are_refused(path: Path, tmp_path: Path) -> None:
    export_gallery(path, tmp_path / "out")
    other = replace(CARD, name="other", files={"model.safetensors": "1" * 64})
    with VectorGallery.create(tmp_path / "other", other, "other"):
        pass
    with pytest.raises(ModelMismatchError):
        import_gallery(tmp_path / "out", tmp_path / "other")
    data = (tmp_path / "out" / ITEMS).read_bytes()
    (tmp_path / "out" / ITEMS).write_bytes(data[:-50])
    with raises(GalleryError, "unreadable-file"):
        import_gallery(tmp_path / "out", tmp_path / "new")
    (tmp_path / "out" / ITEMS).unlink()
    with raises(GalleryNotFoundError, "gallery-not-found"):
        import_gallery(tmp_path / "out", tmp_path / "new")
    with raises(GalleryNotFoundError, "gallery-not-found"):
        import_gallery(tmp_path / "nothing", tmp_path / "new")
    with raises(GalleryNotFoundError, "gallery-not-found", "zoo gallery backup"):
        import_gallery(path, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_table_of_something_else_is_refused(path: Path, tmp_path: Path) -> None:
    export_gallery(path, tmp_path / "out")
    table = parquet.read_table(tmp_path / "out" / ITEMS)
    parquet.write_table(table.drop_columns(["embedding"]), tmp_path / "out" / ITEMS)
    with raises(GalleryError, "damaged-file", "embedding"):
        import_gallery(tmp_path / "out", tmp_path / "new")

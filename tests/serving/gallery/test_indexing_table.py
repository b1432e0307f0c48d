"""Indexing of a CSV or Parquet table: labels and metadata."""

from __future__ import annotations

import csv
import json
import shutil
import unicodedata
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from serving.gallery import VectorGallery
from serving.gallery.filters import Filter
from serving.gallery.indexing import index_folder
from serving.gallery.originals import Originals, indexed_folders
from serving.gallery.types import Item
from tests.commandline import run_here
from tests.raising import raises
from tests.serving import toys
from tests.serving.gallery.backends.test_ray import Workers, content
from zoo.data.table import read_label_file
from zoo.errors import DatasetError, GalleryError, UsageError
from zoo.models.load import Embedder

FIRST, SECOND = "red stripes/0.png", "red stripes/1.png"


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def metadata_of(gallery_folder: Path, source: str) -> dict[str, object]:
    with VectorGallery.open(gallery_folder) as gallery:
        return next(item.metadata for item in gallery.store.items(limit=100) if item.source == source)


def test_each_column_is_of_one_kind(tmp_path: Path) -> None:
    said = read_label_file(
        write(
            tmp_path / "t.csv",
            "path,label,year,price,sold,sku,barcode,,note",
            'a.png,x,1908,1.50,true,00123,12345678901234567890,0,"a, b"',
            "b.png,x,-3,2,false,7,1,1,",
            "c.png,,,,,,,2,",
        )
    )
    kinds = {column.name: column.kind for column in said.columns}
    assert kinds == {
        "year": "number", "price": "number", "sold": "boolean", "sku": "text", "barcode": "text", "note": "text"
    }  # fmt: skip
    assert {row.path: row.label for row in said.rows} == {"a.png": "x", "b.png": "x", "c.png": None}
    metadata = {row.path: row.metadata for row in said.rows}
    first = {"year": 1908, "price": 1.5, "sold": True, "sku": "00123", "barcode": "12345678901234567890"}
    assert metadata == {
        "a.png": {**first, "note": "a, b"},
        "b.png": {"year": -3, "price": 2.0, "sold": False, "sku": "7", "barcode": "1"},
        "c.png": {},
    }
    assert metadata["a.png"]["sold"] is True
    assert not any(column.misfits or column.missing or column.numbers for column in said.columns)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(["\uf900", "e\u0301"])  # kept in their composed form, as every text that filters compare
@given(st.lists(st.one_of(st.text(), st.integers().map(str), st.floats().map(repr), st.just("true")), min_size=1))
def test_whatever_a_column_holds_can_be_kept_and_read_back(tmp_path: Path, cells: list[str]) -> None:
    cells = [cell.encode("utf-8", "replace").decode() for cell in cells]
    with (tmp_path / "t.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "cell"])
        table.writerows([f"{number}.png", cell] for number, cell in enumerate(cells))
    said = read_label_file(tmp_path / "t.csv")
    (column,) = said.columns
    metadata = {row.path: row.metadata for row in said.rows}
    found = [metadata[f"{number}.png"].get("cell", "") for number in range(len(cells))]
    json.dumps(found, allow_nan=False)
    misfits, missing = [cell for _, cell in column.misfits], 0
    for value, cell in zip(found, [unicodedata.normalize("NFC", cell) for cell in cells], strict=True):
        if value == "" and cell:
            assert (column.kind, cell.strip().lower().lstrip("+-")) == ("number", "nan")
            missing += 1
        elif isinstance(value, str):
            assert value == cell, "nothing that a person typed is lost"
            assert not cell or column.kind == "text" or cell in misfits
        elif isinstance(value, bool):
            assert (column.kind, json.loads(cell.strip().lower())) == ("boolean", value)
        else:
            assert (column.kind, value) == (
                "number",
                float(cell) if isinstance(value, float) else int(float(cell)) if "e" in cell.lower() else int(cell),
            )
    assert column.missing == missing
    assert len(misfits) < max(1, sum(map(bool, cells)) / 2), "most cells decide"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["path"], "it has: path"),
        (["label,year", "x,1"], "it has: label, year"),
        (["path,label,year,year", "a.png,x,1,2"], "has the column year more than once"),
        (["path,label,year", "a.png,x,1,2"], "line 2: the row has more cells than the header, which has 3"),
        (["path,year", "a.png,1", "./a.png,2"], "line 3: a.png has another label or other metadata above"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_label_file(write(tmp_path / "t.csv", *lines))


def test_further_columns_are_metadata_to_filter_by(model: Embedder, folder: Path, tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", "path,label,year,artist", f"{FIRST},red,1908,Klimt", f"{SECOND},red,1950,")
    report = index_folder(model, "toy", folder, tmp_path / "g", labels=table)
    assert (report.added, report.metadata) == (24, ("year", "artist"))
    with VectorGallery.open(tmp_path / "g") as gallery:
        assert gallery.store.count(selection=Filter(where={"year": {"gte": 1900, "lt": 1950}})) == 1
        assert gallery.store.count(selection=Filter(where={"artist": "Klimt"})) == 1
    assert metadata_of(tmp_path / "g", SECOND) == {"year": 1950}


def test_a_file_without_labels_leaves_those_of_the_folders(model: Embedder, folder: Path, tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", "path,year", f"{FIRST},1908")
    index_folder(model, "toy", folder, tmp_path / "g", labels=table)
    with VectorGallery.open(tmp_path / "g") as gallery:
        labels = {item.source: item.label for item in gallery.store.items(limit=100)}
    assert labels == {source: source.rpartition("/")[0] for source in labels}
    assert metadata_of(tmp_path / "g", FIRST) == {"year": 1908}


@pytest.mark.parametrize("column", ["image", "path"])
@pytest.mark.parametrize("below", ["", "pictures/"])
def test_a_file_of_labels_is_a_table_as_other_commands_read_it(
    model: Embedder, folder: Path, tmp_path: Path, column: str, below: str
) -> None:
    """Under either name of the column, and with paths relative to the table or below the folder of images."""
    table = write(tmp_path / "t.csv", f"{column},label,year", f"{below}{FIRST},zebra,1908")
    report = index_folder(model, "toy", folder, tmp_path / "g", labels=table)
    assert (report.unlabelled, report.labels_unused, report.metadata) == (23, [], ("year",))
    assert metadata_of(tmp_path / "g", FIRST) == {"year": 1908}
    with VectorGallery.open(tmp_path / "g") as gallery:
        assert gallery.store.count(Filter(("zebra",))) == 1


def test_the_file_replaces_the_keys_that_it_has_and_no_others(model: Embedder, folder: Path, tmp_path: Path) -> None:
    gallery_folder = tmp_path / "g"
    index_folder(model, "toy", folder, gallery_folder)
    with VectorGallery.open(gallery_folder) as gallery:
        for item in gallery.store.items(limit=100):
            gallery.store.describe(item.id, metadata={"by": "hand", "year": 1})
    table = write(tmp_path / "t.csv", "path,year,artist", f"{FIRST},1908,Klimt", f"{SECOND},,Schiele")

    report = index_folder(model, "toy", folder, gallery_folder, labels=table)
    assert (report.added, report.moved) == (0, 2)
    assert metadata_of(gallery_folder, FIRST) == {"by": "hand", "year": 1908, "artist": "Klimt"}
    assert metadata_of(gallery_folder, SECOND) == {"by": "hand", "year": 1, "artist": "Schiele"}, (
        "empty takes none away"
    )
    assert index_folder(model, "toy", folder, gallery_folder, labels=table).moved == 0, "as it is already"

    index_folder(model, "toy", folder, gallery_folder, labels=table, update=True)
    assert metadata_of(gallery_folder, SECOND) == {"by": "hand", "artist": "Schiele"}
    assert metadata_of(gallery_folder, "green disc/0.png") == {"by": "hand", "year": 1}, "the file has no row for it"
    index_folder(model, "toy", folder, gallery_folder, update=True)
    assert metadata_of(gallery_folder, FIRST) == {"by": "hand", "year": 1908, "artist": "Klimt"}, "folders have none"


def test_an_update_leaves_the_labels_of_images_without_a_row(model: Embedder, folder: Path, tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", "path,label", f"{FIRST},wren", f"{SECOND},owl")
    index_folder(model, "toy", folder, tmp_path / "g", labels=table)
    with VectorGallery.open(tmp_path / "g") as gallery:
        for item in gallery.store.items(limit=100):
            gallery.store.describe(item.id, label="by hand")
    index_folder(model, "toy", folder, tmp_path / "g", labels=table, update=True)
    with VectorGallery.open(tmp_path / "g") as gallery:
        labels = {item.source: item.label for item in gallery.store.items(limit=100)}
    assert (labels.pop(FIRST), labels.pop(SECOND)) == ("wren", "owl")
    assert set(labels.values()) == {"by hand"}


def test_one_image_twice_keeps_the_metadata_of_both(model: Embedder, folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / FIRST, folder / "red stripes/twin.png")
    table = write(tmp_path / "t.csv", "path,year", f"{FIRST},1908", "red stripes/twin.png,1909")
    report = index_folder(model, "toy", folder, tmp_path / "g", labels=table)
    assert report.copies == [("red stripes/twin.png", FIRST)]
    assert metadata_of(tmp_path / "g", FIRST) == {"year": 1908}
    assert metadata_of(tmp_path / "g", "red stripes/twin.png") == {"year": 1909}, "each file is an item of its own"


def test_a_value_of_another_kind_is_another_value(model: Embedder, folder: Path, tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", "path,sold", f"{FIRST},1")
    index_folder(model, "toy", folder, tmp_path / "g", labels=table)
    write(table, "path,sold", f"{FIRST},true")
    assert index_folder(model, "toy", folder, tmp_path / "g", labels=table).moved == 1
    assert metadata_of(tmp_path / "g", FIRST)["sold"] is True


def test_added_again_with_a_value_of_another_kind_it_differs(model: Embedder, folder: Path, tmp_path: Path) -> None:
    index_folder(model, "toy", folder, tmp_path / "g")
    with VectorGallery.open(tmp_path / "g") as gallery:
        item = gallery.store.items(limit=1)[0]
        gallery.store.describe(item.id, metadata={"sold": 1, "year": 1908})
        item = gallery.store.item(item.id)
    assert item.differs(None, {"sold": True, "year": 1908})
    assert not item.differs(None, {"year": 1908, "sold": 1})
    assert not item.differs(None, {})


STRIPES, CHECKS, *_ = toys.CLASSES


def write_table(path: Path, *rows: Iterable[str]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def items_of(gallery_folder: Path) -> dict[str, Item]:
    with VectorGallery.open(gallery_folder) as gallery:
        return {item.source: item for item in gallery.store.items(limit=100)}


def test_labels_and_metadata_are_the_tables(model: Embedder, folder: Path, tmp_path: Path) -> None:
    table = write_table(
        folder / "birds.csv",
        ("image", "label", "split", "year", "path"),
        (f"{STRIPES}/0.png", "wren", "train", "1908", "p"),
        (f"./{CHECKS}/1.png", "owl, barn", "test", "", "q"),
        (f"{CHECKS}/2.png", "", "test", "1950", ""),
    )
    report = index_folder(model, "toy", table, tmp_path / "g")
    assert (report.found, report.added, report.metadata) == (3, 3, ("split", "year", "path"))
    assert (report.unlabelled, report.labels_unused, report.other_files) == (0, [], [])
    found = items_of(tmp_path / "g")
    assert {source: (item.label, item.metadata) for source, item in found.items()} == {
        f"{STRIPES}/0.png": ("wren", {"split": "train", "year": 1908, "path": "p"}),
        f"{CHECKS}/1.png": ("owl, barn", {"split": "test", "path": "q"}),
        f"{CHECKS}/2.png": (None, {"split": "test", "year": 1950}),
    }
    assert [item.id for item in found.values()] == [1, 2, 3], "in the order of the rows"
    with VectorGallery.open(tmp_path / "g") as gallery:
        assert gallery.store.count(selection=Filter(where={"split": "test"})) == 2


def test_a_source_is_the_path_below_the_tables_folder_or_the_full_path(
    model: Embedder, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "tables").mkdir()
    shutil.copy(folder / STRIPES / "0.png", folder / "tables" / "here.png")
    table = write_table(
        folder / "tables" / "t.csv",
        ("path",),
        ("here.png",),
        (f"../{STRIPES}/1.png",),
        (str(folder / CHECKS / "2.png"),),
        (f"../tables/../{CHECKS}/3.png",),
    )
    monkeypatch.chdir(folder)
    index_folder(model, "toy", Path("tables") / table.name, tmp_path / "g")
    found = items_of(tmp_path / "g")
    elsewhere = [str(folder / part) for part in (f"{STRIPES}/1.png", f"{CHECKS}/2.png", f"{CHECKS}/3.png")]
    assert list(found) == ["here.png", *elsewhere]
    assert {item.label for item in found.values()} == {None}, "a table without labels gives none"
    with VectorGallery.open(tmp_path / "g") as gallery:
        assert indexed_folders(gallery) == [folder / "tables"]
        originals = Originals.of(gallery)
        assert all(originals.read(item) for item in found.values()), "each is found again by its source"


def test_names_that_no_file_has_are_left_out(
    model: Embedder, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("~nobody-of-this-name/a.png", "a\0.png", STRIPES, "x" * 300)
    write_table(folder / "t.csv", ("image",), (f"{STRIPES}/0.png",), *((name,) for name in names))
    monkeypatch.chdir(folder)
    report = index_folder(model, "toy", Path("t.csv"), tmp_path / "g")
    sources = tuple(name.replace("\0", r"\x00") for name in names)
    assert (report.added, tuple(source for source, _ in report.unreadable)) == (1, sources)
    assert index_folder(model, "toy", Path("t.csv"), tmp_path / "w", embed=Workers(model, folder)).added == 1
    images = [(f"{STRIPES}/{number}.png", "ab"[number % 2]) for number in range(4)]
    labels = write_table(folder / "labels.csv", ("image", "label"), *images, ("a\0.png", "a"))
    assert index_folder(model, "toy", folder, tmp_path / "l", labels=labels).labels_unused == [r"a\x00.png"]
    assert run_here("evaluate", model.folder, "--data", labels) == 0


def test_it_is_the_gallery_that_the_folder_and_its_labels_make(model: Embedder, folder: Path, tmp_path: Path) -> None:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    rows = [(path.relative_to(folder).as_posix(), path.parent.name.upper(), str(i)) for i, path in enumerate(paths)]
    rows.sort(key=lambda row: Path(row[0]).parts)
    labels = write_table(tmp_path / "labels.csv", ("path", "label", "number"), *rows)
    table = write_table(folder / "table.csv", ("image", "label", "number"), *rows)
    index_folder(model, "toy", folder, tmp_path / "by-folder", labels=labels)
    index_folder(model, "toy", table, tmp_path / "by-table")
    index_folder(model, "toy", table, tmp_path / "by-workers", embed=Workers(model, folder))
    assert content(tmp_path / "by-table") == content(tmp_path / "by-folder") == content(tmp_path / "by-workers")
    again = index_folder(model, "toy", table, tmp_path / "by-folder")
    assert (again.added, again.moved, again.items) == (0, 0, len(paths))


def test_a_changed_table_changes_the_items_and_prunes_what_it_lists_no_more(
    model: Embedder, folder: Path, tmp_path: Path
) -> None:
    gallery = tmp_path / "g"
    rows = [(f"{STRIPES}/{i}.png", "wren", "1908") for i in range(5)]
    table = write_table(folder / "t.csv", ("image", "label", "year"), *rows)
    index_folder(model, "toy", table, gallery)
    (folder / STRIPES / "4.png").unlink()
    write_table(table, ("image", "label", "year"), (rows[0][0], "owl", ""), *rows[2:])
    report = index_folder(model, "toy", table, gallery, prune=lambda gallery, ids: True)
    assert report.unreadable == [(f"{STRIPES}/4.png", "the file cannot be read: No such file or directory.")]
    assert report.moved == 1
    assert report.pruned == [f"{STRIPES}/1.png"], "what cannot be read now, as of a disk that is away, stays"
    found = items_of(gallery)
    assert list(found) == [f"{STRIPES}/{i}.png" for i in (0, 2, 3, 4)]
    assert (found[rows[0][0]].label, found[rows[0][0]].metadata) == ("owl", {"year": 1908})
    index_folder(model, "toy", table, gallery, update=True)
    assert items_of(gallery)[rows[0][0]].metadata == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("file,label\na.png,x\n", r"needs a header with the column image \(or path\); it has: file, label"),
        ("", r"needs a header with the column image \(or path\); it has: nothing"),
        ("image,label\n", "lists no images"),
        ("image,label\na.png,x\n,y\n", "line 3: a row needs an image and a label"),
        ("path,label\na.png,x\n,y\n", "line 3: a row needs a path and a label"),
        ("image,year\na.png,1\n,2\n", "line 3: a row needs an image\\."),
        ("image,label\na.png\n", "line 2: a row needs an image and a label"),
        ("image,label\na.png,x\na.png,y\n", "line 3: a.png has another label or other metadata above"),
        ("image,label,label\na.png,x,y\n", "has the column label more than once"),
    ],
)
def test_what_is_no_such_table_is_refused(text: str, says: str, model: Embedder, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(UsageError, match=says):
        index_folder(model, "toy", tmp_path / "t.csv", tmp_path / "g")
    assert not (tmp_path / "g").exists()


def test_the_command_takes_it(
    model: Embedder, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write_table(folder / "t.csv", ("image", "label"), (f"{STRIPES}/0.png", "wren"), ("gone.png", "owl"))
    out = tmp_path / "g"
    assert run_here("index", model.folder, table, "--out", out, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["added"], told["not_in_folder"], [source for source, _ in told["unreadable"]]) == (1, [], ["gone.png"])
    assert run_here("index", model.folder, table, "--out", out, "--strict") == 1
    with raises(UsageError, "option-without-effect", "t.csv"):
        run_here("index", model.folder, table, "--out", out, "--labels", table)
    with raises(DatasetError, "not-found", "none.csv"):
        run_here("index", model.folder, folder / "none.csv", "--out", out)
    write_table(table, ("image",), ("gone.png",))
    with raises(GalleryError, "no-images", "gone.png"):
        run_here("index", model.folder, table, "--out", tmp_path / "new")
    table.unlink()
    (folder / "t.csv").mkdir()
    shutil.copy(folder / STRIPES / "0.png", folder / "t.csv")
    assert run_here("index", model.folder, folder / "t.csv", "--out", out) == 0, "a folder may be called like a table"

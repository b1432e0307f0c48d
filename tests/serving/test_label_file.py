"""What a CSV file says of images: labels, and metadata in its further columns."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving.gallery import Gallery
from serving.gallery.filters import Filter
from serving.gallery.indexing import index_folder
from zoo.data.table import read_label_file
from zoo.errors import UsageError
from zoo.models.load import Embedder

FIRST, SECOND = "red stripes/0.png", "red stripes/1.png"


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def metadata_of(gallery_folder: Path, source: str) -> dict[str, object]:
    with Gallery.open(gallery_folder) as gallery:
        return next(item.metadata for item in gallery.items(limit=100) if item.source == source)


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
    assert said.columns == ("year", "price", "sold", "sku", "barcode", "note")
    assert said.labels == {"a.png": "x", "b.png": "x", "c.png": None}
    first = {"year": 1908, "price": 1.5, "sold": True, "sku": "00123", "barcode": "12345678901234567890"}
    assert said.metadata == {
        "a.png": {**first, "note": "a, b"},
        "b.png": {"year": -3, "price": 2.0, "sold": False, "sku": "7", "barcode": "1"},
        "c.png": {},
    }
    assert said.metadata["a.png"]["sold"] is True


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(st.text(), st.integers().map(str), st.floats().map(repr), st.just("true")), min_size=1))
def test_whatever_a_column_holds_can_be_kept_and_read_back(tmp_path: Path, cells: list[str]) -> None:
    cells = [cell.encode("utf-8", "replace").decode() for cell in cells]
    with (tmp_path / "t.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "cell"])
        table.writerows([f"{number}.png", cell] for number, cell in enumerate(cells))
    said = read_label_file(tmp_path / "t.csv")
    found = [said.metadata[f"{number}.png"].get("cell", "") for number in range(len(cells))]
    json.dumps(found, allow_nan=False)
    kinds = {type(value) for value, cell in zip(found, cells, strict=True) if cell}
    assert len(kinds) <= 1, "one kind a column"
    for value, cell in zip(found, cells, strict=True):
        if isinstance(value, str):
            assert value == cell
        elif isinstance(value, bool):
            assert json.loads(cell) is value
        else:
            assert value == (int if isinstance(value, int) else float)(cell)


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
    with Gallery.open(tmp_path / "g") as gallery:
        assert gallery.count(chosen=Filter(where={"year": {"gte": 1900, "lt": 1950}})) == 1
        assert gallery.count(chosen=Filter(where={"artist": "Klimt"})) == 1
    assert metadata_of(tmp_path / "g", SECOND) == {"year": 1950}


def test_a_file_without_labels_leaves_those_of_the_folders(model: Embedder, folder: Path, tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", "path,year", f"{FIRST},1908")
    index_folder(model, "toy", folder, tmp_path / "g", labels=table)
    with Gallery.open(tmp_path / "g") as gallery:
        labels = {item.source: item.label for item in gallery.items(limit=100)}
    assert labels == {source: source.rpartition("/")[0] for source in labels}
    assert metadata_of(tmp_path / "g", FIRST) == {"year": 1908}


def test_the_file_replaces_the_keys_that_it_has_and_no_others(model: Embedder, folder: Path, tmp_path: Path) -> None:
    gallery_folder = tmp_path / "g"
    index_folder(model, "toy", folder, gallery_folder)
    with Gallery.open(gallery_folder) as gallery:
        for item in gallery.items(limit=100):
            gallery.describe(item.id, metadata={"by": "hand", "year": 1})
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
    assert metadata_of(gallery_folder, "green disc/0.png") == {"by": "hand"}, "the file names none of its year"
    index_folder(model, "toy", folder, gallery_folder, update=True)
    assert metadata_of(gallery_folder, FIRST) == {"by": "hand", "year": 1908, "artist": "Klimt"}, "folders have none"


def test_one_image_twice_with_other_metadata_is_told(model: Embedder, folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / FIRST, folder / "red stripes/twin.png")
    table = write(tmp_path / "t.csv", "path,year", f"{FIRST},1908", "red stripes/twin.png,1909")
    report = index_folder(model, "toy", folder, tmp_path / "g", labels=table)
    assert [source for source, _, _ in report.differing] == ["red stripes/twin.png"]
    assert metadata_of(tmp_path / "g", FIRST) == {"year": 1908}


def test_a_value_of_another_kind_is_another_value(model: Embedder, folder: Path, tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", "path,sold", f"{FIRST},1")
    index_folder(model, "toy", folder, tmp_path / "g", labels=table)
    write(table, "path,sold", f"{FIRST},true")
    assert index_folder(model, "toy", folder, tmp_path / "g", labels=table).moved == 1
    assert metadata_of(tmp_path / "g", FIRST)["sold"] is True


def test_added_again_with_a_value_of_another_kind_it_differs(model: Embedder, folder: Path, tmp_path: Path) -> None:
    index_folder(model, "toy", folder, tmp_path / "g")
    with Gallery.open(tmp_path / "g") as gallery:
        item = gallery.items(limit=1)[0]
        gallery.describe(item.id, metadata={"sold": 1, "year": 1908})
        item = gallery.item(item.id)
    assert item.differs(None, {"sold": True, "year": 1908})
    assert not item.differs(None, {"year": 1908, "sold": 1})
    assert not item.differs(None, {})

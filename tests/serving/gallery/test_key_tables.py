"""The column `key` of tables that `zoo index` reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from serving.gallery import VectorGallery
from serving.gallery.indexing import IndexingReport, index_folder
from tests.commandline import run_here as run
from tests.raising import raises
from tests.serving.gallery.backends.test_ray import Workers
from tests.serving.gallery.test_store_keys import noise
from zoo.data.table import read_label_file, read_table
from zoo.errors import UsageError
from zoo.models.load import Embedder


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def draw(folder: Path, **numbers: int) -> None:
    folder.mkdir(exist_ok=True)
    for name, number in numbers.items():
        (folder / f"{name}.png").write_bytes(noise(number))


def keys_of(gallery: Path) -> dict[str | None, tuple[str, str | None, dict[str, object]]]:
    with VectorGallery.open(gallery) as opened:
        return {item.key: (item.source, item.label, item.metadata) for item in opened.store.items(0, 100)}


def nearest_key(gallery: Path, model: Embedder, number: int) -> tuple[str | None, bool]:
    with VectorGallery.open(gallery) as opened:
        hit = opened.search(model.embed([noise(number)]), 1)[0][0]
        return hit.key, hit.similarity > 0.9999


def test_the_column_key_names_images_and_is_not_metadata(tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", "image,key,label,year", "a.png,007,x,1", "b.png,,y,2", 'c.png,"a, b/ü",,3')
    for rows in (read_table(table), read_label_file(table)):
        assert rows.keys == {"a.png": "007", "c.png": "a, b/ü"}
        assert rows.columns == ("year",)
    inside = write(tmp_path / "f" / "t.csv", "image,key", "a.png,1") if (tmp_path / "f").mkdir() is None else table
    assert read_label_file(inside, {"f/a.png"}, tmp_path).keys == {"f/a.png": "1"}
    with raises(UsageError, "invalid-table"):
        read_table(write(tmp_path / "t.csv", "image,key", "a.png,k", "b.png,k"))
    same_row_twice = write(tmp_path / "t.csv", "image,key", "a.png,k", "a.png,k")
    assert read_table(same_row_twice).keys == {"a.png": "k"}
    with raises(UsageError, "invalid-table"):
        read_table(write(tmp_path / "t.csv", "image,key", "a.png,k", "a.png,l"))


@pytest.mark.parametrize("on_ray", [False, True])
def test_a_changed_file_replaces_the_image_of_its_key(model: Embedder, tmp_path: Path, on_ray: bool) -> None:
    folder, gallery = tmp_path / "pictures", tmp_path / "gallery"
    draw(folder, a=1, b=2, c=3)
    table = write(folder / "t.csv", "image,key,label,year", "a.png,A,x,1", "b.png,B,y,2", "c.png,,z,3")

    def index() -> IndexingReport:
        return index_folder(model, str(model.folder), table, gallery, embed=Workers(model, folder) if on_ray else None)

    report = index()
    assert (report.added, report.replaced, report.refused) == (3, 0, [])
    before = keys_of(gallery)
    assert before == {
        "A": ("a.png", "x", {"year": 1}),
        "B": ("b.png", "y", {"year": 2}),
        None: ("c.png", "z", {"year": 3}),
    }
    report = index()
    assert (report.added, report.already_there, report.replaced, report.moved) == (0, 3, 0, 0)
    draw(folder, a=11)
    write(table, "image,key,label,year", "a.png,A,x,5", "b.png,B,w,2", "c.png,C,z,3")
    report = index()
    assert (report.added, report.already_there, report.replaced, report.refused) == (0, 2, 1, [])
    assert keys_of(gallery) == {
        "A": ("a.png", "x", {"year": 5}),
        "B": ("b.png", "w", {"year": 2}),
        "C": ("c.png", "z", {"year": 3}),
    }
    assert nearest_key(gallery, model, 11) == ("A", True)
    assert nearest_key(gallery, model, 1)[1] is False
    assert report.items == 3
    # c.png has the key C already, and d.png is a copy of b.png: one image has one key.
    draw(folder, d=2)
    write(table, "image,key", "a.png,A", "c.png,D", "b.png,B", "d.png,E")
    report = index()
    assert sorted(source for source, _ in report.refused) == ["c.png", "d.png"]
    assert set(keys_of(gallery)) == {"A", "B", "C"}


def test_an_image_that_was_added_without_a_key_takes_the_place_of_the_key_s_image(
    model: Embedder, tmp_path: Path
) -> None:
    folder, gallery = tmp_path / "pictures", tmp_path / "gallery"
    draw(folder, a=1, b=2)
    table = write(folder / "t.csv", "image,key,label", "a.png,A,x", "b.png,,y")
    index_folder(model, str(model.folder), table, gallery)
    write(table, "image,key,label", "b.png,A,y")
    report = index_folder(model, str(model.folder), table, gallery)
    assert (report.added, report.replaced, report.already_there, report.items) == (0, 1, 0, 1)
    assert keys_of(gallery) == {"A": ("b.png", "y", {})}


def test_keys_of_labels_on_the_command_line(
    model: Embedder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, gallery = tmp_path / "pictures", tmp_path / "gallery"
    draw(folder, a=1, b=2)
    labels = write(tmp_path / "labels.csv", "image,key", "pictures/a.png,A", "pictures/b.png,B")
    words = ("index", model.folder, folder, "--out", gallery, "--labels", labels)
    assert run(*words, "--json") == 0
    assert json.loads(capsys.readouterr().out)["metadata"] == []
    assert set(keys_of(gallery)) == {"A", "B"}
    draw(folder, a=3)
    assert run(*words) == 0
    assert "1 key has another image now" in capsys.readouterr().out
    write(labels, "image,key", "pictures/a.png,C", "pictures/b.png,B")
    assert run(*words, "--strict") == 1
    assert "the key of a.png was refused" in capsys.readouterr().out
    write(labels, "image,key", f"pictures/a.png,{'k' * 257}", "pictures/b.png,B")
    with raises(UsageError, "invalid-item"):
        run(*words)

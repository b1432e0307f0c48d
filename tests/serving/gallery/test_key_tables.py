"""The column `key` of tables that `zoo index` reads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import zoo
from serving.gallery import VectorGallery
from serving.gallery.image_files import IndexingReport
from serving.gallery.indexing import index_folder
from tests.commandline import run_here as run
from tests.raising import raises
from tests.serving.gallery.backends.test_ray import Workers
from tests.serving.gallery.test_store_keys import noise
from zoo.data.table import LabelFile, read_label_file, read_table
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


def keys_in(file: LabelFile) -> list[tuple[str, str | None]]:
    return [(row.path, row.key) for row in file.rows]


def nearest_key(gallery: Path, model: Embedder, number: int) -> tuple[str | None, bool]:
    with VectorGallery.open(gallery) as opened:
        hit = opened.search(model.embed([noise(number)]), 1)[0][0]
        return hit.key, hit.similarity > 0.9999


def test_the_column_key_names_images_and_is_not_metadata(tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", "image,key,label,year", "a.png,007,x,1", "b.png,,y,2", 'c.png,"a, b/ü",,3')
    for file in (read_table(table), read_label_file(table)):
        assert keys_in(file) == [("a.png", "007"), ("b.png", None), ("c.png", "a, b/ü")]
        assert [column.name for column in file.columns] == ["year"]
    inside = write(tmp_path / "f" / "t.csv", "image,key", "a.png,1") if (tmp_path / "f").mkdir() is None else table
    assert keys_in(read_label_file(inside, {"f/a.png"}, tmp_path)) == [("f/a.png", "1")]
    with raises(UsageError, "invalid-table"):
        read_table(write(tmp_path / "t.csv", "image,key", "a.png,k", "b.png,k"))
    same_row_twice = write(tmp_path / "t.csv", "image,key", "a.png,k", "a.png,k")
    assert keys_in(read_table(same_row_twice)) == [("a.png", "k")]
    shared = write(tmp_path / "t.csv", "image,key", "a.png,k", "a.png,l")
    assert keys_in(read_table(shared)) == [("a.png", "k"), ("a.png", "l")], "two products share a picture"
    for second in ("a.png,,2", "a.png,k,2"):
        with raises(UsageError, "invalid-table"):
            read_table(write(tmp_path / "t.csv", "image,key,year", "a.png,k,1", second))


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
    # An item is its key: c.png has another one now, and d.png is a copy of b.png.
    draw(folder, d=2)
    write(table, "image,key", "a.png,A", "c.png,D", "b.png,B", "d.png,E")
    report = index()
    assert (report.added, report.refused, report.copies) == (2, [], [("d.png", "b.png")])
    assert set(keys_of(gallery)) == {"A", "B", "C", "D", "E"}
    assert keys_of(gallery)["C"] == ("c.png", "z", {"year": 3}), "what is known of the former key stays"


def test_pruning_follows_a_key_that_was_renamed_in_the_table(model: Embedder, tmp_path: Path) -> None:
    folder, gallery = tmp_path / "pictures", tmp_path / "gallery"
    draw(folder, a=1, b=2, c=3, d=4)
    table = write(folder / "t.csv", "image,key", "a.png,A", "b.png,B", "c.png,C", "d.png,D1", "d.png,D2")

    def index(prune: bool) -> IndexingReport:
        confirm = (lambda opened, ids: True) if prune else None
        return index_folder(model, str(model.folder), table, gallery, prune=confirm)

    index(prune=False)
    hand = zoo.Gallery(gallery)
    hand.describe("A", label="by hand", metadata={"shelf": 7})
    hand.close()
    # A and C are renamed; B's row is gone; d.png has two new keys, so that nobody can tell which one is which.
    write(table, "image,key", "a.png,A-1", "c.png,C-1", "d.png,D3", "d.png,D4")
    shutil.copytree(gallery, tmp_path / "other")
    report = index(prune=True)
    assert report.renamed == [("A", "A-1"), ("C", "C-1")]
    assert sorted(report.pruned) == ["B", "D1", "D2"]
    assert keys_of(gallery)["A-1"] == ("a.png", "by hand", {"shelf": 7})
    assert set(keys_of(gallery)) == {"A-1", "C-1", "D3", "D4"}
    kept = index_folder(model, str(model.folder), table, tmp_path / "other")
    assert (kept.renamed, kept.added) == ([], 4), "without --prune no key is taken away"
    assert {"A", "B", "C", "D1", "D2"} <= set(keys_of(tmp_path / "other"))


def test_a_key_gets_the_image_of_another_file(model: Embedder, tmp_path: Path) -> None:
    folder, gallery = tmp_path / "pictures", tmp_path / "gallery"
    draw(folder, a=1, b=2)
    table = write(folder / "t.csv", "image,key,label", "a.png,A,x", "b.png,,y")
    index_folder(model, str(model.folder), table, gallery)
    write(table, "image,key,label", "b.png,A,y")
    report = index_folder(model, str(model.folder), table, gallery)
    assert (report.added, report.replaced, report.already_there, report.items) == (0, 1, 0, 2)
    assert keys_of(gallery) == {"A": ("b.png", "y", {}), None: ("b.png", "y", {})}
    assert report.not_in_folder == ["b.png"], "the item without a key, which --prune removes"


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
    assert "1 item has another image now" in capsys.readouterr().out
    write(labels, "image,key", "pictures/a.png,C", "pictures/b.png,B")
    assert run(*words, "--prune", "--yes") == 0
    assert set(keys_of(gallery)) == {"B", "C"}
    write(labels, "image,key", f"pictures/a.png,{'k' * 257}", "pictures/b.png,B")
    with raises(UsageError, "invalid-item"):
        run(*words)

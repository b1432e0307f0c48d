"""`zoo index --prune` removes the items whose image is not in the folder, and no others."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from serving.gallery import Gallery
from serving.gallery.indexing import index_folder
from tests.commandline import run_here
from tests.raising import raises
from tests.serving.here import Terminal
from zoo.errors import UsageError
from zoo.models.load import Embedder

FIRST, SECOND = "red stripes/0.png", "red stripes/1.png"


def index(*words: object) -> int:
    return run_here("index", *words)


def sources(gallery_folder: Path) -> set[str]:
    with Gallery.open(gallery_folder) as gallery:
        return {item.source for item in gallery.items(limit=100)}


def count(gallery_folder: Path) -> int:
    with Gallery.open(gallery_folder) as gallery:
        return gallery.count()


def test_items_without_their_image_are_removed(
    model: Embedder, model_folder: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gallery_folder = tmp_path / "g"
    index_folder(model, "toy", folder, gallery_folder)
    before = sources(gallery_folder)
    (folder / FIRST).rename(folder / "moved.png")
    (folder / SECOND).unlink()
    shutil.copy(folder / "red stripes/2.png", folder / "red stripes/3.png")  # its former content is gone
    assert index(model_folder, folder, "--out", gallery_folder, "--prune", "--yes") == 0
    assert sources(gallery_folder) == before - {FIRST, SECOND, "red stripes/3.png"} | {"moved.png"}
    assert "2 whose image is not among these were removed" in capsys.readouterr().out


def test_it_asks_first(
    model: Embedder,
    model_folder: Path,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    gallery_folder = tmp_path / "g"
    index_folder(model, "toy", folder, gallery_folder)
    words = (model_folder, folder, "--out", gallery_folder)
    (folder / FIRST).unlink()
    with raises(UsageError, "option-without-effect"):
        index(*words, "--yes")
    with raises(UsageError, "not-confirmed"):
        index(*words, "--prune")
    for answer, left in (("n\n", 24), ("", 24), ("y\n", 23)):
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        index(*words, "--prune")
        output = capsys.readouterr()
        assert f"Remove 1 item(s) whose image is not among those indexed now ({FIRST})? [y/N]" in output.err
        assert ("stay in the gallery" in output.out) == (left == 24)
        assert len(sources(gallery_folder)) == left


def test_an_image_that_cannot_be_read_now_stays(
    model: Embedder, model_folder: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gallery_folder = tmp_path / "g"
    index_folder(model, "toy", folder, gallery_folder)
    (folder / FIRST).write_bytes(b"cut off")
    words = (model_folder, folder, "--out", gallery_folder, "--prune", "--yes")
    assert index(*words) == 0
    assert len(sources(gallery_folder)) == 24
    assert index(*words, "--strict") == 1, "so that cron reports it"
    for path in filter(Path.is_file, list(folder.rglob("*"))):
        path.write_bytes(b"cut off")
    (folder / SECOND).rename(folder / "other.png")
    assert index(*words) == 0
    assert len(sources(gallery_folder)) == 24, "a folder without readable images does not show which images are gone"


def test_items_of_another_folder_are_not_pruned(
    model: Embedder, model_folder: Path, folder: Path, tmp_path: Path
) -> None:
    gallery_folder, other = tmp_path / "g", tmp_path / "other"
    (folder / "green disc").rename(other)
    for source in (folder, other, folder / "red stripes"):
        index_folder(model, "toy", source, gallery_folder)
    words = (model_folder, folder, "--out", gallery_folder, "--prune", "--yes")
    with raises(UsageError) as caught:
        index(*words)
    assert str(other) in str(caught.value)
    assert count(gallery_folder) == 24
    shutil.rmtree(other)
    assert index(*words) == 0
    assert count(gallery_folder) == 18


def test_a_name_cannot_steer_the_terminal(
    model_folder: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "bad\x1b[31mred.png").write_bytes(b"cut off")
    index(model_folder, folder, "--out", tmp_path / "g")
    assert capsys.readouterr().out.startswith("left out bad\\x1b[31mred.png: ")


def test_more_than_half_is_pruned_only_after_a_question(
    model: Embedder,
    model_folder: Path,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gallery_folder = tmp_path / "g"
    index_folder(model, "toy", folder, gallery_folder)
    for path in filter(Path.is_dir, list(folder.iterdir())):
        if path.name != "green disc":  # as where a disk is not mounted
            shutil.rmtree(path)
    left = sum(path.is_file() for path in folder.rglob("*"))
    words = (model_folder, folder, "--out", gallery_folder, "--prune")
    with raises(UsageError, "too-many-to-prune") as caught:
        index(*words, "--yes")
    assert f"{24 - left} of 24" in str(caught.value)
    assert count(gallery_folder) == 24
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    index(*words)
    assert count(gallery_folder) == left

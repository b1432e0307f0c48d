"""Folders of images read as data sets, and data sets written as folders."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.raising import raises
from zoo.data import load_dataset
from zoo.data.dataset import Dataset, export_folder, folder_names
from zoo.data.folder import list_images
from zoo.data.images import open_image
from zoo.errors import DatasetError


def fill(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (2, 2)).save(path, "PNG")
    return root


def names(root: Path) -> list[str]:
    return [path.relative_to(root).as_posix() for path in list_images(root)]


def test_images_are_listed_sorted_at_any_depth_by_content(tmp_path: Path) -> None:
    fill(
        tmp_path, "b/2.png", "b/10.PNG", "a/x/1.jpeg", "a.png", "a/y.webp", "b/named.txt", "a/.hidden.png", ".git/1.png"
    )
    (tmp_path / "b" / "notes.txt").write_text("no image")
    assert names(tmp_path) == ["a/x/1.jpeg", "a/y.webp", "a.png", "b/10.PNG", "b/2.png", "b/named.txt"]


def test_linked_folders_are_followed_but_loops_are_not(tmp_path: Path) -> None:
    fill(tmp_path / "root", "a/1.png", "a/deep/2.png")
    fill(tmp_path / "elsewhere", "3.png")
    (tmp_path / "root" / "a" / "deep" / "up").symlink_to(tmp_path / "root")
    (tmp_path / "root" / "b").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "root" / "c").symlink_to(tmp_path / "root" / "a")
    (tmp_path / "root" / "d").symlink_to(tmp_path / "nowhere")
    (tmp_path / "root" / "e").symlink_to("e")
    assert names(tmp_path / "root") == ["a/1.png", "a/deep/2.png", "c/1.png", "c/deep/2.png"], "b leads out"
    inside, followed = list_images(tmp_path / "root"), list_images(tmp_path / "root", follow_links=True)
    assert followed == [*inside[:2], tmp_path / "root" / "b" / "3.png", *inside[2:]]


def test_classes_are_the_images_folders(tmp_path: Path) -> None:
    fill(tmp_path, "wren/1.png", "birds/wren/1.png", "birds/wren/2.png", "birds/3.png")
    birds = load_dataset("folder", "test", tmp_path)
    assert birds.classes == ("birds", "birds/wren", "wren")
    assert list(birds.sources) == ["birds/3.png", "birds/wren/1.png", "birds/wren/2.png", "wren/1.png"]
    assert birds.labels.tolist() == [0, 1, 1, 2]
    assert birds.labels.dtype == np.int64
    assert list(birds.images) == [tmp_path / source for source in birds.sources]


def test_subfolders_train_and_test_are_the_splits(tmp_path: Path) -> None:
    fill(tmp_path, "train/a/1.png", "train/b/1.png", "test/c/1.png", "test/d/1.png", "test/d/2.png")
    assert load_dataset("folder", "train", tmp_path).classes == ("a", "b")
    assert load_dataset("folder", "test", str(tmp_path)).classes == ("c", "d")


def test_without_both_the_whole_folder_is_either_split(tmp_path: Path) -> None:
    fill(tmp_path, "test/1.png", "other/1.png")
    whole = [load_dataset("folder", split, tmp_path) for split in ("train", "test", "all")]
    assert {dataset.classes for dataset in whole} == {("other", "test")}
    assert {dataset.split for dataset in whole} == {"all"}  # its scores do not count as scores on unseen classes


def test_a_folder_with_splits_is_not_read_as_one(tmp_path: Path) -> None:
    fill(tmp_path, "train/a/1.png", "train/b/1.png", "test/c/1.png", "test/d/1.png")
    with raises(DatasetError, "wrong-split"):
        load_dataset("folder", "all", tmp_path)
    with raises(DatasetError, "unknown-name", "'all'"):
        load_dataset("glyphs", "all")


@pytest.mark.parametrize(
    ("files", "code", "value"),
    [
        ([], "no-images", ".png"),
        (["a/1.png", "b/1.png", "stray.png"], "invalid-table", "stray.png"),
        (["a/1.png", "a/2.png"], "too-few-classes", "'a'"),
    ],
)
def test_folders_that_are_not_data_sets_are_refused(tmp_path: Path, files: list[str], code: str, value: str) -> None:
    with raises(DatasetError, code, value):
        load_dataset("folder", "test", fill(tmp_path, *files))


def test_a_folder_must_be_named_and_exist(tmp_path: Path) -> None:
    with raises(DatasetError, "missing-value", "--data"):
        load_dataset("folder", "test")
    with raises(DatasetError, "not-found", "nowhere"):
        load_dataset("folder", "test", tmp_path / "nowhere")
    fill(tmp_path, "a.png")
    with raises(DatasetError, "not-found", "a.png"):
        load_dataset("folder", "test", tmp_path / "a.png")


def dataset(classes: tuple[str, ...], labels: list[int]) -> Dataset:
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (5, 4, 3), dtype=np.uint8) for _ in labels]
    return Dataset("toy", "test", images, np.array(labels), classes, [str(i) for i in range(len(labels))])


def test_a_data_set_written_out_reads_back_pixel_for_pixel(tmp_path: Path) -> None:
    written = dataset(("Greek/character01", "Latin/character 01", "latin/character_01"), [2, 0, 1, 0, 2, 2])
    read = load_dataset("folder", "test", export_folder(written, tmp_path / "out"))
    assert read.classes == ("Greek/character01", "Latin/character_01", "latin/character_01-2")
    assert list(read.sources) == [
        "Greek/character01/0.png",
        "Greek/character01/1.png",
        "Latin/character_01/0.png",
        "latin/character_01-2/0.png",
        "latin/character_01-2/1.png",
        "latin/character_01-2/2.png",
    ]
    order = [1, 3, 2, 0, 4, 5]
    for path, i in zip(read.images, order, strict=True):
        np.testing.assert_array_equal(np.asarray(open_image(path)), written.images[i])


def test_a_full_folder_is_not_overwritten(tmp_path: Path) -> None:
    fill(tmp_path / "full", "keep.png")
    (tmp_path / "empty").mkdir()
    with raises(DatasetError, "already-exists"):
        export_folder(dataset(("a", "b"), [0, 1]), tmp_path / "full")
    with raises(DatasetError, "already-exists"):
        export_folder(dataset(("a", "b"), [0, 1]), tmp_path / "full" / "keep.png")
    assert names(tmp_path / "full") == ["keep.png"]
    shown = dataset(("a", "b"), [0, 1])
    for _ in range(2):  # the finding: the second call failed
        assert names(export_folder(shown, tmp_path / "twice")) == ["a/0.png", "b/0.png"]
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "twice").rglob("*.png")}
    other = dataclasses.replace(shown, images=[shown.images[1], shown.images[0]])
    with raises(DatasetError, "already-exists"):
        export_folder(other, tmp_path / "twice")
    assert {path: path.stat().st_mtime_ns for path in written} == written
    assert names(export_folder(dataset(("a", "b"), [0, 1]), tmp_path / "empty")) == ["a/0.png", "b/0.png"]


@given(st.lists(st.text(st.sampled_from("aAbé Ա/\\.:+-_2\0\n")), min_size=1, max_size=12, unique=True))
def test_folder_names_are_safe_and_different(classes: list[str]) -> None:
    folders = folder_names(classes)
    assert len({name.casefold() for name in folders}) == len(classes)
    for name in folders:
        assert all(re.fullmatch(r"[A-Za-z0-9_()-][A-Za-z0-9_.()-]*", part) for part in name.split("/"))

"""Databases in folders that cannot be written to."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from serving.gallery import Gallery, NewItem
from serving.gallery.gallery import STORE
from tests.raising import raises
from tests.serving import toys
from zoo.errors import GalleryError
from zoo.models.load import Embedder

NOBODY = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made) / "gallery"


@contextmanager
def unwritable(folder: Path) -> Iterator[None]:
    """Forbid writing; root becomes nobody meanwhile, because root can write everywhere."""
    for file in folder.iterdir():
        file.chmod(0o444)
    folder.chmod(0o555)
    user = os.geteuid()
    try:
        if user == 0:
            os.seteuid(NOBODY)
        yield
    finally:
        os.seteuid(user)
        folder.chmod(0o755)


def new_item(model: Embedder) -> NewItem:
    (vector,) = model.embed(toys.query(0))
    return NewItem("new.png", vector, toys.thumbnail(1), "0" * 64)


def test_read_only_gallery_is_searched(
    gallery_folder: Path, model: Embedder, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(gallery_folder, folder, ignore=shutil.ignore_patterns("*-wal", "*-shm"))
    query, item = model.embed(toys.query(0)), new_item(model)
    with Gallery.open(folder) as gallery:
        expected = gallery.search(query, 5)
    with unwritable(folder), Gallery.open(folder) as gallery:
        assert gallery.search(query, 5) == expected
        assert gallery.store.thumbnail(expected[0][0].id).data
        with raises(GalleryError, "read-only-gallery"):
            gallery.add([item])
    assert caplog.messages == []


def test_reader_without_write_access_sees_other_writers(gallery_folder: Path, model: Embedder, folder: Path) -> None:
    shutil.copytree(gallery_folder, folder, ignore=shutil.ignore_patterns("*-wal", "*-shm"))
    item = new_item(model)
    with Gallery.open(folder) as owner:
        assert owner.store.count() == 24
        with unwritable(folder):
            reader = Gallery.open(folder)
        owner.add([item])
        assert [hit.source for hit in reader.search(item.embedding[np.newaxis], 1)[0]] == ["new.png"]
        reader.close()


def test_unread_log_in_a_read_only_folder_is_an_error(gallery_folder: Path, model: Embedder, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as other:
        live = Path(shutil.copytree(gallery_folder, Path(other) / "g"))
        with Gallery.open(live) as gallery:
            gallery.add([new_item(model)])
            shutil.copytree(live, folder, ignore=shutil.ignore_patterns("*-shm"))
    assert (folder / f"{STORE}-wal").stat().st_size
    with (
        unwritable(folder),
        raises(GalleryError, "unwritable-log", "gallery.sqlite-wal"),
    ):
        Gallery.open(folder)
    with Gallery.open(folder) as gallery:
        assert gallery.store.count() == 25
    with unwritable(folder), Gallery.open(folder) as gallery:
        assert gallery.store.count() == 25

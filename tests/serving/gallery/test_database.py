"""Databases in folders that cannot be written to."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from serving.gallery import NewItem, VectorGallery
from serving.gallery.gallery import STORE
from tests.commandline import run_here
from tests.raising import raises
from tests.serving import toys
from tests.serving.running import local_client
from zoo.errors import GalleryError, GalleryMovedError
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


@contextmanager
def full_disk(largest: int) -> Iterator[None]:
    """Limit all files of this process to `largest` bytes, so that writes fail as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def new_item(model: Embedder) -> NewItem:
    (vector,) = model.embed(toys.query(0))
    return NewItem("new.png", vector, toys.thumbnail(1), "0" * 64)


def test_read_only_gallery_is_searched(
    gallery_folder: Path, model: Embedder, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(gallery_folder, folder, ignore=shutil.ignore_patterns("*-wal", "*-shm"))
    query, item = model.embed(toys.query(0)), new_item(model)
    with VectorGallery.open(folder) as gallery:
        expected = gallery.search(query, 5)
    with unwritable(folder), VectorGallery.open(folder) as gallery:
        assert gallery.search(query, 5) == expected
        assert gallery.store.thumbnail(expected[0][0].id).data
        with raises(GalleryError, "read-only-gallery"):
            gallery.add([item])
    assert caplog.messages == []


def test_reader_without_write_access_sees_other_writers(gallery_folder: Path, model: Embedder, folder: Path) -> None:
    shutil.copytree(gallery_folder, folder, ignore=shutil.ignore_patterns("*-wal", "*-shm"))
    item = new_item(model)
    with VectorGallery.open(folder) as owner:
        assert owner.store.count() == 24
        with unwritable(folder):
            reader = VectorGallery.open(folder)
        owner.add([item])
        assert [hit.source for hit in reader.search(item.embedding[np.newaxis], 1)[0]] == ["new.png"]
        reader.close()


def test_unread_log_in_a_read_only_folder_is_an_error(gallery_folder: Path, model: Embedder, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as other:
        live = Path(shutil.copytree(gallery_folder, Path(other) / "g"))
        with VectorGallery.open(live) as gallery:
            gallery.add([new_item(model)])
            shutil.copytree(live, folder, ignore=shutil.ignore_patterns("*-shm"))
    assert (folder / f"{STORE}-wal").stat().st_size
    with (
        unwritable(folder),
        raises(GalleryError, "not-writable", "gallery.sqlite-wal"),
    ):
        VectorGallery.open(folder)
    with VectorGallery.open(folder) as gallery:
        assert gallery.store.count() == 25
    with unwritable(folder), VectorGallery.open(folder) as gallery:
        assert gallery.store.count() == 25


def test_a_full_disk_is_read_and_written_again_when_it_has_room(
    gallery_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SQLite cannot make the index of its log there, so that not even reading works without a fallback."""
    path = Path(shutil.copytree(gallery_folder, tmp_path / "g", ignore=shutil.ignore_patterns("*-wal", "*-shm")))
    query = tmp_path / "query.png"
    query.write_bytes(toys.query(1))
    for command in (["search", path, query], ["gallery list", path], ["gallery stats", path], ["gallery verify", path]):
        with full_disk(100):
            assert run_here(*command) in (0, None), command
    with full_disk(100), raises(GalleryError, "disk-full"):
        run_here("gallery remove", path, 3)
    with ExitStack() as until_end:
        with full_disk(100):
            client = until_end.enter_context(local_client(path, key="k" * 32))
            assert client.post("/search", content=toys.query(1)).status_code == 200
            answer = client.post("/items", content=toys.query(1))
            assert (answer.status_code, answer.json()["error"]["code"]) == (507, "storage_full")
        assert client.post("/items", content=toys.query(1)).status_code == 201, "the disk has room again"
        assert client.get("/stats").json()["items"] == 25


def test_what_others_change_while_a_file_can_only_be_read_is_not_mixed_up(gallery_folder: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(gallery_folder, tmp_path / "g", ignore=shutil.ignore_patterns("*-wal", "*-shm")))
    with full_disk(100):
        reader = VectorGallery.open(path)
        assert reader.store.item(3).id == 3
    with VectorGallery.open(path) as writer:
        writer.remove([3])
        with raises(GalleryMovedError):
            reader.store.item(3)
    with raises(GalleryMovedError):
        reader.store.item(4)
    reader.close()

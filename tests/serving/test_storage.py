"""What the service says, over real connections, where its store cannot be written to or its vectors cannot be had."""

from __future__ import annotations

import functools
import resource
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from serving.client import Client
from serving.gallery.backends import choose
from serving.gallery.gallery import STORE
from serving.gallery.search import Searcher
from serving.openapi import document
from serving.storage import storage_refusal
from tests.serving import toys
from tests.serving.gallery.test_database import unwritable
from tests.serving.running import writing_to
from zoo.errors import GalleryError, ServiceError

KEY = "w" * 20
PICTURE = {"image": ("new.png", toys.query(0))}


@pytest.fixture
def path(gallery_folder: Path, model_folder: Path) -> Iterator[Path]:
    """A gallery, and its model beside it, where every user can reach them, unlike in pytest's own folder."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        shutil.copytree(model_folder, Path(made) / "model")
        yield Path(shutil.copytree(gallery_folder, Path(made) / "g", ignore=shutil.ignore_patterns("*-wal", "*-shm")))


@contextmanager
def serving(path: Path) -> Iterator[httpx.Client]:
    searcher = Searcher.open(path, str(path.parent / "model"))
    try:
        with writing_to(searcher, KEY) as client:
            yield client
    finally:
        searcher.close()


def assert_refused(answer: httpx.Response, status: int, code: str, path: Path) -> None:
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert str(path) not in answer.text


def test_a_full_disk_refuses_what_is_written_and_nothing_else(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    allowed = resource.getrlimit(resource.RLIMIT_FSIZE)
    with serving(path) as service:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, allowed[1]))
            answers = [service.post("/items", files={"image": ("a.png", picture(n))}) for n in range(8)]
            refused = answers[-1]
            assert_refused(refused, 507, "storage_full", path)
            assert service.post("/search", content=toys.query(0)).status_code == 200
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, allowed)
        assert refused.headers["x-request-id"] in caplog.text
        assert service.post("/items", files=PICTURE).status_code == 201, "it has room again"


def picture(seed: int) -> bytes:
    """Of noise, so that its thumbnail has many bytes."""
    return toys.encoded(Image.fromarray(np.random.default_rng(seed).integers(0, 256, (300, 300, 3), np.uint8)))


def test_a_gallery_that_can_only_be_read_is_searched(path: Path) -> None:
    with unwritable(path), serving(path) as service:
        assert service.post("/search", content=toys.query(0)).status_code == 200
        answers = (
            service.post("/items", files=PICTURE),
            service.patch("/items/1", json={"label": "x"}),
            service.delete("/items/1"),
        )
        for answer in answers:
            assert_refused(answer, 503, "read_only_storage", path)
        with (
            Client(str(service.base_url), key=KEY) as client,
            pytest.raises(ServiceError, match="cannot write") as said,
        ):
            client.remove(1)
    assert (said.value.status, said.value.code) == (503, "read_only_storage")


def test_while_another_writes_for_long_a_client_is_told_to_come_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "connect", functools.partial(_impatient, sqlite3.connect))
    with closing(sqlite3.connect(path / STORE, isolation_level=None)) as another, serving(path) as service:
        another.execute("BEGIN IMMEDIATE")
        refused = service.delete("/items/1")
        assert_refused(refused, 503, "storage_busy", path)
        assert refused.headers["retry-after"] == "5"
        assert service.post("/search?id=1").status_code == 200
        waits: list[float] = []

        def wait(seconds: float) -> None:
            waits.append(seconds)
            another.execute("ROLLBACK")

        monkeypatch.setattr("serving.client.blocking.time.sleep", wait)
        with Client(str(service.base_url), key=KEY) as client:
            client.remove(1)
        assert waits == [5], "a removal that was never begun is tried again"
        assert service.get("/items/1").status_code == 404


def _impatient(connect: Callable[..., sqlite3.Connection], *args: Any, **options: Any) -> sqlite3.Connection:
    return connect(*args, **{**options, "timeout": 0.05})


def test_without_the_database_of_its_vectors_a_gallery_says_so(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from serving.gallery.backends.milvus import MilvusIndex

    choose(path, f"milvus://{tmp_path}/vectors.db")
    with serving(path) as service, pytest.MonkeyPatch.context() as patch:
        opened: list[MilvusIndex] = []
        patch.setattr(MilvusIndex, "current", lambda index: (opened.append(index), index)[1])
        assert service.post("/search?id=1&k=3").status_code == 200
        opened[0].close()
        refused = service.post("/search?id=1&k=3")
        assert_refused(refused, 503, "index_unavailable", tmp_path)
        assert refused.headers["retry-after"] == "5"
        assert refused.headers["x-request-id"] in caplog.text
        assert service.get("/items/1").status_code == 200


def test_any_other_error_is_a_failure() -> None:
    for error in (GalleryError("index"), OSError(5, "input"), sqlite3.DatabaseError(), KeyError()):
        assert storage_refusal(error) is None


def test_the_specification_says_what_may_be_refused() -> None:
    paths = document(100)["paths"]
    assert {"503", "507"} <= paths["/items"]["post"]["responses"].keys()
    for operation in (paths["/items/{id}"]["patch"], paths["/items/{id}"]["delete"], paths["/evaluate"]["post"]):
        assert {"503", "507"} <= operation["responses"].keys()

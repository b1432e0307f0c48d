"""Refusals: the service's answers while its storage fails, and the shape of every error."""

from __future__ import annotations

import functools
import re
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
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient

from serving.errors import METHODS, RefusedError, error_json, refusal_of
from serving.gallery.backup import copy_gallery
from serving.gallery.gallery import STORE
from serving.gallery.search import Searcher
from tests.serving import toys
from tests.serving.gallery.test_database import unwritable
from tests.serving.running import local_client
from zoo.errors import GalleryError, ImageTooLargeError, ItemNotFoundError, NoTextTowerError, UsageError
from zoo.models.text_tower import no_text_tower

KEY = "w" * 20
JSON = {"content-type": "application/json"}
PICTURE = {"image": ("new.png", toys.query(0))}


@pytest.fixture
def path(gallery_folder: Path, model_folder: Path) -> Iterator[Path]:
    """A gallery and its model in a folder that every user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        shutil.copytree(model_folder, Path(made) / "model")
        yield Path(shutil.copytree(gallery_folder, Path(made) / "g", ignore=shutil.ignore_patterns("*-wal", "*-shm")))


@contextmanager
def serving(path: Path) -> Iterator[TestClient]:
    with local_client(lambda: Searcher.open(path, str(path.parent / "model")), KEY) as client:
        assert client.get("/items/1").status_code == 200
        yield client


def assert_refused(answer: httpx.Response, status: int, code: str, path: Path) -> None:
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert str(path) not in answer.text


@pytest.mark.slow
def test_a_full_disk_refuses_writes_and_nothing_else(path: Path, caplog: pytest.LogCaptureFixture) -> None:
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
        assert service.post("/items", files=PICTURE).status_code == 201


def picture(seed: int) -> bytes:
    """Return a picture of noise, whose thumbnail has many bytes."""
    return toys.encoded(Image.fromarray(np.random.default_rng(seed).integers(0, 256, (300, 300, 3), np.uint8)))


def test_a_gallery_that_can_only_be_read_is_searched(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def searcher() -> Searcher:
        return Searcher.open(path, str(path.parent / "model"))

    # The model's graph has been tried before: nobody may not start this Python.
    monkeypatch.setenv("ZOO_HOME", str(path.parent / "home"))
    searcher()
    with local_client(searcher, KEY) as service, unwritable(path):
        assert service.post("/search", content=toys.query(0)).status_code == 200
        answers = (
            service.post("/items", files=PICTURE),
            service.patch("/items/1", json={"label": "x"}),
            service.delete("/items/1"),
        )
        for answer in answers:
            assert_refused(answer, 503, "read_only_storage", path)


def test_while_another_process_writes_for_long_a_change_is_refused_for_some_seconds(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "connect", functools.partial(_impatient, sqlite3.connect))
    with closing(sqlite3.connect(path / STORE, isolation_level=None)) as another, serving(path) as service:
        another.execute("BEGIN IMMEDIATE")
        refused = service.delete("/items/1")
        assert_refused(refused, 503, "storage_busy", path)
        assert refused.headers["retry-after"] == "5"
        assert service.post("/search?id=1").status_code == 200
        another.execute("ROLLBACK")
        assert service.delete("/items/1").status_code == 200


def _impatient(connect: Callable[..., sqlite3.Connection], *args: Any, **options: Any) -> sqlite3.Connection:
    return connect(*args, **{**options, "timeout": 0.05})


def test_a_message_keeps_the_case_of_a_models_name() -> None:
    message = error_json(NoTextTowerError(no_text_tower("photos")))["error"]["message"]
    assert "photos " in message
    assert message[0].isupper()


@pytest.mark.slow
def test_without_its_milvus_a_gallery_is_unavailable(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = f"milvus://{tmp_path}/birds.db"
    copy_gallery(path, address)
    searcher = Searcher.open(address, str(path.parent / "model"))
    with local_client(searcher, KEY) as service:
        (item,) = service.get("/items?limit=1").json()["items"]
        assert service.post(f"/search?id={item['id']}&k=3").status_code == 200
        searcher.close()
        for refused in (service.post(f"/search?id={item['id']}&k=3"), service.get("/items")):
            assert_refused(refused, 503, "index_unavailable", tmp_path)
            assert refused.headers["retry-after"] == "5"
            assert refused.headers["x-request-id"] in caplog.text


def test_any_other_error_is_a_failure_without_a_reason() -> None:
    for error in (GalleryError("index"), OSError(5, "input"), sqlite3.DatabaseError(), KeyError("secret")):
        refusal = refusal_of(error)
        assert (refusal.status_code, refusal.code) == (500, "internal_error")
        assert "secret" not in refusal.detail


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (RefusedError(418, "teapot", "no"), 418, "teapot"),
        (HTTPException(405, "Method Not Allowed"), 405, "method_not_allowed"),
        (ImageTooLargeError("many pixels"), 413, "image_too_large"),
        (ItemNotFoundError("no item 3"), 404, "no_such_item"),
        (UsageError("min_p needs a calibration"), 422, "invalid_value"),
    ],
)
def test_every_error_has_a_status_and_a_code(error: Exception, status: int, code: str) -> None:
    assert refusal_of(error).status_code == status
    assert error_json(error)["error"]["code"] == code


def test_a_wrong_method_is_answered_with_the_methods_of_its_path(gallery_folder: Path) -> None:
    with local_client(gallery_folder, KEY) as client:
        for path, methods in (
            ("/search", "POST"),
            ("/items/3", "DELETE, GET, HEAD, PATCH"),
            ("/items", "GET, HEAD, POST"),
            ("/items/bulk", "POST"),
        ):
            wrong = next(method for method in METHODS if method not in methods and method != "HEAD")
            answer = client.request(wrong, path)
            assert (answer.status_code, answer.headers["allow"]) == (405, methods)
            assert answer.json()["error"]["code"] == "method_not_allowed"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "path", "sent"),
    [
        *[("POST", f"/search?id=1&{words}", {}) for words in ("k=0", "k=2.0", "offset=10001", "rerank=all", "crop=1")],
        *[("POST", f"/search?id=1&min_similarity={number}", {}) for number in ("nan", "2", "-2", "x")],
        *[("GET", path, {}) for path in ("/items?limit=0", "/labels?limit=-1")],
        *[
            ("PATCH", "/items/1", {"json": body})
            for body in ({"label": 5}, {"label": "x" * 1001}, {"metadata": [1]}, [])
        ],
        ("PATCH", "/items/1", {"content": b'{"label": "\\ud800"}', "headers": JSON}),
        ("PATCH", "/items/1", {"content": b"{", "headers": JSON}),
        ("PATCH", "/items/1", {"data": {"label": "a"}}),
    ],
)
def test_wrong_values_are_refused_in_words_of_our_own(
    method: str, path: str, sent: dict[str, Any], gallery_folder: Path
) -> None:
    with local_client(gallery_folder, KEY) as client:
        answer = client.request(method, path, **sent)
    assert answer.status_code == 422
    assert not re.search(r"Input|should|decode error", answer.json()["error"]["message"])


def test_json_that_is_not_utf_8_is_refused(gallery_folder: Path) -> None:
    with local_client(gallery_folder, KEY) as client:
        answer = client.patch("/items/1", content=b"\xff\xfe", headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_body")


def test_a_failure_is_logged_and_answered_with_its_request_id(
    gallery_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(searcher: Searcher, *args: object, **options: object) -> None:
        raise RuntimeError("the reason")

    monkeypatch.setattr(Searcher, "embed", fail)
    with local_client(gallery_folder) as client:
        answer = client.post("/embed", content=toys.query(0))
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert "reason" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-request-id"] in caplog.text
    assert "the reason" in caplog.text

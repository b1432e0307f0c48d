"""Collections of a service: each by its own model, in its own gallery, with its own keys."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image
from pydantic import SecretStr
from starlette.testclient import TestClient

from serving.dependencies import Collections
from serving.gallery import VectorGallery
from serving.gallery.backup import backup, restore
from serving.gallery.indexing import index_folder
from serving.keys import COOKIE, PROBES
from serving.settings import gallery_variables, parse_galleries
from tests.raising import raises
from tests.serving import toys
from tests.serving.running import answering, local_client, settings
from zoo.errors import UsageError
from zoo.models.load import Embedder

BIRDS, CARS, ALL = "birds-may-be-read", "cars-may-be-read", "all-may-be-written"
BIRDS_WRITE, CARS_WRITE = "birds-may-be-written", "cars-may-be-written"
KEYS = {
    "ZOO_SERVE_READ_KEYS_BIRDS": BIRDS,
    "ZOO_SERVE_WRITE_KEYS_BIRDS": BIRDS_WRITE,
    "ZOO_SERVE_READ_KEYS_OLD_CARS": CARS,
    "ZOO_SERVE_WRITE_KEYS_OLD_CARS": CARS_WRITE,
}
READERS = {"birds": BIRDS, "old-cars": CARS, "art": ""}
"""A key that reads each collection; art needs none."""


@pytest.fixture(scope="module")
def folders(
    gallery_folder: Path, other_model: Embedder, pictures: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Galleries: birds and old-cars have one model, and art another; old-cars lacks the first item."""
    root = tmp_path_factory.mktemp("collections")
    for name in ("birds", "old-cars"):
        shutil.copytree(gallery_folder, root / name)
    with VectorGallery.open(root / "old-cars") as gallery:
        gallery.remove([1])
    index_folder(other_model, str(other_model.folder), pictures, root / "art")
    return {name: root / name for name in READERS}


@pytest.fixture(scope="module")
def words(folders: dict[str, Path]) -> list[str]:
    return [f"{name}={folder}" for name, folder in folders.items()]


@pytest.fixture(scope="module")
def service(words: list[str]) -> Iterator[TestClient]:
    keys = {variable: SecretStr(key) for variable, key in KEYS.items()}
    with local_client(words, write_keys=ALL, collection_keys=keys) as client:
        yield client


def request(service: TestClient, method: str, name: str, path: str, key: str = "", **values: object) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return service.request(method, f"/collections/{name}{path}", headers=headers, **values)


def refusal(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_each_is_searched_by_its_own_model_in_its_own_gallery(
    service: TestClient, folders: dict[str, Path], model: Embedder, other_model: Embedder, name: str
) -> None:
    embedder, key = other_model if name == "art" else model, READERS[name]
    with VectorGallery.open(folders[name]) as gallery:
        (expected,) = gallery.search(embedder.embed(toys.query(1)), 5)
        count = gallery.store.count()
    answer = request(service, "POST", name, "/search?k=5", key, files={"image": toys.query(1)})
    found = answer.json()["results"]
    assert [hit["id"] for hit in found] == [hit.id for hit in expected]
    np.testing.assert_allclose([h["similarity"] for h in found], [h.similarity for h in expected], atol=1e-5)
    described = request(service, "GET", name, "/model", key).json()
    assert (described["fingerprint"], described["gallery"]["items"]) == (embedder.card.fingerprint, count)
    assert request(service, "GET", name, "/items", key).json()["total"] == count
    assert request(service, "GET", name, "/map", key).json()["total"] == count


def test_a_key_of_one_collection_opens_no_other(service: TestClient) -> None:
    item = {"files": {"image": toys.query(3)}}
    for name, others in (("birds", (CARS, CARS_WRITE)), ("old-cars", (BIRDS, BIRDS_WRITE))):
        for key in others:
            assert refusal(request(service, "GET", name, "/items", key)) == (401, "wrong_key")
            assert refusal(request(service, "POST", name, "/search?id=2", key)) == (401, "wrong_key")
            assert refusal(request(service, "POST", name, "/items", key, **item)) == (401, "wrong_key")
            assert refusal(request(service, "DELETE", name, "/items/2", key)) == (401, "wrong_key")
        assert refusal(request(service, "GET", name, "/stats")) == (401, "key_needed")
        assert refusal(request(service, "POST", name, "/items", READERS[name], **item)) == (403, "write_key_needed")
    assert request(service, "GET", "art", "/items", BIRDS_WRITE).status_code == 200
    assert refusal(request(service, "DELETE", "art", "/items/2", BIRDS_WRITE)) == (401, "wrong_key")


SECRET = "known-to-birds-alone"
WAYS_ROUND = (
    "/collections/birds", "/collections/old-cars/../birds", "/collections/old-cars/%2e%2e/birds",
    "/collections/old-cars%2f..%2fbirds", "//collections/birds", "/collections//birds", "/collections/./birds",
    "/collections/old-cars/collections/birds", "/collections/BIRDS", "/collections/birds%00", "/collections/birds;",
    "/collections/birds%20", "/collections/art/page/../../birds", "/page/../collections/birds",
    "/collections/art//birds", "/collections%2fbirds", "/collections/%62irds", "http://127.0.0.1/collections/birds",
)  # fmt: skip
"""Beginnings of a target, as a client may write them, that might mean the collection birds."""


def targets(service: TestClient) -> list[tuple[str, str]]:
    """Return the method and the path of every route of a collection that needs a key."""
    paths = service.get("/collections/art/openapi.json").json()["paths"]
    found = [(method.upper(), path.removeprefix("/collections/art")) for path in paths for method in paths[path]]
    places = [(method, path.replace("{id}", "2").replace("{key}", SECRET)) for method, path in found]
    assert len(places) > 20
    return [(method, path.replace("{name}", "toy-pool")) for method, path in places if path not in PROBES]


@pytest.mark.slow
def test_no_way_round_leads_to_a_collection_of_another_key(service: TestClient) -> None:
    told = {"label": SECRET, "metadata": {SECRET: SECRET}, "key": SECRET}
    assert request(service, "PATCH", "birds", "/items/2", BIRDS_WRITE, json=told).status_code == 200
    body = json.dumps({"key": SECRET, "input": "QUJD", "fields": ["*"]})
    with answering(service.app) as url:
        line = HTTPConnection(url.removeprefix("http://"), timeout=30)
        for method, path in targets(service):
            for way in WAYS_ROUND if method in ("GET", "POST") else WAYS_ROUND[:4]:
                for key in ({"X-API-Key": CARS_WRITE}, {"Cookie": f"{COOKIE}={CARS}"}):
                    line.request(method, way + path, body, {"Content-Type": "application/json", **key})
                    answer = line.getresponse()
                    data = answer.read()
                    assert answer.status in (401, 403, 404, 405), (method, way + path, answer.status)
                    shown = data.decode().replace(path, "").replace(SECRET + "'", "")
                    assert SECRET not in shown, (method, way + path)
                    assert SECRET not in str(answer.headers)
        line.close()
    kept = request(service, "GET", "birds", "/items/2", BIRDS).json()
    assert (kept["label"], kept["metadata"], kept["key"]) == tuple(told.values())
    back = {"label": toys.CLASSES[0], "metadata": {SECRET: None}, "key": None}
    request(service, "PATCH", "birds", "/items/2", BIRDS_WRITE, json=back)


def test_what_is_written_to_one_collection_is_only_there(service: TestClient) -> None:
    picture = toys.encoded(Image.fromarray(np.random.default_rng(5).integers(0, 256, (40, 40, 3), np.uint8)))
    for name, key in (("birds", BIRDS_WRITE), ("art", ALL)):
        (item,) = request(service, "POST", name, "/items", key, files={"image": picture}).json()["items"]
        assert item["thumbnail"] == f"/collections/{name}/items/{item['id']}/thumbnail"
        best = request(service, "POST", name, "/search?k=1", key, content=picture).json()["results"][0]
        assert (best["id"], round(best["similarity"], 5)) == (item["id"], 1)
        other = request(service, "POST", "old-cars", "/search?k=1", CARS, content=picture).json()["results"][0]
        assert other["similarity"] < 0.999
        changed = request(service, "PATCH", name, f"/items/{item['id']}", key, json={"label": "new"}).json()
        assert (changed["label"], changed["thumbnail"]) == ("new", item["thumbnail"])
        assert request(service, "DELETE", name, f"/items/{item['id']}", key).status_code == 200


def test_each_follows_its_own_store_and_is_backed_up_alone(
    service: TestClient, folders: dict[str, Path], tmp_path: Path
) -> None:
    before = request(service, "GET", "birds", "/stats", BIRDS).json()["items"]
    with VectorGallery.open(folders["old-cars"]) as gallery:
        gallery.remove([2])
    for name, there in (("old-cars", False), ("birds", True)):
        answer = request(service, "POST", name, "/search?id=3&k=30", READERS[name])
        assert (2 in {hit["id"] for hit in answer.json()["results"]}) == there
    assert request(service, "GET", "birds", "/stats", BIRDS).json()["items"] == before
    backup(folders["old-cars"], tmp_path / "copy")
    assert restore(tmp_path / "copy", tmp_path / "again").items == 22


def test_galleries_of_one_model_share_its_session(words: list[str]) -> None:
    collections = Collections.load(settings(gallery_variables(parse_galleries(words))))
    collections.open()
    birds, cars, art = (collection.current.searcher.embedder for collection in collections.all)
    assert birds is cars
    assert art is not birds
    assert collections.is_ready()
    assert str(collections).startswith("birds: 24 images, embedded by toy-pool; old-cars: ")
    collections.close()


def test_a_service_without_a_gallery_does_not_open() -> None:
    collections = Collections.load(settings({}))
    with raises(UsageError, "missing-value"):
        collections.open()

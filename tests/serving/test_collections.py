"""Several galleries in one service, over HTTP: each answers for itself, by its own model, to its own keys."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from starlette.routing import Route

from serving import AsyncClient, Client
from serving.app import ROUTES, SERVICE
from serving.collections import Collections
from serving.configuration import READ_KEYS, WRITE_KEYS
from serving.galleries import COLLECTIONS, from_words, to_environment
from serving.gallery import Gallery
from serving.gallery.backup import backup, restore
from serving.gallery.indexing import index_folder
from tests.serving import toys
from tests.serving.running import Running, run, serving
from tests.serving.test_search_command import search
from zoo.errors import ServiceError, UsageError
from zoo.models.load import Embedder

BIRDS, CARS, ALL = "birds-may-be-read", "cars-may-be-read", "all-may-be-written"
BIRDS_WRITE, CARS_WRITE = "birds-may-be-written", "cars-may-be-written"
KEYS = {
    f"{READ_KEYS}_BIRDS": BIRDS,
    f"{WRITE_KEYS}_BIRDS": BIRDS_WRITE,
    f"{READ_KEYS}_OLD_CARS": CARS,
    f"{WRITE_KEYS}_OLD_CARS": CARS_WRITE,
    WRITE_KEYS: ALL,
}
READERS = {"birds": BIRDS, "old-cars": CARS, "art": None}
"""Of each collection a key that reads it; art asks for none."""


@pytest.fixture(scope="module")
def folders(
    gallery_folder: Path, other_model: Embedder, pictures: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """birds and old-cars are of one model, and art of another; old-cars lacks the first item."""
    root = tmp_path_factory.mktemp("collections")
    for name in ("birds", "old-cars"):
        shutil.copytree(gallery_folder, root / name)
    with Gallery.open(root / "old-cars") as gallery:
        gallery.remove([1])
    index_folder(other_model, str(other_model.folder), pictures, root / "art")
    return {name: root / name for name in READERS}


@pytest.fixture(scope="module")
def words(folders: dict[str, Path]) -> list[str]:
    return [f"{name}={folder}" for name, folder in folders.items()]


@pytest.fixture(scope="module")
def service(words: list[str]) -> Iterator[Running]:
    with serving(words, environment=KEYS) as running:
        yield running


def client(service: Running, name: str | None = None, key: str | None = None) -> httpx.Client:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return httpx.Client(base_url=f"{service.url}/collections/{name}" if name else service.url, headers=headers)


def reader(service: Running, name: str) -> httpx.Client:
    return client(service, name, READERS[name])


def assert_refused(answer: httpx.Response, status: int, code: str) -> None:
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


@pytest.mark.parametrize("name", READERS)
def test_each_is_searched_by_its_own_model_in_its_own_gallery(
    service: Running, folders: dict[str, Path], model: Embedder, other_model: Embedder, name: str
) -> None:
    embedder = other_model if name == "art" else model
    with reader(service, name) as http, Gallery.open(folders[name]) as gallery:
        (expected,) = gallery.search(embedder.embed(toys.query(1)), 5)
        found = http.post("/search?k=5", files={"image": toys.query(1)}).json()["results"]
        assert [one["id"] for one in found] == [one.id for one in expected]
        assert [one["label"] for one in found] == [one.label for one in expected]
        np.testing.assert_allclose(
            [one["similarity"] for one in found], [one.similarity for one in expected], atol=1e-5
        )
        told = http.get("/model").json()
        assert (told["fingerprint"], told["gallery"]["items"]) == (embedder.card.fingerprint, gallery.store.count())
        assert http.get("/items").json()["total"] == http.get("/map").json()["total"] == gallery.store.count()


def test_every_route_is_there_under_the_name(service: Running) -> None:
    with reader(service, "birds") as http:
        for route in ROUTES:
            if isinstance(route, Route) and "GET" in (route.methods or ()):
                answer = http.get(route.path.replace("{id}", "2"))
                assert answer.status_code == (404 if route.path == "/evaluate" else 200), route.path
        assert http.get("/page/app.js").headers["content-type"].startswith("text/javascript")
        item = http.get("/items/2").json()
        hit = http.post("/search?id=3").json()["results"][0]
        row = http.post("/embed", files={"image": toys.query(0)}).json()["embeddings"][0]
        assert len(row) == toys.DIM
        assert http.get("/items/1/").is_redirect
        for path in (item["thumbnail"], hit["thumbnail"]):
            assert path.startswith("/collections/birds/items/")
            assert httpx.get(service.url + path, headers=http.headers).headers["content-type"].startswith("image/")
            assert_refused(httpx.get(service.url + path), 401, "key_needed")


def test_what_takes_no_changes_is_named_with_what_would(words: list[str]) -> None:
    with serving(words, environment={f"{WRITE_KEYS}_BIRDS": BIRDS_WRITE}) as running:
        with client(running, "old-cars", BIRDS_WRITE) as http:
            refusal = http.delete("/items/1")
        assert_refused(refusal, 403, "read_only")
        assert "The collection 'old-cars' does not take changes" in refusal.text
        assert f"{WRITE_KEYS} or {WRITE_KEYS}_OLD_CARS" in refusal.text


def test_the_list_is_of_what_the_key_may_read(service: Running, folders: dict[str, Path]) -> None:
    def listed(key: str | None) -> list[dict[str, Any]]:
        with client(service, key=key) as http:
            rows: list[dict[str, Any]] = http.get("/collections").json()["collections"]
            return rows

    assert [one["name"] for one in listed(None)] == ["art"]
    assert [one["name"] for one in listed(BIRDS)] == [one["name"] for one in listed(BIRDS_WRITE)] == ["birds", "art"]
    assert [one["name"] for one in listed("wrong" * 5)] == ["art"]
    rows = listed(ALL)
    assert [one["name"] for one in rows] == list(READERS)
    assert rows[2] == {"name": "art", "path": "/collections/art/", "items": 24, "model": "other", "dim": toys.DIM}


def test_a_key_of_one_opens_no_other(service: Running) -> None:
    item = {"files": {"image": toys.query(3)}}
    for name, other_read, other_write in (("birds", CARS, CARS_WRITE), ("old-cars", BIRDS, BIRDS_WRITE)):
        for key in (other_read, other_write):
            with client(service, name, key) as http:
                assert_refused(http.get("/items"), 401, "wrong_key")
                assert_refused(http.post("/search?id=2"), 401, "wrong_key")
                assert_refused(http.post("/items", **item), 401, "wrong_key")
                assert_refused(http.delete("/items/2"), 401, "wrong_key")
        with client(service, name) as http:
            assert_refused(http.get("/stats"), 401, "key_needed")
            http.cookies.set("zoo-key", other_read)
            assert_refused(http.get("/stats"), 401, "wrong_key")
            assert http.get("/").status_code == http.get("/readyz").status_code == 200
        with reader(service, name) as http:
            assert_refused(http.post("/items", **item), 403, "write_key_needed")
    with client(service, "art", BIRDS_WRITE) as http:
        assert http.get("/items").status_code == 200, "it is open"
        assert_refused(http.delete("/items/2"), 401, "wrong_key")


def test_what_is_written_to_one_is_in_that_one_alone(service: Running) -> None:
    picture = toys.encoded(Image.fromarray(np.random.default_rng(5).integers(0, 256, (40, 40, 3), np.uint8)))
    for name, key in (("birds", BIRDS_WRITE), ("art", ALL)):
        with client(service, name, key) as http:
            before = http.get("/stats").json()["items"]
            added = http.post("/items", files={"image": picture}).json()["items"][0]
            assert added["thumbnail"] == f"/collections/{name}/items/{added['id']}/thumbnail"
            best = http.post("/search?k=1", content=picture).json()["results"][0]
            assert (best["id"], round(best["similarity"], 5)) == (added["id"], 1)
            with reader(service, "old-cars") as others:
                assert others.post("/search?k=1", content=picture).json()["results"][0]["similarity"] < 0.999
            changed = http.patch(f"/items/{added['id']}", json={"label": "new"}).json()
            assert (changed["label"], changed["thumbnail"]) == ("new", added["thumbnail"])
            assert http.delete(f"/items/{added['id']}").status_code == 200
            assert http.get("/stats").json()["items"] == before


def test_each_catches_up_with_its_own_store_and_is_backed_up_alone(
    service: Running, folders: dict[str, Path], tmp_path: Path
) -> None:
    with reader(service, "old-cars") as cars, reader(service, "birds") as birds:
        there = birds.get("/stats").json()["items"]
        with Gallery.open(folders["old-cars"]) as gallery:
            gallery.remove([2])
        assert 2 not in {one["id"] for one in cars.post("/search?id=3&k=30").json()["results"]}
        assert 2 in {one["id"] for one in birds.post("/search?id=3&k=30").json()["results"]}
        assert birds.get("/stats").json()["items"] == there
        backup(folders["old-cars"], tmp_path / "copy")
        assert restore(tmp_path / "copy", tmp_path / "again").items == cars.get("/stats").json()["items"] == 22


def test_the_root_is_of_none_of_them(service: Running) -> None:
    with client(service, key=ALL) as http:
        for method, path in (("POST", "/search?id=1"), ("GET", "/items"), ("GET", "/stats"), ("DELETE", "/items/1")):
            assert_refused(http.request(method, path), 404, "name_a_collection")
        for path in ("/collections/fish/items", "/collections/", "/collections//items", "/collections/Birds/items"):
            assert_refused(http.get(path), 404, "no_such_collection")
        assert (
            http.get("/collections/fish/items").json()["error"]["message"].endswith(" There are: birds, old-cars, art.")
        )
    with client(service) as http:
        assert http.get("/collections/fish/").json()["error"]["message"].endswith(" There are: art.")
    with client(service, key=ALL) as http:
        assert http.get("/", follow_redirects=True).url.path == "/collections/birds/"
        assert http.get("/collections/art", follow_redirects=True).url.path == "/collections/art/"
        assert http.get("/docs").status_code == http.get("/livez").status_code == http.get("/readyz").status_code == 200
        assert http.get("/collections", headers={"host": "evil.example"}).status_code == 421


def test_the_descriptions_name_the_paths_of_all_and_of_each(service: Running) -> None:
    of_each = {route.path for route in ROUTES if isinstance(route, Route)} - {"/", "/docs", "/openapi.json"}
    of_all = {route.path for route in SERVICE if isinstance(route, Route)} | {"/livez", "/readyz"}
    with client(service) as http:
        whole = http.get("/openapi.json").json()
        one = http.get("/collections/birds/openapi.json").json()
    assert set(whole["paths"]) == of_all | {f"/collections/{{collection}}{path}" for path in of_each}
    named = whole["paths"]["/collections/{collection}/items/{id}"]["delete"]["parameters"]
    assert [(parameter["name"], parameter["in"]) for parameter in named] == [("collection", "path"), ("id", "path")]
    assert (set(one["paths"]), one["servers"]) == (of_each, [{"url": "/collections/birds"}])
    assert "birds" not in str(whole), "names are for those who may read them"


def test_metrics_tell_of_all_to_who_may_read_all(service: Running) -> None:
    with reader(service, "birds") as http:
        assert http.get("/items/3").status_code == 200
        assert http.post("/search?id=3").status_code == 200
        assert http.get("/metrics").status_code == 404
    with client(service) as http:
        assert_refused(http.get("/metrics"), 401, "key_needed")
    with client(service, key=BIRDS) as http:
        assert_refused(http.get("/metrics"), 401, "wrong_key")
        assert "no read key of every collection" in http.get("/metrics").text
    with client(service, key=ALL) as http:
        text = http.get("/metrics").text
    assert 'zoo_gallery_items{collection="art"} 24.0' in text
    assert 'zoo_requests_total{collection="birds",route="/items/{id}",status="200"}' in text
    for counted in (
        'zoo_stage_seconds_count{collection="birds",stage="find"}',
        'zoo_refused_total{code="not_found",collection="birds"}',
        'zoo_refused_total{code="key_needed",collection=""}',
    ):
        assert float(text.partition(counted)[2].split()[0]) >= 1
    assert 'collection="fish"' not in text


def test_clients_ask_one_of_them(service: Running) -> None:
    with Client(service.url, CARS, collection="old-cars") as cars:
        assert "old-cars" in repr(cars)
        assert cars.ready()
        (best, *_) = cars.search(toys.query(2), k=3)
        assert cars.item(best.id).thumbnail == best.thumbnail
        assert cars.thumbnail(best.id).media_type.startswith("image/")
        assert cars.stats().items == cars.items().total < 24
        listed = cars.collections()
        assert [(one.name, one.path) for one in listed] == [
            ("old-cars", "/collections/old-cars/"),
            ("art", "/collections/art/"),
        ]
    with Client(service.url, CARS, collection="birds", retries=0) as birds:
        with pytest.raises(ServiceError, match="no read key of the collection 'birds'"):
            birds.search(item=3)
        assert birds.ready(), "which needs no key"
    with Client(service.url, collection="fish") as fish, pytest.raises(ServiceError, match="no collection 'fish'"):
        fish.search(item=3)
    with Client(service.url) as nobody, pytest.raises(ServiceError, match="have names"):
        nobody.search(item=3)
    for name in ("a/b", "..", "", "Birds"):
        with pytest.raises(UsageError, match="no collection is called"):
            Client(service.url, collection=name)


def test_the_client_that_is_awaited_does_too(service: Running) -> None:
    async def ask() -> tuple[list[int], list[str | None]]:
        async with AsyncClient(service.url, BIRDS_WRITE, collection="birds") as birds:
            matches = await birds.search(item=3, k=4)
            return [one.id for one in matches], [one.name for one in await birds.collections()]

    with reader(service, "birds") as http:
        expected = [one["id"] for one in http.post("/search?id=3&k=4").json()["results"]]
    assert asyncio.run(ask()) == (expected, ["birds", "art"])


def test_the_command_line_searches_one_of_them(
    service: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "key").write_text(BIRDS)
    words = ["--url", service.url, "--collection", "birds", "--id", 3, "-k", 2, "--json"]
    search(*words, "--key-file", tmp_path / "key")
    with reader(service, "birds") as http:
        expected = [one["id"] for one in http.post("/search?id=3&k=2").json()["results"]]
    assert [one["id"] for one in json.loads(capsys.readouterr().out)["results"]] == expected
    with pytest.raises(ServiceError, match="read key"):
        search(*words)
    with pytest.raises(UsageError, match="--url"):
        search(tmp_path, "--collection", "birds", "--id", 3)


def test_galleries_of_one_model_share_its_session(words: list[str]) -> None:
    collections = Collections.of(to_environment(from_words(words)))
    collections.open()
    birds, cars, art = (one.searcher.embedder for one in collections.each)
    assert birds is cars
    assert art is not birds
    assert collections.is_ready()
    collections.close()


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({f"{READ_KEYS}_BIRDS": BIRDS}, READ_KEYS),
        ({f"{READ_KEYS}_BIRD": BIRDS}, f"{READ_KEYS}_BIRDS"),
        ({f"{READ_KEYS}_BIRDS": "short"}, "token_urlsafe"),
    ],
)
def test_what_must_not_be_served_is_not(
    words: list[str], environment: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    outcome = run("serve", *words, "--host", "0.0.0.0", "--port", 0)
    assert (outcome.returncode, outcome.stdout) == (2, "")
    assert message in outcome.stderr
    assert BIRDS not in outcome.stderr


def test_a_gallery_without_a_name_is_listed_without_one(http: httpx.Client) -> None:
    (row,) = http.get("/collections").json()["collections"]
    assert row == {"name": None, "path": "/", "items": 24, "model": "toy-pool", "dim": toys.DIM}
    for method, path in (("GET", "birds/items"), ("POST", "birds/search?id=1"), ("DELETE", "birds/items/1")):
        answer = http.request(method, f"/collections/{path}")
        assert_refused(answer, 404, "no_such_collection")
        assert "no collection 'birds' here: the service has one gallery" in answer.json()["error"]["message"]
    assert http.get("/collections/", follow_redirects=True).json()["collections"] == [row]


def test_both_forms_of_the_environment_are_one_too_many(words: list[str]) -> None:
    environment = to_environment(from_words(words))
    assert set(environment) == {COLLECTIONS}

"""/model, /stats, /collections, /metrics, probes, and the OpenAPI document held against the answers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from pydantic import SecretStr
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import positive_data_acceptance
from starlette.testclient import TestClient

from serving.app import create_app
from serving.gallery import VectorGallery
from serving.gallery.search import Searcher
from serving.openapi import document
from tests import text_toys
from tests.serving import toys
from tests.serving.running import app_over, local_client
from tests.serving.running import settings as service_settings
from zoo.errors import GalleryError
from zoo.models.load import Embedder

KEY = "write-key-of-the-tests"
BIRDS, ALL = "birds-may-be-read", "all-may-be-written"


def test_the_model(http: TestClient, model: Embedder) -> None:
    answer = http.get("/model").json()
    assert (answer["name"], answer["fingerprint"], answer["runtime"]) == ("toy-pool", model.card.fingerprint, "onnx")
    assert answer["preprocessing"] == {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in model.card.preprocessing.to_json().items()
    }
    assert (answer["gallery"]["items"], answer["text"]) == (24, None)
    names = ("max_bytes", "max_pixels", "max_images", "max_body", "max_k")
    assert answer["limits"] == {name: getattr(service_settings(), name) for name in names}


def test_the_length_of_texts(texts: TestClient) -> None:
    assert texts.get("/model").json()["text"] == {"length": text_toys.LENGTH}


def test_stats(http: TestClient) -> None:
    answer = http.get("/stats").json()
    assert (answer["items"], answer["labels"], answer["index"]["kind"], answer["calibration"]) == (24, 4, "flat", None)
    chosen = service_settings()
    limits = {name: getattr(chosen, name) for name in ("concurrency", "queue_seconds", "rate", "burst")}
    assert (answer["service"]["workers"], answer["service"]["limits"]) == (1, limits)
    assert set(answer["service"]["each_worker"]) == {"concurrency", "rate", "burst", "cores", "threads"}


def test_probes_and_metrics(http: TestClient) -> None:
    assert http.get("/livez").status_code == 200
    assert http.get("/readyz?from=balancer").json() == {"ready": True}
    http.post("/search?id=1")
    answer = http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert 'zoo_gallery_items{collection=""} 24.0' in answer.text


def test_a_stopping_service_is_not_ready(gallery_folder: Path) -> None:
    with local_client(gallery_folder) as client:
        client.app.state.draining = True  # type: ignore[attr-defined]
        assert client.get("/readyz").status_code == 503
        assert client.get("/livez").status_code == 200
        assert client.get("/items").status_code == 200


def test_a_failure_of_the_service_names_no_path() -> None:
    def broken() -> Searcher:
        raise GalleryError("/home/somebody/gallery.sqlite: disk I/O error.")

    with local_client(broken) as client:
        answer = client.get("/model")
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
        assert "somebody" not in answer.text
        assert 'zoo_gallery_ready{collection=""} 0.0' in client.get("/metrics").text


# Several collections


@pytest.fixture(scope="module")
def named(gallery_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A client of two collections; birds needs a key, and cars has one item less."""
    root = tmp_path_factory.mktemp("collections")
    for name in ("birds", "cars"):
        shutil.copytree(gallery_folder, root / name)
    with VectorGallery.open(root / "cars") as gallery:
        gallery.remove([1])
    words = [f"{name}={root / name}" for name in ("birds", "cars")]
    with local_client(words, write_keys=ALL, collection_keys={"ZOO_SERVE_READ_KEYS_BIRDS": SecretStr(BIRDS)}) as client:
        yield client


def with_key(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_collections_that_the_key_may_read(named: TestClient, http: TestClient) -> None:
    def names(**headers: str) -> list[str]:
        return [row["name"] for row in named.get("/collections", headers=headers).json()["collections"]]

    assert names() == ["cars"]
    assert names(**with_key(BIRDS)) == names(**with_key(ALL)) == ["birds", "cars"]
    row = named.get("/collections").json()["collections"][0]
    assert row == {"name": "cars", "path": "/collections/cars/", "items": 23, "model": "toy-pool", "dim": toys.DIM}
    assert http.get("/collections").json()["collections"] == [
        {"name": None, "path": "/", "items": 24, "model": "toy-pool", "dim": toys.DIM}
    ]


def test_each_collection_answers_for_itself(named: TestClient) -> None:
    answer = named.get("/collections/cars/items?limit=1").json()
    assert (answer["total"], answer["items"][0]["id"]) == (23, 2)
    assert answer["items"][0]["thumbnail"] == "/collections/cars/items/2/thumbnail"
    assert named.get("/collections/cars/items/2/thumbnail").status_code == 200
    hits = named.post("/collections/birds/search?id=3&k=30", headers=with_key(BIRDS)).json()["results"]
    assert (len(hits), hits[0]["thumbnail"]) == (23, f"/collections/birds/items/{hits[0]['id']}/thumbnail")
    for path in ("/collections/cars/readyz", "/collections/birds/readyz", "/readyz", "/livez"):
        assert named.get(path).status_code == 200
    for path, status, code in (
        ("/items", 404, "name_a_collection"),
        ("/collections/fish/items", 401, "key_needed"),
        ("/collections/cars/metrics", 404, "not_found"),
        ("/collections/birds/items", 401, "key_needed"),
    ):
        answer = named.get(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_metrics_need_a_key_of_every_collection(named: TestClient) -> None:
    named.post("/collections/cars/search?id=3")
    for headers, code in (({}, "key_needed"), (with_key("x" * 20), "wrong_key")):
        answer = named.get("/metrics", headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, code)
    text = named.get("/metrics", headers=with_key(BIRDS)).text
    assert 'zoo_gallery_items{collection="cars"} 23.0' in text
    assert 'collection="fish"' not in text


# OpenAPI


def test_documents_name_the_paths_of_the_service_and_of_a_collection(named: TestClient, http: TestClient) -> None:
    root = http.get("/openapi.json").json()
    whole = named.get("/openapi.json").json()
    collection = named.get("/collections/birds/openapi.json").json()
    own = set(root["paths"]) - {"/collections", "/metrics"}
    assert "/search" in own
    assert (set(collection["paths"]), collection["servers"]) == (own, [{"url": "/collections/birds"}])
    prefixed = {f"/collections/{{collection}}{path}" for path in own}
    assert set(whole["paths"]) == prefixed | {"/collections", "/metrics", "/livez", "/readyz"}
    parameters = whole["paths"]["/collections/{collection}/items/{id}"]["delete"]["parameters"]
    assert [(one["name"], one["in"]) for one in parameters] == [("collection", "path"), ("id", "path")]
    assert "birds" not in str(whole), "names are for those who may read them"


def test_names_in_the_documents_are_those_of_the_routes(named: TestClient) -> None:
    whole = named.get("/openapi.json").json()
    ids = [operation["operationId"] for methods in whole["paths"].values() for operation in methods.values()]
    assert len(ids) == len(set(ids))
    assert {"collections", "collection_search", "collection_thumbnail"} <= set(ids)
    names = whole["components"]["schemas"]
    assert all(name.isalnum() and "serving" not in name for name in names)


def test_references_of_the_document_resolve(http: TestClient) -> None:
    described = http.get("/openapi.json").json()

    def references(value: Any) -> Iterator[str]:
        for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            yield from references(part)
        if isinstance(value, dict) and "$ref" in value:
            yield value["$ref"]

    known = {f"#/components/schemas/{name}" for name in described["components"]["schemas"]}
    assert set(references(described)) <= known


@pytest.fixture(scope="module")
def operations(gallery_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, APIOperation]]:
    """The operations of the document, bound to an application of its own."""
    app = app_over(Path(shutil.copytree(gallery_folder, tmp_path_factory.mktemp("any") / "g")), write_keys=ALL)
    schema = schemathesis.openapi.from_dict(document(app))
    schema.app = app
    found = (result.ok() for result in schema.get_all_operations())
    yield {operation.label: operation for operation in found}
    app.state.collections.close()


OPERATIONS = [
    f"{method.upper()} {path}"
    for path, methods in document(create_app(service_settings()))["paths"].items()
    for method in methods
]


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATIONS)
def test_answers_to_generated_requests_are_as_documented(operations: dict[str, APIOperation], name: str) -> None:
    """The service does not fail, and every status, type and shape is documented."""

    @given(case=operations[name].as_strategy())
    @settings(max_examples=5, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    def check(case: schemathesis.Case) -> None:
        answer = case.call(base_url="http://localhost", headers=with_key(ALL))
        # A schema cannot say which bytes are an image, or which combinations of parameters are one query.
        case.validate_response(answer, excluded_checks=[positive_data_acceptance])

    check()

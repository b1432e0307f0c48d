"""Queries of several parts: weighted sums of pictures, texts and items, by every door, beside a naive search."""

from __future__ import annotations

import base64
import json
import shutil
import tracemalloc
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

import zoo
from serving import Client
from serving.gallery import VectorGallery
from serving.metrics import REGISTRY
from tests.commandline import run_here
from tests.raising import raises
from tests.serving import toys
from tests.serving.clients import Awaited
from tests.serving.running import answering, app_over, local_client
from zoo.errors import ItemNotFoundError, NoTextTowerError, UsageError
from zoo.models.load import Embedder

TEXT, OTHER = "a red chair", "blue checks"


@pytest.fixture(scope="module")
def http(text_gallery: Path) -> Any:
    with local_client(text_gallery) as client:
        yield client


@pytest.fixture(scope="module")
def query(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("queries") / "query.png"
    path.write_bytes(toys.query(2))
    return path


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.sqrt((vector**2).sum())


def nearest(gallery: Path, vector: np.ndarray, k: int, without: tuple[int, ...] = ()) -> list[tuple[int, float]]:
    """Sort all items by their cosine to a vector, in float64."""
    with VectorGallery.open(gallery) as opened:
        rows = {item.id: opened.store.embedding(item.id).astype(np.float64) for item in opened.store.items(limit=200)}
    cosines = {item: float(unit(row) @ unit(vector)) for item, row in rows.items() if item not in without}
    return sorted(cosines.items(), key=lambda pair: -pair[1])[:k]


def embedded(model: Embedder, gallery: Path, part: dict[str, Any]) -> np.ndarray:
    if "text" in part:
        return model.embed_text(part["text"])[0].astype(np.float64)
    if "item" in part:
        with VectorGallery.open(gallery) as opened:
            return opened.store.embedding(part["item"]).astype(np.float64)
    return model.embed(part["image"])[0].astype(np.float64)


SUMS: list[list[dict[str, Any]]] = [
    [{"image": "query"}, {"text": TEXT}],
    [{"image": "query"}, {"text": TEXT, "weight": 2.0}, {"text": OTHER, "weight": -0.5}],
    [{"item": 3}, {"item": 9, "weight": -0.25}],
    [{"text": TEXT, "weight": 0.1}, {"image": "query", "weight": 3.0}, {"item": 5}],
    [{"text": TEXT, "weight": -1.0}],
]


def on_page(part: dict[str, Any], query: Path) -> dict[str, Any]:
    return {**part, "image": query} if "image" in part else part


def words_of(parts: list[dict[str, Any]], query: Path) -> list[str]:
    words = []
    for part in parts:
        weight = part.get("weight", 1.0)
        kind, value = next((name, part[name]) for name in ("image", "text", "item") if name in part)
        words += [f"{'-' if weight < 0 else '+'}{abs(weight):g}", f"{kind}:{query if kind == 'image' else value}"]
    return words[1:]


def assert_found(hits: list[Any], expected: list[tuple[int, float]]) -> None:
    found = [(hit["id"], hit["similarity"]) if isinstance(hit, dict) else (hit.id, hit.similarity) for hit in hits]
    np.testing.assert_allclose([cosine for _, cosine in found], [cosine for _, cosine in expected], atol=2e-6)
    assert {item for item, _ in found[:-1]} <= {item for item, _ in expected}


@pytest.mark.parametrize("parts", SUMS, ids=range(len(SUMS)))
def test_every_door_finds_what_is_nearest_to_the_sum(
    parts: list[dict[str, Any]],
    http: TestClient,
    text_gallery: Path,
    towers: Embedder,
    query: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    parts = [on_page(part, query) for part in parts]
    total = sum(part.get("weight", 1.0) * embedded(towers, text_gallery, part) for part in parts)
    expected = nearest(text_gallery, total, 12, tuple(part["item"] for part in parts if "item" in part))
    with zoo.Gallery(text_gallery) as gallery:
        assert_found(gallery.search(query=[zoo.QueryPart(**part) for part in parts], k=12), expected)

    sent = [{("id" if name == "item" else name): value for name, value in part.items()} for part in parts]
    images = [part["image"].read_bytes() for part in parts if "image" in part]
    numbered = [{**part, "image": 0} if "image" in part else part for part in sent]
    encoded = [{**part, "image": base64.b64encode(images[0]).decode()} if "image" in part else part for part in sent]
    form: dict[str, Any] = {
        "files": [("image", ("query.png", image)) for image in images],
        "data": {"query": json.dumps(numbered)},
    }
    answers = [http.post("/search", json={"query": encoded, "k": 12})]
    answers += [http.post("/search", **form, params={"k": 12})] if images else []
    for answer in answers:
        assert answer.status_code == 200, answer.text
        assert_found(answer.json()["results"], expected)
        told = answer.json()["query"]["parts"]
        assert [part["weight"] for part in told] == [part.get("weight", 1.0) for part in parts]
        assert [part.get("text") for part in told] == [part.get("text") for part in parts]

    if parts[0].get("weight", 1.0) == 1.0:
        capsys.readouterr()
        assert run_here("search", text_gallery, *words_of(parts, query), "-k", 12, "--json") == 0
        assert_found(json.loads(capsys.readouterr().out)["results"], expected)


@pytest.mark.parametrize("part", [{"item": 4}, {"text": TEXT}, {"image": "query"}], ids=["item", "text", "image"])
def test_one_part_is_the_same_search_whatever_its_weight(
    part: dict[str, Any], text_gallery: Path, query: Path, http: TestClient
) -> None:
    part = on_page(part, query)
    with zoo.Gallery(text_gallery) as gallery:
        plain = gallery.search(**part, k=24)
        for weight in (1.0, 0.3, 7.0):
            assert gallery.search(query=[zoo.QueryPart(**part, weight=weight)], k=24) == plain
    if "image" in part:
        single = http.post("/search", files={"image": query.read_bytes()}, params={"k": 24})
        summed = http.post("/search", files={"image": query.read_bytes()}, params={"k": 24, "query": '[{"image": 0}]'})
        assert summed.json()["results"] == single.json()["results"]


def test_both_clients_send_sums(text_gallery: Path, query: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = [zoo.QueryPart(query, crop=(0, 0, 0.5, 1)), zoo.QueryPart(text=TEXT), zoo.QueryPart(item=7, weight=-0.5)]
    with zoo.Gallery(text_gallery) as gallery:
        expected = [(hit.id, hit.similarity) for hit in gallery.search(query=parts, k=6, label=toys.CLASSES[:2])]
    with answering(app_over(text_gallery)) as url:
        for kind in (Client, Awaited):
            with closing(kind(url)) as client:
                assert_found(client.search(query=parts, k=6, label=toys.CLASSES[:2]), expected)
                with raises(ItemNotFoundError):
                    client.search(query=[*parts, zoo.QueryPart(item=9999)])
        words = (f"image:{query}", "+", TEXT, "-", "key:none")
        with raises(ItemNotFoundError):
            run_here("search", "--url", url, *words)


def test_options_hold_for_sums(http: TestClient, query: Path) -> None:
    body: dict[str, Any] = {"query": [{"id": 3}, {"text": TEXT}], "k": 24}
    everything = http.post("/search", json=body).json()["results"]
    assert {hit["p_same"] for hit in everything} == {hit["likely"] for hit in everything} == {None}
    label = everything[4]["label"]
    assert http.post("/search", json={**body, "label": [label]}).json()["results"] == [
        hit for hit in everything if hit["label"] == label
    ]
    assert http.post("/search", json={**body, "k": 3, "offset": 2}).json()["results"] == everything[2:5]
    grouped = http.post("/search", json={**body, "group_by": "label"}).json()["results"]
    assert len({hit["label"] for hit in grouped}) == len(grouped)
    for rerank in ("expansion", "diffusion"):
        again = http.post("/search", json={**body, "rerank": rerank}).json()["results"]
        assert {hit["id"]: pytest.approx(hit["similarity"], abs=1e-5) for hit in everything} == {
            hit["id"]: hit["similarity"] for hit in again
        }
    carried = http.post("/search", json={**body, "fields": ["*"]}).json()["results"]
    assert all("metadata" in hit for hit in carried)


AS_JSON = {"content-type": "application/json"}
IMAGE = base64.b64encode(toys.query(0)).decode()


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"query": []}, 422, "invalid_query"),
        ({"query": "red"}, 422, "invalid_query"),
        ({"query": [{"text": "a"}] * 17}, 422, "invalid_query"),
        ({"query": [{"weight": 2}]}, 422, "invalid_query"),
        ({"query": [{"text": "a", "id": 1}]}, 422, "invalid_query"),
        ({"query": [{"text": "a", "colour": 1}]}, 422, "invalid_query"),
        ({"query": [{"text": "a", "crop": [0, 0, 1, 1]}]}, 422, "invalid_query"),
        ({"query": [{"text": "a", "weight": float("nan")}]}, 422, "invalid_query"),
        ({"query": [{"text": "a", "weight": 0}]}, 422, "invalid_query"),
        ({"query": [{"text": "a", "weight": 101}]}, 422, "invalid_query"),
        ({"query": [{"text": "a", "weight": True}]}, 422, "invalid_query"),
        ({"query": [{"image": 0}]}, 422, "invalid_query"),
        ({"query": [{"image": 1}], "image": IMAGE}, 422, "invalid_query"),
        ({"query": [{"text": "a"}], "image": IMAGE}, 422, "invalid_query"),
        ({"query": [{"image": 0}, {"image": 0}], "image": IMAGE}, 422, "invalid_query"),
        ({"query": [{"image": "https://example.com/a.png"}]}, 422, "image_address"),
        ({"query": [{"image": "@@"}]}, 422, "invalid_image"),
        ({"query": [{"image": base64.b64encode(b"none").decode()}]}, 422, "unreadable_image"),
        ({"query": [{"text": " "}]}, 422, "invalid_text"),
        ({"query": [{"id": 4711}]}, 404, "no_such_item"),
        ({"query": [{"id": "x"}]}, 404, "no_such_item"),
        ({"query": [{"key": "none"}]}, 404, "no_such_item"),
        ({"query": [{"text": "a"}], "text": "b"}, 400, "several_queries"),
        ({"query": [{"text": "a"}], "id": 1}, 400, "several_queries"),
        ({"query": [{"image": IMAGE}], "crop": [0, 0, 1, 0.5]}, 400, "crop_without_image"),
        ({"query": [{"id": 1}, {"id": 1, "weight": -1}]}, 422, "invalid_value"),
        ({"query": [{"id": 1}, {"id": 2}], "min_p": 0.5}, 422, "min_p_without_picture"),
    ],
)
def test_a_bad_sum_is_refused(http: TestClient, body: dict[str, Any], status: int, code: str) -> None:
    answer = http.post("/search", content=json.dumps(body), headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_more_images_than_a_request_may_hold_are_refused(text_gallery: Path) -> None:
    with local_client(text_gallery, max_images=2) as client:
        for body in ({"query": [{"image": IMAGE}] * 3}, {"query": [{"image": IMAGE}] * 2, "image": IMAGE}):
            assert client.post("/search", json=body).json()["error"]["code"] == "too_many_images"


def test_bad_parts_are_refused(text_gallery: Path, gallery_folder: Path, query: Path) -> None:
    part = zoo.QueryPart
    with zoo.Gallery(text_gallery) as gallery:
        for parts, error, code in (
            ([], UsageError, "invalid-value"),
            ([part(text="a")] * 17, UsageError, "invalid-value"),
            ([part(item=1), part(item=1, weight=-1)], UsageError, "no-direction"),
            ([part(item=1, weight=0.5), part(item=1, weight=-0.5)], UsageError, "no-direction"),
            ([part(item=1), part(item=4711)], ItemNotFoundError, None),
            ([part(item="none")], ItemNotFoundError, None),
        ):
            with raises(error, code):
                gallery.search(query=parts)
        with raises(UsageError, "conflicting-options"):
            gallery.search(query, query=[part(text="a")])
    for wrong in (part, partial(part, item=1, text="a")):
        with raises(UsageError, "missing-value"):
            wrong()
    for weight in (float("nan"), float("inf"), 0.0, -101.0):
        with raises(UsageError, "invalid-value"):
            part(text="a", weight=weight)
    with zoo.Gallery(gallery_folder) as gallery, raises(NoTextTowerError):
        gallery.search(query=[part(query), part(text="a")])


# The command line


def parts_of(capsys: pytest.CaptureFixture[str], *words: object) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert run_here("search", *words, "-k", 2, "--json") == 0
    query = json.loads(capsys.readouterr().out)["query"]
    return query.get("parts") or [{name: value for name, value in query.items() if value is not None}]


def test_words_join_files_texts_and_items(
    text_gallery: Path, query: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    g = Path(shutil.copytree(text_gallery, tmp_path / "g"))
    with VectorGallery.open(g) as gallery:
        gallery.store.describe(2, key="cam/1")
    for name in ("+", "-", "a.jpg", "red", "2"):
        shutil.copy(query, name)
    sums: list[tuple[list[str], list[dict[str, Any]]]] = [
        (["a.jpg"], [{"image": "a.jpg"}]),
        (["a red chair"], [{"text": "a red chair"}]),
        (["item:3"], [{"id": 3}]),
        (["key:cam/1"], [{"key": "cam/1"}]),
        (
            ["a.jpg", "+", "chair", "-", "leaves"],
            [{"image": "a.jpg"}, {"text": "chair"}, {"text": "leaves", "weight": -1}],
        ),
        (["red", "+", "text:red"], [{"image": "red"}, {"text": "red"}]),
        (["+", "+", "chair"], [{"image": "+"}, {"text": "chair"}]),
        (["chair", "-", "-"], [{"text": "chair"}, {"image": "-", "weight": -1}]),
        (["chair", "+2", "2"], [{"text": "chair"}, {"image": "2", "weight": 2}]),
        (
            ["chair", "-0.5", "item:3", "-.25", "text:+"],
            [{"text": "chair"}, {"id": 3, "weight": -0.5}, {"text": "+", "weight": -0.25}],
        ),
    ]
    for words, expected in sums:
        told = parts_of(capsys, "g", *words)
        assert told == ([{"weight": 1.0, **part} for part in expected] if len(expected) > 1 else expected)


@pytest.mark.parametrize(
    ("words", "error", "code"),
    [
        (("chair", "+"), UsageError, "command-line"),
        (("chair", "red"), UsageError, "command-line"),
        (("chair", "*", "red"), UsageError, "command-line"),
        (("chair", "+", "red", "--labl", "x"), UsageError, "command-line"),
        (("chair", "+0", "red"), UsageError, "invalid-value"),
        (("chair", "-1000", "red"), UsageError, "invalid-value"),
        (("item:x",), UsageError, "invalid-value"),
        (("item:3", "-", "item:3"), UsageError, "no-direction"),
        (("item:3", "--id", "3"), UsageError, "missing-value"),
        (("item:3", "+", "item:4711"), ItemNotFoundError, None),
    ],
)
def test_words_that_are_no_query_are_refused(text_gallery: Path, words: tuple[str, ...], error: Any, code: Any) -> None:
    with raises(error, code):
        run_here("search", text_gallery, *words)


def test_a_text_needs_a_tower(gallery_folder: Path) -> None:
    for words in (("chair",), ("item:3", "+", "chair"), ("text:chair",)):
        with raises(NoTextTowerError):
            run_here("search", gallery_folder, *words)


def test_only_the_ratios_of_weights_matter(http: TestClient) -> None:
    def found(*weights: float) -> list[Any]:
        parts = [{"id": number, "weight": weight} for number, weight in enumerate(weights, 1)]
        answer = http.post("/search", json={"query": parts, "k": 24})
        assert answer.status_code == 200, answer.text
        return list(answer.json()["results"])

    for factor in (2.0**-1070, 2.0**-600, 2.0**6):
        assert found(factor, -factor / 2) == found(1, -0.5)
        assert found(-factor) == found(-1)


def test_a_tiny_part_of_an_image_is_a_pixel(http: TestClient) -> None:
    found = [
        http.post("/search", json={"query": [{"image": IMAGE, "crop": [0, 0, side, side]}], "k": 24}).json()["results"]
        for side in (5e-324, 1e-310, 1e-9)
    ]
    assert found[0] == found[1] == found[2]


FLOODS: list[tuple[str, str, Any]] = [
    ("POST", "/search", {"query": [{f"a{number}": 1 for number in range(9000)}]}),
    ("POST", "/search", {"query": json.dumps([{}] * 100_000)}),
    ("POST", "/v1/embeddings", {f"a{number}": 1 for number in range(9000)}),
    ("POST", "/v1/embeddings", {"input": [1] * 9000}),
    ("POST", "/v1/embeddings", {"messages": [{"role": "user", "content": [1] * 2000}] * 60}),
    ("PATCH", "/items/1", {f"a{number}": 1 for number in range(9000)}),
]


@pytest.mark.parametrize(("method", "path", "body"), FLOODS, ids=range(len(FLOODS)))
def test_of_many_mistakes_one_is_reported(text_gallery: Path, method: str, path: str, body: Any) -> None:
    with local_client(text_gallery, key="k" * 20) as client:
        tracemalloc.start()
        try:
            answer = client.request(method, path, json=body)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert 400 <= answer.status_code < 500
    assert len(answer.content) < 1000
    assert peak < 12 * 2**20


@pytest.mark.parametrize(("path", "name"), [("/search", "image"), ("/v1/embeddings", "input")])
def test_base64_in_short_lines_takes_no_more_memory_than_in_long_ones(http: TestClient, path: str, name: str) -> None:
    peaks = []
    for line in ("AAA ", "A" * 75 + " "):
        tracemalloc.start()
        try:
            http.post(path, content=json.dumps({name: line * (2**21 // len(line))}), headers=AS_JSON)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[0] < 1.5 * peaks[1]


def decoded() -> float:
    labels = {"collection": "a", "stage": "decode"}
    return REGISTRY.get_sample_value("zoo_stage_duration_seconds_count", labels) or 0.0


def test_after_an_answer_in_place_of_its_own_a_sum_embeds_no_further_images(text_gallery: Path) -> None:
    image = toys.encoded(Image.new("RGB", (3000, 3000)))
    files = [("image", ("a.png", image))] * 16
    query = json.dumps([{"image": number} for number in range(16)])
    with local_client([f"a={text_gallery}"], answer_seconds=0.2) as client:
        client.get("/collections/a/model")
        before = decoded()
        assert client.post("/collections/a/search", files=files, data={"query": query}).status_code == 504
        assert 0 < decoded() - before < 16

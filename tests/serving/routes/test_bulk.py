"""POST /items/bulk: good and bad lines, images and vectors, limits, and the same request twice."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from serving.client import Client
from serving.client.images import bulk_bodies
from serving.gallery import VectorGallery
from serving.gallery.search import Searcher
from serving.schemas import MAX_LINES
from tests.raising import raises
from tests.serving import toys
from tests.serving.gallery.test_store_keys import code, noise
from tests.serving.running import Running, serving, writing_to
from zoo.errors import ServiceError, UsageError

KEY = "w" * 20
PATH = "/items/bulk"


@pytest.fixture
def service(path: Path) -> Iterator[httpx.Client]:
    searcher = Searcher.open(path)
    with writing_to(searcher, KEY, max_images=4, max_body=200_000) as client:
        yield client
    searcher.close()


@pytest.fixture
def served(service: httpx.Client) -> dict:
    return service.get("/model").json()


def post(service: httpx.Client, *lines: object, **parameters: str) -> httpx.Response:
    body = b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    return service.post(PATH, content=body, headers={"content-type": "application/x-ndjson"}, params=parameters)


def image(number: int) -> str:
    return base64.b64encode(noise(number)).decode()


def unit(number: int, dim: int) -> np.ndarray:
    row = np.random.default_rng(number).normal(size=dim)
    return (row / np.linalg.norm(row)).astype(np.float32)


def test_good_lines_are_written_and_bad_ones_have_errors(service: httpx.Client, served: dict, path: Path) -> None:
    dim, row = served["dim"], unit(1, served["dim"])
    scaled = (3 * unit(2, dim)).astype("<f4")
    lines: list[object] = [
        {"key": "image", "image": image(1), "label": "x", "metadata": {"year": 1908}},
        b"",
        {"key": "numbers", "vector": row.tolist(), "label": "y"},
        {"key": "base64", "vector": base64.b64encode(scaled.tobytes()).decode()},
        {"key": "short", "vector": row[1:].tolist()},
        {"key": "zero", "vector": [0.0] * dim},
        b'{"key": "nan", "vector": [' + b", ".join([b"NaN"] * dim) + b"]}",
        {"key": "texts", "vector": ["1"] * dim},
        {"key": "odd", "vector": base64.b64encode(b"12345").decode()},
        {"key": "no image", "image": base64.b64encode(b"no image").decode()},
        {"key": "no base64", "image": "?"},
        {"key": "both", "image": image(2), "vector": row.tolist()},
        {"key": "neither"},
        {"vector": row.tolist()},
        {"key": "a\nb", "vector": row.tolist()},
        {"key": "k" * 257, "vector": row.tolist()},
        {"key": "unknown", "vector": row.tolist(), "labels": "x"},
        b'{"key": "cut',
        b"[1, 2]",
        b"\xff\xfe",
        {"key": "copy", "image": image(1)},
    ]
    answer = post(service, *lines, fingerprint=served["fingerprint"])
    body = answer.json()
    assert answer.status_code == 200, body
    statuses = {result["line"]: result["status"] for result in body["results"]}
    assert [number for number, status in statuses.items() if status == "created"] == [1, 3, 4, 21]
    assert [number for number, status in statuses.items() if status == "refused"] == list(range(5, 21))
    assert (body["created"], body["refused"]) == (4, 16)
    codes = {result["line"]: result["error"]["code"] for result in body["results"] if result["error"]}
    assert {codes[line] for line in (5, 6, 7)} == {"invalid_value"}
    assert (codes[9], codes[10], codes[11], codes[15]) == (
        "invalid_vector",
        "unreadable_image",
        "invalid_image",
        "invalid_key",
    )
    keys = {result["line"]: result["key"] for result in body["results"]}
    assert (keys[12], keys[13], keys[17], keys[21]) == ("both", "neither", "unknown", "copy")
    assert [keys[line] for line in (14, 15, 16, 18, 19, 20)] == [None] * 6
    ids = {result["key"]: result["id"] for result in body["results"] if result["id"]}
    with VectorGallery.open(path) as gallery:
        np.testing.assert_array_equal(gallery.store.embedding(ids["numbers"]), row)
        np.testing.assert_allclose(gallery.store.embedding(ids["base64"]), unit(2, dim), atol=1e-6)
        assert gallery.search(unit(2, dim)[None], 1)[0][0].key == "base64"
        assert gallery.store.item(ids["image"]).metadata == {"year": 1908}
        assert gallery.store.count() == 28, "one image may have two keys"
        assert {place.content_sha256 for place in gallery.store.places() if place.key in ("image", "copy")} == {
            hashlib.sha256(base64.b64decode(image(1))).hexdigest()
        }
    again = post(service, *lines, fingerprint=served["fingerprint"]).json()
    assert (again["unchanged"], again["refused"], again["created"]) == (4, 16, 0)
    assert {result["key"]: result["id"] for result in again["results"] if result["id"]} == ids
    assert code(service.get(f"/items/{ids['numbers']}/thumbnail")) == (404, "no_thumbnail")


def test_of_two_lines_with_one_key_the_later_one_counts(service: httpx.Client, served: dict) -> None:
    rows = [unit(number, served["dim"]) for number in range(2)]
    lines = [{"key": "k", "vector": row.tolist(), "label": str(number)} for number, row in enumerate(rows)]
    for _ in range(2):
        post(service, *lines, fingerprint=served["fingerprint"]).raise_for_status()
        assert service.get("/items/by-key/k").json()["label"] == "1"
    assert service.get("/stats").json()["items"] == 25


def test_a_refused_line_is_answered_with_its_key(service: httpx.Client, served: dict) -> None:
    lines = [{"key": "empty"}, {"key": "more", "vector": [1.0], "colour": "red"}, {"vector": [1.0]}, {"key": 7}, b"[1]"]
    results = post(service, *lines, fingerprint=served["fingerprint"]).json()["results"]
    assert [(one["key"], one["status"]) for one in results] == [
        (key, "refused") for key in ("empty", "more", None, None, None)
    ]


@pytest.mark.slow
def test_whole_requests_are_refused(service: httpx.Client, served: dict) -> None:
    line = {"key": "k", "vector": unit(1, served["dim"]).tolist()}
    assert code(post(service, line)) == (422, "invalid_fingerprint")
    assert code(post(service, line, fingerprint="0" * 64)) == (409, "model_changed")
    assert code(post(service, line, fingerprints="0" * 64)) == (422, "unknown_parameter")
    assert code(post(service)) == (400, "no_lines")
    assert code(post(service, *[{"key": f"k{n}", "image": image(n)} for n in range(5)])) == (400, "too_many_images")
    assert code(post(service, *[b"x"] * (MAX_LINES + 1))) == (400, "too_many_values")
    assert code(post(service, b"x" * 300_000)) == (413, "body_too_large")
    assert code(service.post(PATH, json=line)) == (415, "unsupported_media_type")
    assert code(httpx.post(str(service.base_url).rstrip("/") + PATH, content=b"x")) == (401, "key_needed")
    assert service.get("/stats").json()["items"] == 24


def test_the_client_sends_rows_in_parts(service: httpx.Client, served: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.client.images.MAX_IMAGES", 2)
    monkeypatch.setattr("serving.client.images.MAX_LINES", 3)
    rows: list[dict] = [{"key": f"i{number}", "image": noise(number)} for number in range(3)]
    rows += [
        {"key": f"v{number}", "vector": unit(number, served["dim"]), "metadata": {"n": number}} for number in range(4)
    ]
    rows.append({"key": "bad", "vector": np.zeros(served["dim"], np.float32)})
    assert [start for start, _ in bulk_bodies(rows)] == [0, 2, 5]
    with Client(str(service.base_url), key=KEY) as client:
        results = client.put_many(rows, served["fingerprint"])
        assert [(one.line, one.key) for one in results] == [(n, row["key"]) for n, row in enumerate(rows, 1)]
        assert [one.status for one in results] == ["created"] * 7 + ["refused"]
        assert client.search(noise(1), k=1)[0].key == "i1"
        assert client.item("v3").metadata == {"n": 3}
        assert client.put_many([]) == []
        with raises(ServiceError, "invalid_fingerprint"):
            client.put_many(rows[3:4])
        with raises(UsageError, "invalid-value"):
            client.put_many([{"key": "k", "vector": ["a"]}])
        with raises(UsageError, "invalid-value"):
            client.put_many([{"key": "k", "vector": [1.0], "metadata": {"a": float("nan")}}])


NUMBERS = {
    "400 digits": "9" * 400,
    "5000 digits": "9" * 5000,
    "negative": "-" + "9" * 400,
    "a huge exponent": "1e999999999",
    "beyond float32": "1e300",
    "infinity": "Infinity",
    "not a number": "NaN",
    "deep": "[" * 500 + "]" * 500,
}


@pytest.mark.slow
@pytest.mark.parametrize("number", NUMBERS.values(), ids=NUMBERS)
@pytest.mark.parametrize("place", ["vector", "metadata", "key", "label", "image", "unknown", "line"])
def test_a_line_with_a_monstrous_number_is_refused_alone(
    service: httpx.Client, served: dict, number: str, place: str
) -> None:
    good = {"key": "good", "vector": unit(1, served["dim"]).tolist()}
    others = ", ".join(["0.5"] * (served["dim"] - 1))
    bad = {
        "vector": f'{{"key": "bad", "vector": [{number}, {others}]}}',
        "metadata": f'{{"key": "bad", "vector": [0.5, {others}], "metadata": {{"a": [{number}]}}}}',
        "line": number,
    }.get(place, f'{{"key": "bad", "vector": [0.5, {others}], "{place}": {number}}}')
    answer = post(service, good, bad.encode(), good | {"key": "also"}, fingerprint=served["fingerprint"])
    assert answer.status_code == 200, answer.text
    statuses = [result["status"] for result in answer.json()["results"]]
    # A direction is a direction: only of the others, one of 1e300 is next to nothing.
    fine = {"created"} if number == "1e300" and place in ("vector", "metadata") else {"refused"}
    assert (statuses[0], {statuses[1]}, statuses[2]) == ("created", fine, "created")


FILLINGS = {
    "numbers": b'{"key": "k%d", "vector": [' + b"0," * 2**19 + b"0]}\n",
    "one line of numbers": b'{"key": "k%d", "vector": [' + b"0," * (15 * 2**20) + b"0]}\n",
    "objects in metadata": b'{"key": "k%d", "vector": [1.0], "metadata": {"a": [' + b"{}," * 5000 + b"{}]}}\n",
    "texts in metadata": b'{"key": "k%d", "vector": [1.0], "metadata": {"a": [' + b'"ab",' * 3000 + b'""]}}\n',
    "members": b'{"key": "k%d", ' + b'"a":1,' * 5_000_000 + b'"b": 2}\n',
    "empty lists": b"[" + b"[]," * 10_000_000 + b"[]]\n",
    "lists": b"[" * 2**20 + b"\n",
    "one text": b'{"key": "k%d", "image": "' + b"A" * 2**25 + b'"}\n',
    "an image": b'{"key": "k%d", "image": "' + b"A" * (26 * 2**20) + b'"}\n',
    "line feeds": b"\n" * 2**20,
    "lines": b"x\n" * 2**19,
    "no end": b"x" * 2**20,
    "good lines": b'{"key": "k%d", "vector": ['
    + b"1.%s," * (toys.DIM - 1) % ((b"0" * 200,) * (toys.DIM - 1))
    + b'1], "label": "'
    + b"x" * 900
    + b'"}\n',
    "good metadata": b'{"key": "k%d", "vector": ['
    + b"1," * (toys.DIM - 1)
    + b'1], "metadata": {"a": [0'
    + b",0" * 18
    + b'], "b": "'
    + b"x" * 3300
    + b'"}}\n',
}
"""Lines of a body, in which %d is their number."""


@pytest.fixture(scope="module")
def crowded(gallery_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, int]]:
    """A service, and the memory that it takes before it reads any large body."""
    folder = Path(shutil.copytree(gallery_folder, tmp_path_factory.mktemp("crowded") / "gallery"))
    with serving(folder, environment={"ZOO_SERVE_WRITE_KEYS": KEY}) as running:
        httpx.post(f"{running.url}/search?id=1").raise_for_status()
        yield running, peak_memory(running.process.pid)


@pytest.mark.slow  # a service and bodies of 32 MB
@pytest.mark.parametrize("filling", FILLINGS)
def test_a_body_of_32_megabytes_takes_at_most_200_of_memory(crowded: tuple[Running, int], filling: str) -> None:
    """It may be full of anything, and follow others."""
    running, before = crowded
    fingerprint = httpx.get(f"{running.url}/model").json()["fingerprint"]
    size, line = 2**25 - 100_000, FILLINGS[filling]
    body = b"".join(line.replace(b"%d", b"%d" % number, 1) for number in range(size // len(line)))
    Path(f"/proc/{running.process.pid}/clear_refs").write_text("5")  # its peak is what it has now
    headers = {"content-type": "application/x-ndjson", "x-api-key": KEY}
    url = f"{running.url}{PATH}?fingerprint={fingerprint}"
    answer = httpx.post(url, content=body or line[:size], headers=headers, timeout=120)
    assert answer.status_code in (200, 400), answer.text
    assert peak_memory(running.process.pid) - before < 200 * 2**20
    if filling.startswith("good"):
        assert answer.json()["created"] + answer.json()["updated"] == size // len(line)


def peak_memory(pid: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return 1024 * int(found[1])

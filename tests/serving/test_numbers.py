"""Numbers and JSON that no honest client sends, at every place that takes some: always 4xx, and never a failure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.testclient import TestClient

from tests.serving import toys
from tests.serving.running import local_client

KEY = "w" * 20
MONSTERS = {
    "400 digits": "9" * 400,
    "5000 digits": "9" * 5000,
    "negative": "-" + "9" * 400,
    "a huge exponent": "1e999999999",
    "infinity": "Infinity",
    "negative infinity": "-Infinity",
    "not a number": "NaN",
    "deep": "[" * 900 + "]" * 900,
    "deeper": "[" * 100_000,
    "deep objects": '{"a":' * 2000 + "1" + "}" * 2000,
}
PLACES = ("id", "k", "offset", "min_similarity", "min_p", "crop", "text", "key", "where", "rerank", "unknown")
WHERE = ('{"a": %s}', '{"a": [%s]}', '{"a": {"gte": %s}}', '{"a": {"gt": 1, "lt": %s}}', "{%s: 1}", "%s")


@pytest.fixture(scope="module")
def http(gallery_folder: Path) -> Iterator[TestClient]:
    with local_client(gallery_folder, KEY) as client:
        yield client


def answers(http: TestClient, value: str) -> Iterator[httpx.Response]:
    """Yield the answer at each place."""

    def send(path: str, body: str, method: str = "POST") -> httpx.Response:
        return http.request(method, path, content=body, headers={"content-type": "application/json"})

    for place in PLACES:
        yield send("/search", f'{{"{place}": {value}}}')
        yield http.post("/search", data={place: value} if place in ("id", "unknown") else {"id": "1", place: value})
    for where in WHERE:
        yield send("/search", f'{{"id": 1, "where": {where % value}}}')
        yield http.post("/search", data={"id": "1", "where": where % value})
    for body in (value, f'{{"label": {value}}}', f'{{"metadata": {value}}}', f'{{"metadata": {{"a": {value}}}}}'):
        yield send("/items/1", body, "PATCH")
    for vector in (value, f"[{value}]", f'"{value[:40]}"'):
        yield send("/search", f'{{"vector": {vector}}}')
    files = {"image": toys.query(0)}
    yield http.post("/items", files=files, data={"metadata": f'{{"a": {value}}}'})
    yield http.put("/items/by-key/k", files=files, data={"metadata": f'{{"a": {value}}}'})


@pytest.mark.slow
@pytest.mark.parametrize("monster", MONSTERS)
def test_monstrous_values_are_refused(http: TestClient, monster: str) -> None:
    value = MONSTERS[monster]
    # As a text to search by, any of these is a text: the toy model has no tower, and says so.
    refused = [answer for answer in answers(http, value) if answer.status_code != 200]
    assert len(refused) > 40
    for answer in refused:
        assert 400 <= answer.status_code < 500, (answer.request.url, answer.request.read()[:100], answer.text)
        assert answer.json()["error"]["code"]


@pytest.mark.parametrize("name", ["label", "text"])
def test_many_wrong_values_are_refused_by_the_first(http: httpx.Client, name: str) -> None:
    body = b'{"%s": [%s]}' % (name.encode(), b",".join([b"1"] * 390_000))
    answer = http.post("/search", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert len(answer.content) < 2000


def test_large_json_is_refused_before_it_is_read(http: httpx.Client) -> None:
    body = b'{"metadata": {"a": [%s]}}' % b",".join([b"[]"] * 600_000)
    for method, path in (("PATCH", "/items/1"), ("POST", "/search")):
        answer = http.request(method, path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 413

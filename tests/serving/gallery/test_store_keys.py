"""Clients' own keys of items: an image that is sent again under its key is added once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from serving.client import Client
from serving.gallery import VectorGallery
from serving.gallery.parquet import export_gallery, import_gallery
from serving.gallery.search import Searcher
from tests.serving import toys
from tests.serving.running import writing_to
from zoo.cli.main import main
from zoo.errors import ServiceError

KEY = "w" * 20


@pytest.fixture
def service(path: Path) -> Iterator[httpx.Client]:
    searcher = Searcher.open(path)
    with writing_to(searcher, KEY) as client:
        yield client
    searcher.close()


def noise(seed: int) -> bytes:
    return toys.encoded(Image.fromarray(np.random.default_rng(seed).integers(0, 256, (40, 40, 3), np.uint8)))


def add(service: httpx.Client, picture: bytes, **fields: str) -> httpx.Response:
    return service.post("/items", files={"image": ("a.png", picture)}, data=fields)


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_the_same_key_again_is_the_item_that_is_there(service: httpx.Client, path: Path) -> None:
    first, again = (add(service, noise(1), key="cam-1/0001.jpg") for _ in range(2))
    assert (first.status_code, again.status_code, again.json()["new"]) == (201, 200, 0)
    (item,) = first.json()["items"]
    assert again.json()["items"] == [item]
    assert (item.pop("notes"), item["key"]) == ([], "cam-1/0001.jpg")
    assert service.get(f"/items/{item['id']}").json() == item
    with VectorGallery.open(path) as gallery:  # another process knows it
        assert gallery.store.item(item["id"]).key == "cam-1/0001.jpg"
    refused = add(service, noise(2), key="cam-1/0001.jpg")
    assert code(refused) == (409, "key_taken")
    assert f"item {item['id']}" in refused.json()["error"]["message"]
    (other,) = add(service, noise(1), key="another").json()["items"]
    assert other["id"] != item["id"], "two products may share a picture"
    assert service.get("/stats").json()["items"] == 26
    service.delete(f"/items/{item['id']}").raise_for_status()
    assert add(service, noise(2), key="cam-1/0001.jpg").status_code == 201, "the key is free again"


def test_an_image_without_a_key_is_given_one(service: httpx.Client) -> None:
    (item,) = add(service, noise(1)).json()["items"]
    assert item["key"] is None
    keyed = add(service, noise(1), key="mine")
    assert (keyed.status_code, keyed.json()["items"]) == (200, [{**item, "key": "mine"}])
    assert add(service, noise(1)).json()["items"][0]["key"] == "mine"


def test_of_two_images_that_come_at_once_under_one_key_one_is_kept(service: httpx.Client) -> None:
    with ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(lambda seed: add(service, noise(seed), key="one"), (1, 2)))
    assert sorted(answer.status_code for answer in answers) == [201, 409]
    assert service.get("/stats").json()["items"] == 25


@pytest.mark.slow
@pytest.mark.parametrize("key", ["x" * 257, "a\nb", "\x00"])
def test_what_can_be_no_key_is_refused(service: httpx.Client, key: str) -> None:
    assert code(add(service, noise(1), key=key)) == (422, "invalid_key")


def test_several_images_have_no_key_in_common(service: httpx.Client) -> None:
    files = [("image", (f"{n}.png", noise(n))) for n in range(2)]
    assert code(service.post("/items", files=files, data={"key": "both"})) == (422, "invalid_key")


def test_the_client_and_the_command_line_know_keys(
    service: httpx.Client, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Client(str(service.base_url), key=KEY) as client:
        assert [client.add(noise(1), key="mine").items[0].key for _ in range(2)] == ["mine", "mine"]
        with pytest.raises(ServiceError) as refused:
            client.add(noise(2), key="mine")
        assert (refused.value.status, refused.value.code) == (409, "key_taken")
        assert client.item(1).key is None
    assert main(["gallery", "list", str(path), "--offset", "24", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["items"][0]["key"] == "mine"
    export_gallery(path, tmp_path / "out")
    import_gallery(tmp_path / "out", tmp_path / "copy")
    with VectorGallery.open(tmp_path / "copy") as copy:
        assert [item.key for item in copy.store.items(limit=100)] == [None] * 24 + ["mine"]

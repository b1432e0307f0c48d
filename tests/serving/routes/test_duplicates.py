"""GET /items/{id}/duplicates, and warnings when copies are added."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO

import httpx
import pytest
from PIL import Image

from serving import Client
from tests.serving.clients import KEY
from tests.serving.duplicates.toys import picture, service_of_copies
from zoo.errors import ItemNotFoundError


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with service_of_copies(tmp_path_factory.mktemp("copies")) as running:
        yield running.url


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    """A client that may write; what a test adds is removed after it."""
    with Client(url, key=KEY) as connected:
        yield connected
        for item in connected.items(limit=100).items:
            if item.id > 5:
                connected.remove(item.id)


def bytes_of(image: Image.Image, image_format: str = "PNG") -> bytes:
    out = BytesIO()
    image.save(out, image_format)
    return out.getvalue()


@pytest.mark.slow
def test_copies_of_an_item_are_returned_with_their_evidence(client: Client, url: str) -> None:
    answer = client.duplicates(1)
    assert (answer.id, answer.without_hash) == (1, 0)
    by_id = {row.id: row for row in answer.duplicates}
    assert by_id.keys() == {2, 3}
    assert [row.distance for row in answer.duplicates] == sorted(row.distance for row in answer.duplicates)
    assert (by_id[2].mirrored, by_id[2].part, by_id[2].width, by_id[2].height) == (True, False, 320, 240)
    assert (by_id[3].mirrored, by_id[3].part, by_id[3].width, by_id[3].height) == (False, True, 270, 200)
    assert 0.2 <= by_id[2].similarity <= 1
    assert by_id[3].source == "3.png"
    assert httpx.get(f"{url}{by_id[3].thumbnail}").status_code == 200
    assert [row.id for row in client.duplicates(1, mirrored=False).duplicates] == [3]
    assert {row.id for row in client.duplicates(3).duplicates} == {1, 2}
    assert client.duplicates(4).duplicates == []


def test_unknown_items_and_parameters_are_refused(client: Client, url: str) -> None:
    with pytest.raises(ItemNotFoundError):
        client.duplicates(99)
    assert httpx.get(f"{url}/items/none/duplicates").status_code in (404, 422)
    assert httpx.get(f"{url}/items/1/duplicates", params={"mirror": 1}).status_code == 422


def test_adding_a_copy_is_answered_with_a_warning(client: Client) -> None:
    small = bytes_of(picture(7, (320, 240)).resize((160, 120)), "JPEG")
    added = client.add([small, bytes_of(picture(12))])
    assert added.new == 2
    (warning,) = added.near_duplicates
    assert (warning.number, warning.id) == (0, added.items[0].id)
    assert {1, 2} <= set(warning.of) <= {1, 2, 3}
    assert str(warning.id) in warning.message
    assert warning.id in {row.id for row in client.duplicates(1).duplicates}
    assert client.add([small]).near_duplicates == [], "it was there before"
    client.remove(warning.id)
    assert {row.id for row in client.duplicates(1).duplicates} == {2, 3}


def test_the_warning_can_be_left_out(url: str, client: Client) -> None:
    data = bytes_of(picture(8).resize((100, 75)))
    answer = httpx.post(
        f"{url}/items", files={"image": data}, data={"duplicates": "false"}, headers={"X-API-Key": KEY}, timeout=30
    )
    assert answer.status_code == 201
    assert answer.json()["near_duplicates"] == []
    assert [row.id for row in client.duplicates(4).duplicates] == [answer.json()["items"][0]["id"]]

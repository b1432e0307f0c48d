"""Both clients against the real service."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import serving
from serving import AsyncClient, Client
from serving.client import core, images
from serving.gallery import Gallery
from tests.serving import toys
from tests.serving.clients import KEY
from tests.serving.running import Running
from zoo.errors import GalleryError, ItemNotFoundError, ServiceError, UsageError
from zoo.models.load import Embedder

NESTED: dict[str, Any] = {}
for _ in range(100_000):
    NESTED = {"a": NESTED}


def test_reading(kind: Any, server: Running, gallery_folder: Path, model: Embedder, tmp_path: Path) -> None:
    client = kind(server.url)
    assert client.ready()
    path = tmp_path / "query.png"
    path.write_bytes(toys.query(3))
    matches = client.search(path, k=3)
    with Gallery.open(gallery_folder) as gallery:
        (expected,) = gallery.search(model.embed(toys.query(3)), 3)
        assert [one.id for one in matches] == [hit.id for hit in expected]
        np.testing.assert_allclose([m.similarity for m in matches], [h.similarity for h in expected], atol=1e-6)
        assert client.item(5).content_sha256 == gallery.store.item(5).content_sha256
        assert client.thumbnail(5).data == gallery.store.thumbnail(5).data
    assert {one.label for one in matches} == {toys.HTML_LABEL}
    assert client.search(toys.query(3), k=1, offset=1) == matches[1:2]
    assert 1 not in {one.id for one in client.search(item=1, k=24)}
    some = client.search(toys.query(0), k=24, labels=["blue checks", "green disc"], min_similarity=-0.5)
    assert {one.label for one in some} <= {"blue checks", "green disc"}
    assert client.search(toys.query(0), labels="blue checks", where={"year": 1}, rerank="expansion") == []
    assert {one.rerank_score for one in matches} == {None}
    assert isinstance(client.search(path, k=1, rerank="expansion")[0].rerank_score, float)
    np.testing.assert_allclose(client.embed([toys.query(0), path]), model.embed([toys.query(0), path]), atol=1e-6)
    assert client.embed(path, crop=(0, 0, 0.5, 1)).dtype == np.float32
    page = client.items(offset=2, limit=2)
    assert ([item.id for item in page.items], page.total) == ([3, 4], 24)
    assert client.items(label="red stripes").total == toys.PER_CLASS
    assert client.labels() == dict.fromkeys(sorted(toys.CLASSES), toys.PER_CLASS)
    assert {(point.id, point.label) for point in client.map()} == {(one.id, one.label) for one in client.items().items}
    assert (client.stats().items, client.model().dim, client.last_evaluation()) == (24, toys.DIM, None)


def test_more_images_than_one_request_holds_are_sent_in_parts(
    kind: Any, writable: Running, model: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, rng = kind(writable.url, key=KEY), np.random.default_rng(7 if kind.name == "Client" else 8)
    pictures = [toys.encoded(toys.picture(n % 3, rng)) for n in range(70)]
    np.testing.assert_allclose(client.embed(pictures), model.embed(pictures), atol=1e-6)
    pictures[50] = b"no image"
    found = client.search_many(pictures, k=1)
    assert [n for n, one in enumerate(found) if one.refused] == [50]
    assert [one.matches for one in found[33:35]] == [tuple(client.search(one, k=1)) for one in pictures[33:35]]
    monkeypatch.setattr(images, "MOST_BYTES", 8 * len(pictures[0]))
    client.add(pictures[40], label="old")
    added = client.add(pictures, label="new", metadata={"lot": 1})
    assert (added.new, list(added.refused), len(added.items)) == (68, [50], 69)
    assert [one.number for one in added.differing] == [40]
    ids = [item.id for item in added.items]
    assert [item.id for item in client.items(label=["old", "new"], limit=200).items] == sorted(ids)
    for one in ids:
        client.remove(one)


def test_what_is_refused_of_a_part_is_counted_among_all(kind: Any, writable: Running) -> None:
    with pytest.raises(ServiceError, match=r"^Of images 33 to 37, sent together: .*image 5"):
        kind(writable.url).embed([toys.query(n % 4) for n in range(36)] + [b"no image"])
    with pytest.raises(ServiceError, match=r"^Of image 2 "):
        kind(writable.url).embed([toys.query(0), b"no image"])


def test_a_key_is_of_one_image_however_they_are_sent(
    kind: Any, writable: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In parts of one image each the first would be added under the key."""
    monkeypatch.setattr(images, "MOST", 1)
    client = kind(writable.url, key=KEY)
    before = client.stats().items
    with pytest.raises(UsageError, match="a key is of a single image, not of 2"):
        client.add([toys.query(0), toys.query(1)], key="lot-7")
    assert client.stats().items == before


@pytest.mark.parametrize("where", [{"a": np.float32(1)}, [1], {"a": {1, 2}}, {"a": float("nan")}, NESTED])
def test_what_json_has_not_is_refused(kind: Any, server: Running, where: Any) -> None:
    for call in (kind(server.url).items, lambda where: kind(server.url).search(item=1, where=where)):
        with pytest.raises(UsageError, match="where is a mapping of names to what JSON has"):
            call(where=where)
    with pytest.raises(UsageError, match="metadata is a mapping"):
        kind(server.url).add(toys.query(0), metadata=where)
    with pytest.raises(UsageError, match="metadata is a mapping"):
        kind(server.url).describe(1, metadata=where)


def test_what_is_no_unicode_is_refused_wherever_it_stands(kind: Any, server: Running, tmp_path: Path) -> None:
    client, named = kind(server.url), tmp_path / "0\udcff.png"
    named.write_bytes(toys.query(0))
    for call in (
        lambda: client.describe(1, label="\ud800"),
        lambda: client.search(text="\ud800"),
        lambda: client.add(toys.query(0), key="\ud800"),
        lambda: client.add(named),
        lambda: client.items(label="\ud800"),
    ):
        with pytest.raises(UsageError, match="is no Unicode text"):
            call()


def test_images_may_come_from_an_iterator(kind: Any, server: Running) -> None:
    rows = kind(server.url).embed(toys.query(i % 4) for i in range(35))
    np.testing.assert_allclose(rows[32:], rows[:3], atol=1e-6)


def test_no_label_is_not_the_empty_one(kind: Any, server: Running) -> None:
    assert [kind(server.url).items(label=label).total for label in (None, "", [])] == [24, 0, 24]


def test_items_are_chosen_by_their_metadata(kind: Any, writable: Running) -> None:
    client = kind(writable.url, key=KEY)
    for item, metadata in ((1, {"year": 1908, "tags": ["a", "b"]}), (2, {"year": 1950.5}), (3, {"year": "1908"})):
        client.describe(item, metadata=metadata)
    for where, ids in (
        ({"year": {"gte": 1908, "lt": 1950}}, [1]),
        ({"year": {"gt": 1908}}, [2]),
        ({"year": {"lte": "2"}}, [3]),
        ({"tags": ["b", "c"]}, [1]),
    ):
        assert [item.id for item in client.items(where=where).items] == ids
        assert sorted(one.id for one in client.search(item=24, k=23, where=where)) == ids
    values = client.metadata()
    assert {(one.key, one.value): one.items for one in values} == dict.fromkeys(
        [("year", 1908), ("tags", "a"), ("tags", "b"), ("year", 1950.5), ("year", "1908")], 1
    )
    for bad in ({"gte": 1, "gt": 2}, {"above": 1}):
        with pytest.raises(ServiceError, match=r"gt, gte, lt, lte") as refused:
            client.items(where={"year": bad})
        assert refused.value.status == 422
    for item in (1, 2, 3):
        client.describe(item, metadata={})
    some = client.sample(5)
    assert len({one.id for one in some} & {one.id for one in client.items().items}) == len(some) == 5


def test_one_bad_image_of_several_is_named(kind: Any, server: Running) -> None:
    client = kind(server.url)
    good, bad = client.search_many([toys.query(1), b"no image"], k=2)
    assert ({one.label for one in good.matches}, good.refused) == ({"blue checks"}, None)
    assert (bad.matches, bad.refused.code) == ((), "unreadable_image")
    (alone,) = client.search_many([b"no image"])
    assert alone.refused == bad.refused


def test_writing(kind: Any, writable: Running) -> None:
    client, seed = kind(writable.url, key=KEY), ("Client", "Awaited").index(kind.name)
    image, other = (toys.encoded(toys.picture(0, np.random.default_rng(900 + 10 * seed + i))) for i in (0, 1))
    added = client.add(image, label="new", metadata={"höhe": 3})
    assert (added.new, added.items[0].label, added.items[0].metadata) == (1, "new", {"höhe": 3})
    (item,) = added.items
    assert client.add([image]).new == 0
    both = client.add([b"nothing", image, other], source="camera")
    assert (both.new, both.items[0].id, both.items[1].source) == (1, item.id, "camera")
    assert both.refused[0].code == "unreadable_image"
    assert list(client.add([b"nothing"]).refused) == list(client.add([b"a", b"b"]).refused)[:1] == [0]
    with pytest.raises(ServiceError, match="image"):
        client.add(b"nothing")
    assert client.describe(item.id, label="newer").label == "newer"
    assert client.describe(item.id, unlabel=True, metadata={}).label is None
    evaluation = client.evaluate()
    assert evaluation.calibration
    assert client.last_evaluation().steps == evaluation.steps
    assert client.search(image, k=1)[0].p_same > 0.5
    client.remove(item.id)
    for gone in (lambda: client.remove(item.id), lambda: client.item(item.id), lambda: client.thumbnail(10**18)):
        with pytest.raises(ItemNotFoundError):
            gone()
    client.remove(both.items[1].id)


def test_marking(kind: Any, writable: Running, tmp_path: Path) -> None:
    client, seed = kind(writable.url, key=KEY), ("Client", "Awaited").index(kind.name)
    image = toys.encoded(toys.picture(2, np.random.default_rng(950 + seed)))
    (tmp_path / "query.png").write_bytes(image)
    one = client.mark(3, 5, right=False)
    assert (one.query.id, one.result.id, one.verdict) == (3, 5, "wrong")
    again = client.mark(3, 5, right=True)
    assert (again.id, again.verdict) == (one.id, "right")
    found = next(found for found in client.search(image, k=24) if found.id == 5)
    again = client.mark(3, found, right=True)
    assert (again.id, again.verdict) == (one.id, "right")
    for wrong in ("wrong", 0, None):
        with pytest.raises(UsageError, match="right is True or False"):
            client.mark(3, 5, right=wrong)
    sent = client.mark(tmp_path / "query.png", 5, right=True)
    assert (sent.query.content_sha256, sent.query.source) == (hashlib.sha256(image).hexdigest(), "query.png")
    part = client.mark(image, 6, right=False, crop=(0, 0, 0.5, 0.5))
    match = client.search(image, k=24)
    assert sent.similarity == pytest.approx(next(one.similarity for one in match if one.id == 5), abs=1e-5)
    page = client.marks(limit=2)
    assert (page.total, page.right, page.wrong, page.marks) == (3, 2, 1, (again, sent))
    for values, expected in (
        ({"query": 3}, again),
        ({"query": part.query.content_sha256}, part),
        ({"right": False}, part),
    ):
        assert client.marks(**values).marks == (expected,)
    assert client.marks(result=5, offset=1).marks == (sent,)
    assert client.stats().marks == {"right": 2, "wrong": 1}
    assert client.evaluate().marks["precision"] == pytest.approx(2 / 3)
    for mark in (again, sent, part):
        client.unmark(mark.id)
    with pytest.raises(ServiceError, match="no mark"):
        client.unmark(again.id)
    with pytest.raises(ServiceError, match="searched by"):
        client.mark(3, 3, right=True)
    (tmp_path / "other.png").write_bytes(image)
    (item,) = client.add(image, label="one").items
    (differing,) = client.add([image], label="two").differing
    assert (differing.id, differing.label, differing.updated) == (item.id, "one", False)
    assert client.add(image, label="two", update=True).items[0].label == "two"
    client.remove(item.id)


def test_the_key_comes_from_the_environment_and_is_shown_nowhere(
    writable: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(writable.url) as client, pytest.raises(ServiceError, match="write key") as refused:
        client.remove(1)
    assert (refused.value.status, refused.value.code) == (401, "key_needed")
    monkeypatch.setenv(core.KEY, "a-wrong-key-of-somebody")
    with Client(writable.url) as client:
        with pytest.raises(ServiceError, match="no write key") as refused:
            client.remove(1)
        shown = repr(client) + repr(vars(client)) + repr(refused.value) + repr(client._http.headers)
        assert "wrong-key" not in shown
        assert refused.value.__context__ is None
    with pytest.raises(UsageError) as mistaken:
        Client(writable.url, key="one\nkey")
    assert "one" not in str(mistaken.value)


def test_both_clients_have_the_same_methods() -> None:
    def signatures(kind: type) -> dict[str, Any]:
        found = {name: inspect.signature(one) for name, one in vars(kind).items() if inspect.isfunction(one)}
        return {name: one for name, one in found.items() if not name.startswith("_") and "close" not in name}

    assert signatures(Client) == signatures(AsyncClient)
    assert len(signatures(Client)) == 22
    assert not hasattr(serving, "Server")


def test_mistakes(kind: Any, server: Running, tmp_path: Path) -> None:
    client = kind(server.url)
    for mistake, expected, message in (
        (lambda: client.search(b"no image"), ServiceError, "in none of the formats"),
        (lambda: client.search(b""), ServiceError, "empty"),
        (lambda: client.search(toys.query(0), item=1), UsageError, "one of the three"),
        (lambda: client.search(toys.query(0), k=0), ServiceError, "k must be"),
        (lambda: client.search(toys.query(0), min_p=0.5), ServiceError, "calibrat"),
        (lambda: client.search(toys.query(0), maxk=3), TypeError, "maxk"),
        (lambda: client.search(toys.query(0), label="x"), TypeError, "no argument 'label'. Did you mean 'labels'"),
        (lambda: client.search(tmp_path / "nowhere.png"), GalleryError, r"nowhere\.png cannot be read"),
        (lambda: client.describe(1), UsageError, "unlabel"),
        (lambda: kind("file:///etc/passwd"), GalleryError, "http"),
        (lambda: kind("http://me:secret@host"), GalleryError, "without a password"),
        (lambda: kind(server.url, timeout=0), UsageError, "timeout"),
    ):
        with pytest.raises(expected, match=message) as raised:
            mistake()
        assert "secret" not in str(raised.value)
    nobody = kind("http://127.0.0.1:9", retries=1)
    assert not nobody.ready()
    with pytest.raises(ServiceError, match="does not answer"):
        nobody.items()


def test_one_client_serves_many_tasks(server: Running) -> None:
    async def ask() -> list[list[Any]]:
        async with AsyncClient(server.url) as client:
            return await asyncio.gather(*(client.search(toys.query(i % 4), k=1) for i in range(12)))

    found = asyncio.run(ask())
    assert [one[0].label for one in found] == [toys.CLASSES[i % 4] for i in range(12)]

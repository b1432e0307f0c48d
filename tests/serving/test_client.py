"""Both clients against the real service, and against servers that answer otherwise, late, or not at all."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

import serving
from serving import AsyncClient, Client, schemas
from serving.client import calls as client
from serving.client import images as client_images
from serving.gallery import VectorGallery
from tests import text_toys
from tests.children import run_python
from tests.raising import raises
from tests.serving import toys
from tests.serving.clients import KEY
from tests.serving.running import Running, answering, app_over
from zoo.errors import (
    GalleryError,
    ImageError,
    ImageTooLargeError,
    ItemNotFoundError,
    ServiceError,
    UsageError,
    ZooError,
)
from zoo.models.load import Embedder

PIXELS = np.array(Image.open(BytesIO(toys.query(0))).convert("RGB"))
SLOPE = (np.arange(48 * 40).reshape(48, 40) * 34).astype(np.uint16)  # up to 65,246 of 65,535
NESTED: dict[str, Any] = {}
for _ in range(100_000):
    NESTED = {"a": NESTED}


# Searching and reading


@pytest.mark.slow
def test_search_and_read(kind: Any, server: Running, gallery_folder: Path, model: Embedder, tmp_path: Path) -> None:
    service = kind(server.url)
    assert service.ready()
    path = tmp_path / "query.png"
    path.write_bytes(toys.query(3))
    hits = service.search(path, k=3)
    with VectorGallery.open(gallery_folder) as gallery:
        (expected,) = gallery.search(model.embed(toys.query(3)), 3)
        assert [hit.id for hit in hits] == [hit.id for hit in expected]
        np.testing.assert_allclose([h.similarity for h in hits], [h.similarity for h in expected], atol=1e-6)
        assert service.item(5).content_sha256 == gallery.store.item(5).content_sha256
        assert service.thumbnail(5).data == gallery.store.thumbnail(5).data
    assert {hit.label for hit in hits} == {toys.HTML_LABEL}
    assert service.search(toys.query(3), k=1, offset=1) == hits[1:2]
    assert 1 not in {hit.id for hit in service.search(item=1, k=24)}
    some = service.search(toys.query(0), k=24, label=["blue checks", "green disc"], min_similarity=-0.5)
    assert {hit.label for hit in some} <= {"blue checks", "green disc"}
    assert service.search(toys.query(0), label="blue checks", where={"year": 1}, rerank="expansion") == []
    assert {hit.rerank_score for hit in hits} == {None}
    assert isinstance(service.search(path, k=1, rerank="expansion")[0].rerank_score, float)
    np.testing.assert_allclose(service.embed([toys.query(0), path]), model.embed([toys.query(0), path]), atol=1e-6)
    assert service.embed(path, crop=(0, 0, 0.5, 1)).dtype == np.float32
    page = service.items(offset=2, limit=2)
    assert ([item.id for item in page.items], page.total) == ([3, 4], 24)
    assert service.items(label="red stripes").total == toys.PER_CLASS
    assert [service.items(label=label).total for label in (None, "", [])] == [24, 0, 24]
    assert service.labels() == dict.fromkeys(sorted(toys.CLASSES), toys.PER_CLASS)
    items = service.items().items
    assert {(point.id, point.label) for point in service.map()} == {(item.id, item.label) for item in items}
    assert (service.stats().items, service.model().dim, service.last_evaluation()) == (24, toys.DIM, None)
    assert [collection.name for collection in service.collections()] == [None]


@pytest.mark.slow
def test_many_images_are_sent_in_parts(
    kind: Any, writable: Running, model: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, rng = kind(writable.url, key=KEY), np.random.default_rng(7 + len(kind.name))
    pictures = [toys.encoded(toys.picture(n % 3, rng)) for n in range(36)]
    np.testing.assert_allclose(service.embed(iter(pictures)), model.embed(pictures), atol=1e-6)
    pictures[34] = b"no image"
    answers = service.search_many(pictures, k=1)
    assert [n for n, answer in enumerate(answers) if answer.error] == [34]
    assert [answer.results for answer in answers[31:33]] == [service.search(p, k=1) for p in pictures[31:33]]
    monkeypatch.setattr(client_images, "MAX_BYTES", 8 * len(pictures[0]))
    service.add(pictures[20], label="old")
    added = service.add(pictures, label="new", metadata={"lot": 1})
    assert (added.new, [image.number for image in added.refused], len(added.items)) == (34, [34], 35)
    assert [image.number for image in added.differing] == [20]
    ids = [item.id for item in added.items]
    assert [item.id for item in service.items(label=["old", "new"], limit=200).items] == sorted(ids)
    for item in ids:
        service.remove(item)


def test_parts_are_within_both_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    def sizes(images: list[bytes]) -> list[tuple[int, int]]:
        return [(start, len(files)) for start, files in client_images.images_by_request(images)]

    assert sizes([b"x"] * 70) == [(0, 32), (32, 32), (64, 6)]
    monkeypatch.setattr(client_images, "MAX_BYTES", 10)
    assert sizes([b"123456", b"1234", b"1", b"x" * 11, b"1"]) == [(0, 2), (2, 1), (3, 1), (4, 1)]
    assert sizes([]) == [(0, 0)]


def test_refused_image_of_a_later_part_is_counted_among_all(kind: Any, writable: Running) -> None:
    with raises(ServiceError, "unreadable_image", "33 to 37"):
        kind(writable.url).embed([toys.query(n % 4) for n in range(36)] + [b"no image"])
    with raises(ServiceError, "unreadable_image", "2"):
        kind(writable.url).embed([toys.query(0), b"no image"])


def test_one_bad_image_of_several_is_named(kind: Any, server: Running, tmp_path: Path) -> None:
    service = kind(server.url)
    good, bad = service.search_many([toys.query(1), b"no image"], k=2)
    assert ({hit.label for hit in good.results}, good.error) == ({"blue checks"}, None)
    assert (bad.results, bad.error.code) == (None, "unreadable_image")
    (alone,) = service.search_many([b"no image"])
    assert alone == bad
    file = tmp_path / "query.png"
    file.write_bytes(toys.query(1))
    for images in ([file], [file, file]):
        assert {answer.query.name for answer in service.search_many(images)} == {"query.png"}


def test_items_are_filtered_by_metadata(kind: Any, writable: Running) -> None:
    service = kind(writable.url, key=KEY)
    for item, metadata in ((1, {"year": 1908, "tags": ["a", "b"]}), (2, {"year": 1950.5}), (3, {"year": "1908"})):
        service.describe(item, metadata=metadata)
    for where, ids in (
        ({"year": {"gte": 1908, "lt": 1950}}, [1]),
        ({"year": {"gt": 1908}}, [2]),
        ({"year": {"lte": "2"}}, [3]),
        ({"tags": ["b", "c"]}, [1]),
    ):
        assert [item.id for item in service.items(where=where).items] == ids
        assert sorted(hit.id for hit in service.search(item=24, k=23, where=where)) == ids
    counts = {(count.key, count.value): count.items for count in service.metadata()}
    values = [("year", 1908), ("tags", "a"), ("tags", "b"), ("year", 1950.5), ("year", "1908")]
    assert counts == dict.fromkeys(values, 1)
    for bad in ({"gte": 1, "gt": 2}, {"above": 1}):
        with raises(ServiceError, "invalid_value") as refused:
            service.items(where={"year": bad})
        assert refused.value.status == 422
    hits = {hit.id: hit.metadata for hit in service.search(item=24, k=23, fields=["year", "tags"])}
    assert (hits[1], hits[2], hits[4]) == ({"year": 1908, "tags": ["a", "b"]}, {"year": 1950.5}, {})
    assert service.search(item=24, k=1)[0].metadata is None
    assert service.describe(1, metadata={"tags": None, "new": 1}).metadata == {"year": 1908, "new": 1}
    for item in (1, 2, 3):
        assert service.describe(item, metadata={}, replace=True).metadata == {}
    sample = service.sample(5)
    assert len({item.id for item in sample} & {item.id for item in service.items().items}) == len(sample) == 5


@pytest.mark.slow
def test_search_by_text(kind: Any, text_server: Running, server: Running, caplog: pytest.LogCaptureFixture) -> None:
    answer = httpx.post(f"{text_server.url}/search", json={"text": "red stripes", "k": 4}).json()
    service = kind(text_server.url)
    hits = service.search(text="red stripes", k=4)
    assert [(hit.id, hit.similarity) for hit in hits] == [(hit["id"], hit["similarity"]) for hit in answer["results"]]
    assert service.model().text == {"length": text_toys.LENGTH}
    assert not [record for record in caplog.records if record.name == client.__name__]
    service.search(text="rain " * 50)
    service.search(text="red stripes", label="no such label")
    assert len([record for record in caplog.records if record.name == client.__name__]) == 2
    with raises(ServiceError, "no_text_tower") as refused:
        kind(server.url).search(text="red stripes")
    assert refused.value.status == 422


def test_collections(kind: Any, gallery_folder: Path) -> None:
    app = app_over([f"birds={gallery_folder}", f"old-cars={gallery_folder}"])
    with answering(app) as url:
        birds = kind(url, collection="birds")
        assert [(one.name, one.path, one.items) for one in birds.collections()] == [
            ("birds", "/collections/birds/", 24),
            ("old-cars", "/collections/old-cars/", 24),
        ]
        assert birds.search(item=3, k=1)[0].thumbnail.startswith("/collections/birds/items/")
        assert birds.ready()
        assert "/collections/birds" in repr(Client(url, collection="birds"))
        with raises(ServiceError, "no_such_collection"):
            kind(url, collection="fish").search(item=3)
        with raises(ServiceError, "name_a_collection") as refused:
            kind(url).search(item=3)
        assert refused.value.status == 404
    app.state.collections.close()


# Writing


def test_write(kind: Any, writable: Running) -> None:
    service = kind(writable.url, key=KEY)
    image, other = (toys.encoded(toys.picture(0, np.random.default_rng(900 + 10 * len(kind.name) + i))) for i in (0, 1))
    added = service.add(image, label="new", metadata={"höhe": 3})
    assert (added.new, added.items[0].label, added.items[0].metadata) == (1, "new", {"höhe": 3})
    (item,) = added.items
    assert service.add([image]).new == 0
    both = service.add([b"nothing", image, other], source="camera")
    assert (both.new, both.items[0].id, both.items[1].source) == (1, item.id, "camera")
    assert both.refused[0].error.code == "unreadable_image"
    for images in ([b"nothing"], [b"a", b"b"]):
        assert [image.number for image in service.add(images).refused] == list(range(len(images)))
    with raises(ServiceError, "unreadable_image"):
        service.add(b"nothing")
    assert service.describe(item.id, label="newer").label == "newer"
    assert service.describe(item.id, unlabel=True, metadata={}).label is None
    evaluation = service.evaluate()
    assert evaluation.calibration
    assert service.last_evaluation().steps == evaluation.steps
    assert service.search(image, k=1)[0].p_same > 0.5
    service.remove(item.id)
    for gone in (lambda: service.remove(item.id), lambda: service.item(item.id), lambda: service.thumbnail(10**18)):
        with raises(ItemNotFoundError):
            gone()
    service.remove(both.items[1].id)


def test_differing_description_is_reported(kind: Any, writable: Running) -> None:
    service, image = kind(writable.url, key=KEY), toys.encoded(toys.picture(1, np.random.default_rng(990)))
    (item,) = service.add(image, label="one").items
    (differing,) = service.add([image], label="two").differing
    assert (differing.id, differing.label, differing.updated) == (item.id, "one", False)
    assert service.add(image, label="two", update=True).items[0].label == "two"
    service.remove(item.id)


def test_key_of_several_images_is_refused(kind: Any, writable: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one image per request, the service would add the first one under the key."""
    monkeypatch.setattr(client_images, "MAX_IMAGES", 1)
    service = kind(writable.url, key=KEY)
    with raises(UsageError, "conflicting-options"):
        service.add([toys.query(0), toys.query(1)], key="lot-7")
    assert service.stats().items == 24


def test_key_belongs_to_one_image(kind: Any, writable: Running) -> None:
    service, rng = kind(writable.url, key=KEY), np.random.default_rng(40 + len(kind.name))
    first, second = (toys.encoded(toys.picture(0, rng)) for _ in range(2))
    added = [service.add(first, key="mine").items[0] for _ in range(2)]
    assert (added[0].key, added[1].id) == ("mine", added[0].id)
    with raises(ServiceError, "key_taken") as refused:
        service.add(second, key="mine")
    assert refused.value.status == 409
    service.remove(added[0].id)


# Images in memory


def turned() -> Image.Image:
    """Return a photograph taken with the camera on its side, opened and not yet decoded."""
    file, exif = BytesIO(), Image.Exif()
    exif[0x0112] = 6  # to be shown turned by a quarter, clockwise
    Image.fromarray(PIXELS[:20]).save(file, "JPEG", quality=95, exif=exif, comment=b"secret")
    return Image.open(file)


def images_of_all_modes() -> dict[str, Image.Image | np.ndarray]:
    alpha = np.linspace(0, 255, PIXELS.shape[0]).astype(np.uint8)[:, None].repeat(PIXELS.shape[1], 1)
    rgba, colour = np.dstack([PIXELS, alpha]), Image.fromarray(PIXELS)
    palette = colour.quantize(8)
    palette.info["transparency"] = 0
    modes = {mode: colour.convert(mode) for mode in ("RGB", "L", "1", "P", "CMYK", "YCbCr", "HSV", "F", "I")}
    pictures = {"RGBA": Image.fromarray(rgba), "LA": Image.fromarray(rgba).convert("LA"), "palette": palette}
    sixteen = Image.frombytes("I;16", (40, 48), SLOPE.tobytes())
    arrays = {"HWC": PIXELS, "HW": PIXELS[..., 0], "HW1": PIXELS[..., :1], "HW4": rgba, "strided": PIXELS[::-1, ::2]}
    return {**modes, **pictures, "I;16": sixteen, "turned": turned(), **arrays}


def test_images_in_memory_are_embedded_as_here(kind: Any, server: Running, model: Embedder) -> None:
    images = images_of_all_modes()
    expected = model.embed(images.values())
    np.testing.assert_allclose(kind(server.url).embed(list(images.values())), expected, atol=1e-6)
    batch = np.random.default_rng(0).integers(0, 256, (5, 20, 16, 3), np.uint8)
    np.testing.assert_allclose(kind(server.url).embed(batch), model.embed(batch), atol=1e-6)


def test_png_holds_only_the_upright_pixels() -> None:
    image = turned()
    file = client_images.encode_image(image)
    sent = Image.open(BytesIO(file.data))
    np.testing.assert_array_equal(np.asarray(sent), np.rot90(np.asarray(turned()), -1))
    assert (sent.format, sent.mode, sent.info) == ("PNG", "RGB", {})
    assert (file.name, file.sent_name) == ("", hashlib.sha256(file.data).hexdigest()[:16])
    assert image.size == (PIXELS.shape[1], 20), "the image itself stays the same"
    grey = client_images.encode_image(Image.frombytes("I;16", (40, 48), SLOPE.tobytes()))
    np.testing.assert_array_equal(np.asarray(Image.open(BytesIO(grey.data))), np.rint(SLOPE * (255 / 65535)))


def test_search_by_images_in_memory(kind: Any, server: Running) -> None:
    service = kind(server.url)
    by_file = service.search(toys.query(0), k=3)
    for image in (PIXELS, Image.fromarray(PIXELS)):
        hits = service.search(image, k=3)
        assert [hit.id for hit in hits] == [hit.id for hit in by_file]
        np.testing.assert_allclose([h.similarity for h in hits], [h.similarity for h in by_file], atol=1e-6)
    half = service.search(PIXELS, k=1, crop=(0, 0, 0.5, 1))
    assert half == service.search(PIXELS[:, : PIXELS.shape[1] // 2], k=1)
    answers = service.search_many([PIXELS, toys.query(1), Image.fromarray(PIXELS)], k=3)
    assert answers[0].query == answers[2].query != answers[1].query
    assert answers[0].results == answers[2].results == service.search(PIXELS, k=3)
    assert service.search_many(np.stack([PIXELS] * 2), k=3) == [answers[0]] * 2


def test_same_pixels_are_the_same_content(kind: Any, writable: Running) -> None:
    service = kind(writable.url, key=KEY)
    fresh = np.random.default_rng(len(kind.name)).integers(0, 256, (24, 24, 3), np.uint8)
    added = service.add([fresh, Image.fromarray(fresh)], label="noise")
    assert (added.new, len(added.items), added.refused) == (1, 2, [])
    (item,) = {item.id for item in added.items}
    assert service.search(fresh, k=1)[0].id == item
    assert service.add(fresh, label="noise").new == 0
    (named,) = service.add(Image.fromarray(fresh[:20]), key=f"key-{len(kind.name)}", source="made here").items
    assert (named.source, service.item(item).source) == ("made here", service.item(item).content_sha256[:16])
    service.remove(item)
    service.remove(named.id)


def test_event_loop_is_free_while_images_are_encoded(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """The image is not encoded before another task has run."""
    started, released, encode = threading.Event(), threading.Event(), client.encode_query

    def slowly(image: Any) -> Any:
        started.set()
        assert released.wait(timeout=10)
        return encode(image)

    async def ask() -> list[schemas.SearchHit]:
        async with AsyncClient(server.url) as service:
            search = asyncio.create_task(service.search(PIXELS, k=1))
            while not started.is_set():
                await asyncio.sleep(0.001)
            released.set()
            return await search

    monkeypatch.setattr(client, "encode_query", slowly)
    assert len(asyncio.run(ask())) == 1


# Mistakes


class Tensor:
    """Image of another library."""


@pytest.mark.parametrize(
    ("image", "error", "code", "value"),
    [
        (PIXELS.astype(np.float32), ImageError, "unreadable-image", "float32 [28, 28, 3]"),
        (PIXELS[None, None], ImageError, "unreadable-image", "[1, 1, 28, 28, 3]"),
        (np.zeros((3, 8, 8), np.uint8), ImageError, "unreadable-image", "uint8 [3, 8, 8]"),
        (np.zeros((0, 8), np.uint8), ImageError, "unreadable-image", "uint8 [0, 8]"),
        (np.broadcast_to(np.uint8(0), (15_000, 15_000)), ImageTooLargeError, "image-too-large", "15000 x 15000 pixels"),
        (Image.fromarray(np.full((4, 4), np.nan, np.float32)), ImageError, "not-finite", "NaN"),
        (Tensor(), UsageError, "unreadable-image", "Tensor"),
    ],
)
def test_unusable_image_is_not_sent(kind: Any, image: Any, error: type[ZooError], code: str, value: str) -> None:
    service = kind("http://127.0.0.1:9", retries=0)
    for call in (service.search, service.embed, lambda image: service.search_many([PIXELS, image])):
        with raises(error, code, value):
            call(image)


def test_closed_and_too_large_images(kind: Any, server: Running) -> None:
    service, image = kind(server.url), turned()
    image.close()
    with raises(ImageError, "unreadable-image"):
        service.search(image)
    with raises(ServiceError, "image_too_large", "100,000,000"):
        service.search(np.zeros((10_001, 10_000), np.uint8))


@pytest.mark.parametrize("where", [{"a": np.float32(1)}, [1], {"a": {1, 2}}, {"a": float("nan")}, NESTED])
def test_values_outside_json_are_refused(kind: Any, where: Any) -> None:
    service = kind("http://127.0.0.1:9", retries=0)
    for call in (
        lambda: service.items(where=where),
        lambda: service.search(item=1, where=where),
        lambda: service.add(toys.query(0), metadata=where),
        lambda: service.describe(1, metadata=where),
    ):
        with raises(UsageError, "invalid-value"):
            call()


def test_invalid_unicode_is_refused(kind: Any, tmp_path: Path) -> None:
    service, named = kind("http://127.0.0.1:9", retries=0), tmp_path / "0\udcff.png"
    named.write_bytes(toys.query(0))
    for call in (
        lambda: service.describe(1, label="\ud800"),
        lambda: service.search(text="\ud800"),
        lambda: service.add(toys.query(0), key="\ud800"),
        lambda: service.add(named),
        lambda: service.items(label="\ud800"),
    ):
        with raises(UsageError, "invalid-value"):
            call()


def test_mistakes(kind: Any, server: Running, tmp_path: Path) -> None:
    service = kind(server.url)
    for mistake, error, code in (
        (lambda: service.search(b"no image"), ServiceError, "unreadable_image"),
        (lambda: service.search(b""), ServiceError, "no_image"),
        (lambda: service.search(toys.query(0), item=1), UsageError, "missing-value"),
        (lambda: service.search(), UsageError, "missing-value"),
        (lambda: service.search(toys.query(0), k=0), ServiceError, "invalid_k"),
        (lambda: service.search(toys.query(0), min_p=0.5), ServiceError, "invalid_value"),
        (lambda: service.search(tmp_path / "nowhere.png"), GalleryError, "unreadable-file"),
        (lambda: service.search("\0"), GalleryError, "unreadable-file"),
        (lambda: service.items(label=[f"label {n}" for n in range(5000)]), UsageError, "too-large"),
        (lambda: service.embed([]), ServiceError, "no_image"),
        (lambda: service.describe(1), UsageError, "missing-value"),
        (lambda: service.describe(1, label="x", unlabel=True), UsageError, "missing-value"),
        (lambda: kind("file:///etc/passwd"), GalleryError, "invalid-value"),
        (lambda: kind("http://me:secret@host"), GalleryError, "invalid-value"),
        (lambda: kind("http://me:secret@host:x"), GalleryError, "invalid-value"),
        (lambda: kind("http://[::1"), GalleryError, "invalid-value"),
        (lambda: kind("127.0.0.1:3000"), GalleryError, "invalid-value"),
        (lambda: kind(server.url, timeout=0), UsageError, "invalid-value"),
        (lambda: kind(server.url, retries=-1), UsageError, "invalid-value"),
        (lambda: kind(server.url, collection="../birds"), UsageError, "invalid-value"),
    ):
        with raises(error, code) as raised:
            mistake()
        assert "secret" not in str(raised.value)
    for address, suggested in (
        ("127.0.0.1:3121", True),
        ("localhost:3121/", True),
        ("me:secret@host:80", False),
        ("file:/etc", False),
    ):
        with raises(GalleryError, "invalid-value") as raised:
            kind(address)
        assert (f"http://{address}" in str(raised.value)) is suggested
    with pytest.raises(TypeError, match="maxk"):
        service.search(toys.query(0), maxk=3)
    nobody = kind("http://127.0.0.1:9", retries=1)
    assert not nobody.ready()
    with raises(ServiceError):
        nobody.items()


def test_key_comes_from_the_environment_and_is_never_shown(writable: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    with Client(writable.url) as service, raises(ServiceError, "key_needed") as refused:
        service.remove(1)
    assert refused.value.status == 401
    monkeypatch.setenv(client.KEY, "a-wrong-key-of-somebody")
    with Client(writable.url) as service:
        with raises(ServiceError, "wrong_key") as refused:
            service.remove(1)
        shown = repr(service) + repr(vars(service)) + repr(refused.value) + repr(service._http.headers)
        assert "wrong-key" not in shown
        assert refused.value.__context__ is None
    with raises(UsageError, "invalid-item") as mistaken:
        Client(writable.url, key="one\nkey")
    assert "one" not in str(mistaken.value)


# Both classes


def test_signatures_and_documentation() -> None:
    calls = [name for name, value in vars(client._Calls).items() if isinstance(value, client._Call)]
    assert len(calls) == 22
    for name in calls:
        waiting, awaited = getattr(Client, name), getattr(AsyncClient, name)
        assert inspect.signature(waiting) == inspect.signature(awaited)
        assert waiting.__doc__ == awaited.__doc__
        assert waiting.__doc__
        assert (inspect.iscoroutinefunction(waiting), inspect.iscoroutinefunction(awaited)) == (False, True)
    assert inspect.signature(Client.search).return_annotation == list[schemas.SearchHit]
    assert "text" in inspect.signature(AsyncClient.search).parameters
    queries = {"id", "key", "text", "query"}
    assert client.SearchKeywords.__annotations__.keys() == schemas.SearchParameters.model_fields.keys() - queries


@pytest.mark.slow
def test_client_loads_no_library_of_the_service() -> None:
    code = """
import sys
from serving import AsyncClient, Client
loaded = {"faiss", "sqlite3", "fastapi", "starlette", "uvicorn", "torch", "bentoml"} & set(sys.modules)
assert not loaded, loaded
"""
    run_python(code)
    assert not hasattr(serving, "Server")


def test_one_client_serves_many_tasks(server: Running) -> None:
    async def ask() -> list[list[schemas.SearchHit]]:
        async with AsyncClient(server.url) as service:
            return await asyncio.gather(*(service.search(toys.query(i % 4), k=1) for i in range(12)))

    assert [hits[0].label for hits in asyncio.run(ask())] == [toys.CLASSES[i % 4] for i in range(12)]


def test_one_client_serves_many_threads(server: Running) -> None:
    with Client(server.url) as service, ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: service.search(toys.query(i % 4), k=1)[0].label, range(12)))
    assert found == [toys.CLASSES[i % 4] for i in range(12)]


# Servers that misbehave

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: "


def ok(body: bytes) -> bytes:
    return HEAD + f"{len(body)}\r\n\r\n".encode() + body


BUSY = b"HTTP/1.1 429 Too Many\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n"
UNREADY = BUSY.replace(b"429", b"503")
EMPTY_PAGE = ok(b'{"total": 0, "items": []}')


def refusal(code: str) -> bytes:
    body = f'{{"error": {{"code": "{code}", "message": ""}}}}'.encode()
    return ok(body).replace(b"200 OK", b"503 Unavailable\r\nRetry-After: 0")


def whole_request(connection: socket.socket) -> bytes:
    """Read a request to its end: closing a connection with unread bytes would take the answer from the client."""
    request = connection.recv(65536)
    announced = re.search(rb"content-length: ([0-9]+)", request, re.IGNORECASE)
    while announced and len(request.partition(b"\r\n\r\n")[2]) < int(announced[1]):
        request += connection.recv(65536)
    return request


@contextmanager
def stranger(*answers: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Serve each connection one of the answers and hang up. Yields the URL, and the requests in the end."""
    requests: list[bytes] = []

    def serve() -> None:
        for answer in answers:
            connection, _ = listening.accept()
            with connection:
                requests.append(whole_request(connection))
                connection.sendall(answer.replace(b"Content-Length", b"Connection: close\r\nContent-Length"))

    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as pool:
        listening.settimeout(5)
        served = pool.submit(serve)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", requests
        served.result(timeout=10)


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"", None),
        (b"\x00\x01\x02 nonsense\r\n\r\n", None),
        (HEAD + b"99\r\n\r\n{}", None),
        (ok(b"<html>"), None),
        (ok(b"\xff"), None),
        (ok(b"{}"), None),
        (ok(b"[]"), None),
        (ok(b'{"total": 0, "items":'), None),
        (b"HTTP/1.1 302 Found\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n", 302),
        (b"HTTP/1.1 500 Gone wrong\r\nContent-Length: 2\r\n\r\n{}", 500),
    ],
)
def test_other_answers_are_explained(kind: Any, answer: bytes, status: int | None) -> None:
    with stranger(*[answer] * 6) as (url, _):
        service = kind(url, retries=0)
        with raises(ServiceError) as refused:
            service.items()
        assert refused.value.status == status
        service.ready()
        for call in (
            service.labels,
            lambda: service.embed(toys.query(0)),
            lambda: service.search_many([toys.query(0)] * 2),
            lambda: service.thumbnail(1),
        ):
            with raises(ServiceError):
                call()


def test_passing_failures_are_retried(kind: Any) -> None:
    with stranger(b"", BUSY, UNREADY, EMPTY_PAGE) as (url, requests):
        assert kind(url, key="k" * 20).items().total == 0
    assert len(requests) == 4
    assert all(b"Bearer " + b"k" * 20 in request for request in requests)
    with stranger(b"", UNREADY, ok(b'{"new": 0, "items": [], "refused": []}')) as (url, requests):
        assert kind(url).add(b"bytes").new == 0  # by content: adding it twice adds it once
    assert len(requests) == 3
    assert all(request.count(b"\r\n\r\nbytes\r\n") == 1 for request in requests)
    with stranger(BUSY, BUSY, BUSY) as (url, requests), raises(ServiceError) as refused:
        kind(url, retries=2).items()
    assert refused.value.status == 429


@pytest.mark.parametrize("answer", [b"", UNREADY, refusal("read_only_storage")])
def test_write_that_may_have_been_done_is_not_repeated(kind: Any, answer: bytes) -> None:
    for write in (lambda service: service.remove(1), lambda service: service.describe(1, label="x")):
        with stranger(answer) as (url, requests), pytest.raises(ServiceError):
            write(kind(url))
        assert len(requests) == 1


@pytest.mark.parametrize("answer", [BUSY, refusal("storage_busy")])
def test_write_that_was_not_begun_is_repeated(kind: Any, answer: bytes) -> None:
    with stranger(answer, ok(b'{"removed": 1}')) as (url, requests):
        kind(url).remove(1)
    assert len(requests) == 2


def test_lasting_refusal_is_not_repeated(kind: Any) -> None:
    with stranger(refusal("read_only_storage")) as (url, _), raises(ServiceError, "read_only_storage"):
        kind(url).items()


def pauses(handler: Any, call: Any, monkeypatch: pytest.MonkeyPatch, retries: int = 3) -> list[float]:
    """Return the pauses of a call that the handler answers; other threads sleep as they want."""
    slept: list[float] = []
    caller, sleep = threading.get_ident(), time.sleep
    monkeypatch.setattr(time, "sleep", lambda s: slept.append(s) if threading.get_ident() == caller else sleep(s))
    with Client("http://service", retries=retries) as service:
        service._http = httpx.Client(base_url="http://service", transport=httpx.MockTransport(handler))
        with raises(ServiceError):
            call(service)
    return slept


@pytest.mark.parametrize(
    ("status", "asked", "expected"),
    [(429, "7", [7] * 3), (503, "30", [30] * 3), (503, "31", []), (500, "1", []), (404, "1", [])],
)
def test_pause_is_the_one_asked_for(
    status: int, asked: str, expected: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = httpx.Response(status, headers={"retry-after": asked})
    assert pauses(lambda _: answer, lambda service: service.items(), monkeypatch) == expected


@pytest.mark.parametrize("call", [lambda service: service.items(), lambda service: service.remove(1)])
def test_pause_doubles(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    monkeypatch.setattr(client, "FIRST_PAUSE", 0.2)
    slept = pauses(refuse, call, monkeypatch, retries=4)
    for pause, shortest in zip(slept, (0.2, 0.4, 0.8, 1.6), strict=True):
        assert shortest <= pause <= shortest + 0.2


def test_no_client_waits_forever(kind: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        service = kind(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.1)
        with raises(ServiceError):
            service.items()
        assert not service.ready()

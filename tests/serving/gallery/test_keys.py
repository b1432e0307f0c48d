"""Keys of items, in a folder and in Milvus: put, replaced, described, removed, and found by the new vector."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from serving.gallery import NewItem, VectorGallery
from serving.gallery.backup import verify_gallery
from serving.gallery.types import MAX_KEY, NO_PICTURE, check_key, unit_vector, vector_sha256
from tests.raising import raises
from tests.serving.gallery.addresses import FOLDER, MILVUS, new_addresses
from tests.serving.gallery.test_gallery import CARD, DIM, unit_rows
from tests.serving.gallery.test_store import new_item
from tests.serving.running import ROOT
from zoo.errors import ItemConflictError, ItemNotFoundError, UsageError

Address = Callable[[], str]
KEYS = (
    "a", "cam-1/0001.jpg", "/", "//a//", "..", "a/../b", "x y", "100 %", "%2F", "?q=1#f", "it's \"q\" \\ \\n",
    "é", "日本語", "👩‍👩‍👧", "\u3000", "thumbnail", "k" * MAX_KEY,
)  # fmt: skip
NO_KEYS = ("", "k" * (MAX_KEY + 1), "a\nb", "\0", "\x7f", "\x85", "\ud800")


@pytest.fixture(params=[FOLDER, *MILVUS])
def new_address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Address]:
    with new_addresses(request.param, tmp_path) as address:
        yield address


@pytest.fixture
def gallery(new_address: Address) -> Iterator[VectorGallery]:
    with VectorGallery.create(new_address(), CARD, "toy") as opened:
        yield opened


def keyed(number: int, key: str | None, label: str | None = None, **metadata: object) -> NewItem:
    (vector,) = unit_rows(1, number)
    return replace(new_item(number), embedding=vector, label=label, metadata=metadata, key=key)


def by_key(gallery: VectorGallery) -> dict[str | None, tuple[str, str | None, dict[str, object]]]:
    items = gallery.store.items(0, 1000)
    return {item.key: (item.content_sha256, item.label, item.metadata) for item in items}


def first(gallery: VectorGallery, number: int) -> tuple[str | None, float]:
    """Return the key and the similarity of the item that is nearest to the vector of image `number`."""
    hit = gallery.search(unit_rows(1, number), 1)[0][0]
    return hit.key, hit.similarity


def test_the_same_image_is_updated_and_another_one_replaces_it(gallery: VectorGallery) -> None:
    (made,) = gallery.put([keyed(1, "k", "wren", year=1908)])
    assert (made.status, first(gallery, 1)[0]) == ("created", "k")
    (same,) = gallery.put([keyed(1, "k", "wren", year=1908)])
    assert (same.status, same.id) == ("unchanged", made.id)
    (updated,) = gallery.put([keyed(1, "k")])
    assert (updated.status, updated.id) == ("updated", made.id)
    assert by_key(gallery) == {"k": (f"{1:064x}", None, {})}
    (replaced,) = gallery.put([keyed(2, "k", "robin")])
    assert (replaced.status, replaced.id) == ("replaced", made.id), "the item stays, with a new image"
    assert by_key(gallery) == {"k": (f"{2:064x}", "robin", {})}
    assert first(gallery, 2) == ("k", pytest.approx(1, abs=1e-6))
    assert first(gallery, 1)[1] < 0.99, "the former vector is not found"
    assert gallery.store.item_of_content(f"{1:064x}") is None


def test_images_that_are_there_already(gallery: VectorGallery) -> None:
    one, two = gallery.add([keyed(1, None, "a"), keyed(2, "two", "b")]).ids
    (adopted,) = gallery.put([keyed(1, "one", "c")])
    assert (adopted.status, adopted.id) == ("updated", one)
    gallery.add([keyed(3, None)])
    results = gallery.put([keyed(4, "four"), keyed(2, "other"), keyed(3, "one"), keyed(5, "five")])
    assert [result.status for result in results] == ["created", "created", "replaced", "created"]
    contents = {key: int(value[0], 16) for key, value in by_key(gallery).items()}
    assert contents == {"one": 3, "two": 2, "other": 2, None: 3, "four": 4, "five": 5}
    assert (gallery.store.item_of_key("two").id, gallery.store.item_of_key("one").id) == (two, one)
    (hit,) = gallery.search(unit_rows(1, 2), 1)[0]
    assert {hit.key, *(other.key for other in hit.also)} == {"two", "other"}, "one image, two products"


def test_random_puts_are_those_of_a_dictionary(gallery: VectorGallery) -> None:
    rng, oracle = np.random.default_rng(0), dict[str, int]()
    for _ in range(12):
        batch = [(f"k{rng.integers(6)}", int(rng.integers(8))) for _ in range(rng.integers(1, 6))]
        results = gallery.put([keyed(number, key, key) for key, number in batch])
        for (key, number), result in zip(batch, results, strict=True):
            wanted = "unchanged" if oracle.get(key) == number else "replaced" if key in oracle else "created"
            assert result.status == wanted
            oracle[key] = number
        assert {key: value[0] for key, value in by_key(gallery).items()} == {
            key: f"{number:064x}" for key, number in oracle.items()
        }
        for number in set(oracle.values()):
            (hit,) = gallery.search(unit_rows(1, number), 1)[0]
            assert hit.similarity == pytest.approx(1, abs=1e-6)
            assert {hit.key, *(other.key for other in hit.also)} == {key for key, n in oracle.items() if n == number}
    assert gallery.store.count() == len(oracle)


def test_any_text_without_control_characters_is_a_key(gallery: VectorGallery) -> None:
    gallery.put([keyed(number, key) for number, key in enumerate(KEYS)])
    for number, key in enumerate(KEYS):
        assert gallery.store.item_of_key(key).content_sha256 == f"{number:064x}", key
        assert first(gallery, number)[0] == key
    for spelling in ("é", "e\u0301"):  # Unicode's two forms
        assert gallery.store.item_of_key(spelling).id == gallery.store.item_of_key("é").id
        assert gallery.put([keyed(KEYS.index("é"), spelling)])[0].status == "unchanged"
    gallery.describe_key("a/../b", label="x")
    assert gallery.store.item_of_key("a/../b").label == "x"
    gallery.remove_key("//a//")
    for absent in ("//a//", "absent", "K"):
        for work in (gallery.store.item_of_key, gallery.remove_key, gallery.describe_key):
            with raises(ItemNotFoundError):
                work(absent)
    before = gallery.store.count()
    for key in NO_KEYS:
        for put in (gallery.put, gallery.add) if key else (gallery.put,):
            with raises(UsageError, "invalid-item"):
                put([keyed(100, "good"), keyed(101, key)])
        with raises(UsageError, "invalid-item"):
            check_key(key)
    with raises(UsageError, "invalid-item"):
        gallery.put([keyed(100, None)])
    assert gallery.store.count() == before


def test_a_key_is_given_changed_and_taken_back(gallery: VectorGallery) -> None:
    one, two = gallery.add([keyed(1, None), keyed(2, "two")]).ids
    gallery.store.describe(one, key="one")
    gallery.store.describe(one, key="one", label="x")
    with raises(ItemConflictError):
        gallery.store.describe(one, label="lost", key="two")
    with raises(UsageError, "invalid-item"):
        gallery.store.describe(one, key="a\n")
    assert gallery.store.item_of_key("one").label == "x"
    gallery.describe_key("two", key=None)
    gallery.describe_key("one", key="two")
    assert (gallery.store.item(one).key, gallery.store.item(two).key) == ("two", None)


def test_items_of_which_only_the_vector_is_known(gallery: VectorGallery) -> None:
    (vector,) = unit_rows(1, 1)
    items = [
        NewItem(key, vector, NO_PICTURE, vector_sha256(key, vector), metadata={"n": 1}, key=key) for key in ("a", "b")
    ]
    assert [result.status for result in gallery.put(items)] == ["created", "created"], "one vector, two keys"
    assert [result.status for result in gallery.put(items)] == ["unchanged", "unchanged"]
    other = replace(items[0], embedding=unit_rows(1, 2)[0], content_sha256=vector_sha256("a", unit_rows(1, 2)[0]))
    (replaced,) = gallery.put([other])
    assert replaced.status == "replaced"
    assert first(gallery, 2) == ("a", pytest.approx(1, abs=1e-6))
    assert gallery.store.thumbnail(replaced.id) == NO_PICTURE


def test_vectors_of_any_length_become_unit_vectors() -> None:
    row = unit_rows(1)[0]
    np.testing.assert_array_equal(unit_vector(row, DIM), row)
    for scale in (3.0, 1e-200, 1e200):
        np.testing.assert_allclose(unit_vector(row.astype(np.float64) * scale, DIM), row, atol=1e-6)
    whole = np.zeros(DIM, np.int64)
    whole[1] = -7
    np.testing.assert_array_equal(unit_vector(whole, DIM), -np.eye(DIM, dtype=np.float32)[1])
    for bad in (
        np.zeros(DIM),
        np.full(DIM, np.nan),
        np.full(DIM, np.inf),
        row[1:],
        row[None],
        row > 0,
        row.astype(str),
    ):
        with raises(UsageError, "invalid-embedding"):
            unit_vector(bad, DIM)


REPLACE = """
import sys
from serving.gallery import VectorGallery
from tests.serving.gallery.test_keys import keyed

with VectorGallery.open(sys.argv[1]) as gallery:
    print("open", flush=True)
    for number in range(1, 101):
        gallery.put([keyed(number, "hot")])
        if number % 20 == 0:
            gallery.index.compact()
"""


@pytest.mark.slow
def test_a_search_finds_a_key_exactly_once_while_another_process_replaces_it(tmp_path: Path) -> None:
    path = tmp_path / "g"
    with VectorGallery.create(path, CARD, "toy") as gallery:
        gallery.put([keyed(0, "hot"), *(keyed(number, f"k{number}") for number in range(1000, 1020))])
        with subprocess.Popen(
            [sys.executable, "-c", REPLACE, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout
            assert writer.stdout.readline() == "open\n"
            last = searches = 0
            while writer.poll() is None or last < 100:
                before = int(gallery.store.item_of_key("hot").content_sha256, 16)
                (hits,) = gallery.search(unit_rows(1, before), 21)
                (hot,) = [hit for hit in hits if hit.key == "hot"]
                after = int(gallery.store.item_of_key("hot").content_sha256, 16)
                shown = int(hot.source.removesuffix(".png"))
                assert last <= before <= shown <= after, "a search finds the image that is there, never an older one"
                assert len({hit.key for hit in hits}) == len(hits) == 21
                similarity = unit_rows(1, before)[0] @ unit_rows(1, shown)[0]
                assert hot.similarity == pytest.approx(similarity, abs=1e-5), "by the vector of the image"
                last, searches = before, searches + 1
            assert writer.wait(timeout=30) == 0
        assert searches > 5
    assert [check for check in verify_gallery(path) if check.ok is False] == []

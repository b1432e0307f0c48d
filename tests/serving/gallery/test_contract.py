"""One contract for galleries in a folder (SQLite and FAISS) and in Milvus (embedded, and a server where one is named).

ZOO_TEST_MILVUS=host:port runs the tests against that Milvus server as well, in collections of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from serving.gallery import UNCHANGED, NewItem, Thumbnail, VectorGallery
from serving.gallery.filters import Filter
from serving.gallery.gallery import is_gallery, model_at
from serving.gallery.types import ItemPlace, ItemUpdate
from tests.raising import raises
from tests.serving import toys
from tests.serving.gallery.addresses import FOLDER, MILVUS, new_addresses
from tests.serving.gallery.test_gallery import CARD, DIM, unit_rows
from zoo.data.preprocessing import Preprocessing
from zoo.errors import (
    GalleryError,
    GalleryExistsError,
    GalleryNotFoundError,
    ItemConflictError,
    ItemNotFoundError,
    ModelMismatchError,
    UsageError,
)
from zoo.models.card import Card

OTHER = Card("other", "none", "none", "none", "none", DIM, Preprocessing(8, 8), files={"model.safetensors": "1" * 64})
Address = Callable[[], str]


def new_items(vectors: np.ndarray, start: int = 0) -> list[NewItem]:
    return [
        NewItem(f"{n}.png", v, toys.thumbnail(n), f"{n:064x}", f"label {n % 5}", {"n": n})
        for n, v in enumerate(vectors, start)
    ]


def item_with(number: int, label: str | None = None, metadata: dict[str, object] | None = None) -> NewItem:
    (vector,) = unit_rows(1, number)
    return NewItem(f"{number}.png", vector, toys.thumbnail(1), f"{number:064x}", label, metadata or {})


def nearest(queries: np.ndarray, vectors: dict[int, np.ndarray], k: int) -> list[list[tuple[int, float]]]:
    """Return id and similarity of the k nearest, by products in float64, equal ones in the order of the ids."""
    ids = sorted(vectors)
    products = queries.astype(np.float64) @ np.array([vectors[i] for i in ids], np.float64).reshape(-1, DIM).T
    pairs = [sorted(zip(ids, row.tolist(), strict=True), key=lambda pair: (-pair[1], pair[0])) for row in products]
    return [row[:k] for row in pairs]


def assert_finds(
    gallery: VectorGallery, vectors: dict[int, np.ndarray], k: int = 7, selection: Filter | None = None
) -> None:
    queries, selection = unit_rows(4, seed=99), selection or Filter()
    wanted = nearest(queries, vectors, k)
    for exact in (False, True):
        found = gallery.search(queries, k, exact=exact, selection=selection)
        assert [[hit.id for hit in hits] for hits in found] == [[i for i, _ in row] for row in wanted]
        for hits, row in zip(found, wanted, strict=True):
            np.testing.assert_allclose([hit.similarity for hit in hits], [s for _, s in row], atol=1e-6)
        similarities, ids = gallery.neighbours(queries, k, exact, selection)
        assert [row[row >= 0].tolist() for row in ids] == [[i for i, _ in row] for row in wanted]
        assert (similarities[ids < 0] == -np.inf).all()


def eventually(check: Callable[[], None]) -> None:
    """Repeat a check for some seconds: another process, or connection, sees a write after Milvus's time tick."""
    end = time.monotonic() + 5
    while True:
        try:
            return check()
        except (AssertionError, ItemNotFoundError):
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


@pytest.fixture(params=[FOLDER, *MILVUS])
def new_address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Address]:
    """Return new addresses of galleries, which are dropped afterwards."""
    with new_addresses(request.param, tmp_path) as address:
        yield address


@pytest.fixture
def gallery(new_address: Address) -> Iterator[VectorGallery]:
    with VectorGallery.create(new_address(), CARD, "toy") as opened:
        yield opened


def test_galleries_are_made_and_opened(new_address: Address) -> None:
    address = new_address()
    assert not is_gallery(address)
    with raises(GalleryNotFoundError):
        VectorGallery.open(address)
    with VectorGallery.create(address, CARD, "toy") as gallery:
        assert gallery.address == address
        gallery.check_model(CARD)
        with raises(ModelMismatchError):
            gallery.check_model(OTHER)
    with raises(GalleryExistsError):
        VectorGallery.create(address, CARD, "toy")
    assert is_gallery(address)
    card, reference = model_at(address)
    assert (card.fingerprint, reference) == (CARD.fingerprint, "toy")
    with VectorGallery.open(address) as gallery:
        assert (gallery.card.fingerprint, gallery.model_ref, gallery.store.count()) == (CARD.fingerprint, "toy", 0)
        gallery.store.check_current()
        assert gallery.search(unit_rows(2), 5) == [[], []]
        assert (gallery.other_model(), gallery.coming()) == (None, None)
        with raises(GalleryError, "no-other-model"):
            VectorGallery.open(address, other=True)


@pytest.mark.slow
def test_searches_equal_exact_search_while_items_come_and_go(gallery: VectorGallery) -> None:
    first, second = unit_rows(40), unit_rows(30, seed=1)
    known = dict(zip(gallery.add(new_items(first)).ids, first, strict=True))
    assert_finds(gallery, known)
    gone = [*list(known)[:3], list(known)[39]]
    assert gallery.remove([*gone, 2**53 - 1, 0, -4, 2**70]) == 4
    known = {number: vector for number, vector in known.items() if number not in gone}
    assert_finds(gallery, known)
    known |= dict(zip(gallery.add(new_items(second, 40)).ids, second, strict=True))
    assert_finds(gallery, known)
    labels = gallery.store.labels()
    some = {number: vector for number, vector in known.items() if labels[number] in ("label 1", "label 3")}
    assert_finds(gallery, some, selection=Filter(("label 1", "label 3")))
    assert_finds(gallery, {}, selection=Filter(("no such label",)))
    metadata = {item.id: item.metadata["n"] for item in gallery.store.items(0, 100)}
    some = {number: vector for number, vector in known.items() if 20 <= metadata[number] < 60}
    assert_finds(gallery, some, selection=Filter(where={"n": {"gte": 20, "lt": 60}}))
    assert_finds(gallery, known, k=100)
    excluded = set(list(known)[:5])
    hits = gallery.search(unit_rows(1), 5, exclude_ids=list(excluded))[0]
    assert [hit.id for hit in hits] == [i for i, _ in nearest(unit_rows(1), known, 12)[0] if i not in excluded][:5]
    assert gallery.recall(5) == 1
    index = gallery.index.current()
    ids, vectors = index.vectors_of(index.ids())
    assert ids.tolist() == sorted(known)
    np.testing.assert_array_equal(vectors, [known[number] for number in sorted(known)])


def test_equal_similarities_come_in_the_order_of_ids(gallery: VectorGallery) -> None:
    vectors = np.tile(unit_rows(1), (9, 1))
    ids = gallery.add(new_items(vectors)).ids
    assert [hit.id for hit in gallery.search(vectors[:1], 9)[0]] == sorted(ids)


def test_queries_are_checked(gallery: VectorGallery) -> None:
    with raises(UsageError, "invalid-value"):
        gallery.search(unit_rows(1), 0)
    with raises(UsageError, "invalid-value"):
        gallery.search(unit_rows(1)[:, :3], 5)
    with raises(UsageError, "invalid-value"):
        gallery.search(np.full((1, DIM), np.nan, np.float32), 5)


def test_items_are_read(gallery: VectorGallery) -> None:
    store = gallery.store
    vectors = unit_rows(25)
    ids = gallery.add(new_items(vectors)).ids
    item = store.item(ids[7])
    assert (item.id, item.source, item.label, item.metadata, item.content_sha256, item.key) == (
        ids[7],
        "7.png",
        "label 2",
        {"n": 7},
        f"{7:064x}",
        None,
    )
    assert item.added_at[:2] == "20"
    assert store.thumbnail(ids[7]) == toys.thumbnail(7)
    np.testing.assert_array_equal(store.embedding(ids[7]), vectors[7])
    present, rows = store.embeddings([ids[3], 2**40 + 1, ids[1]])
    assert present == [ids[3], ids[1]]
    np.testing.assert_array_equal(rows, vectors[[3, 1]])
    assert store.embeddings([])[1].shape == (0, DIM)
    assert store.from_thumbnails(ids) == set()
    for number in (2**52 - 1, 0, -1, 2**64):
        for read in (store.item, store.thumbnail, store.embedding):
            with raises(ItemNotFoundError):
                read(number)
    assert store.item_of_content(f"{9:064x}") == store.item(ids[9])
    assert store.item_of_content("f" * 64) is None
    assert store.ids_by_content() == {f"{n:064x}": number for n, number in enumerate(ids)}
    places = {place.id: (place.source, place.content_sha256) for place in store.places()}
    assert places == {number: (f"{n}.png", f"{n:064x}") for n, number in enumerate(ids)}
    assert store.labels() == {number: f"label {n % 5}" for n, number in enumerate(ids)}
    assert (store.stats().items, store.stats().labels) == (25, 5)
    rows_of = {item.id: (vector, picture) for item, vector, picture in store.rows()}
    assert list(rows_of) == sorted(ids)
    np.testing.assert_array_equal(rows_of[ids[4]][0], vectors[4])
    assert rows_of[ids[4]][1] == store.thumbnail(ids[4])


def test_items_come_in_pages(gallery: VectorGallery) -> None:
    store = gallery.store
    ids = sorted(gallery.add(new_items(unit_rows(25))).ids)
    assert [item.id for item in store.items(0, 10)] == ids[:10]
    assert [item.id for item in store.items(20, 10)] == ids[20:]
    assert [item.id for item in store.items(3, -1)] == ids[3:]
    assert store.items(30, 10) == []
    labels = store.labels()
    third = [number for number in ids if labels[number] == "label 3"]
    assert [item.id for item in store.items(1, 3, selection=Filter(("label 3",)))] == third[1:4]
    assert (
        store.count(),
        store.count(Filter(("label 3",))),
        store.count(selection=Filter(("label 3", "x"))),
    ) == (25, 5, 5)
    assert store.count(selection=Filter(where={"n": [1, 2, 99]})) == 2
    sample = store.sample(10, seed=3)
    assert len({item.id for item in sample}) == 10
    assert sample == store.sample(10, seed=3)
    assert {item.id for item in store.sample(100)} == set(ids)


def test_one_image_is_one_item(gallery: VectorGallery) -> None:
    one, two = item_with(1, "a"), item_with(2, "b")
    added = gallery.add([one, two, one])
    assert (added.new, added.ids[0]) == (2, added.ids[2])
    again = gallery.add([item_with(2, "c"), item_with(3)])
    assert (again.new, again.ids[0]) == (1, added.ids[1])
    assert gallery.store.item(added.ids[1]).label == "b"
    assert gallery.add([]).ids == []
    assert gallery.store.count() == 3
    with raises(GalleryError, "invalid-embedding"):
        gallery.add([item_with(8), NewItem("x", np.ones(DIM, np.float32), one.thumbnail, "9" * 64)])
    assert gallery.store.count() == 3


def test_a_key_names_one_image(gallery: VectorGallery) -> None:
    store = gallery.store

    def keyed(number: int, key: str | None) -> NewItem:
        return NewItem(**{**vars(item_with(number)), "key": key})

    (first,) = gallery.add([keyed(1, "k1")]).ids
    assert store.item(first).key == "k1"
    assert gallery.add([keyed(1, "k1"), keyed(1, None)]).ids == [first, first]
    for items in ([keyed(2, "k1")], [keyed(3, "k3"), keyed(4, "k3")]):
        with raises(ItemConflictError):
            gallery.add(items)
    assert store.count() == 1
    (other,) = gallery.add([keyed(1, "k2")]).ids
    assert (store.item(other).content_sha256, store.count()) == (store.item(first).content_sha256, 2), (
        "one image, two keys"
    )
    (second,) = gallery.add([keyed(2, None)]).ids
    assert store.item(second).key is None
    assert gallery.add([keyed(2, 'it\'s "k2"')]).ids == [second]
    assert store.item(second).key == 'it\'s "k2"'


def test_items_are_described_and_moved(gallery: VectorGallery) -> None:
    store = gallery.store
    one, two = gallery.add([item_with(1, "a", {"x": 1}), item_with(2)]).ids
    before = store.change()
    number = store.describe(one, label="b")
    assert store.change() >= number > before
    assert (store.item(one).label, store.item(one).metadata) == ("b", {"x": 1})
    store.describe(one, metadata={"y": [1, "two", None, True]})
    assert (store.item(one).label, store.item(one).metadata) == ("b", {"y": [1, "two", None, True]})
    store.describe(one, metadata=lambda metadata: {**metadata, "z": 1})
    assert store.item(one).metadata == {"y": [1, "two", None, True], "z": 1}
    with raises(ItemNotFoundError):
        store.describe(2**51, metadata=lambda metadata: metadata)
    store.describe(one, None, {})
    assert (store.item(one).label, store.item(one).metadata) == (None, {})
    store.describe(one)
    with raises(ItemNotFoundError):
        store.describe(2**51, label="x")
    store.update(
        [
            ItemUpdate(one, "new/1.png", "c"),
            ItemUpdate(two, "new/2.png", None, {"z": 2.5}),
            ItemUpdate(77, "gone", None),
        ]
    )
    assert (store.item(one).source, store.item(one).label, store.item(one).metadata) == (
        "new/1.png",
        "c",
        {},
    )
    assert (store.item(two).source, store.item(two).label, store.item(two).metadata) == (
        "new/2.png",
        None,
        {"z": 2.5},
    )
    np.testing.assert_array_equal(store.embedding(two), unit_rows(1, 2)[0])
    assert store.thumbnail(two) == toys.thumbnail(1)


VALUES: list[object] = [
    1900, 1900.0, 1901.5, "1900", True, False, None, 1, 1.0, 0, -3, 2**53 + 1, -(2**63), "", "b\"q\\", "é\n", "zebra",
    [], [1900, "a"], [1950.5], [True, None], [[1900]], [None, 1920], {"a": 1}, {}, [{"a": 1}, "zebra"], 1e300,
    ["é\n", 0],
]  # fmt: skip
WANTED: list[object] = [
    1900, 1900.0, 1901.5, "1900", True, False, None, 1, 0, -3, 2**53 + 1, 2**53, -(2**63), "", "b\"q\\", "é\n", "a",
    [1900, "zebra", None], [1, True], ["x"], [*range(60), 1900], {"gte": 1900}, {"gt": 1900, "lt": 1951}, {"lte": 1.0},
    {"gte": "a", "lt": "zz"}, {"gt": "zebra"}, {"lt": -2.5}, 1e300,
]  # fmt: skip


@pytest.mark.slow
def test_filters_let_the_same_items_through_as_sqlite(gallery: VectorGallery, tmp_path: Path) -> None:
    store = gallery.store
    metadata: list[dict[str, object]] = [{"key": value} for value in VALUES]
    metadata += [{}, {"other": 1900}, {"we\\ird é '": "x"}, {"key": 1900, "other": "b"}, {"key": {"key": 1900}}]
    items = [item_with(n, ("wren", None, 'it\'s "é"')[n % 3], one) for n, one in enumerate(metadata)]
    filters = [Filter(where={"key": wanted}) for wanted in WANTED]  # type: ignore[dict-item]
    filters += [Filter(("wren",), {"key": 1900}), Filter(where={"key": 1900, "other": "b"}), Filter(('it\'s "é"', "x"))]
    filters += [Filter(where={"we\\ird é '": "x"}), Filter(where={"absent": None}), Filter(("",))]
    gallery.add(items)
    with VectorGallery.create(tmp_path / "reference", CARD, "toy") as reference:
        reference.add(items)
        for selection in filters:
            let_through = {item.content_sha256 for item in reference.store.items(0, 100, selection)}
            assert {item.content_sha256 for item in store.items(0, 100, selection)} == let_through, selection
            assert store.count(selection) == len(let_through) == reference.store.count(selection)
            for k in (2, 50):
                found = [hit.source for hit in gallery.search(unit_rows(1, 77), k, selection=selection)[0]]
                assert found == [hit.source for hit in reference.search(unit_rows(1, 77), k, selection=selection)[0]]
            matching = {
                item.content_sha256
                for item in reference.store.items(0, 100)
                if selection.matches(item.label, item.metadata)
            }
            assert matching == let_through, selection
        assert store.overview.labels(10) == reference.store.overview.labels(10)
        assert store.overview.labels(1) == reference.store.overview.labels(1)
        counted, wanted = store.overview.metadata(100), reference.store.overview.metadata(100)
        assert counted[0] == wanted[0]
        assert sorted(map(repr, counted[1])) == sorted(map(repr, wanted[1]))
        assert [n for *_, n in store.overview.metadata(5)[1]] == [
            n for *_, n in reference.store.overview.metadata(5)[1]
        ]
        assert store.overview.keys(100) == reference.store.overview.keys(100)


def test_facts_and_state_stay(new_address: Address) -> None:
    address = new_address()
    with VectorGallery.create(address, CARD, "toy") as gallery:
        assert (gallery.store.fact("calibration"), gallery.store.state("folders")) == (None, None)
        gallery.store.set_fact("calibration", '{"slope": 1}')
        gallery.store.set_fact("calibration", '{"slope": 2}')
        gallery.store.set_state("folders", "[]")
    with VectorGallery.open(address) as gallery:
        assert (gallery.store.fact("calibration"), gallery.store.state("folders"), gallery.store.fact("x")) == (
            '{"slope": 2}',
            "[]",
            None,
        )
        with gallery.store.evaluation_lock():
            pass


def test_removed_places_are_taken_over_unless_they_have_an_item(gallery: VectorGallery) -> None:
    gallery.add([replace(item, folder="file:///data") for item in new_items(unit_rows(3))])
    first = gallery.store.places()[0]
    gone = ItemPlace(0, "gone.jpg", None, "file:///data", "0" * 64)
    for _ in range(2):
        gallery.note_removed([first, gone])
    assert [replace(place, id=0) for place in gallery.store.removed_places()] == [gone]


def test_writes_of_one_are_seen_by_another(new_address: Address) -> None:
    address, vectors = new_address(), unit_rows(12)
    with VectorGallery.create(address, CARD, "toy") as one, VectorGallery.open(address) as other:
        ids = one.add(new_items(vectors[:8])).ids
        known = dict(zip(ids, vectors, strict=False))
        eventually(lambda: assert_finds(other, known))
        change = other.store.change()
        known |= dict(zip(other.add(new_items(vectors[8:], 8)).ids, vectors[8:], strict=True))
        eventually(lambda: assert_finds(one, known))
        assert one.store.change() != change
        other.store.describe(ids[0], label="new")
        one.remove([ids[1]])
        del known[ids[1]]
        eventually(lambda: assert_finds(other, known))

        def described() -> None:
            assert one.store.item(ids[0]).label == "new"

        eventually(described)
        assert one.add(new_items(vectors)).new == 1, "the image that was removed"
        assert other.add(new_items(vectors)).new == 0


def test_large_thumbnails_and_texts(gallery: VectorGallery) -> None:
    store = gallery.store
    noise = np.random.default_rng(0).integers(0, 256, 70_000, dtype=np.uint8).tobytes()
    thumbnail = Thumbnail(b"\xff\xd8\xff" + noise, "image/jpeg")
    item = NewItem("ü" * 3000, unit_rows(1)[0], thumbnail, "a" * 64, "l" * 500, {"text": "é" * 9000})
    (number,) = gallery.add([item]).ids
    assert store.thumbnail(number) == item.thumbnail
    kept = store.item(number)
    assert (kept.source, kept.label, kept.metadata) == (item.source, item.label, item.metadata)
    store.describe(number, UNCHANGED, {"text": "short"})
    assert store.thumbnail(number) == item.thumbnail

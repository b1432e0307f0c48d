"""What a follower finds in its primary's collection of Milvus, whatever becomes of that."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from serving.gallery import milvus, schema
from serving.gallery.backends import choose
from serving.gallery.collection import Collection, Held
from serving.gallery.history import Position
from serving.gallery.milvus_address import Address, address_of
from serving.gallery.milvus_following import FollowedMilvusIndex
from serving.gallery.replica import Replica
from serving.gallery.store import Store
from tests.serving import toys
from tests.serving.followers import Service, following, leading
from tests.serving.test_backends import BACKENDS, SERVER, drop
from tests.serving.test_history import CARD, DIM, follow, new_item, unit

NONE_GONE = np.empty(0, np.int64)


@pytest.fixture(params=BACKENDS[1:])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Address]:
    if request.param == "embedded":
        yield address_of(f"milvus://{tmp_path}/vectors.db")
        return
    yield address_of(SERVER)
    drop(SERVER)


@pytest.fixture
def collection(address: Address) -> Iterator[Collection]:
    """The primary's, with the three items that both stores have."""
    with closing(Collection(address)) as found:
        fill(found, CARD.fingerprint, [1, 2, 3])
        yield found


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[tuple[Store, Replica]]:
    for name in "ab":
        schema.create(tmp_path / name, DIM, CARD.fingerprint)
    replica = Replica(tmp_path / "b")
    with Store(tmp_path / "a").closing() as store:
        store.add([new_item(seed) for seed in (1, 2, 3)])
        follow(store, replica)
        yield store, replica
    replica.close()


def fill(collection: Collection, fingerprint: str, seeds: list[int]) -> None:
    collection.create(DIM, Held("g", fingerprint, 0))
    vectors = np.stack([unit(seed) for seed in seeds])
    collection.write([(np.arange(1, len(seeds) + 1), vectors)], NONE_GONE, Held("g", fingerprint, 1))


def assert_finds(index: FollowedMilvusIndex, seeds: list[int]) -> None:
    similarities, ids = index.current().search(np.stack([unit(seed) for seed in seeds]), 1)
    assert ids[:, 0].tolist() == list(range(1, len(seeds) + 1))
    np.testing.assert_allclose(similarities[:, 0], 1, atol=1e-5)


def test_another_models_vectors_are_never_searched(
    collection: Collection, stores: tuple[Store, Replica], address: Address, tmp_path: Path
) -> None:
    with Store(tmp_path / "b").closing() as own, closing(FollowedMilvusIndex(tmp_path, own, address, "g")) as index:
        assert_finds(index, [1, 2, 3])
        fill(collection, "f" * 64, [7, 8, 9])  # the primary was given another model, and nothing changed here yet
        assert_finds(index, [1, 2, 3])
        collection.create(DIM, Held("g", CARD.fingerprint, 0))  # it is being filled anew
        assert_finds(index, [1, 2, 3])
        fill(collection, CARD.fingerprint, [1, 2, 3])
        assert_finds(index, [1, 2, 3])


def test_a_copy_that_was_made_anew_is_searched_though_its_number_is_the_same(
    collection: Collection, stores: tuple[Store, Replica], address: Address, tmp_path: Path
) -> None:
    schema.create(tmp_path / "c", DIM, CARD.fingerprint)
    with (
        Store(tmp_path / "b").closing() as own,
        closing(FollowedMilvusIndex(tmp_path, own, address, "another")) as index,
        Store(tmp_path / "c").closing() as restored,
    ):
        assert_finds(index, [1, 2, 3])
        restored.add([new_item(seed) for seed in (4, 5, 6)])
        rows = restored.history.since(0, 100, 10**9)
        stores[1].take(rows.rows, Position(rows.facts.history, rows.last), rows.facts, "{}")
        assert own.change() == 1
        assert_finds(index, [4, 5, 6])


def test_a_collection_that_is_not_said_to_be_the_primarys_any_more_is_not_searched(
    collection: Collection, stores: tuple[Store, Replica], address: Address, tmp_path: Path
) -> None:
    """As of a primary that goes on with a backup, which has its vectors in FAISS and may be at an earlier change."""
    named = [True]
    with (
        Store(tmp_path / "b").closing() as own,
        closing(FollowedMilvusIndex(tmp_path, own, address, "g", lambda: named[0])) as index,
    ):
        collection.write([], np.array([2]), Held("g", CARD.fingerprint, 3))
        assert index.current().search(unit(2)[None], 1)[1][0, 0] != 2
        named[0] = False
        assert_finds(index, [1, 2, 3])


def test_a_collection_that_is_ahead_gives_as_many_of_the_items_that_are_here(
    collection: Collection, stores: tuple[Store, Replica], address: Address, tmp_path: Path
) -> None:
    with Store(tmp_path / "b").closing() as own, closing(FollowedMilvusIndex(tmp_path, own, address, "g")) as index:
        query = unit(1)
        nearer = np.tile(query, (20, 1))  # all of them before the second and third of the three that are here
        collection.write([(np.arange(101, 121), nearer)], NONE_GONE, Held("g", CARD.fingerprint, 2))
        similarities, ids = index.current().search(query[None], 3)
        expected = np.stack([unit(seed) for seed in (1, 2, 3)]) @ query
        assert ids[0].tolist() == (1 + np.argsort(-expected)).tolist()
        np.testing.assert_allclose(similarities[0], np.sort(expected)[::-1], atol=1e-5)
        collection.write([], np.array([2]), Held("g", CARD.fingerprint, 3))  # of all there is one is gone
        similarities, ids = index.current().search(query[None], 3)
        assert sorted(ids[0].tolist()) == [-1, 1, 3]
        assert similarities[0, 2] == -np.inf


@pytest.mark.parametrize("k", [2, 3])
def test_a_search_that_is_made_here_ends_though_items_went_meanwhile(
    collection: Collection,
    stores: tuple[Store, Replica],
    address: Address,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    k: int,
) -> None:
    store, replica = stores
    monkeypatch.setattr(milvus, "MOST", 1)  # of more the index that is here is searched
    with Store(tmp_path / "b").closing() as own, closing(FollowedMilvusIndex(tmp_path, own, address, "g")) as index:
        assert index.current().search(unit(2)[None], 3)[1][0, 0] == 2
        store.remove([2])
        follow(store, replica)
        similarities, ids = index.search(unit(2)[None], k)
        assert sorted(ids[0].tolist()) == sorted([1, 3, -1][:k])
        assert np.isfinite(similarities[ids >= 0]).all()


@pytest.mark.skipif(not SERVER, reason="no Milvus server is named")
def test_a_follower_searches_in_the_collection_of_its_primary(gallery_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(gallery_folder, tmp_path / "primary"))
    choose(folder, SERVER)
    with leading(folder) as primary, following(primary.url, tmp_path / "g") as follower:
        for service in (primary, follower):
            gallery = service.collections.each[0].gallery
            assert gallery.index_stats().kind == "milvus"
            assert service.found()[:24] == gallery_order(service)
    drop(SERVER)


def gallery_order(service: Service) -> list[int]:
    """All items from the nearest to the farthest, by exact search in the store."""
    collection = service.collections.each[0]
    query = collection.searcher.embed(toys.query(0))
    return [hit.id for hit in collection.gallery.search(query, 24, exact=True)[0]]

"""Followers of primaries that lie, hang, or have their vectors elsewhere, and followers on full disks."""

from __future__ import annotations

import base64
import errno
import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from starlette.responses import Response

from serving.app import create_app
from serving.collection import Collection
from serving.collections import Collections
from serving.following import copying, handing_out
from serving.following import follower as follower_module
from serving.following.follower import Follower
from serving.following.gate import Gate
from serving.following.wire import read_head
from serving.gallery import Gallery
from serving.gallery.backends import FAISS, FOLLOWED, backend_of, choose
from serving.gallery.binding import model_text
from serving.gallery.gallery import STORE
from serving.gallery.milvus_address import address_of
from tests.serving.followers import BEHIND, wrong
from tests.serving.older import as_schema_6
from tests.serving.running import answering
from tests.serving.test_backends import CARD, assert_finds, new_items, unit_rows
from tests.serving.test_compaction import reachable_copy
from tests.serving.test_connection import unwritable
from tests.serving.test_history import content
from tests.serving.toy_primary import Change, Toy, follower_of
from zoo.errors import FollowingError


def _rows(**values: Any) -> Change:
    def change(head: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        for row in rows:
            row.update(values)

    return change


def _head(**values: Any) -> Change:
    return lambda head, rows: head.update(values)


def _cut(response: Response) -> None:
    response.body = response.body[: len(response.body) // 2]


def _of_other_length(response: Response) -> None:
    response.headers["content-length"] = str(len(response.body) + 5)


def _endless(response: Response) -> None:
    response.body = b"x" * (2**26 + 1)
    response.headers["content-length"] = str(len(response.body))


NAN = np.full(6, np.nan, "<f4").tobytes()
LIES: dict[str, Change] = {
    "rows of another dim": _rows(embedding="AAAAAAAAAAA="),
    "NaN": _rows(embedding=base64.b64encode(NAN).decode()),
    "the same content twice": _rows(content_sha256="0" * 64),
    "more items than there are": _head(items=99),
    "another dim": _head(dim=12),
    "rows without an end": lambda head, rows: head.update(last=head["last"] + 100),
    "more rows than numbers": lambda head, rows: rows.extend(rows),
    "no rows": lambda head, rows: rows.clear(),
    "another kind": _rows(kind="script"),
    "a state of its own": lambda head, rows: rows.append({"kind": "state", "key": "following", "value": "{}"}),
    "a file of this host": _head(backend=["milvus:///etc/passwd.db", "g"]),
    "a model that it is not": _head(model=model_text(CARD, "toy").replace("0" * 64, "1" * 64)),
    "no model": _head(model=None),
}
DAMAGE = {"a wrong hash": _cut, "a cut body": _of_other_length, "more than it may send": _endless}


@pytest.mark.parametrize("lie", [*LIES, *DAMAGE])
def test_a_primary_that_lies_is_refused_and_nothing_is_kept_of_it(lie: str, toy: Toy, tmp_path: Path) -> None:
    toy.change = LIES.get(lie, toy.change)
    toy.damage = DAMAGE.get(lie, toy.damage)
    with answering(toy.app()) as url, follower_of(url, tmp_path / "in" / "g") as follower:
        with pytest.raises(FollowingError):
            follower.begin()
        assert list((tmp_path / "in").iterdir()) == []
        toy.change, toy.damage = lambda head, rows: None, lambda response: None
        follower.begin()
        before = content(tmp_path / "in" / "g" / STORE)
        assert before == content(toy.folder / STORE)
        toy.store.add(new_items(unit_rows(2, seed=7), 30))
        if lie not in ("a model that it is not", "no model"):  # nothing is read of it where there is a copy
            toy.change = LIES.get(lie, toy.change)
            toy.damage = DAMAGE.get(lie, toy.damage)
            follower.look()
            assert not follower.is_fresh
            assert content(tmp_path / "in" / "g" / STORE) == before
        toy.change, toy.damage = lambda head, rows: None, lambda response: None
        follower.look()
        assert follower.is_fresh
        assert content(tmp_path / "in" / "g" / STORE) == content(toy.folder / STORE)
        assert wrong(tmp_path / "in" / "g") == []


def test_what_changes_while_it_is_copied_is_there_in_the_end(toy: Toy, tmp_path: Path) -> None:
    def change(head: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        if toy.asked < 12:
            toy.store.add(new_items(unit_rows(1, seed=toy.asked), 100 + toy.asked))
            toy.store.remove([toy.asked])
            toy.store.describe(20, f"label {toy.asked}")

    toy.change, toy.rows = change, 3
    with answering(toy.app()) as url, follower_of(url, tmp_path / "g") as follower:
        follower.begin()
        assert follower.is_fresh
        assert content(tmp_path / "g" / STORE) == content(toy.folder / STORE)


def test_a_primary_that_hangs_holds_a_query_up_for_a_moment_and_one_that_is_slow_is_followed_yet(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for a look while the primary is not known to be there: it is given all the time it needs."""
    monkeypatch.setattr("serving.following.follower.CHECK_SECONDS", 0.1)
    let = threading.Event()

    def hang(response: Response) -> None:
        let.wait(20)

    with answering(toy.app()) as url, follower_of(url, tmp_path / "g") as follower:
        follower.begin()
        assert follower.is_fresh
        toy.damage = hang
        started = time.monotonic()
        follower.look()
        assert time.monotonic() - started < 2, "a wait of 0.1 s, beside one of 5"
        assert not follower.is_fresh
        threading.Timer(0.5, let.set).start()
        follower.look()
        assert follower.is_fresh


def test_a_primary_that_is_behind_its_own_primary_lets_nothing_pass_for_fresh(toy: Toy, tmp_path: Path) -> None:
    def say_so(response: Response) -> None:
        response.headers[BEHIND] = "0"

    with answering(toy.app()) as url, follower_of(url, tmp_path / "g") as follower:
        follower.begin()
        assert follower.is_fresh
        toy.damage = say_so
        toy.store.remove([1])
        follower.look()
        assert not follower.is_fresh
        assert follower.behind() is not None
        assert content(tmp_path / "g" / STORE) == content(toy.folder / STORE), "what it has is taken over all the same"
        toy.damage = lambda response: None
        follower.look()
        assert follower.is_fresh


def test_a_look_that_finds_nothing_new_needs_nothing_of_the_disk(toy: Toy, tmp_path: Path) -> None:
    with answering(toy.app()) as url, follower_of(url, tmp_path / "g") as follower:
        follower.begin()
        (tmp_path / "g" / FOLLOWED).unlink()
        follower._noted = 0.0
        follower.look()
        assert follower.is_fresh


def test_queries_that_wait_at_one_moment_share_one_look(toy: Toy, tmp_path: Path) -> None:
    import asyncio

    async def all_at_once(follower: Follower) -> list[float | None]:
        gate = Gate(follower)
        first = asyncio.ensure_future(gate.passed())
        await asyncio.sleep(0)
        return [await first, *await asyncio.gather(*(gate.passed() for _ in range(50)))]

    with answering(toy.app()) as url, follower_of(url, tmp_path / "g") as follower:
        follower.begin()
        before = toy.asked
        assert asyncio.run(all_at_once(follower)) == [None] * 51
        assert 1 <= toy.asked - before <= 3


def test_the_place_of_the_vectors_is_the_primarys_though_the_disk_was_full_as_all_was_copied_anew(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.following.primary.check_shared", lambda head: None)
    write = copying.write_beside

    def full(folder: Path, what: Any) -> None:
        monkeypatch.setattr(follower_module, "write_beside", write)
        raise OSError(errno.ENOSPC, "No space left on device")

    with answering(toy.app()) as url, follower_of(url, tmp_path / "g") as follower:
        follower.begin()
        assert backend_of(tmp_path / "g") == FAISS
        toy.store.set_state("history", "0" * 16)
        toy.backend = (f"milvus://{tmp_path}/vectors.db", "name")
        monkeypatch.setattr(follower_module, "write_beside", full)
        for _ in range(3):
            follower.look()
            follower._tend()
        assert follower.is_fresh
        assert backend_of(tmp_path / "g") == toy.backend[0]


def test_where_the_vectors_lie_in_milvus_a_follower_searches_there_and_writes_nothing(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from serving.gallery.collection import Collection

    address = f"milvus://{tmp_path}/vectors.db"
    choose(toy.folder, address)
    # An embedded one stands for a server here: both galleries are of this process.
    toy.backend = (address, json.loads((toy.folder / "backend.json").read_text())["gallery"])
    monkeypatch.setattr("serving.following.primary.check_shared", lambda head: None)
    known = dict(enumerate(unit_rows(20), 1))
    with answering(toy.app()) as url, follower_of(url, tmp_path / "g") as follower, Gallery.open(toy.folder) as primary:
        follower.begin()
        assert backend_of(tmp_path / "g") == address
        with Gallery.open(tmp_path / "g") as followed:
            assert followed.index_stats().kind == "milvus"
            assert_finds(followed, known)
            primary.add(new_items(unit_rows(3, seed=5), 40))
            primary.remove([4])
            follower.look()
            known = {i: v for i, v in (known | dict(enumerate(unit_rows(3, seed=5), 21))).items() if i != 4}
            assert_finds(followed, known)  # the collection is behind: nobody has brought it up to date yet
            collection = Collection(address_of(address))
            assert collection.count() == 20, "the follower has not written to it"
            collection.close()
            assert_finds(primary, known)
            assert_finds(followed, known)
    toy.backend = None
    with answering(toy.app()) as url, follower_of(url, tmp_path / "g") as follower:
        follower.begin()
        assert backend_of(tmp_path / "g") == FAISS


def test_a_primary_brings_its_collection_up_to_date_before_it_tells_of_a_change(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from serving.gallery.collection import Collection as InMilvus

    address = f"milvus://{tmp_path}/vectors.db"
    choose(toy.folder, address)
    monkeypatch.setattr(handing_out, "shared_backend", lambda folder: (address, "its name"))
    with Gallery.open(toy.folder) as gallery:
        searcher: Any = SimpleNamespace(gallery=gallery, close=lambda: None)
        with answering(create_app(Collections([Collection("", lambda: searcher)]))) as url:
            toy.store.add(new_items(unit_rows(2, seed=8), 70))
            head = read_head(httpx.get(f"{url}/changes?after=20").content.splitlines(keepends=True)[0])
            assert (head.change, head.backend) == (2, (address, "its name"))
            collection = InMilvus(address_of(address))
            assert collection.count() == 22
            collection.close()


def test_a_gallery_of_before_there_was_a_journal_that_cannot_be_written_to(toy: Toy) -> None:
    toy.store.close()
    as_schema_6(toy.folder / STORE)
    with reachable_copy(toy.folder) as folder, unwritable(folder), Gallery.open(folder) as gallery:
        with pytest.raises(FollowingError, match="older schema"):
            gallery.history.since(0, 10, 10**6)
        assert gallery.count() == 20

"""Services that follow another one: what either is told is seen at both, and where the other is gone they go on.

All of it with FAISS, and with a Milvus server where ZOO_TEST_MILVUS names one (tests.serving.test_backends).
"""

from __future__ import annotations

import re
import shutil
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import numpy as np
import pytest

from serving.app import create_app
from serving.collection import Collection
from serving.collections import Collections
from serving.configuration import FOLLOW, FOLLOW_KEY, FOLLOW_KEYS, READ_KEYS, WRITE_KEYS, Configuration
from serving.galleries import GALLERY, MODEL, Place, to_environment
from serving.gallery import Gallery
from serving.gallery.backends import check_alone, choose
from serving.gallery.gallery import STORE
from serving.keys import Keys
from serving.searcher import Searcher
from serving.upgrading import upgrading
from tests.serving import toys
from tests.serving.followers import BEHIND, FOLLOWER, KEYS, READER, WRITER, Service, following, leading, within, wrong
from tests.serving.running import answering
from tests.serving.test_backends import SERVER, drop
from tests.serving.test_history import content
from zoo.cli.main import main
from zoo.errors import FollowingError, GalleryExistsError, ModelMismatchError, UsageError
from zoo.models.load import Embedder


def open_once(environment: dict[str, str]) -> None:
    """For what it raises."""
    collections = Collections.of(environment)
    try:
        collections.open()
    finally:
        collections.close()


@pytest.fixture(params=["faiss", *(["server"] if SERVER else [])])
def path(request: pytest.FixtureRequest, gallery_folder: Path, tmp_path: Path) -> Iterator[Path]:
    folder = Path(shutil.copytree(gallery_folder, tmp_path / "primary"))
    if request.param == "faiss":
        yield folder
        return
    choose(folder, SERVER)
    yield folder
    drop(SERVER)


@pytest.fixture
def pair(path: Path, tmp_path: Path) -> Iterator[tuple[Service, Service]]:
    with leading(path) as primary, following(primary.url, tmp_path / "copies" / "g") as follower:
        yield primary, follower


def test_a_follower_answers_as_its_primary(pair: tuple[Service, Service]) -> None:
    primary, follower = pair
    for get in ("/items?limit=5", "/labels", "/items/3", "/map", "/feedback"):
        assert primary.http.get(get).json() == follower.http.get(get).json()
    assert primary.http.get("/items/3/thumbnail").content == follower.http.get("/items/3/thumbnail").content
    assert primary.found(2) == follower.found(2)
    assert content(primary.folder / STORE) == content(follower.folder / STORE)
    assert wrong(follower.folder) == []
    assert primary.http.get("/stats").json()["following"] is None
    assert follower.http.get("/stats").json()["following"] == {"primary": primary.url, "behind": 0}
    assert 'zoo_following_behind_seconds{collection=""} 0.0' in follower.http.get("/metrics").text


def test_a_change_made_at_either_is_seen_by_the_next_query_at_both(pair: tuple[Service, Service]) -> None:
    primary, follower = pair
    for number, (told, asked) in enumerate([(primary, follower), (follower, primary)]):
        picture = toys.query(number)
        added = told.http.post("/items", files={"image": picture}, data={"label": "new", "key": f"k{number}"})
        assert added.status_code == 201, added.text
        one = added.json()["items"][0]["id"]
        assert asked.found(number)[0] == told.found(number)[0] == one
        assert asked.http.get(f"/items/{one}").json() == told.http.get(f"/items/{one}").json()
        told.http.patch(f"/items/{one}", json={"label": "named anew", "metadata": {"a": [1]}}).raise_for_status()
        assert asked.http.get(f"/items/{one}").json()["metadata"] == {"a": [1]}
        assert asked.found(number, label="named anew") == [one]
        mark = told.http.post("/feedback", json={"query": one, "item": 1, "verdict": "right"}).raise_for_status()
        assert asked.http.get("/feedback").json()["marks"] == [mark.json()]
        told.http.delete(f"/feedback/{mark.json()['id']}").raise_for_status()
        assert asked.http.get("/feedback").json()["total"] == 0
        assert asked.http.get("/evaluate").status_code == (404 if number == 0 else 200)
        measured = told.http.post("/evaluate").raise_for_status().json()
        assert asked.http.get("/evaluate").json()["date"] == measured["date"]
        assert asked.http.get("/stats").json()["calibration"] == measured["calibration"]
        told.http.delete(f"/items/{one}").raise_for_status()
        assert one not in asked.found(number)
        assert asked.http.get(f"/items/{one}").status_code == told.http.get(f"/items/{one}").status_code == 404
    assert content(primary.folder / STORE) == content(follower.folder / STORE)
    assert wrong(follower.folder) == []


def test_what_is_refused_there_is_refused_here(pair: tuple[Service, Service]) -> None:
    for request in (
        {"method": "POST", "url": "/items", "files": {"image": b"none"}},
        {"method": "POST", "url": "/items?labl=a", "files": {"image": toys.query(1)}},
        {"method": "PATCH", "url": "/items/999", "json": {"label": "a"}},
        {"method": "DELETE", "url": "/items/a%2Fb"},
        {"method": "DELETE", "url": "/items/1", "headers": {"x-api-key": FOLLOWER}},
        {"method": "DELETE", "url": "/items/1", "headers": {"x-api-key": "wrong" * 9}},
        {"method": "PUT", "url": "/items/1"},
        {"method": "POST", "url": "/nothing"},
        {"method": "POST", "url": "/items", "content": b"x" * 2**26},
    ):
        answers = [one.http.request(**request) for one in pair]
        assert answers[0].status_code == answers[1].status_code
        assert 400 <= answers[0].status_code < 500
        assert answers[0].json() == answers[1].json()


def test_every_acknowledged_change_is_seen_by_the_next_query_anywhere(path: Path, tmp_path: Path) -> None:
    """Several clients at once, each of which changes an item of its own at one of three services and asks another."""
    with leading(path) as primary, following(primary.url, tmp_path / "a") as one:
        with following(primary.url, tmp_path / "b") as other:

            def busy(item: int) -> int:
                rng, seen = np.random.default_rng(item), 0
                for step in range(12):
                    told, asked = rng.choice([primary, one, other], 2)
                    label = f"{item} {step}"
                    told.http.patch(f"/items/{item}", json={"label": label}).raise_for_status()
                    answer = asked.http.get("/items", params={"label": label})
                    assert BEHIND not in answer.headers
                    seen += [row["id"] for row in answer.json()["items"]] == [item]
                return seen

            with ThreadPoolExecutor(6) as threads:
                assert list(threads.map(busy, range(1, 7))) == [12] * 6
        one.http.get("/items")
        assert content(path / STORE) == content(tmp_path / "a" / STORE)


def test_odd_requests_are_passed_on_as_they_are(pair: tuple[Service, Service]) -> None:
    for target in (b"/items/%00", b"/items/%0a", b"/items/%ff?a=%zz", b"//evil/items", b"/items/99?x=\xff",
                   b"/items/..%2f1", b"/items/%F0%9F%90", b"/items/?[]{}|^`", b"/a:b@c", b"/items/99?a#c"):  # fmt: skip
        for headers in (b"", b"content-type: \xe9\r\n", b"x-request-id: a b\r\n"):
            head = b"DELETE " + target + b" HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n" + headers
            answers = []
            for one in pair:
                with socket.create_connection(("127.0.0.1", int(one.url.rpartition(":")[2])), timeout=10) as sent:
                    sent.sendall(head + b"x-api-key: " + WRITER.encode() + b"\r\n\r\n")
                    answers.append(b"".join(iter(lambda: sent.recv(4096), b"")))
            statuses = [answer.split(b" ")[1] for answer in answers]
            assert statuses[0] == statuses[1], (target, headers, statuses)
            moved = [answer.lower().partition(b"\r\nlocation: ")[2].partition(b"\r\n")[0] for answer in answers]
            assert moved[1] == moved[0].removeprefix(b"http://localhost"), "where the follower was asked"
            assert statuses[0][:1] in b"234", (target, statuses)


def test_who_follows_under_another_name_is_told_what_to_type(path: Path, tmp_path: Path) -> None:
    searcher = Searcher.open(path)
    for name, asked, typed in (("", "birds", "zoo serve FOLDER"), ("birds", "", "zoo serve NAME=FOLDER")):
        app = create_app(Collections([Collection(name, lambda: searcher, Keys.of(KEYS))]))
        with answering(app) as url:
            place = Place(asked, str(tmp_path / "copy"))
            environment = {**to_environment([place]), FOLLOW: url, FOLLOW_KEY: FOLLOWER}
            with pytest.raises(FollowingError, match=re.escape(f"{typed} --follow {url}")) as refused:
                open_once(environment)
        assert "Ask without" not in str(refused.value)
    searcher.close()


@pytest.mark.parametrize(
    ("keys", "given", "status"),
    [
        ({}, None, 200),
        ({WRITE_KEYS: WRITER}, None, 401),
        ({WRITE_KEYS: WRITER}, WRITER, 200),
        ({FOLLOW_KEYS: FOLLOWER}, None, 401),
        ({FOLLOW_KEYS: FOLLOWER}, "x" * 20, 401),
        ({FOLLOW_KEYS: FOLLOWER}, FOLLOWER, 200),
        ({READ_KEYS: READER}, READER, 403),
        ({READ_KEYS: READER, **KEYS}, READER, 403),
        ({READ_KEYS: READER, **KEYS}, FOLLOWER, 200),
    ],
)
def test_who_may_follow(gallery_folder: Path, keys: dict[str, str], given: str | None, status: int) -> None:
    searcher = Searcher.open(gallery_folder)
    app = create_app(Collections([Collection("", lambda: searcher, Keys.of(keys))]))
    with answering(app) as url:
        answer = httpx.get(f"{url}/changes", headers={"x-api-key": given} if given else {})
        assert answer.status_code == status
        if FOLLOW_KEYS in keys and given == FOLLOWER:
            assert httpx.delete(f"{url}/items/1", headers={"x-api-key": given}).status_code in (401, 403)
    searcher.close()


def test_who_follows_has_no_rate(gallery_folder: Path) -> None:
    searcher = Searcher.open(gallery_folder)
    served = Collections([Collection("", lambda: searcher, Keys.of(KEYS))])
    with answering(create_app(served, Configuration(rate=0.1, burst=2))) as url:
        for key, expected in ((FOLLOWER, {200}), (WRITER, {200, 429})):
            asked = [httpx.get(f"{url}/changes?after=9", headers={"x-api-key": key}).status_code for _ in range(5)]
            assert set(asked) == expected
        asked = [httpx.get(f"{url}/items", headers={"x-api-key": FOLLOWER}).status_code for _ in range(5)]
        assert 429 in asked, "for following alone"
    searcher.close()


def test_a_copy_is_not_served_or_written_to_as_if_it_were_ones_own(
    pair: tuple[Service, Service], tmp_path: Path, model: Embedder, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = pair[1].folder
    with pytest.raises(UsageError, match="--follow"):
        check_alone(copy, follows=False)
    check_alone(copy, follows=True)
    check_alone(pair[0].folder, follows=False)
    toys.picture(0, np.random.default_rng(77)).save(tmp_path / "new.png")
    assert main(["gallery", "add", str(copy), str(tmp_path / "new.png")]) == 2
    assert "follows another" in capsys.readouterr().err
    assert main(["gallery", "backup", str(copy), str(tmp_path / "saved")]) == 0
    assert main(["gallery", "restore", str(tmp_path / "saved"), str(tmp_path / "own")]) == 0
    assert main(["gallery", "add", str(tmp_path / "own"), str(tmp_path / "new.png")]) == 0, "it goes its own way"
    assert content(pair[0].folder / STORE) == content(copy / STORE)


def test_a_collection_with_a_name_is_followed_under_it(path: Path, tmp_path: Path) -> None:
    searcher = Searcher.open(path)
    named = Collections([Collection(name, lambda: searcher, Keys.of(KEYS)) for name in ("birds", "cars")])
    with answering(create_app(named)) as url:
        places = f'{{"birds": {{"gallery": "{tmp_path}/b"}}}}'
        collections = Collections.of({"ZOO_COLLECTIONS": places, FOLLOW: url, FOLLOW_KEY: FOLLOWER})
        collections.open()
        with answering(create_app(collections)) as here:
            write = {"x-api-key": WRITER}
            answer = httpx.patch(f"{here}/collections/birds/items/1", json={"label": "x"}, headers=write)
            assert answer.json()["thumbnail"] == "/collections/birds/items/1/thumbnail"
            assert httpx.get(f"{here}/collections/birds/items/1").json()["label"] == "x"
        collections.close()
        with pytest.raises(FollowingError, match="404"):
            open_once({GALLERY: f"{tmp_path}/c", FOLLOW: url, FOLLOW_KEY: FOLLOWER})
    searcher.close()


def test_where_the_primary_is_gone_the_follower_answers_and_says_so(path: Path, tmp_path: Path) -> None:
    with ExitStack() as gone:
        primary = gone.enter_context(leading(path))
        port = int(primary.url.rpartition(":")[2])
        with following(primary.url, tmp_path / "g") as follower:
            before = follower.found()
            gone.close()
            for _ in range(2):
                answer = follower.http.post("/search", files={"image": toys.query(0)}, data={"k": 50})
                assert [one["id"] for one in answer.json()["results"]] == before
                assert int(answer.headers[BEHIND]) >= 0
            refused = follower.http.post("/items", files={"image": toys.query(1)})
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "primary_unreachable")
            assert int(refused.headers["retry-after"]) > 0
            assert follower.http.get("/stats").json()["following"]["behind"] > 0
            assert BEHIND not in follower.http.get("/livez").headers
            with Gallery.open(path) as gallery:
                gallery.remove([before[0]])
            searcher = Searcher.open(path)
            back = create_app(Collections([Collection("", lambda: searcher, Keys.of(KEYS))]))
            with answering(back, port=port):
                assert within(5, lambda: BEHIND not in follower.http.get("/items").headers)
                assert follower.found() == before[1:]
            searcher.close()
        # Begun again while the primary is away: there is a copy to answer from.
        with following(primary.url, tmp_path / "g") as follower:
            assert follower.http.get("/items").json()["total"] == len(before) - 1
    assert wrong(tmp_path / "g") == []


def test_a_follower_is_followed_and_what_it_cannot_ask_is_told_of_all_the_way(path: Path, tmp_path: Path) -> None:
    with ExitStack() as gone:
        primary = gone.enter_context(leading(path))
        with (
            following(primary.url, tmp_path / "second") as second,
            following(second.url, tmp_path / "third") as third,
        ):
            added = third.http.post("/items", files={"image": toys.query(1)}).raise_for_status()
            assert added.json()["items"][0]["id"] == primary.found(1)[0] == third.found(1)[0]
            primary.http.delete("/items/1").raise_for_status()
            before = third.found(1)
            assert 1 not in before
            assert content(path / STORE) == content(third.folder / STORE)
            gone.close()
            answer = third.http.post("/search", files={"image": toys.query(1)}, data={"k": 50})
            assert [one["id"] for one in answer.json()["results"]] == before
            assert int(answer.headers[BEHIND]) >= 0


def test_a_restored_primary_is_copied_anew(pair: tuple[Service, Service], tmp_path: Path) -> None:
    from serving.backup import backup, restore

    primary, follower = pair
    backup(primary.folder, tmp_path / "backup")
    primary.http.delete("/items/1").raise_for_status()
    assert 1 not in follower.found()
    restore(tmp_path / "backup", tmp_path / "restored")
    searcher = Searcher.open(tmp_path / "restored")
    primary.collections.each[0]._searchers._searcher = searcher  # the service goes on with the restored gallery
    assert BEHIND in follower.http.get("/items").headers, "what is not copied yet is not what is there"
    assert within(5, lambda: BEHIND not in follower.http.get("/items").headers)
    assert 1 in follower.found()
    follower.http.delete("/items/2").raise_for_status()
    assert 2 not in follower.found()
    assert content(tmp_path / "restored" / STORE) == content(follower.folder / STORE)
    assert wrong(follower.folder) == []


def test_another_model_is_taken_over_where_it_is_here(
    pair: tuple[Service, Service], other_model: Embedder, pictures: Path
) -> None:
    primary, follower = pair
    fingerprint = follower.http.get("/model").json()["fingerprint"]
    with upgrading(primary.folder, other_model, str(other_model.folder), [pictures]) as upgrade:
        assert upgrade.embed() == []
        upgrade.swap(notice=0)
    answer = follower.http.get("/model")
    assert BEHIND in answer.headers
    assert answer.json()["fingerprint"] == fingerprint, "the old one is answered from meanwhile"
    assert within(5, lambda: BEHIND not in follower.http.get("/model").headers)
    assert follower.http.get("/model").json()["fingerprint"] == other_model.card.fingerprint
    assert primary.found(3) == follower.found(3)
    assert wrong(follower.folder) == []


def test_a_model_that_is_not_here_is_named(path: Path, other_model: Embedder, tmp_path: Path, model: Embedder) -> None:
    moved = Path(shutil.copytree(model.folder, tmp_path / "moved"))
    with leading(path) as primary:
        with Gallery.open(path) as gallery:
            card, ref = gallery.card, gallery.model_ref
        assert ref == str(model.folder)
        follows = {GALLERY: str(tmp_path / "g"), FOLLOW: primary.url, FOLLOW_KEY: FOLLOWER}
        hidden = model.folder.rename(model.folder.with_name("hidden"))
        try:
            with pytest.raises(ModelMismatchError, match=rf"(?s){card.name}.*not here.*--model"):
                open_once({**follows, MODEL: str(other_model.folder)})
            with following(primary.url, tmp_path / "g", **{MODEL: str(moved)}) as follower:
                assert follower.http.get("/items").json()["total"] == 24
        finally:
            hidden.rename(model.folder)


def test_a_folder_of_something_else_is_left_alone(gallery_folder: Path, path: Path, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.png").write_bytes(b"mine")
    before = content(gallery_folder / STORE)
    with leading(path) as primary:
        for folder in (gallery_folder, tmp_path / "photos"):
            with pytest.raises(GalleryExistsError):
                open_once({GALLERY: str(folder), FOLLOW: primary.url, FOLLOW_KEY: FOLLOWER})
    assert content(gallery_folder / STORE) == before
    assert (tmp_path / "photos" / "a.png").read_bytes() == b"mine"


def test_without_a_primary_and_without_a_copy_there_is_nothing_to_serve(tmp_path: Path) -> None:
    with pytest.raises(FollowingError, match="does not answer"):
        open_once({GALLERY: str(tmp_path / "g"), FOLLOW: "http://127.0.0.1:9"})
    assert not (tmp_path / "g").exists()


@pytest.mark.parametrize(
    "url", ["primary:3000", "http://", "http://h/collections/a", "http://u:p@h", "ftp://h", "http://h:port"]
)
def test_addresses_that_are_none(url: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--follow") as refused:
        Collections.of({GALLERY: str(tmp_path), FOLLOW: url})
    assert "u:p" not in str(refused.value)

"""Galleries in Milvus: addresses, commands, a service, and what is not for Milvus.

tests/serving/gallery/test_contract.py holds them to the behaviour of a gallery in a folder.
"""

from __future__ import annotations

import fcntl
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

import zoo
from serving.gallery import VectorGallery
from serving.gallery.backends.milvus_client import Connection, address_of, check_workers
from serving.gallery.backup import copy_gallery
from serving.gallery.calibration import calibrate_gallery, stored_calibration
from serving.gallery.gallery import is_gallery, model_at
from serving.gallery.indexing import index_folder
from tests.commandline import run_here
from tests.raising import raises
from tests.serving import toys
from tests.serving.gallery.addresses import MILVUS, ON_SERVER, SERVER, new_addresses
from tests.serving.gallery.test_contract import CARD as TOY
from tests.serving.gallery.test_contract import eventually, new_items, unit_rows
from tests.serving.running import ROOT, arguments, run, serving
from zoo.errors import BackendError, GalleryError, GalleryNotFoundError, ModelMismatchError, UsageError
from zoo.models.load import Embedder

KEY = "a-write-key-of-the-tests"
Capture = pytest.CaptureFixture[str]


@pytest.fixture(params=MILVUS)
def new_address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], str]]:
    with new_addresses(request.param, tmp_path) as address:
        yield address


@pytest.fixture
def address(new_address: Callable[[], str]) -> str:
    return new_address()


def outcome(capsys: Capture, command: str, *words: object) -> dict:
    capsys.readouterr()
    run_here(command, *words, "--json")
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "text",
    [
        "milvus://",
        "milvus://host",
        "milvus://host:port/birds",
        "milvus://host:19530/two-words",
        "milvus://user:secret@host/birds",
        "milvus://host/birds?index=FLAT",
        "milvus:///path/to/folder",
        "http://host/birds",
    ],
)
def test_wrong_addresses_are_refused(text: str) -> None:
    with raises(UsageError, "invalid-value") as caught:
        address_of(text)
    assert "secret" not in str(caught.value)


def test_addresses_name_a_server_or_a_file() -> None:
    server = address_of("milvus://host/birds")
    assert (server.uri, server.collection, server.embedded) == ("http://host:19530", "birds", False)
    file = address_of("milvus:///data/birds.db")
    assert (file.uri, file.embedded, file.text) == ("/data/birds.db", True, "milvus:///data/birds.db")


def test_a_server_that_does_not_answer() -> None:
    with raises(BackendError):
        VectorGallery.open("milvus://127.0.0.1:1/birds")


def test_reading_creates_no_file(tmp_path: Path) -> None:
    address = f"milvus://{tmp_path}/none.db"
    assert not is_gallery(address)
    with raises(GalleryNotFoundError):
        VectorGallery.open(address)
    with raises(GalleryNotFoundError):
        model_at(address)
    assert not list(tmp_path.iterdir())


def test_an_embedded_milvus_is_for_one_process(tmp_path: Path, capfd: Capture) -> None:
    (tmp_path / "birds.db").mkdir()
    with (tmp_path / "birds.db" / "LOCK").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with raises(UsageError, "busy", tmp_path):
            VectorGallery.open(f"milvus://{tmp_path}/birds.db")
    (tmp_path / "file.db").write_text("not a folder")
    with raises(GalleryError, "gallery", "file.db"):
        VectorGallery.open(f"milvus://{tmp_path}/file.db")
    assert "Traceback" not in capfd.readouterr().err
    with raises(UsageError, "conflicting-options"):
        check_workers(f"milvus://{tmp_path}/birds.db", 2)
    check_workers(f"milvus://{tmp_path}/birds.db", 1)
    check_workers("milvus://host/birds", 2)


def test_another_collection_is_not_taken_for_a_gallery(address: str) -> None:
    with closing(Connection(address_of(address))) as connection:
        connection.create_items(connection.address.collection, 3)
        with raises(GalleryError, "not-a-gallery"):
            VectorGallery.open(address)
        connection.drop(connection.address.collection)


def test_what_is_not_for_milvus_is_refused(address: str, tmp_path: Path) -> None:
    with VectorGallery.create(address, TOY, "toy") as gallery:
        gallery.add(new_items(unit_rows(3)))
        gallery.index.compact_in_background()
        assert not gallery.index.is_due()
    for words in (["compact"], ["tune"], ["verify"], ["rebuild", "--model", "other"], ["rollback"]):
        with raises(UsageError, "not-available"):
            run_here(f"gallery {words[0]}", address, *words[1:])
    with raises(UsageError, "not-available", "zoo index"):
        run_here("gallery rollback", address, "--discard")
    with raises(UsageError, "not-available"):
        run_here("gallery backup", address, tmp_path / "copy")


def test_the_gallery_to_index_into_is_named_once(pictures: Path, tmp_path: Path) -> None:
    with raises(UsageError, "missing-value"):
        run_here("index", "nowhere", pictures)
    with raises(UsageError, "conflicting-options"):
        run_here("index", "nowhere", pictures, "--out", tmp_path / "g", "--backend", "milvus://host/birds")
    for words in (["--backend", "milvus://host"], ["--backend", "qdrant://host/x"], ["--out", "milvus://host"]):
        with raises(UsageError, "invalid-value"):
            run_here("index", "nowhere", pictures, *words)


@pytest.mark.slow
def test_commands_take_an_address(
    model: Embedder, pictures: Path, address: str, tmp_path: Path, capsys: Capture
) -> None:
    with raises(GalleryNotFoundError):
        run_here("gallery stats", address)
    report = outcome(capsys, "index", model.folder, pictures, "--backend", address)
    assert (report["gallery"], report["added"], report["items"]) == (address, 24, 24)
    report = outcome(capsys, "index", model.folder, pictures, "--out", address)
    assert (report["added"], report["already_there"]) == (0, 24)
    (tmp_path / "query.png").write_bytes(toys.query(1))
    results = outcome(capsys, "search", address, tmp_path / "query.png", "-k", "3")["results"]
    assert {hit["label"] for hit in results} == {toys.CLASSES[1]}
    results = outcome(capsys, "search", address, "--id", results[0]["id"], "--label", toys.CLASSES[2])["results"]
    assert len(results) == 6
    added = outcome(capsys, "gallery add", address, tmp_path / "query.png", "--label", "new", "--metadata", '{"n": 1}')
    assert (added["added"], added["items"]) == (1, 25)
    listed = outcome(capsys, "gallery list", address, "--where", '{"n": {"gt": 0}}')
    assert [item["label"] for item in listed["items"]] == ["new"]
    removed = outcome(capsys, "gallery remove", address, listed["items"][0]["id"])
    assert (removed["removed"], removed["items"]) == (1, 24)
    facts = outcome(capsys, "gallery stats", address)
    assert (facts["items"], facts["labels"], facts["index"]["kind"]) == (24, 4, "milvus")
    run_here("gallery stats", address)
    assert address in capsys.readouterr().out
    fitted = outcome(capsys, "gallery calibrate", address)
    with VectorGallery.open(address) as gallery:
        kept = stored_calibration(gallery)
    assert kept is not None
    assert list(kept.probabilities) == fitted["probabilities"]


def test_another_model_takes_a_new_collection(
    model: Embedder, other_model: Embedder, pictures: Path, new_address: Callable[[], str]
) -> None:
    first, second = new_address(), new_address()
    index_folder(model, str(model.folder), pictures, first)
    with raises(ModelMismatchError):
        index_folder(other_model, str(other_model.folder), pictures, first)
    index_folder(other_model, str(other_model.folder), pictures, second)
    for address, embedder in ((first, model), (second, other_model)):
        with VectorGallery.open(address) as gallery:
            assert (gallery.card.fingerprint, gallery.store.count()) == (embedder.card.fingerprint, 24)


def test_a_folder_without_images_leaves_no_gallery(model: Embedder, address: str, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.png").write_bytes(b"no image")
    with raises(GalleryError, "no-images"):
        run_here("index", model.folder, tmp_path / "broken", "--out", address)
    with raises(GalleryNotFoundError):
        VectorGallery.open(address)


def whole(address: str | Path) -> dict[str, tuple[object, ...]]:
    """Return all that a gallery holds of its items, by their content, without the ids."""
    with VectorGallery.open(address) as gallery:
        return {
            item.content_sha256: (
                item.source,
                item.label,
                item.metadata,
                item.added_at,
                item.key,
                vector.tobytes(),
                thumbnail,
            )
            for item, vector, thumbnail in gallery.store.rows()
        }


def test_galleries_are_copied_into_milvus_and_out_of_it(
    model: Embedder, pictures: Path, address: str, tmp_path: Path, capsys: Capture
) -> None:
    index_folder(model, str(model.folder), pictures, tmp_path / "g")
    with VectorGallery.open(tmp_path / "g") as source:
        source.store.describe(3, "described", {"tags": ["a", 1]})
        calibrate_gallery(source)
    copied = outcome(capsys, "gallery backend", tmp_path / "g", address)
    assert copied == {"gallery": address, "backend": address, "read": 24, "added": 24}
    assert outcome(capsys, "gallery backend", address)["backend"] == address
    assert outcome(capsys, "gallery backend", tmp_path / "g")["backend"] == "faiss"
    assert whole(address) == whole(tmp_path / "g")
    with VectorGallery.open(address) as gallery:
        assert stored_calibration(gallery) is not None
        searched = [hit.source for hit in gallery.search(model.embed(toys.query(0)), 24)[0]]
    assert copy_gallery(tmp_path / "g", address) == (24, 0)
    run_here("gallery backend", address, tmp_path / "back")
    run_here("gallery export", address, tmp_path / "export")
    run_here("gallery import", tmp_path / "export", tmp_path / "imported")
    for path in (tmp_path / "back", tmp_path / "imported"):
        assert whole(path) == whole(tmp_path / "g")
        with VectorGallery.open(path) as gallery:
            assert [hit.source for hit in gallery.search(model.embed(toys.query(0)), 24)[0]] == searched


def test_items_are_put_described_and_removed_from_python(
    model: Embedder, pictures: Path, address: str, tmp_path: Path
) -> None:
    (tmp_path / "new.png").write_bytes(toys.query(0))
    (tmp_path / "more.png").write_bytes(toys.query(1))
    with zoo.index(model, pictures, out=address) as gallery:
        put = gallery.put("own/1", tmp_path / "new.png", "red", {"year": 1908, "place": {"town": "x"}})
        assert put.status == "created"
        changed = gallery.describe("own/1", "scarlet", {"year": None, "place": {"street": "y"}})
        assert (changed.id, changed.label) == (put.id, "scarlet")
        assert changed.metadata == {"place": {"town": "x", "street": "y"}}
        assert gallery.describe(put.id, unlabel=True, key="own/2") == gallery.item("own/2")
        assert gallery.thumbnail("own/2").data
        report = gallery.add([tmp_path / "more.png"], "blue")
        assert (report.added, report.near_duplicates) == (1, [])
        assert gallery.labels()["blue"] == gallery.count("blue") == 1
        with raises(UsageError, "not-available"):
            gallery.duplicates(put.id)
        assert gallery.remove(["own/2", "no such key"]) == gallery.remove(label="blue") == 1
        assert gallery.evaluate()["items"] == len(gallery) == 24


def test_an_export_is_imported_into_milvus(
    model: Embedder, pictures: Path, address: str, tmp_path: Path, capsys: Capture
) -> None:
    index_folder(model, str(model.folder), pictures, tmp_path / "g")
    run_here("gallery export", tmp_path / "g", tmp_path / "export")
    assert outcome(capsys, "gallery import", tmp_path / "export", address)["added"] == 24
    assert whole(address) == whole(tmp_path / "g")


def client(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, headers={"x-api-key": KEY}, timeout=60)


@pytest.mark.slow
def test_a_gallery_in_milvus_is_served(model: Embedder, pictures: Path, address: str) -> None:
    # In a process of its own, which lets go of an embedded Milvus when it ends.
    assert run("index", model.folder, pictures, "--out", address).returncode == 0
    with serving([address], environment={"ZOO_SERVE_WRITE_KEYS": KEY}) as service, client(service.url) as http:
        found = http.post("/search", content=toys.query(1)).json()["results"]
        assert {hit["label"] for hit in found[:3]} == {toys.CLASSES[1]}
        added = http.post("/items", files={"image": ("a.png", toys.query(3))}, data={"label": "new"})
        assert added.status_code == 201
        item = added.json()["items"][0]
        assert http.get(f"/items/{item['id']}/thumbnail").status_code == 200
        assert http.patch(f"/items/{item['id']}", json={"metadata": {"year": 1908}}).status_code == 200
        where = {"where": json.dumps({"year": {"gte": 1900}})}
        assert [one["id"] for one in http.get("/items", params=where).json()["items"]] == [item["id"]]
        filtered = http.post("/search", content=toys.query(3), params=where).json()["results"]
        assert [hit["id"] for hit in filtered] == [item["id"]]
        measured = http.post("/evaluate")
        assert measured.status_code == 200, measured.text
        assert http.get("/stats").json()["calibration"] is not None
        assert len(http.get("/map").json()["points"]) == 25
        assert http.get("/labels").json()["total"] == 5
        assert http.delete(f"/items/{item['id']}").status_code == 200
        assert http.get("/items").json()["total"] == 24
        assert http.get("/readyz").status_code == 200


@pytest.mark.skipif(not SERVER, reason="an embedded Milvus is for one process; ZOO_TEST_MILVUS names a server")
def test_two_services_at_one_collection_see_each_others_writes(model: Embedder, pictures: Path, tmp_path: Path) -> None:
    environment = {"ZOO_SERVE_WRITE_KEYS": KEY}
    with new_addresses(ON_SERVER, tmp_path) as new_address:
        address = new_address()
        index_folder(model, str(model.folder), pictures, address)
        with (
            serving([address], environment=environment) as first,
            serving([address], environment=environment) as second,
            client(first.url) as one,
            client(second.url) as two,
        ):
            image = {"image": ("a.png", toys.query(3))}
            item = one.post("/items", files=image, data={"label": "by one"}).json()["items"][0]["id"]
            started = time.monotonic()

            def found() -> None:
                assert two.post("/search", content=toys.query(3)).json()["results"][0]["id"] == item

            eventually(found)
            print(f"seen after {time.monotonic() - started:.2f} s")
            again = two.post("/items", files=image)
            assert (again.status_code, again.json()["items"][0]["id"], again.json()["new"]) == (200, item, 0)
            assert two.patch(f"/items/{item}", json={"label": "by two"}).status_code == 200

            def described() -> None:
                assert one.get(f"/items/{item}").json()["label"] == "by two"

            eventually(described)
            assert one.delete(f"/items/{item}").status_code == 200

            def removed() -> None:
                assert two.get(f"/items/{item}").status_code == 404
                assert two.get("/items").json()["total"] == 24

            eventually(removed)


@pytest.mark.skipif(not SERVER, reason="an embedded Milvus is for one process; ZOO_TEST_MILVUS names a server")
def test_two_processes_that_add_the_same_images_at_once_add_each_once(
    model: Embedder, pictures: Path, tmp_path: Path
) -> None:
    with new_addresses(ON_SERVER, tmp_path) as new_address:
        address = new_address()
        VectorGallery.create(address, model.card, str(model.folder)).close()
        words = arguments("index", model.folder, pictures, "--out", address, "--batch-size", 2)
        running = [subprocess.Popen(words, stdout=subprocess.DEVNULL, cwd=ROOT) for _ in range(2)]
        assert [process.wait(timeout=120) for process in running] == [0, 0]
        with VectorGallery.open(address) as gallery:
            assert len(gallery.store.ids_by_content()) == gallery.store.count() == 24
            found = gallery.search(model.embed(toys.query(1)), 30)[0]
            assert len({hit.id for hit in found}) == len(found) == 24

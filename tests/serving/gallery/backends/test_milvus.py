"""One contract for every index that a gallery can have: FAISS, Milvus embedded, and a Milvus server where one is named.

ZOO_TEST_MILVUS=milvus://host:port/collection: the contract is run against that server as well; the collection is made
and dropped.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from serving.gallery import Gallery, NewItem, Thumbnail
from serving.gallery.backends import FILE, backend_of, check_workers, choose
from serving.gallery.backends.milvus import address_of
from serving.gallery.backup import verify_gallery
from serving.gallery.filters import Filter
from tests.serving import toys
from tests.serving.running import run
from tests.serving.toys import content
from zoo.cli.main import main
from zoo.data.preprocessing import Preprocessing
from zoo.errors import GalleryError, UsageError
from zoo.models.card import Card
from zoo.models.load import Embedder

DIM = 6
CARD = Card("toy", "none", "none", "none", "none", DIM, Preprocessing(8, 8), files={"model.safetensors": "0" * 64})
SERVER = os.environ.get("ZOO_TEST_MILVUS", "")
BACKENDS = ["faiss", "embedded", *(["server"] if SERVER else [])]

Make = Callable[[np.ndarray], Path]


def unit_rows(n: int, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(n, DIM))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def new_items(vectors: np.ndarray, start: int = 0) -> list[NewItem]:
    picture = Thumbnail(b"", "image/png")
    return [NewItem(f"{n}.png", v, picture, f"{n:064x}", f"label {n % 5}") for n, v in enumerate(vectors, start)]


def nearest(queries: np.ndarray, vectors: dict[int, np.ndarray], k: int) -> list[list[tuple[int, float]]]:
    """The naive way: every product in float64, sorted."""
    found = []
    for query in queries.astype(np.float64):
        products = [(sum(float(a) * float(b) for a, b in zip(query, v, strict=True)), i) for i, v in vectors.items()]
        found.append([(i, s) for s, i in sorted(products, key=lambda pair: (-pair[0], pair[1]))[:k]])
    return found


def assert_finds(gallery: Gallery, vectors: dict[int, np.ndarray], k: int = 7, selection: Filter | None = None) -> None:
    queries = unit_rows(4, seed=99)
    values = {} if selection is None else {"selection": selection}
    for exact in (False, True):
        got = gallery.search(queries, k, exact=exact, **values)
        wanted = nearest(queries, vectors, k)
        assert [[hit.id for hit in hits] for hits in got] == [[i for i, _ in row] for row in wanted]
        for hits, row in zip(got, wanted, strict=True):
            np.testing.assert_allclose([hit.similarity for hit in hits], [s for _, s in row], atol=1e-6)


@pytest.fixture(params=BACKENDS)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Makes a gallery of vectors, with the index that the test is run for."""
    address = {"faiss": "faiss", "embedded": f"milvus://{tmp_path}/vectors.db", "server": SERVER}[request.param]

    def made(vectors: np.ndarray) -> Path:
        path = tmp_path / "g"
        with Gallery.create(path, CARD, "toy") as gallery:
            if len(vectors):
                gallery.add(new_items(vectors))
        choose(path, address)
        assert backend_of(path) == address
        return path

    yield made
    if request.param == "server":
        drop(address)


def drop(address: str) -> None:
    """Remove the collection."""
    from serving.gallery.backends.milvus import Collection

    with closing(Collection(address_of(address))) as collection:
        collection.drop()


def test_a_collection_that_another_process_filled_is_searched(tmp_path: Path) -> None:
    rows, path = unit_rows(20), tmp_path / "g"
    with Gallery.create(path, CARD, "toy") as gallery:
        gallery.add(new_items(rows))
    command = [sys.executable, "-m", "zoo.cli.main", "gallery", "backend", str(path), f"milvus://{tmp_path}/vectors.db"]
    subprocess.run(command, check=True, timeout=120)
    with Gallery.open(path) as gallery:
        assert_finds(gallery, dict(enumerate(rows, 1)))


def test_it_finds_what_a_naive_loop_finds_while_items_come_and_go(make: Make) -> None:
    first, second = unit_rows(40), unit_rows(30, seed=1)
    known = dict(enumerate(first, 1))
    with Gallery.open(make(first)) as gallery:
        assert_finds(gallery, known)
        gallery.remove([1, 2, 17, 40, 999])
        known = {i: v for i, v in known.items() if i not in (1, 2, 17, 40)}
        assert_finds(gallery, known)
        gallery.add(new_items(second, 40))
        known |= dict(enumerate(second, 41))
        assert_finds(gallery, known)
        some = {i: v for i, v in known.items() if (i - 1) % 5 in (1, 3)}
        assert_finds(gallery, some, selection=Filter(("label 1", "label 3")))
        assert_finds(gallery, {}, selection=Filter(("no such label",)))
        assert_finds(gallery, known, k=100)
        assert gallery.recall(5) == 1
        ids, vectors = content(gallery)
        assert ids.tolist() == sorted(known)
        np.testing.assert_array_equal(vectors, [known[i] for i in sorted(known)])
        stats = gallery.index.stats()
        assert stats.frozen + stats.waiting >= len(known)
        gallery.index.compact()
        assert_finds(gallery, known)
    with Gallery.open(gallery.path) as again:
        assert_finds(again, known)
    assert {check.name: check.ok for check in verify_gallery(gallery.path) if check.ok is False} == {}


def test_what_one_writes_another_finds_next(make: Make) -> None:
    path, known = make(unit_rows(5)), dict(enumerate(unit_rows(5), 1))
    with Gallery.open(path) as one, Gallery.open(path) as other:
        one.add(new_items(unit_rows(4, seed=3), 5))
        one.remove([2])
        known = {i: v for i, v in (known | dict(enumerate(unit_rows(4, seed=3), 6))).items() if i != 2}
        assert_finds(other, known)
        other.remove([6])
        del known[6]
        assert_finds(one, known)
        assert_finds(other, known)


def test_an_empty_gallery_finds_nothing_and_fills(make: Make) -> None:
    with Gallery.open(make(unit_rows(0))) as gallery:
        assert gallery.search(unit_rows(2), 5) == [[], []]
        gallery.add(new_items(unit_rows(3)))
        assert_finds(gallery, dict(enumerate(unit_rows(3), 1)))
        gallery.remove([1, 2, 3])
        assert gallery.search(unit_rows(2), 5) == [[], []]


def test_equal_similarities_come_in_the_order_of_ids(make: Make) -> None:
    vectors = np.tile(unit_rows(1), (9, 1))
    with Gallery.open(make(vectors)) as gallery:
        assert [hit.id for hit in gallery.search(vectors[:1], 9)[0]] == list(range(1, 10))


@pytest.fixture
def milvus(tmp_path: Path) -> Path:
    """A gallery whose 20 vectors lie in an embedded Milvus."""
    path = tmp_path / "g"
    with Gallery.create(path, CARD, "toy") as gallery:
        gallery.add(new_items(unit_rows(20)))
    assert main(["gallery", "backend", str(path), f"milvus://{tmp_path}/vectors.db"]) == 0
    return path


def test_a_collection_that_does_not_add_up_is_filled_anew(milvus: Path, tmp_path: Path) -> None:
    from serving.gallery.backends.milvus import Collection

    known = dict(enumerate(unit_rows(20), 1))
    collection = Collection(address_of(f"milvus://{tmp_path}/vectors.db"))
    held = collection.held()
    assert held is not None
    collection.write([], np.array([3, 4]), held)  # two are lost
    collection.close()
    with Gallery.open(milvus) as gallery:
        assert_finds(gallery, known)
    collection = Collection(address_of(f"milvus://{tmp_path}/vectors.db"))
    collection.write([(np.array([5]), -unit_rows(5)[4:])], np.array([], np.int64), held)  # one is another
    collection.close()
    assert [check.name for check in verify_gallery(milvus) if check.ok is False] == ["index", "search"]
    assert main(["gallery", "compact", str(milvus)]) == 0
    assert [check.name for check in verify_gallery(milvus) if check.ok is False] == []
    collection = Collection(address_of(f"milvus://{tmp_path}/vectors.db"))
    collection.drop()
    collection.close()
    with Gallery.open(milvus) as gallery:
        assert_finds(gallery, known)


def test_another_gallerys_collection_is_not_touched(
    milvus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Gallery.create(tmp_path / "other", CARD, "toy"):
        pass
    capsys.readouterr()
    assert main(["gallery", "backend", str(tmp_path / "other"), f"milvus://{tmp_path}/vectors.db"]) == 1
    assert "is another gallery's" in capsys.readouterr().err
    assert not (tmp_path / "other" / FILE).exists()
    with Gallery.open(milvus) as gallery:
        assert_finds(gallery, dict(enumerate(unit_rows(20), 1)))
    copy = Path(shutil.copytree(milvus, tmp_path / "copy", ignore=shutil.ignore_patterns(FILE)))
    assert backend_of(copy) == "faiss", "what a backup copies has its own index"


def test_a_file_that_another_process_has_open(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with Gallery.create(tmp_path / "g", CARD, "toy"):
        pass
    (tmp_path / "vectors.db").mkdir()
    with (tmp_path / "vectors.db" / "LOCK").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert main(["gallery", "backend", str(tmp_path / "g"), f"milvus://{tmp_path}/vectors.db"]) == 2
    said = capfd.readouterr().err
    assert "is open in another process" in said
    assert "zoo gallery backend" in said
    assert "Traceback" not in said
    (tmp_path / "file.db").write_text("no folder")
    assert main(["gallery", "backend", str(tmp_path / "g"), f"milvus://{tmp_path}/file.db"]) == 1
    said = capfd.readouterr().err
    assert "file.db" in said
    assert "exists" in said, "what milvus-lite has logged, in words"
    assert "Traceback" not in said


def test_an_embedded_one_is_served_by_one_process(tmp_path: Path) -> None:
    path = tmp_path / "g"
    with Gallery.create(path, CARD, "toy"):
        pass
    (path / FILE).write_text(json.dumps({"address": f"milvus://{tmp_path}/vectors.db", "gallery": "g"}))
    outcome = run("serve", path, "--workers", 2)
    assert outcome.returncode == 2
    assert "one process at a time, not 2 workers. Serve with --workers 1" in outcome.stderr
    check_workers(path, 1)
    (path / FILE).write_text(json.dumps({"address": "milvus://host/birds", "gallery": "g"}))
    check_workers(path, 2)


def test_back_to_faiss_and_what_is_said_of_it(milvus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["gallery", "backend", str(milvus), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["backend"] == f"milvus://{tmp_path}/vectors.db"
    with Gallery.open(milvus) as gallery:
        assert gallery.index.stats().kind == "milvus"
        with pytest.raises(UsageError, match="Milvus has chosen"):
            gallery.index.tune(0.99)
    details = {check.name: check.detail for check in verify_gallery(milvus)}
    assert details["generation"].endswith(f"milvus://{tmp_path}/vectors.db holds 20 vectors")
    assert main(["gallery", "stats", str(milvus)]) == 0
    assert f"20 vectors in milvus://{tmp_path}/vectors.db, which searches" in capsys.readouterr().out
    assert main(["gallery", "backend", str(milvus), "faiss"]) == 0
    with Gallery.open(milvus) as gallery:
        assert gallery.index.stats().kind == "flat"
    # The collection is still this gallery's.
    assert main(["gallery", "backend", str(milvus), f"milvus://{tmp_path}/vectors.db"]) == 0
    with Gallery.open(milvus) as gallery:
        assert gallery.index.stats().kind == "milvus"
    (milvus / FILE).write_text("junk")
    with pytest.raises(GalleryError, match="does not name the gallery's index"):
        Gallery.open(milvus)


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
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UsageError, match="expected milvus://host:port/collection") as raised:
        address_of(text)
    assert "secret" not in str(raised.value)


def test_addresses() -> None:
    server = address_of("milvus://host/birds")
    assert (server.uri, server.collection, server.embedded) == ("http://host:19530", "birds", False)
    file = address_of("milvus:///data/birds.db")
    assert (file.uri, file.embedded, file.text) == ("/data/birds.db", True, "milvus:///data/birds.db")


def test_what_is_no_index_is_said_before_anything_is_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="no index 'qdrant"):
        choose(tmp_path, "qdrant://host/x")
    out = ["--out", str(tmp_path / "g"), "--backend", "milvus://host"]
    assert main(["index", "nowhere", str(tmp_path), *out]) == 2
    assert "no address of a collection" in capsys.readouterr().err


def test_images_are_indexed_into_milvus(model: Embedder, pictures: Path, tmp_path: Path) -> None:
    out, address = tmp_path / "g", f"milvus://{tmp_path}/vectors.db"
    for _ in range(2):
        assert main(["index", str(model.folder), str(pictures), "--out", str(out), "--backend", address]) == 0
    with Gallery.open(out) as gallery:
        assert (gallery.store.count(), gallery.index.stats().kind) == (24, "milvus")
        (hits,) = gallery.search(model.embed(toys.query(1)), 3)
    assert {hit.label for hit in hits} == {toys.CLASSES[1]}

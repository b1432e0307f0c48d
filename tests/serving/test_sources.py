"""Names and sources that others choose: how they come into a gallery, and how they leave it for a terminal or a CSV."""

from __future__ import annotations

import base64
import csv
import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from serving.gallery import NewItem, VectorGallery
from tests.commandline import run_here
from tests.raising import raises
from tests.serving import toys
from tests.serving.running import local_client
from zoo.cli.main import main
from zoo.errors import GalleryError
from zoo.models.load import Embedder

pytestmark = pytest.mark.slow

KEY = "k" * 32
BAD = [
    "a\x1b[2Jb",
    "a\nb",
    "a\rb",
    "a\tb",
    "a\x00b",
    "a\x7fb",
    "a\x9bb",
    "a\u202eb",
    "a\u2066b",
    "a\u2028b",
    "x" * 5000,
]
GOOD = [
    "a b.jpg",
    "Screenshot 3.00.00\u202fPM.png",
    "می\u200cخواهم.png",
    "👩\u200d👩\u200d👧.png",
    "日本",
    "=1+1",
    "x" * 4096,
]
"""What cameras, systems and people write: narrow spaces, joiners of letters and of faces, long paths."""


def by_field(client: TestClient, source: str) -> str:
    answer = client.post("/items", files=[("image", ("a.png", toys.query(1)))], data={"source": source})
    return said(answer.status_code, answer.json())


def by_put(client: TestClient, source: str) -> str:
    files = [("image", ("a.png", toys.query(1)))]
    answer = client.put("/items/by-key/k", files=files, data={"source": source})
    return said(answer.status_code, answer.json())


def in_bulk(client: TestClient, source: str) -> str:
    line = {"key": "k", "image": base64.b64encode(toys.query(1)).decode(), "source": source}
    result = client.post("/items/bulk", content=json.dumps(line), headers={"content-type": "application/x-ndjson"})
    (outcome,) = result.json()["results"]
    return outcome["error"]["code"] if outcome["status"] == "refused" else "kept"


def said(status: int, answer: dict) -> str:
    return "kept" if status < 300 else answer["error"]["code"]


@pytest.fixture
def gallery(gallery_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(gallery_folder, tmp_path / "gallery"))


@pytest.mark.parametrize("way", [by_field, by_put, in_bulk])
def test_every_way_in_has_the_one_check(gallery: Path, way: Callable[[TestClient, str], str]) -> None:
    with local_client(gallery, key=KEY) as client:
        assert {source[:9]: way(client, source) for source in BAD} == {s[:9]: "invalid_source" for s in BAD}
        assert client.get("/stats").json()["items"] == 24
        for source in GOOD:
            assert way(client, source) == "kept"
            (item,) = [item for item in client.get("/items?limit=100").json()["items"] if item["id"] > 24]
            assert item["source"] == source
            client.delete(f"/items/{item['id']}")


def with_code(name: str) -> str:
    """Return a name whose second character is written as its code."""
    code = ord(name[1])
    return name.replace(name[1], f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}")


@pytest.mark.parametrize("name", [name for name in BAD if name[1] not in "\n\r\0x"])
def test_the_name_of_a_sent_file_becomes_a_source(gallery: Path, name: str) -> None:
    body = f'--b\r\nContent-Disposition: form-data; name="image"; filename="{name}"\r\n\r\n'.encode()
    body += toys.query(1) + b"\r\n--b--\r\n"
    with local_client(gallery, key=KEY) as client:
        answer = client.post("/items", content=body, headers={"content-type": "multipart/form-data; boundary=b"})
        (item,) = answer.json()["items"]
        assert item["source"] == with_code(name)


def test_python_and_the_store_have_it_too(gallery: Path, model: Embedder) -> None:
    (vector,) = model.embed(toys.query(1))
    with VectorGallery.open(gallery) as opened:
        for source in BAD:
            with raises(GalleryError, "invalid-item"):
                opened.add([NewItem(source, vector, toys.thumbnail(1), "0" * 64)])
        assert opened.store.count() == 24


@pytest.mark.parametrize("name", ["a\x1b[2Jb.png", "a\nb.png", "a\tb.png", "a\u202eb.png", "a\x9bb.png"])
def test_names_of_files_here_become_sources(
    model_folder: Path, folder: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / name).write_bytes(toys.query(1))
    (folder / f"{name}.gif").write_bytes(b"broken")
    run_here("index", model_folder, folder, "--out", tmp_path / "g")
    run_here("gallery add", tmp_path / "g", folder / name, "--label", name)
    run_here("gallery list", tmp_path / "g", "--limit", 0)
    run_here("search", tmp_path / "g", folder / name)
    run_here("gallery verify", tmp_path / "g")
    shown = capsys.readouterr()
    assert not {"\x1b", "\u202e", "\x9b", "\t", "\r"} & set(shown.out + shown.err)
    with VectorGallery.open(tmp_path / "g") as gallery:
        assert with_code(name) in [item.source for item in gallery.store.items(limit=-1)]


def test_a_foreign_gallery_cannot_steer_the_terminal(gallery: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\u202e\x9b31m\nzoo: error: fake"
    with closing(sqlite3.connect(gallery / "gallery.sqlite")) as db, db:
        db.execute("UPDATE items SET source = ?, label = ?, metadata = ?", (evil, evil, json.dumps({"k": evil})))
        db.execute("UPDATE items SET key = ? || id", (evil,))
    query = gallery.parent / "query.png"
    query.write_bytes(toys.query(1))
    for words in (
        ["gallery list", gallery], ["gallery list", gallery, "--where", json.dumps({"k": evil})],
        ["gallery stats", gallery], ["gallery verify", gallery], ["search", gallery, query],
        ["search", gallery, query, "--label", evil], ["duplicates", gallery, "--mirrored"],
        ["gallery add", gallery, query], ["gallery add", gallery, query, "--label", "b"],
        ["gallery calibrate", gallery], ["gallery remove", gallery, "1"],
    ):  # fmt: skip
        assert main([*words[0].split(), *map(str, words[1:])]) in (0, 1, 2)
    shown = capsys.readouterr()
    assert not {"\x1b", "\u202e", "\x9b", "\x07"} & set(shown.out + shown.err)
    assert "zoo: error: fake" not in [line.strip() for line in (shown.out + shown.err).splitlines()]


FORMULAS = ["=1+1.png", "+a.png", "-a.png", "@SUM(A1).png", "＝1.png", "'=1.png", "''-a.png"]
PLAIN = ["a=b.png", "'a.png", "-5.png", "1e5.png"]


def cells(path: Path, column: str) -> list[str]:
    with path.open(encoding="utf-8", newline="") as file:
        return [row[column] for row in csv.DictReader(file)]


def test_no_cell_of_a_csv_is_a_formula(
    model_folder: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And our own reader gives back what was written: the rows of `zoo embed` are indexed by their names."""
    shutil.rmtree(folder)
    for name in (*FORMULAS, *PLAIN):
        (folder / "-5").mkdir(parents=True, exist_ok=True)
        (folder / "=label").mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(toys.query(1))
    (folder / "-5" / "0.png").write_bytes(toys.query(2))
    (folder / "=label" / "0.png").write_bytes(toys.query(3))
    run_here("embed", model_folder, folder, "--out", tmp_path / "rows.npy")
    written = cells(tmp_path / "rows.csv", "path")
    names = sorted([*FORMULAS, *PLAIN, "-5/0.png", "=label/0.png"], key=lambda name: Path(name).parts)
    risky = [name for name in names if name.lstrip("'")[0] in "=+-@＝"]
    assert written == [f"'{name}" if name in risky else name for name in names]
    labels = cells(tmp_path / "rows.csv", "label")
    assert "'=label" in labels
    assert "-5" in labels, "a number stays a number"
    words = ["--vectors", tmp_path / "rows.npy", "--table", tmp_path / "rows.csv"]
    run_here("index", model_folder, *words, "--out", tmp_path / "g")
    with VectorGallery.open(tmp_path / "g") as gallery:
        items = {item.key: item.label for item in gallery.store.items(limit=-1)}
    assert set(items) == set(names)
    assert (items["-5/0.png"], items["=label/0.png"]) == ("-5", "=label")
    run_here("duplicates", folder, "--out", tmp_path / "copies.csv", "--model", model_folder)
    sources = cells(tmp_path / "copies.csv", "source")
    assert set(sources) == {f"'{name}" if name in risky else name for name in (*FORMULAS, *PLAIN)}
    assert all(float(cell) for cell in cells(tmp_path / "copies.csv", "group"))

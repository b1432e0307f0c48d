"""Galleries, backups and exports that somebody else has made: nothing in them is trusted."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from io import BytesIO
from pathlib import Path

import faiss
import httpx
import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from serving.gallery import VectorGallery
from serving.gallery.backup import MANIFEST
from serving.gallery.gallery import STORE
from serving.gallery.index_files import EXACT, FACTS
from serving.gallery.schema import SCHEMA
from serving.gallery.store import MODEL
from tests.children import run_python
from tests.commandline import run_here
from tests.raising import raises
from tests.serving import toys
from tests.serving.gallery.test_gallery import generation
from tests.serving.running import local_client
from zoo.cli.main import main
from zoo.errors import GalleryError, ZooError
from zoo.files import sha256_of

pytestmark = pytest.mark.slow

Capture = pytest.CaptureFixture[str]
SCRIPT = b"<script>parent.steal(localStorage)</script>"
PNG, JPEG = toys.thumbnail(1).data, b"\xff\xd8\xff"


def encoded(image: Image.Image, kind: str) -> bytes:
    out = BytesIO()
    image.save(out, kind)
    return out.getvalue()


PICTURES = {
    "a page": ("text/html", SCRIPT),
    "a page as a picture": ("image/png", SCRIPT),
    "a picture as a page": ("text/html", PNG),
    "a type with a header in it": ("image/png\r\nX-Evil: 1", PNG),
    "a vector graphic": ("image/svg+xml", b"<svg xmlns='http://www.w3.org/2000/svg'><script/></svg>"),
    "another type than the bytes": ("image/jpeg", PNG),
    "a type in capitals": ("IMAGE/PNG", PNG),
    "zeros": ("image/png", bytes(200)),
    "nothing, as JPEG": ("image/jpeg", b""),
    "a GIF": ("image/gif", encoded(Image.new("L", (1, 1)), "GIF")),
    "too many bytes": ("image/jpeg", JPEG + bytes(2**20)),
}
UNDECODABLE = {
    "a signature and no picture": ("image/png", PNG[:8] + SCRIPT),
    "another picture": ("image/png", encoded(Image.effect_noise((64, 64), 90), "PNG")),
    "more pixels than a thumbnail has": ("image/png", encoded(Image.new("L", (9000, 9000)), "PNG")),
}


@pytest.fixture
def gallery(gallery_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(gallery_folder, tmp_path / "gallery"))


def changed(folder: Path, sql: str, *values: object) -> Path:
    """Run statements on the store of a gallery or of a backup, whose manifest then holds its new hash."""
    with closing(sqlite3.connect(folder / STORE)) as db:
        with db:
            db.execute(sql, values)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    if (folder / MANIFEST).exists():
        manifest = json.loads((folder / MANIFEST).read_text())
        manifest["files"] = {name: sha256_of(folder / name) for name in (STORE, MODEL)}
        (folder / MANIFEST).write_text(json.dumps(manifest))
    return folder


def failed(gallery: Path, capsys: Capture) -> set[str]:
    """Return the checks of `zoo gallery verify` that fail; it ends with its status and never with a traceback."""
    capsys.readouterr()
    status = main(["gallery", "verify", str(gallery), "--json"])
    checks = json.loads(capsys.readouterr().out)
    names = {check["name"] for check in checks if check["ok"] is False}
    assert status == (1 if names else 0)
    return names


@pytest.mark.parametrize("name", PICTURES)
def test_no_foreign_picture_is_served(gallery: Path, name: str, capsys: Capture) -> None:
    kind, data = PICTURES[name]
    changed(gallery, "UPDATE thumbnails SET media_type = ?, data = ? WHERE content = 3", kind, data)
    with local_client(gallery) as client:
        answer = client.get("/items/3/thumbnail")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no_thumbnail")
        assert answer.headers["content-type"] == "application/json"
        for path in ("/items/3", "/search?id=3", "/items/3/duplicates", "/evaluate/map", "/items"):
            assert client.request("POST" if "search" in path else "GET", path).status_code < 500, path
    assert failed(gallery, capsys) == {"items"}
    run_here("duplicates", gallery, "--out", gallery.parent / "copies.html", "--mirrored")
    assert b"<script" not in (gallery.parent / "copies.html").read_bytes()


@pytest.mark.parametrize("name", [*PICTURES, *UNDECODABLE])
def test_no_foreign_picture_is_restored_or_imported(gallery: Path, tmp_path: Path, name: str, capsys: Capture) -> None:
    kind, data = (PICTURES | UNDECODABLE)[name]
    run_here("gallery backup", gallery, tmp_path / "copy")
    changed(tmp_path / "copy", "UPDATE thumbnails SET media_type = ?, data = ? WHERE content = 3", kind, data)
    with raises(GalleryError, "verification-failed"):
        run_here("gallery restore", tmp_path / "copy", tmp_path / "restored")
    assert not (tmp_path / "restored").exists()
    run_here("gallery export", gallery, tmp_path / "export")
    replace_cells(tmp_path / "export", thumbnail=data, thumbnail_type=kind)
    if name in PICTURES:
        with raises(GalleryError, "damaged-file"):
            run_here("gallery import", tmp_path / "export", tmp_path / "imported")
    else:  # what only a decoder can tell is for `verify`
        run_here("gallery import", tmp_path / "export", tmp_path / "imported")


def replace_cells(export: Path, **cells: object) -> None:
    """Give the third row of an export other cells."""
    file = export / "items.parquet"
    table = parquet.read_table(file)
    rows = table.to_pylist()
    rows[2] |= cells
    parquet.write_table(pa.Table.from_pylist(rows, table.schema), file)


def test_a_picture_is_sent_as_one_and_can_do_nothing(http: httpx.Client) -> None:
    answer = http.get("/items/1/thumbnail")
    assert answer.headers["content-type"] in ("image/png", "image/jpeg")
    policy = answer.headers["content-security-policy"]
    assert "sandbox" in policy
    assert "default-src 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    again = http.get("/items/1/thumbnail", headers={"if-none-match": answer.headers["etag"]})
    assert again.status_code == 304
    assert "sandbox" in again.headers["content-security-policy"]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("metadata", "{"), ("metadata", "[]"), ("metadata", '{"a": NaN}'), ("metadata", '{"a": 1e999}'),
        ("metadata", '{"a": ' + "[" * 9000 + "]" * 9000 + "}"), ("metadata", '{"a": "\\ud800"}'),
        ("metadata", '{"a": 99999999999999999999}'),
        ("source", "a\x1b[2Jb"), ("source", ""), ("source", "x" * 5000), ("source", "a\u202eb"),
        ("content_sha256", "short"), ("key", "k" * 5000), ("key", "a\nb"), ("key", ""),
        ("embedding", [float("nan")] * toys.DIM), ("embedding", [2.0] + [0.0] * (toys.DIM - 1)),
        ("embedding", [1.0] * toys.DIM),
    ],
)  # fmt: skip
def test_no_foreign_value_is_imported(gallery: Path, tmp_path: Path, column: str, value: object) -> None:
    run_here("gallery export", gallery, tmp_path / "export")
    replace_cells(tmp_path / "export", **{column: value})
    with raises(GalleryError, "damaged-file"):
        run_here("gallery import", tmp_path / "export", tmp_path / "imported")


def repeated(export: Path, column: str, value: str | bytes, rows: int) -> None:
    """Replace the items of an export by its first row, repeated, with one other value: a file of a few kB."""
    file = export / "items.parquet"
    table = parquet.read_table(file)
    row = {**table.slice(0, 1).to_pylist()[0], column: value}
    columns = {
        field.name: pa.array([row[field.name]] * rows, field.type)
        if field.name == "embedding" or row[field.name] is None
        else pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([row[field.name]], field.type))
        for field in table.schema
    }
    parquet.write_table(pa.table(columns), file, dictionary_pagesize_limit=2**31 - 1, store_schema=False)


IMPORT = """import sys
from pathlib import Path
from tests.children import run_python
from tests.commandline import run_here
from zoo.errors import GalleryError
try:
    run_here("gallery import", *sys.argv[1:])
except GalleryError as error:
    print(error.code)
(peak,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(int(peak.split()[1]) // 1024)"""
"""Imports an export, and prints the code of the error and the largest memory of the process, in MiB (Linux)."""


@pytest.mark.parametrize("column", ["thumbnail", "metadata", "label", "thumbnail_type"])
def test_one_long_value_does_not_become_a_thousand(gallery: Path, tmp_path: Path, column: str) -> None:
    run_here("gallery export", gallery, tmp_path / "export")
    text = b"a" * 2**23
    repeated(tmp_path / "export", column, PNG + text if column == "thumbnail" else text.decode(), rows=1000)
    code, peak = run_python(IMPORT, tmp_path / "export", tmp_path / "imported").split()
    assert code == "damaged-file"
    assert int(peak) < 300


def test_values_that_are_allowed_do_not_add_up(gallery: Path, tmp_path: Path) -> None:
    run_here("gallery export", gallery, tmp_path / "export")
    repeated(tmp_path / "export", "metadata", json.dumps({"a": "a" * (2**20 - 100)}), rows=1000)
    peak = run_python(IMPORT, tmp_path / "export", tmp_path / "imported").split()[-1]
    assert int(peak) < 300


@pytest.mark.parametrize("embedding", [[1.0], [0.5] * (toys.DIM + 1), [0.5] * 10**6, None, "text"])
def test_vectors_of_another_length_are_refused_by_the_first_look(
    gallery: Path, tmp_path: Path, embedding: object
) -> None:
    run_here("gallery export", gallery, tmp_path / "export")
    table = parquet.read_table(tmp_path / "export" / "items.parquet").drop_columns(["embedding"])
    parquet.write_table(
        table.append_column("embedding", pa.array([embedding] * table.num_rows)), tmp_path / "export" / "items.parquet"
    )
    with raises(GalleryError, "damaged-file"):
        run_here("gallery import", tmp_path / "export", tmp_path / "imported")
    assert not (tmp_path / "imported").exists()


FOREIGN_ROWS = {
    "items": [
        "UPDATE items SET source = x'00ff' WHERE id = 3",
        "UPDATE items SET source = '' WHERE id = 3",
        "UPDATE items SET source = 'a' || char(27) || '[2J' WHERE id = 3",
        "UPDATE items SET source = cast(x'ff41' AS TEXT) WHERE id = 3",
        "UPDATE items SET label = x'00' WHERE id = 3",
        "UPDATE items SET metadata = '[]' WHERE id = 3",
        "UPDATE items SET metadata = x'7b7d' WHERE id = 3",
        "UPDATE items SET metadata = '{\"a\": NaN}' WHERE id = 3",
        "UPDATE items SET metadata = '{\"a\":' || replace(hex(zeroblob(9000)), '00', '[') || '}' WHERE id = 3",
        "UPDATE contents SET content_sha256 = 'none' WHERE id = 3",
        "UPDATE items SET added_at = x'00' WHERE id = 3",
        "UPDATE items SET key = replace(hex(zeroblob(5000)), '00', 'k') WHERE id = 3",
        "UPDATE items SET key = x'00' WHERE id = 3",
        "UPDATE thumbnails SET data = 'a text' WHERE content = 3",
        "UPDATE thumbnails SET data = 7 WHERE content = 3",
        "UPDATE thumbnails SET media_type = x'00' WHERE content = 3",
    ],
    "database": [
        "UPDATE items SET change = 'late' WHERE id = 3",
        "UPDATE state SET value = 'many' WHERE key = 'dim'",
        "UPDATE state SET value = 2147483647 WHERE key = 'dim'",
        "UPDATE state SET value = x'00' WHERE key = 'fingerprint'",
        "UPDATE state SET value = 'x' WHERE key = 'count'",
        "DELETE FROM state WHERE key = 'change'",
        "UPDATE state SET value = 1.5 WHERE key = 'change'",
        "UPDATE pictures SET hash = x'00' WHERE content = 3",
        "DELETE FROM pictures WHERE content = 3",
        "UPDATE pictures SET width = 'wide' WHERE content = 3",
        "INSERT INTO copies VALUES (1, 2, 'near', 3, 0, 0)",
        "INSERT INTO embeddings_other VALUES (1, x'00', 0)",
    ],
    "embeddings": [
        "UPDATE embeddings SET embedding = 'text' WHERE content = 3",
        "UPDATE embeddings SET embedding = x'00' WHERE content = 3",
        "UPDATE embeddings SET embedding = zeroblob(64) WHERE content = 3",
    ],
}


@pytest.mark.parametrize(("check", "sql"), [(check, sql) for check, some in FOREIGN_ROWS.items() for sql in some])
def test_verify_finds_every_foreign_value(gallery: Path, capsys: Capture, check: str, sql: str) -> None:
    changed(gallery, sql)
    names = failed(gallery, capsys)
    assert names & {check, "database"}, names


def test_verify_finds_vectors_that_are_no_numbers(gallery: Path, capsys: Capture) -> None:
    vector = np.full(toys.DIM, np.nan, "<f4").tobytes()
    changed(gallery, "UPDATE embeddings SET embedding = ? WHERE content = 3", vector)
    assert "embeddings" in failed(gallery, capsys)


@pytest.mark.parametrize("key", ["plan", "folders", "copies", "fact calibration", "model"])
def test_no_foreign_record_ends_in_a_traceback(gallery: Path, tmp_path: Path, key: str) -> None:
    query = tmp_path / "query.png"
    query.write_bytes(toys.query(1))
    commands = [
        ["gallery", "verify", gallery], ["gallery", "stats", gallery], ["gallery", "compact", gallery],
        ["search", gallery, query], ["duplicates", gallery],
    ]  # fmt: skip
    for text in ("{", "[]", "7", '{"a": 1}', "[" * 100_000):
        changed(gallery, "INSERT OR REPLACE INTO state VALUES (?, ?)", key, text)
        for words in commands if text in ("[]", '{"a": 1}') else commands[:1]:
            assert main(list(map(str, words))) in (0, 1, 2)


OBJECTS = {
    "a trigger": "CREATE TRIGGER more AFTER INSERT ON items BEGIN DELETE FROM state; END",
    "a trigger of our name": "CREATE TRIGGER items_added BEFORE INSERT ON items BEGIN SELECT 1; END",
    "a view": "CREATE VIEW more AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n) SELECT x FROM n",
    "a view in place of a table": "CREATE VIEW removals AS SELECT 1 AS content, load_extension('evil') AS change",
    "a table": "CREATE TABLE more (x)",
    "a virtual table": "CREATE VIRTUAL TABLE more USING fts5(x)",
    "an index by an expression": "CREATE INDEX more ON items (length(source))",
    "a partial index": "CREATE INDEX more ON items (label) WHERE label > 'a'",
    "a generated column": "ALTER TABLE items ADD COLUMN more AS (hex(source))",
    "another default": "CREATE TABLE removals (content INTEGER PRIMARY KEY, change INTEGER DEFAULT (random()))",
    "a table without its checks": "CREATE TABLE removed_places (source, key, folder, content_sha256)",
}


@pytest.mark.parametrize("name", OBJECTS)
def test_foreign_objects_of_the_schema_are_refused(gallery: Path, tmp_path: Path, name: str, capsys: Capture) -> None:
    run_here("gallery backup", gallery, tmp_path / "copy")
    sql = OBJECTS[name]
    for folder in (gallery, tmp_path / "copy"):
        kind, own = sql.split()[1:3]
        with closing(sqlite3.connect(folder / STORE)) as db, db:
            table = db.execute("SELECT type FROM sqlite_schema WHERE name = ?", (own,)).fetchone()
            if kind != "VIRTUAL" and table and sql.startswith("CREATE"):
                db.execute(f"DROP {table[0]} {own}")
        changed(folder, sql)
    for refused in (
        lambda: VectorGallery.open(gallery),
        lambda: run_here("gallery list", gallery),
        lambda: run_here("gallery backup", gallery, tmp_path / "again"),
        lambda: run_here("gallery export", gallery, tmp_path / "export"),
    ):
        with raises(GalleryError, "not-a-gallery"):
            refused()
    with raises(GalleryError, "verification-failed"):
        run_here("gallery restore", tmp_path / "copy", tmp_path / "restored")
    assert failed(gallery, capsys) == {"database"}


@pytest.mark.parametrize("version", [0, SCHEMA - 1, SCHEMA + 1])
def test_a_file_of_another_schema_is_refused_and_not_changed(
    gallery: Path, tmp_path: Path, version: int, capsys: Capture
) -> None:
    changed(gallery, f"PRAGMA user_version = {version}")
    before = (gallery / STORE).read_bytes()
    for refused in (
        lambda: VectorGallery.open(gallery),
        lambda: run_here("gallery list", gallery),
        lambda: run_here("gallery backup", gallery, tmp_path / "again"),
        lambda: run_here("gallery export", gallery, tmp_path / "export"),
    ):
        with raises(GalleryError, "other-schema", str(version), "zoo index"):
            refused()
    assert failed(gallery, capsys) == {"database"}
    assert (gallery / STORE).read_bytes() == before


def test_what_tools_of_an_operator_add_is_not_foreign(gallery: Path, capsys: Capture) -> None:
    changed(gallery, "ANALYZE")
    changed(gallery, "CREATE TABLE IF NOT EXISTS _litestream_seq (id INTEGER PRIMARY KEY, seq INTEGER);")
    changed(gallery, "CREATE TABLE IF NOT EXISTS _litestream_lock (id INTEGER);")
    assert failed(gallery, capsys) == set()
    changed(gallery, "ALTER TABLE _litestream_lock ADD COLUMN more DEFAULT (random())")
    assert failed(gallery, capsys) == {"database"}


def other_vectors(folder: Path) -> None:
    data = bytearray((folder / EXACT).read_bytes())
    data[-4 * toys.DIM :] = np.eye(1, toys.DIM, dtype="<f4").tobytes()
    (folder / EXACT).write_bytes(data)


def other_vectors_and_hashes(folder: Path) -> None:
    other_vectors(folder)
    facts = json.loads((folder / FACTS).read_text())
    facts["files"][EXACT] = sha256_of(folder / EXACT)
    (folder / FACTS).write_text(json.dumps(facts))


def other_facts(change: Callable[[dict], object]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        facts = json.loads((folder / FACTS).read_text())
        changed_facts = change(facts)
        (folder / FACTS).write_text(json.dumps(facts if changed_facts is None else changed_facts))

    return write


INDEXES = {
    "other vectors": other_vectors,
    "other vectors and their hashes": other_vectors_and_hashes,
    "a file that never ends": other_facts(lambda facts: facts["files"].update({"/dev/zero": "0" * 64})),
    "facts that are a list": other_facts(lambda _: []),
    "facts without a setting": other_facts(lambda facts: facts.pop("setting") and None),
    "facts of another setting": other_facts(lambda facts: facts.update(setting=[])),
    "facts of another kind": other_facts(lambda facts: facts.update(setting={"kind": "hnsw"})),
    "facts that are no JSON": lambda folder: (folder / FACTS).write_text("[" * 100_000),
    "a damaged index": lambda folder: (folder / EXACT).write_bytes(b"IxF2" + bytes(range(256)) * 9),
    "no index": lambda folder: (folder / EXACT).unlink(),
}


@pytest.mark.parametrize("name", INDEXES)
def test_an_index_of_somebody_else_is_not_read(gallery: Path, tmp_path: Path, name: str, capsys: Capture) -> None:
    """The store has the hash of its index's facts, and these have the hashes of its files."""
    run_here("gallery compact", gallery)
    with VectorGallery.open(gallery) as opened:
        expected = toys.content(opened)
    INDEXES[name](generation(gallery))
    with VectorGallery.open(gallery) as opened:
        for part, wanted in zip(toys.content(opened), expected, strict=True):
            np.testing.assert_array_equal(part, wanted)
    assert failed(gallery, capsys) == {"generation"}
    run_here("gallery compact", gallery)
    assert failed(gallery, capsys) == set()


@pytest.mark.parametrize("name", ["../outside", "/tmp", "index-1-00000000/..", "."])
def test_an_index_elsewhere_is_not_read(gallery: Path, name: str, capsys: Capture) -> None:
    run_here("gallery compact", gallery)
    shutil.copytree(generation(gallery), gallery.parent / "outside")
    changed(gallery, "UPDATE state SET value = ? WHERE key = 'generation'", name)
    assert failed(gallery, capsys) == {"generation"}
    run_here("gallery compact", gallery)
    assert (gallery.parent / "outside").is_dir()


@pytest.mark.parametrize("where", ["../copy", "../stranger/../copy", "."])
def test_a_backup_names_no_index(
    gallery: Path, tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """An index beside the backup's files, whose hash its store has: its name has the form of a name, behind a path."""
    run_here("gallery compact", gallery)
    run_here("gallery backup", gallery, tmp_path / "copy")
    stranger = Path(shutil.copytree(generation(gallery), tmp_path / "copy" / "index-1-deadbeef"))
    changed(
        tmp_path / "copy", "UPDATE state SET value = ? WHERE key = 'generation sha256'", sha256_of(stranger / FACTS)
    )
    name = f"{where}/{stranger.name}"
    changed(tmp_path / "copy", "UPDATE state SET value = ? WHERE key = 'generation'", name)
    read: list[str] = []
    read_index = faiss.read_index

    def watched(path: str, *flags: int) -> faiss.Index:
        read.append(path)
        return read_index(path, *flags)

    monkeypatch.setattr(faiss, "read_index", watched)
    run_here("gallery restore", tmp_path / "copy", tmp_path / "restored")
    changed(gallery, "UPDATE state SET value = ? WHERE key = 'generation'", f"../copy/{stranger.name}")
    changed(gallery, "UPDATE state SET value = ? WHERE key = 'generation sha256'", sha256_of(stranger / FACTS))
    with VectorGallery.open(tmp_path / "restored") as restored, VectorGallery.open(gallery) as opened:
        assert restored.index.stats().generation == ""
        for part, wanted in zip(toys.content(opened), toys.content(restored), strict=True):
            np.testing.assert_array_equal(part, wanted)
    assert read == []
    assert failed(tmp_path / "restored", capsys) == set()
    assert failed(gallery, capsys) == {"generation"}


ENDLESS = {
    "the model of a gallery": ("gallery", MODEL, "gallery stats {gallery}"),
    "the facts of an index": ("gallery", "index", "gallery stats {gallery}"),
    "the manifest of a backup": ("copy", MANIFEST, "gallery restore {copy} {new}"),
    "the model of an export": ("export", MODEL, "gallery import {export} {new}"),
    "the calibration of an export": ("export", "calibration.json", "gallery import {export} {new}"),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_file_without_an_end_is_refused_as_an_unreadable_one(gallery: Path, tmp_path: Path, name: str) -> None:
    """A pipe, a link to a device, and a folder in the place of a file."""
    folder, file, command = ENDLESS[name]
    folders = {key: tmp_path / key for key in ("gallery", "copy", "export", "new")}
    run_here("gallery compact", gallery)
    run_here("gallery backup", gallery, folders["copy"])
    run_here("gallery export", gallery, folders["export"])
    path = generation(gallery) / FACTS if file == "index" else folders[folder] / file
    outcomes = set()
    for make in (Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/null")):
        path.unlink(missing_ok=True)
        make(path)
        try:
            outcomes.add((0, run_here(command.format(**folders))))
        except ZooError as error:
            outcomes.add((type(error), error.code))
        assert not folders["new"].exists()
        if path.is_dir():
            path.rmdir()
    assert len(outcomes) == 1, outcomes

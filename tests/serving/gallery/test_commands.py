"""`zoo gallery` commands, their results and their refusals."""

from __future__ import annotations

import io
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from serving.gallery import Item, VectorGallery
from serving.gallery.backup import verify_gallery
from serving.gallery.gallery import STORE
from serving.gallery.index import IndexSetting
from serving.gallery.originals import Originals
from serving.gallery.tune import IndexMeasurement
from serving.gallery.types import IndexStats
from tests.commandline import run_here
from tests.raising import raises
from tests.serving import toys
from tests.serving.gallery.terminal import Terminal
from tests.serving.gallery.test_gallery import damage_one_bit, generation
from zoo.cli.gallery_upkeep import tuning_lines
from zoo.cli.main import main
from zoo.errors import UsageError

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def gallery(gallery_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(gallery_folder, tmp_path / "gallery"))


@pytest.fixture
def images(tmp_path: Path) -> list[Path]:
    for number in range(2):
        (tmp_path / f"{number}.png").write_bytes(toys.query(number))
    return [tmp_path / "0.png", tmp_path / "1.png"]


@pytest.mark.slow
def test_items_are_added_listed_and_removed(gallery: Path, images: list[Path], capsys: Capture) -> None:
    run_here("gallery add", gallery, *images, "--label", "new", "--metadata", '{"year": 1908}', "--json")
    assert json.loads(capsys.readouterr().out)["added"] == 2
    run_here("gallery add", gallery, images[0], "--label", "other")
    assert capsys.readouterr().out.splitlines()[-1] == "0 added, 1 already there; 26 items"
    run_here("gallery list", gallery, "--label", "new", "--json")
    listed = json.loads(capsys.readouterr().out)
    assert [item["source"] for item in listed["items"]] == [path.as_posix() for path in images]
    assert listed["items"][0]["metadata"] == {"year": 1908}
    run_here("gallery list", gallery, "--where", '{"year": {"gte": 1900}}')
    heading, _, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
    assert heading == ["id", "label", "year", "source", "added"]
    assert [row[:4] for row in rows] == [
        [str(25 + n), "new", "1908", image.as_posix()] for n, image in enumerate(images)
    ]
    run_here("gallery list", gallery, "--limit", 3)
    text = capsys.readouterr().out
    assert text.splitlines()[-1] == "3 of 26"
    assert len(text.splitlines()) == 6
    assert run_here("gallery remove", gallery, 25, 26) == 0
    assert run_here("gallery remove", gallery, 25) == 2
    assert "1 not there; 24 items" in capsys.readouterr().out


def test_images_that_cannot_be_added_are_reported(
    gallery: Path, images: list[Path], tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "bad.png").write_text("no image")
    assert run_here("gallery add", gallery, images[0], tmp_path / "bad.png") == 1
    assert "left out" in capsys.readouterr().out
    for words, code, named in (
        ((gallery, tmp_path), "not-found", [str(tmp_path)]),
        ((gallery, tmp_path / "none.png"), "not-found", ["none.png"]),
        ((gallery, "a.png", images[0], tmp_path), "not-found", ["a.png", str(tmp_path)]),
        ((gallery, images[0], "--metadata", "{"), "invalid-value", ["--metadata"]),
        ((gallery, images[0], "--metadata", "[]"), "invalid-value", ["--metadata"]),
    ):
        with raises(UsageError, code) as caught:
            run_here("gallery add", *words)
        assert all(name in str(caught.value) for name in named)
    with raises(UsageError, "invalid-value"):
        run_here("gallery list", gallery, "--offset", -1)


@pytest.mark.slow
def test_a_source_is_the_path_below_an_indexed_folder_or_the_full_path(
    gallery: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding: `zoo gallery add new.png` stored new.png, which no command finds from another folder."""
    (tmp_path / "new.png").write_bytes(toys.query(0))
    monkeypatch.chdir(tmp_path)
    run_here("gallery add", gallery, "new.png")
    (tmp_path / "link").symlink_to(pictures)
    with VectorGallery.open(gallery) as opened:
        assert opened.store.item(25).source == str(tmp_path / "new.png")
        assert Originals.of(opened).read(opened.store.item(25)) == toys.query(0)
        opened.remove([1])
    run_here("gallery add", gallery, *sorted(Path("link").rglob("*.png")))
    assert {item.source for item in _items(gallery)} - {str(tmp_path / "new.png")} == {
        path.relative_to(pictures).as_posix() for path in pictures.rglob("*.*g")
    }


def test_an_existing_item_with_another_label_is_reported(gallery: Path, images: list[Path], capsys: Capture) -> None:
    run_here("gallery add", gallery, images[0], "--label", "first", "--metadata", '{"a": 1}')
    (known,) = [item for item in _items(gallery) if item.label == "first"]
    capsys.readouterr()
    run_here("gallery add", gallery, images[0], "--label", "second")
    assert f"already there as {known.id} with label first" in capsys.readouterr().out
    for words in ((), ("--label", "first"), ("--metadata", '{"a": 1}')):  # nothing else is asked for
        run_here("gallery add", gallery, images[0], *words)
        assert "already there as" not in capsys.readouterr().out
    run_here("gallery add", gallery, images[0], "--label", "second", "--update", "--json")
    told = json.loads(capsys.readouterr().out)
    assert (told["differing"], told["updated"]) == ([[str(images[0]), known.id, "first"]], 1)
    run_here("gallery add", gallery, images[0], "--metadata", "{}", "--update")
    (changed,) = [item for item in _items(gallery) if item.id == known.id]
    assert (changed.label, changed.metadata, changed.source) == ("second", {"a": 1}, known.source)


def test_an_existing_item_gets_what_it_lacks(gallery: Path, images: list[Path], capsys: Capture) -> None:
    run_here("gallery add", gallery, images[0])
    run_here("gallery add", gallery, images[0], "--label", "first", "--metadata", '{"a": 1}')
    assert "already there as" not in capsys.readouterr().out
    run_here("gallery add", gallery, images[0], "--label", "second", "--metadata", '{"a": 2, "b": 3}')
    assert "already there as 25 with label first" in capsys.readouterr().out
    (item,) = [item for item in _items(gallery) if item.id == 25]
    assert (item.label, item.metadata) == ("first", {"a": 1, "b": 3})


def _items(path: Path) -> list[Item]:
    with VectorGallery.open(path) as gallery:
        return gallery.store.items(limit=1000)


def test_compact_tune_and_stats(gallery: Path, capsys: Capture) -> None:
    run_here("gallery stats", gallery)
    assert "0 vectors on disk (0.0 MiB), 24 changes wait beside it" in capsys.readouterr().out
    run_here("gallery compact", gallery)
    assert "24 vectors in a new flat index" in capsys.readouterr().out
    run_here("gallery tune", gallery, "--recall", 0.9, "-k", 3, "--kind", "flat-fp16")
    assert "was chosen: " in capsys.readouterr().out
    run_here("gallery tune", gallery, "--recall", 1, "--kind", "flat", "--json")
    assert json.loads(capsys.readouterr().out)["chosen"]["setting"]["kind"] == "flat"
    run_here("gallery stats", gallery, "--json")
    stats = json.loads(capsys.readouterr().out)
    assert (stats["items"], stats["metric"], stats["index"]["recall"]) == (24, "cosine", 1.0)
    assert stats["index"]["waiting"] == 0
    run_here("gallery stats", gallery)
    assert "finds 1.0000 of the 10 nearest" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("hnsw", "before", "chosen", "said"),
    [
        (0.088, "flat", "flat", ["hnsw is faster by 2%", "10%", "kept: the gallery had flat"]),  # the finding
        (0.088, "hnsw", "flat", ["hnsw is faster by 2%", "from hnsw to flat: 0.088 to 0.090 ms", "0.9900 to 1.0000"]),
        (0.03, "flat", "hnsw", ["it is the fastest", "from flat to hnsw: 0.090 to 0.030 ms", "1.0000 to 0.9900"]),
        (0.2, "ivf", "flat", ["it is the fastest", "from ivf to flat: 0.500 to 0.090 ms", "0.9500 to 1.0000"]),
    ],
)
def test_tuning_gives_its_reason_and_compares_with_the_index_before(
    hnsw: float, before: str, chosen: str, said: list[str]
) -> None:
    rows = {
        "flat": IndexMeasurement(IndexSetting("flat"), 1.0, 0.09, 0.0),
        "hnsw": IndexMeasurement(IndexSetting("hnsw"), 0.99, hnsw, 0.1),
    }
    stats = IndexStats(before, 0, 0, 0.95, 10, 0.5, "", 9, 0, 0)
    text = "\n".join(tuning_lines(chosen, rows, stats))
    assert all(part in text for part in said), text


def test_a_large_k_and_a_misspelt_label_are_reported(gallery: Path, capsys: Capture) -> None:
    run_here("gallery tune", gallery, "-k", 100, "--kind", "flat", "--json")
    said = capsys.readouterr()
    assert json.loads(said.out)["chosen"]["k"] == 23
    assert "-k 100 is more than the 23 others that each item has" in said.err
    run_here("gallery tune", gallery, "-k", 23, "--kind", "flat", "--json")
    assert capsys.readouterr().err == ""
    run_here("gallery list", gallery, "--label", "gren disc", "--json")
    assert "no item has the label 'gren disc'. Did you mean 'green disc'?" in capsys.readouterr().err
    run_here("gallery list", gallery, "--label", "green disc", "--json")
    assert capsys.readouterr().err == ""


def test_export_and_import(gallery: Path, tmp_path: Path, capsys: Capture) -> None:
    run_here("gallery export", gallery, tmp_path / "out")
    assert capsys.readouterr().out == f"{tmp_path / 'out'}: 24 items\n"
    run_here("gallery import", tmp_path / "out", tmp_path / "new", "--json")
    assert json.loads(capsys.readouterr().out)["added"] == 24


def failed(path: Path) -> set[str]:
    return {check.name for check in verify_gallery(path) if check.ok is False}


def test_verify_finds_damage(gallery: Path, capsys: Capture) -> None:
    run_here("gallery compact", gallery)
    assert run_here("gallery verify", gallery) == 0
    assert failed(gallery) == set()
    damage_one_bit(generation(gallery))
    assert failed(gallery) == {"generation"}
    capsys.readouterr()
    assert run_here("gallery verify", gallery, "--json") == 1
    assert {check["name"] for check in json.loads(capsys.readouterr().out)} >= {"database", "index", "search"}
    run_here("gallery compact", gallery)
    assert failed(gallery) == set()
    with closing(sqlite3.connect(gallery / STORE)) as db, db:
        db.execute("DELETE FROM thumbnails WHERE content = 3")
    assert failed(gallery) == {"database"}


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("UPDATE embeddings SET embedding = zeroblob(64) WHERE content = 2", {"embeddings", "index", "search"}),
        ("UPDATE embeddings SET embedding = zeroblob(9) WHERE content = 2", {"embeddings"}),
        ("UPDATE items SET change = 99 WHERE id = 24", {"database"}),
        ("INSERT INTO removals VALUES (4, 1)", {"database"}),
    ],
)
def test_verify_reads_the_whole_store(gallery: Path, sql: str, names: set[str]) -> None:
    with VectorGallery.open(gallery) as opened:
        opened.index.compact()
    with closing(sqlite3.connect(gallery / STORE)) as db, db:
        db.execute(sql)
    assert failed(gallery) >= names


def test_a_damaged_page_is_found(gallery: Path) -> None:
    with closing(sqlite3.connect(gallery / STORE)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        page = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'items_by_label'").fetchone()[0]
    data = bytearray((gallery / STORE).read_bytes())
    data[(page - 1) * 4096 + 100 : page * 4096] = bytes(np.random.default_rng(0).integers(0, 256, 3996, np.uint8))
    (gallery / STORE).write_bytes(data)
    assert "database" in failed(gallery)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["gallery", "list", "nothing"], "zoo index MODEL DIR --out "),
        (["gallery", "stats", "."], "zoo index MODEL DIR --out ."),
        (["gallery", "verify", "nothing"], "zoo index MODEL DIR --out "),
        (["gallery", "export", "nothing", "out"], "zoo index MODEL DIR --out "),
        (["gallery", "import", "nothing", "out"], "items.parquet"),
        (["gallery", "import", "gallery", "out"], "zoo gallery backup"),
        (["gallery", "backup", "nothing", "out"], "zoo index MODEL DIR --out "),
        (["gallery", "backup", "gallery", "gallery"], "gallery"),
        (["gallery", "restore", "nothing", "out"], "backup.json"),
        (["gallery", "remove", "gallery", "99"], ""),
        (["gallery", "remove", "gallery"], "--label"),
        (["gallery", "remove", "gallery", "--label", "no such"], "no item has the label 'no such'"),
        (["search", "nothing", "query.png"], "zoo index MODEL DIR --out "),
        (["serve", "nothing"], "zoo index MODEL DIR --out "),
        (["search", "gallery", "--id", "1", "--k", "0"], "not 0"),
    ],
)
def test_missing_things_end_with_status_two(
    gallery: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, arguments: list[str], says: str
) -> None:
    monkeypatch.chdir(gallery.parent)
    before = sorted(path.name for path in gallery.parent.iterdir())
    assert main(arguments) == 2
    assert says in capsys.readouterr().err
    assert sorted(path.name for path in gallery.parent.iterdir()) == before


def test_a_k_above_the_number_of_items_returns_all(gallery: Path, capsys: Capture) -> None:
    assert main(["search", str(gallery), "--id", "1", "-k", "1000"]) == 0
    others = len(_labels(gallery)) - 1
    assert f"{others} found and 1,000 asked for: the gallery holds no more" in capsys.readouterr().err


@pytest.mark.parametrize("at", [0, 4096])
def test_a_damaged_database_is_named_with_the_next_step(gallery: Path, capsys: Capture, at: int) -> None:
    store = gallery / STORE
    data = bytearray(store.read_bytes())
    data[at : at + 3000] = b"x" * 3000
    store.write_bytes(data)
    assert main(["gallery", "stats", str(gallery)]) == 1
    message = capsys.readouterr().err
    for part in (str(store), "zoo gallery verify", "zoo gallery restore"):
        assert part in message
    assert main(["gallery", "verify", str(gallery)]) == 1
    assert "FAILED" in capsys.readouterr().out


def _labels(gallery: Path) -> list[str | None]:
    with VectorGallery.open(gallery) as opened:
        return list(opened.store.labels().values())


def test_all_items_of_a_label_are_removed_after_confirmation(
    gallery: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = _labels(gallery)
    label = str(labels[0])
    own, command = labels.count(label), ["gallery", "remove", str(gallery), "--label", label]
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert main(command) == 2
    assert f"{own} items of the label {label!r} would be removed, out of {len(labels)}." in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    assert main(command) == 2
    assert _labels(gallery) == labels
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert main(command) == 0
    assert f"Remove {own} items of the label {label!r}, out of {len(labels)}? [y/N]" in capsys.readouterr().err
    rest = [other for other in labels if other != label]
    assert _labels(gallery) == rest
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with VectorGallery.open(gallery) as opened:
        opened.store.describe(opened.store.items(0, 1)[0].id, label="alone")
    assert main([*command[:-1], "alone"]) == 2
    assert "1 item of the label 'alone'" in capsys.readouterr().err
    assert main(["gallery", "remove", str(gallery), "--label", str(rest[0]), "--yes"]) == 0
    assert str(rest[0]) not in _labels(gallery)

"""`zoo duplicates` on folders and galleries: groups, reports, moving, and refusals."""

from __future__ import annotations

import csv
import json
import os
import shutil
import sqlite3
from contextlib import closing
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image, ImageOps

from serving.gallery import VectorGallery
from tests.commandline import run_here
from tests.raising import raises
from tests.serving.duplicates.toys import picture
from zoo.errors import UsageError

Capture = pytest.CaptureFixture[str]
EVIL = "<img src=x onerror=alert(1)>.png"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Two copies of one picture, its mirror image, an identical file, another picture, and a broken file."""
    folder = tmp_path / "images"
    (folder / "sub").mkdir(parents=True)
    original = picture(7, (320, 240))
    original.save(folder / "a.png")
    original.resize((160, 120)).save(folder / "sub" / EVIL)
    shutil.copy(folder / "a.png", folder / "sub" / "again.png")
    ImageOps.mirror(original).save(folder / "mirror.png")
    picture(8, (320, 240)).save(folder / "other.png")
    (folder / "broken.png").write_bytes(b"no picture")
    return folder


def told(capsys: Capture, *words: object) -> dict:
    run_here("duplicates", *words, "--json")
    return json.loads(capsys.readouterr().out)


def sources(report: dict) -> list[list[str]]:
    return [[copy["source"] for copy in members] for members in report["groups"]]


def test_copies_in_a_folder_are_grouped_around_the_largest(images: Path, capsys: Capture) -> None:
    report = told(capsys, images)
    assert sources(report) == [["a.png", "sub/again.png", f"sub/{EVIL}"]]
    best, identical, small = report["groups"][0]
    assert (best["best"], best["width"], best["height"], best["similarity"]) == (True, 320, 240, None)
    assert (identical["identical"], identical["distance"]) == (True, 0)
    assert (small["identical"], small["width"], small["mirrored"]) == (False, 160, False)
    assert small["distance"] <= 20
    assert (report["items"], report["copies"]) == (5, 2)
    assert [source for source, _ in report["unreadable"]] == ["broken.png"]
    assert run_here("duplicates", images, "--strict") == 1


@pytest.mark.slow
def test_a_kept_gallery_compares_only_new_images(images: Path, tmp_path: Path, capsys: Capture) -> None:
    kept = tmp_path / "kept"
    told(capsys, images, "--gallery", kept)
    ImageOps.grayscale(picture(8, (320, 240))).save(images / "grey.png")
    (images / "mirror.png").unlink()
    report = told(capsys, images, "--gallery", kept, "--mirrored")
    assert {frozenset(group) for group in sources(report)} == {
        frozenset({"a.png", "sub/again.png", f"sub/{EVIL}"}),
        frozenset({"other.png", "grey.png"}),
    }, "the image that is no longer there is not in a group"
    report = told(capsys, kept, "--mirrored")
    assert "mirror.png" in sources(report)[0]
    with raises(UsageError, "option-without-effect"):
        run_here("duplicates", kept, "--model", "photos")


def test_reports_hold_every_file_and_escape_names(images: Path, tmp_path: Path, capsys: Capture) -> None:
    outs = [tmp_path / f"copies.{kind}" for kind in ("csv", "json", "html")]
    words = [word for out in outs for word in ("--out", out)]
    report = told(capsys, images, "--mirrored", *words)
    (members,) = report["groups"]
    rows = list(csv.DictReader(outs[0].read_text(encoding="utf-8").splitlines()))
    assert [row["source"] for row in rows] == [copy["source"] for copy in members]
    assert {row["group"] for row in rows} == {"1"}
    assert json.loads(outs[1].read_text(encoding="utf-8"))["groups"] == report["groups"]
    page = outs[2].read_text(encoding="utf-8")
    tags: list[tuple[str, dict]] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: tags.append((tag, dict(attributes)))  # type: ignore[method-assign]
    parser.feed(page)
    pictures = [attributes for tag, attributes in tags if tag == "img"]
    assert len(pictures) == len(members) == 4
    for attributes in pictures:
        assert "onerror" not in attributes
        assert attributes["src"].startswith("data:image/jpeg;base64,")
    assert any(EVIL in attributes["alt"] for attributes in pictures)
    assert not {tag for tag, _ in tags} & {"script", "link", "iframe"}


@pytest.mark.slow
def test_copies_are_moved_and_the_best_stays(images: Path, tmp_path: Path, capsys: Capture) -> None:
    before = {path.name: path.read_bytes() for path in images.rglob("*.png")}
    target = tmp_path / "copies"
    report = told(capsys, images, "--move-to", target)
    assert len(report["moved"]["moved"]) == 2
    assert report["moved"]["left"] == []
    assert sorted(path.name for path in images.rglob("*.png")) == ["a.png", "broken.png", "mirror.png", "other.png"]
    after = {path.name: path.read_bytes() for folder in (images, target) for path in folder.rglob("*.png")}
    assert after == before
    record = list(csv.DictReader((target / "moved.csv").read_text(encoding="utf-8").splitlines()))
    assert {(row["from"], row["to"]) for row in record} == {
        (str(images / "sub" / name), str(target / "sub" / name)) for name in ("again.png", EVIL)
    }
    assert {row["best"] for row in record} == {str(images / "a.png")}
    assert told(capsys, images)["groups"] == []


@pytest.mark.slow
def test_nothing_is_overwritten_and_links_and_changed_files_stay(images: Path, tmp_path: Path, capsys: Capture) -> None:
    kept = tmp_path / "kept"
    (images / "sub" / "again.png").unlink()
    (images / "sub" / "again.png").symlink_to(images / "a.png")
    told(capsys, images, "--gallery", kept)
    (images / "sub" / EVIL).write_bytes(b"changed")
    report = told(capsys, kept, "--move-to", tmp_path / "copies", "--yes")
    assert {source for source, _ in report["moved"]["left"]} == {f"sub/{EVIL}", "sub/again.png"}
    report = told(capsys, images, "--gallery", kept, "--move-to", tmp_path / "copies")
    assert {source for source, _ in report["moved"]["left"]} == {f"sub/{EVIL}", "sub/again.png"}
    assert not report["moved"]["moved"]
    with raises(UsageError, "overwrites-input"):
        run_here("duplicates", images, "--gallery", kept, "--move-to", images / "copies")
    picture(7, (320, 240)).resize((160, 120)).save(images / "sub" / "small.png")
    (tmp_path / "copies" / "sub").mkdir(parents=True)
    (tmp_path / "copies" / "sub" / "small.png").write_text("taken")
    with raises(UsageError, "already-exists", "small.png"):
        run_here("duplicates", images, "--gallery", kept, "--move-to", tmp_path / "copies")
    assert (images / "sub" / "small.png").is_file()
    assert (tmp_path / "copies" / "sub" / "small.png").read_text() == "taken"


def test_a_wrong_target_is_refused_before_any_image_is_embedded(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setattr("serving.gallery.indexing.index_folder", lambda *_: pytest.fail("images were embedded"))
    with raises(UsageError, "overwrites-input"):
        run_here("duplicates", images, "--move-to", images / "copies")
    with raises(UsageError, "not-writable"):
        run_here("duplicates", images, "--move-to", tmp_path / "file")


def test_items_without_a_picture_are_counted(images: Path, tmp_path: Path, capsys: Capture) -> None:
    rows, keyed = tmp_path / "rows.npy", tmp_path / "keyed"
    assert run_here("embed", "photos", images, "--out", rows) == 0
    assert run_here("index", "photos", "--vectors", rows, "--table", rows.with_suffix(".csv"), "--out", keyed) == 0
    capsys.readouterr()
    report = told(capsys, keyed)
    assert report["without_picture"] == report["items"] > 0
    assert told(capsys, images)["without_picture"] == 0


def test_best_copies_are_chosen_without_the_files(images: Path, tmp_path: Path, capsys: Capture) -> None:
    kept = tmp_path / "kept"
    told(capsys, images, "--gallery", kept)
    shutil.rmtree(images)
    with VectorGallery.open(kept) as opened, opened.store.database.transaction() as db:
        db.execute("UPDATE pictures SET sharpness = NULL")
    best, same, small = told(capsys, kept)["groups"][0]
    assert (best["source"], best["width"], small["width"]) == ("a.png", 320, 160)
    assert (same["identical"], small["identical"]) == (True, False)


def test_wrong_use_is_refused(images: Path, tmp_path: Path) -> None:
    with raises(UsageError, "unknown-format", "copies.txt"):
        run_here("duplicates", images, "--out", tmp_path / "copies.txt")
    with pytest.raises(Exception, match="nowhere"):
        run_here("duplicates", tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with raises(UsageError, "no-images"):
        run_here("duplicates", tmp_path / "empty")


def test_the_page_of_no_copies_says_so(images: Path, tmp_path: Path) -> None:
    for name in ("a.png", "mirror.png"):
        os.remove(images / name)  # noqa: PTH107
    shutil.rmtree(images / "sub")
    assert run_here("duplicates", images, "--out", tmp_path / "none.html") == 0
    assert "<img" not in (tmp_path / "none.html").read_text(encoding="utf-8")
    assert Image.open(BytesIO((images / "other.png").read_bytes())).size == (320, 240)


def test_adding_a_copy_to_a_gallery_warns(images: Path, tmp_path: Path, capsys: Capture) -> None:
    kept = tmp_path / "kept"
    told(capsys, images, "--gallery", kept)
    picture(7, (320, 240)).resize((200, 150)).save(tmp_path / "small.png")
    picture(30).save(tmp_path / "new.png")
    run_here("gallery add", kept, tmp_path / "small.png", tmp_path / "new.png", "--json")
    (warning,) = json.loads(capsys.readouterr().out)["near_duplicates"]
    with VectorGallery.open(kept) as opened:
        known = {item.source: item.id for item in opened.store.items()}
    assert warning["id"] == known[warning["source"]]
    assert warning["source"].endswith("small.png")
    copies = ("a.png", "sub/again.png", f"sub/{EVIL}", "mirror.png")
    assert set(warning["of"]) == {known[source] for source in copies}


def renamed(gallery: Path, item: int, source: str) -> None:
    with closing(sqlite3.connect(gallery / "gallery.sqlite")) as db, db:
        db.execute("UPDATE items SET source = ? WHERE id = ?", (source, item))


def test_only_files_inside_the_folders_are_moved(images: Path, tmp_path: Path, capsys: Capture) -> None:
    """A gallery of somebody else may name any file; its content has to be known to them, and is here."""
    kept, outside, target = tmp_path / "kept", tmp_path / "outside", tmp_path / "copies"
    (images / "sub" / "again.png").unlink()
    (copy,) = [copy for copy in told(capsys, images, "--gallery", kept)["groups"][0] if EVIL in copy["source"]]
    outside.mkdir()
    shutil.move(images / "sub" / EVIL, outside / "small.png")
    (images / "link").symlink_to(outside)
    (images / "link.png").symlink_to(outside / "small.png")
    (images / "loop").symlink_to(images / "loop")
    for source in (
        str(outside / "small.png"), "../outside/small.png", "link/small.png", "link.png", f"{images}/link/small.png",
        f"{images}/sub/../../outside/small.png", "sub/../../outside/small.png", "loop/small.png", "x" * 400,
    ):  # fmt: skip
        renamed(kept, copy["item"], source)
        report = told(capsys, kept, "--yes", "--move-to", target)
        assert (report["moved"]["moved"], [name for name, _ in report["moved"]["left"]]) == ([], [source])
    with closing(sqlite3.connect(kept / "gallery.sqlite")) as db, db:
        db.execute("UPDATE state SET value = ? WHERE key = 'folders'", (json.dumps(["/"]),))
    renamed(kept, copy["item"], str(outside / "small.png"))
    with raises(UsageError, "not-confirmed", "/"):
        run_here("duplicates", kept, "--move-to", target)
    shutil.copy(images / "a.png", images / "sub" / "again.png")
    report = told(capsys, images, "--gallery", kept, "--move-to", target)
    assert [old for old, _ in report["moved"]["moved"]] == [str(images / "sub" / "again.png")], "DIR is what counts"
    assert (outside / "small.png").is_file()


def test_a_full_path_inside_a_folder_is_moved_below_the_target(images: Path, tmp_path: Path, capsys: Capture) -> None:
    kept, target = tmp_path / "kept", tmp_path / "copies"
    (images / "sub" / "again.png").unlink()
    (copy,) = [copy for copy in told(capsys, images, "--gallery", kept)["groups"][0] if EVIL in copy["source"]]
    renamed(kept, copy["item"], f"{images}/sub/../sub/{EVIL}")
    report = told(capsys, kept, "--yes", "--move-to", target)
    assert report["moved"]["moved"] == [[str(images / "sub" / EVIL), str(target / "sub" / EVIL)]]
    assert (target / "sub" / EVIL).is_file()


def test_links_out_of_the_folder_are_followed_on_request(images: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "outside").mkdir()
    shutil.move(images / "other.png", tmp_path / "outside" / "other.png")
    (images / "link").symlink_to(tmp_path / "outside")
    report = told(capsys, images)
    assert (report["items"], report["links_left_out"]) == (4, ["link"])
    report = told(capsys, images, "--follow-links")
    assert (report["items"], report["links_left_out"]) == (5, [])

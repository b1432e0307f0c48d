"""Folders as people have them: NAS boxes, bins, folders that cannot be read, endless ones, and names of any bytes."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from serving.gallery import VectorGallery
from serving.gallery.filters import Filter
from tests.commandline import run_here
from tests.raising import raises
from zoo.cli.main import main
from zoo.console import CONTROL
from zoo.data import load_dataset
from zoo.data.listing import list_files
from zoo.data.names import FileFinder, Names, escaped, unescaped
from zoo.errors import DatasetError, UsageError

MODEL = "margin-conv4-glyphs"


def pictures(folder: Path, *names: str | bytes) -> Path:
    """Write a picture of its own at each name."""
    for name in names:
        path = folder / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(list(os.fsencode(path))).integers(0, 256, (32, 32, 3), np.uint8)
        Image.fromarray(noise).save(path, "PNG")
    return folder


def index(folder: Path, out: Path, *options: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict]:
    status = run_here("index", MODEL, folder, "--out", out, *options, "--json")
    return status, json.loads(capsys.readouterr().out)


def sources(out: Path) -> set[str]:
    with VectorGallery.open(out) as gallery:
        return {item.source for item in gallery.store.items(limit=1000)}


BINS = (
    "@eaDir/a.png/SYNOPHOTO_THUMB_M.png",
    "#recycle/a.png",
    ".@__thumb/a.png",
    "$Recycle.Bin/b.png",
    "lost+found/c.png",
)


def test_thumbnails_and_bins_of_other_programs_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = pictures(
        tmp_path / "nas", "a.png", "sub/b.png", *BINS, *(f"sub/{name}" for name in BINS), "c.png_original"
    )
    assert run_here("index", MODEL, folder, "--out", tmp_path / "g") == 0
    told = capsys.readouterr().out.splitlines()
    assert sources(tmp_path / "g") == {"a.png", "sub/b.png"}
    tops = {name.partition("/")[0] for name in BINS}
    for place in (*tops, *(f"sub/{top}" for top in tops)):
        assert sum(f" {place}:" in line for line in told) == 1, place
    status, report = index(folder, tmp_path / "g", "--strict", capsys=capsys)
    assert (status, report["items"]) == (0, 2)
    assert len(report["excluded"]) == 11


def test_names_are_excluded_and_taken_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = pictures(
        tmp_path / "p", "a.png", "a_edited.png", "raw/b.png", "raw/c.png", "lost+found/d.png", "[1]/e.png"
    )
    options = ("--exclude", "*_EDITED*", "--exclude", "raw/b*", "--exclude", "!lost+found")
    index(folder, tmp_path / "g", *options, capsys=capsys)
    assert sources(tmp_path / "g") == {"a.png", "raw/c.png", "lost+found/d.png", "[1]/e.png"}
    run_here("embed", MODEL, folder, "--out", tmp_path / "rows.npy", *options)
    with (tmp_path / "rows.csv").open() as file:
        assert {row["path"] for row in csv.DictReader(file)} == sources(tmp_path / "g")


def test_an_unreadable_folder_is_skipped_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if it becomes unreadable later: its items are not pruned."""
    folder = pictures(tmp_path / "p", "a/1.png", "a/2.png", "b/3.png", "private/4.png", "private/inner/5.png")
    index(folder, tmp_path / "g", capsys=capsys)
    scan = os.scandir

    def refuse(path: object) -> object:
        if str(path).endswith("private"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "scandir", refuse)
    status, report = index(folder, tmp_path / "g", "--prune", "--yes", "--strict", capsys=capsys)
    assert (status, report["unreadable"]) == (1, [["private", "Permission denied"]])
    assert (report["pruned"], report["items"]) == ([], 5)
    assert run_here("duplicates", folder, "--model", MODEL) == 0
    assert "private: Permission denied" in capsys.readouterr().out
    assert run_here("embed", MODEL, folder, "--out", tmp_path / "rows.npy", "--strict") == 1
    assert "private: Permission denied" in capsys.readouterr().err
    assert load_dataset("folder", "all", folder).classes == ("a", "b")
    assert "private" in capsys.readouterr().err
    with raises(DatasetError, "unreadable-file"):
        list_files(folder / "private")


@pytest.mark.slow
def test_endless_folders_and_too_long_paths_are_no_bugs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = pictures(tmp_path / "deep", "a.png")
    monkeypatch.chdir(folder)
    for name in (*["d"] * 1200, *["x" * 250] * 20):
        os.mkdir(name)  # noqa: PTH102  # paths from the root are too long for the system
        os.chdir(name)
        if name == "x" * 250 or os.listdir(os.pardir) == ["d"]:  # noqa: PTH208
            shutil.copy(folder / "a.png", "b.png")
    monkeypatch.chdir(folder)
    try:
        status, report = index(folder, tmp_path / "g", capsys=capsys)
        assert (status, report["items"]) == (0, 607), "one picture, at many places"
        assert len(report["unreadable"]) == 1
        assert run_here("embed", MODEL, folder, "--out", tmp_path / "rows.npy") == 0
        assert run_here("duplicates", folder, "--model", MODEL) == 0
    finally:
        subprocess.run(["rm", "-rf", folder], check=True)


# Names


NAMES = (
    b"Stra\xdfe_1.png",
    b"m\xfcller\xe4.png",
    b"m\xfcller\xf6.png",
    b"\xff/\xfe.png",
    b"a\nb.png",
    b"\\xe4.png",
    "ä.png",
)


@pytest.mark.slow
def test_names_that_are_not_utf_8_stay_findable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = pictures(tmp_path / os.fsdecode(b"p\xe4"), *NAMES)
    gallery = tmp_path / "g"
    for expected in (len(NAMES), 0):
        _, report = index(folder, gallery, "--prune", "--yes", capsys=capsys)
        assert (report["added"], report["pruned"], report["unreadable"]) == (expected, [], [])
    assert len(sources(gallery)) == len(NAMES)
    assert run_here("gallery rebuild", gallery, "--model", "photos", "--swap") == 0
    copies = tmp_path / "copies"
    shutil.copy(folder / os.fsdecode(NAMES[0]), folder / os.fsdecode(b"copy\xe9.png"))
    assert run_here("duplicates", folder, "--model", MODEL, "--move-to", copies) == 0
    assert [path.name for path in copies.glob("*.png")] == [os.fsdecode(b"copy\xe9.png")]
    capsys.readouterr()
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for words in (
        ["gallery", "list", gallery],
        ["search", gallery, "--id", "1"],
        ["index", "photos", folder, "--out", gallery],
    ):
        command = [sys.executable, "-m", "zoo.cli.main", *words]
        run = subprocess.run(command, env=environment, capture_output=True, check=False)
        assert (run.returncode, b"Traceback" in run.stderr) == (0, False), run.stderr


@given(st.binary(min_size=1, max_size=12))
def test_any_name_is_found_again(name: bytes) -> None:
    text = escaped(os.fsdecode(name))
    assert not CONTROL.search(text)
    if b"\\" not in name:
        assert os.fsencode(unescaped(text)) == name


# Tables of other systems


def table(folder: Path, *rows: tuple[object, ...]) -> Path:
    path = folder / "t.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("path", "label", "place"), *rows])
    return path


@pytest.mark.slow
def test_unicode_forms_are_equal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forms = {form: unicodedata.normalize(form, "Müller/Bild_ä.png") for form in ("NFC", "NFD")}
    for on_disk, written in (("NFC", "NFD"), ("NFD", "NFC")):
        folder, label = pictures(tmp_path / on_disk, forms[on_disk], "other.png"), forms[written].partition("/")[0]
        named = table(folder, (forms[written], label, label))
        outs = [tmp_path / f"{on_disk}-{kind}" for kind in ("folder", "labels", "table")]
        index(folder, outs[0], capsys=capsys)
        _, report = index(folder, outs[1], "--labels", named, capsys=capsys)
        assert report["labels_unused"] == []
        index(named, outs[2], capsys=capsys)
        for out in outs:
            with VectorGallery.open(out) as gallery:
                for form in ("NFC", "NFD"):
                    wanted = unicodedata.normalize(form, label)
                    assert gallery.store.count(Filter((wanted,))) == 1
                    assert gallery.store.count(Filter((), {"place": [wanted]})) == (out != outs[0])
        for out in outs:
            status, report = index(folder, out, capsys=capsys)
            assert (status, report["moved"], report["kept"]) == (0, 0, 0), "the same label again"


def test_backslashes_and_letter_case_are_understood_where_they_are_clear(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = pictures(tmp_path / "p", "Birds/IMG_1.PNG", "Birds/img_2.png", "Birds/Img_2.png", "ä\\b.png")
    named = table(folder, ("birds\\img_1.png", "wren", ""), ("ä\\b.png", "owl", ""), ("BIRDS/Img_2.png", "tit", ""))
    for images, options in ((folder, ("--labels", named)), (named, ())):
        out = tmp_path / f"g-{images.name}"
        index(images, out, *options, capsys=capsys)
        with VectorGallery.open(out) as gallery:
            labels = {item.source: item.label for item in gallery.store.items(limit=9) if item.label}
        assert labels == {"Birds/IMG_1.PNG": "wren", "ä\\b.png": "owl", "Birds/Img_2.png": "tit"}
    doubtful = table(folder, ("birds/IMG_2.png", "tit", ""), ("Birds/IMG_1.PNG", "wren", ""))
    for words in ((folder, "--labels", doubtful), (doubtful,)):
        with raises(UsageError, "invalid-table", "Img_2.png"):
            run_here("index", MODEL, *words, "--out", tmp_path / "g")
    assert main(["data", "folder", "--data", str(doubtful), "--out", str(tmp_path / "out")]) == 2


def test_names_are_found_by_the_nearest_spelling(tmp_path: Path) -> None:
    names = Names(["é.png", "É.png", "e\u0301.JPG"])
    assert (names.find("é.png"), names.find("e\u0301.png"), names.find("É.jpg")) == ("é.png", "é.png", "e\u0301.JPG")
    assert names.find("f.png") is None
    missing = FileFinder().find(tmp_path, "no\\such.png")
    assert missing == tmp_path / "no\\such.png", "a missing file keeps the name that was written"


# What the camera wrote


def test_facts_of_photographs_become_metadata(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = pictures(tmp_path / "p", "drawing.png")
    for number, (date, make) in enumerate((("2022:06:01 10:00:00", "Apple"), ("2023:07:02 11:00:00", "NIKON"))):
        exif = Image.Exif()
        exif[0x010F], exif[0x0110] = make, "One"
        exif.get_ifd(0x8769)[0x9003] = date
        exif.get_ifd(0x8825).update({1: "N", 2: (48.0, 30.0, 0.0), 3: "E", 4: (9.0, 3.0, 0.0)})
        noise = np.random.default_rng(number).integers(0, 256, (60, 80, 3), np.uint8)
        Image.fromarray(noise).save(folder / f"{number}.jpg", exif=exif.tobytes())
    shown = {"taken": "2023-07-02T11:00:00", "camera": "NIKON One", "width": 80, "height": 60}
    named = table(folder, ("0.jpg", "", ""), ("1.jpg", "", ""))
    named.write_text("path,camera\n1.jpg,mine\n")
    for out, options, expected in (
        ("plain", (), shown),
        ("places", ("--location",), {**shown, "latitude": 48.5, "longitude": 9.05}),
        ("table", ("--labels", named), {**shown, "camera": "mine"}),
    ):
        for _ in range(2):
            status, report = index(folder, tmp_path / out, *options, capsys=capsys)
            assert (status, report["moved"], report["items"]) == (0, 0, 3)
        where = {"taken": {"gte": "2023", "lt": "2024"}, "width": {"gte": 80}}
        with VectorGallery.open(tmp_path / out) as gallery:
            (item,) = gallery.store.items(limit=9, selection=Filter((), where))
            assert (item.source, item.metadata) == ("1.jpg", expected)
            assert {other.source: other.metadata for other in gallery.store.items(limit=9)}["drawing.png"] == {}


def photograph(path: Path, taken: str, sides: tuple[int, int] = (80, 60), seed: int = 0) -> None:
    exif = Image.Exif()
    exif.get_ifd(0x8769)[0x9003] = taken
    noise = np.random.default_rng(seed).integers(0, 256, (sides[1], sides[0], 3), np.uint8)
    Image.fromarray(noise).save(path, exif=exif.tobytes() if taken else b"")


def test_facts_follow_an_edited_photograph_unless_somebody_may_have_written_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = pictures(tmp_path / "p", "drawing.png")
    names = ("cropped", "dated", "corrected", "product")
    for seed, name in enumerate(names):
        photograph(folder / f"{name}.jpg", "" if name == "dated" else "2023:01:01 00:00:00", seed=seed)
    index(folder, tmp_path / "g", capsys=capsys)

    def known(name: str) -> dict[str, object]:
        with VectorGallery.open(tmp_path / "g") as gallery:
            (item,) = (item for item in gallery.store.items(limit=9) if item.source == f"{name}.jpg")
            return dict(item.metadata)

    with VectorGallery.open(tmp_path / "g") as gallery:
        (product,) = (item for item in gallery.store.items(limit=9) if item.source == "product.jpg")
        gallery.store.describe(product.id, metadata={**product.metadata, "width": 30, "height": 45})  # centimetres
    photograph(folder / "cropped.jpg", "", (50, 40))
    photograph(folder / "dated.jpg", "2020:05:05 00:00:00", seed=1)
    photograph(folder / "corrected.jpg", "2024:01:01 00:00:00", seed=2)
    photograph(folder / "product.jpg", "2023:01:01 00:00:00", (50, 40), seed=3)
    status, report = index(folder, tmp_path / "g", capsys=capsys)
    old, new = "2023-01-01T00:00:00", "2024-01-01T00:00:00"
    assert (status, report["replaced"], report["facts_kept"]) == (
        0, 4, [["corrected.jpg", ["taken"]], ["product.jpg", ["width", "height"]]]
    )  # fmt: skip
    assert known("cropped") == {"taken": old, "width": 50, "height": 40}
    assert known("dated") == {"taken": "2020-05-05T00:00:00", "width": 80, "height": 60}
    assert known("corrected") == {"taken": old, "width": 80, "height": 60}
    assert known("product") == {"taken": old, "width": 30, "height": 45}
    status, report = index(folder, tmp_path / "g", "--update", capsys=capsys)
    assert (status, report["moved"], known("corrected")["taken"]) == (0, 2, new)
    assert known("product")["width"] == 50
    assert index(folder, tmp_path / "g", "--update", capsys=capsys)[1]["moved"] == 0

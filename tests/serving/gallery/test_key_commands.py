"""Keys on the command line: `zoo gallery add`, `remove` and `list`, and `zoo search`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from serving.gallery import VectorGallery
from tests.commandline import run_here as run
from tests.raising import raises
from tests.serving.gallery.test_store_keys import noise
from zoo.errors import UsageError

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    made = [tmp_path / f"{number}.png" for number in range(3)]
    for number, file in enumerate(made):
        file.write_bytes(noise(number))
    return made


def test_add_list_search_and_remove(path: Path, files: list[Path], capsys: Capture) -> None:
    def said(*words: object, status: int = 0) -> str:
        capsys.readouterr()
        assert run(*words) == status
        return capsys.readouterr().out

    assert " key " not in said("gallery list", path).splitlines()[0]
    out = json.loads(said("gallery add", path, files[0], "--key", "a/0", "--label", "wren", "--json"))
    assert (out["status"], out["items"]) == ("created", 25)
    assert "replaced" in said("gallery add", path, files[1], "--key", "a/0", "--metadata", '{"year": 1908}')
    listed = said("gallery list", path, "--where", '{"year": 1908}').splitlines()
    assert listed[0].split()[:3] == ["id", "key", "label"]
    assert "a/0" in listed[-1]
    assert "a/0" in said("search", path, files[1], "-k", 1)
    (hit,) = json.loads(said("search", path, files[1], "-k", 1, "--json"))["results"]
    assert (hit["key"], hit["label"], hit["source"]) == ("a/0", None, str(files[1]))
    said("gallery add", path, files[2], "--key", "b")
    said("gallery add", path, files[2], "--key", "a/0")
    said_search = said("search", path, files[2], "-k", 1)
    assert "also with the key b" in said_search
    assert "a/0" in said_search
    assert "2 removed, 1 not there" in said(
        "gallery remove", path, *("--key", "a/0", "--key", "b", "--key", "c"), status=2
    )
    with VectorGallery.open(path) as gallery:
        assert gallery.store.count() == 24


def test_what_makes_no_sense_is_refused(path: Path, files: list[Path], capsys: Capture) -> None:
    with raises(UsageError, "conflicting-options"):
        run("gallery add", path, *files[:2], "--key", "k")
    with raises(UsageError, "conflicting-options"):
        run("gallery add", path, files[0], "--key", "k", "--update")
    with raises(UsageError, "invalid-item"):
        run("gallery add", path, files[0], "--key", "a\nb")
    for words in ((), (1, "--key", "k"), ("--key", "k", "--label", "l"), (1, "--label", "l")):
        with raises(UsageError, "conflicting-options"):
            run("gallery remove", path, *words)
    files[0].write_bytes(b"no picture")
    assert run("gallery add", path, files[0], "--key", "k") == 1
    assert "left out" in capsys.readouterr().out
    Image.new("RGB", (9, 9)).save(files[0])
    with VectorGallery.open(path) as gallery:
        assert gallery.store.count() == 24

"""`zoo gallery` and missing, damaged or removed things: messages and exit statuses."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import pytest

from serving.gallery import Gallery
from serving.gallery.gallery import STORE
from tests.serving.here import Terminal
from zoo.cli.main import main

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def gallery(gallery_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(gallery_folder, tmp_path / "gallery"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["gallery", "list", "nothing"],
            "nothing is not there. Make a gallery with: zoo index MODEL DIR",
        ),
        (["gallery", "stats", "."], "holds no gallery"),
        (["gallery", "verify", "nothing"], "nothing is not there"),
        (["gallery", "export", "nothing", "out"], "nothing is not there"),
        (["gallery", "import", "nothing", "out"], "zoo gallery export writes one, with items.parquet"),
        (["gallery", "import", "gallery", "out"], "It holds a gallery itself"),
        (["gallery", "backup", "nothing", "out"], "nothing is not there"),
        (["gallery", "backup", "gallery", "gallery"], "is not empty; choose a new folder"),
        (["gallery", "restore", "nothing", "out"], "nothing is no backup"),
        (["gallery", "remove", "gallery", "99"], ""),
        (["gallery", "remove", "gallery"], "--label"),
        (["gallery", "remove", "gallery", "--label", "no such"], "no item has the label 'no such'"),
        (["search", "nothing", "query.png"], "nothing is not there"),
        (["serve", "nothing"], "nothing is not there"),
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
    for part in (f"{store}, which holds all of the gallery, is damaged (", "zoo gallery verify", "zoo gallery restore"):
        assert part in message
    assert main(["gallery", "verify", str(gallery)]) == 1
    assert "FAILED" in capsys.readouterr().out


def _labels(gallery: Path) -> list[str | None]:
    with Gallery.open(gallery) as opened:
        return list(opened.labels().values())


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
    with Gallery.open(gallery) as opened:
        opened.describe(opened.items(0, 1)[0].id, label="alone")
    assert main([*command[:-1], "alone"]) == 2
    assert "1 item of the label 'alone'" in capsys.readouterr().err
    assert main(["gallery", "remove", str(gallery), "--label", str(rest[0]), "--yes"]) == 0
    assert str(rest[0]) not in _labels(gallery)

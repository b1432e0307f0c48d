"""What is said of a large gallery that was never tuned, and of what a filter names and no item has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from serving.gallery import Gallery
from serving.gallery import gallery as hints
from serving.gallery.filters import Filter
from tests.commandline import run_here

SAID = "never tuned: each search looks at all 24 items"


@pytest.fixture
def gallery(model_folder: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    run_here("index", model_folder, pictures, "--out", tmp_path / "g")
    assert "tune" not in capsys.readouterr().out
    return tmp_path / "g"


def test_a_large_gallery_is_to_be_tuned_and_a_tuned_one_is_not(
    gallery: Path,
    model_folder: Path,
    pictures: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(hints, "LARGE", 23)
    run_here("index", model_folder, pictures, "--out", gallery)
    assert capsys.readouterr().out.splitlines()[-1].startswith(SAID)
    run_here("gallery stats", gallery)
    assert (
        f"{SAID}. A faster index that finds 99 % of the nearest: zoo gallery tune {gallery}" in capsys.readouterr().out
    )
    run_here("gallery stats", gallery, "--json")
    assert json.loads(capsys.readouterr().out)["index"]["hint"].startswith(SAID)
    run_here("gallery tune", gallery, "--kind", "flat")
    run_here("gallery stats", gallery)
    run_here("index", model_folder, pictures, "--out", gallery)
    assert "never tuned" not in capsys.readouterr().out


def test_a_small_gallery_is_left_in_peace(
    gallery: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hints, "LARGE", 24)
    run_here("gallery stats", gallery)
    assert "tune" not in capsys.readouterr().out
    run_here("gallery stats", gallery, "--json")
    assert json.loads(capsys.readouterr().out)["index"]["hint"] is None


def test_keys_that_no_metadata_have_are_noted_where_nothing_was_found(
    gallery: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    misspelt = Filter(where={"yeer": 1908, "Rome": "x", "year": [1908], "none": None})
    with Gallery.open(gallery) as opened:
        opened.describe(2, None, {"year": 1908, "none": None})
        opened.describe(3, None, {"place": [], "Rome": {"x": 1}})
        assert hints.notes(opened, misspelt, found=False) == [
            "No item has metadata called 'yeer'. Did you mean 'year'?"
        ]
        assert hints.notes(opened, misspelt, found=True) == []
        assert len(hints.notes(opened, Filter(("zzz",), {str(n): n for n in range(9)}), found=False)) == 4
        monkeypatch.setattr(hints, "COMPARED", 2)
        assert hints.notes(opened, Filter(where={"place": "Rome"}), found=False) == [
            "None of the first 2 items has metadata called 'place'."
        ]

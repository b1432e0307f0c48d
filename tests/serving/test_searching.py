"""What one search reads."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from serving.asking import Search
from serving.gallery import Gallery
from serving.gallery.calibration import calibrate_gallery
from serving.gallery.search import Searcher, SearchOptions
from serving.searching import _found
from zoo.errors import UsageError
from zoo.models.load import Embedder


def test_a_search_cuts_and_tells_by_one_calibration_that_is_read_once(
    gallery_folder: Path, model: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(gallery_folder, tmp_path / "g")
    with Gallery.open(tmp_path / "g") as gallery:
        searcher = Searcher(gallery, model)
        with pytest.raises(UsageError, match="mark results"):
            _found(searcher, Search(SearchOptions(min_p=0.5), item=1), "")
        calibrate_gallery(gallery)
        read, fact = [], gallery.store.fact
        monkeypatch.setattr(gallery.store, "fact", lambda key: read.append(key) or fact(key))
        for least in (None, 0.5):
            found = _found(searcher, Search(SearchOptions(k=24, min_p=least), item=1), "")
            assert read == ["calibration"]
            assert all(one["p_same"] >= (least or 0) for one in found["results"])
            read.clear()
        assert len(found["results"]) < 23
